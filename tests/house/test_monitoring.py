"""docs/reference/metrics.md against the definitions. REWRITE=1 pytest writes it."""

from __future__ import annotations

import os
import re

import pytest

from tests.house.monitoring.page import METRICS, page
from tests.support.folders import ROOT
from walkeeper_common.metrics import BOUNDS_S, Kind, Metric, Times

GENERATED = {"docs/reference/metrics.md": page}
NAME = re.compile(r"\bwalkeeper_(?:safekeeper|proposer|member)_[a-z_]+")
REWRITE = "REWRITE=1 pytest tests/house/test_monitoring.py"


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_file_is_current(name: str) -> None:
    path, text = ROOT / name, GENERATED[name]()
    if os.environ.get("REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists() and path.read_text() == text, REWRITE


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_metrics_name_tells_its_kind_and_unit(metric: Metric) -> None:
    """As Prometheus' conventions want it: promtool check metrics."""
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.help.endswith(".") and re.fullmatch(r"walkeeper_[a-z_]+", metric.name)
    if metric.kind is Kind.HISTOGRAM:
        assert metric.name.endswith("_seconds")
    if metric.unit and not metric.name.startswith("walkeeper_pager_"):
        assert metric.name.endswith(f"_{metric.unit}")


def test_no_page_names_a_metric_that_is_not_there() -> None:
    wrong = []
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        for name in NAME.findall(path.read_text()):
            if not any(each.startswith(name) for each in METRICS):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, wrong


def test_a_histogram_counts_each_duration_once() -> None:
    times = Times()
    for seconds in (0.0, BOUNDS_S[0], 0.0002, 0.3, 99.0):
        times.observe(seconds)
    buckets = dict(times.buckets())
    assert (buckets["0.0001"], buckets["0.00025"], buckets["0.5"]) == (2, 3, 4)
    assert (buckets["10.0"], buckets["+Inf"]) == (4, 5)
    assert times.sum_s == pytest.approx(99.3003)
