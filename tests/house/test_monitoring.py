"""The metrics' page, the alert rules and the dashboard against the definitions.

REWRITE=1 pytest writes them. promtool, of Debian's package prometheus, reads the rules and fires
each of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.monitoring.alerts import ALERTS, SUFFIX, alert_table, alerts, names_in, rule_tests
from tests.house.monitoring.dashboard import dashboard, shown
from tests.house.monitoring.metrics_page import METRICS, page
from tests.support.folders import ROOT
from walkeeper_common.metrics import BOUNDS_S, Kind, Metric, Times

GENERATED = {
    "docs/reference/metrics.md": lambda: page() + alert_table(),
    "docs/monitoring/alerts.yml": alerts,
    "docs/monitoring/dashboard.json": dashboard,
}
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
            known = SUFFIX.sub("", name)  # the parts of a histogram
            if not any(each.startswith(known) for each in METRICS):
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


def test_an_alert_reads_metrics_that_exist_and_names_a_runbook() -> None:
    runbooks = (ROOT / "docs/runbooks.md").read_text()
    headings = set(", ".join(re.findall(r"^## (.+)$", runbooks, re.MULTILINE)).split(", "))
    assert len({alert.name for alert in ALERTS}) == len(ALERTS) >= 17
    for alert in ALERTS:
        assert names_in(alert.expr) and names_in(alert.expr) <= set(METRICS), alert.name
        assert alert.runbook in headings, alert.name
        assert {name for series in alert.fault for name in names_in(series)} <= set(METRICS)


def test_the_dashboard_shows_every_metric() -> None:
    assert shown() == set(METRICS)


@pytest.mark.soak
def test_promtool_reads_the_rules_and_fires_each_alert(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: apt install prometheus")
    shutil.copy(ROOT / "docs/monitoring/alerts.yml", tmp_path)
    (tmp_path / "tests.yml").write_text(rule_tests())
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "tests.yml"]):
        done = subprocess.run([promtool, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
