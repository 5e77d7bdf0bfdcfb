"""docs/monitoring/dashboard.json, for Grafana: the figures an operator looks at first, then all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.house.monitoring.alerts import names_in
from tests.house.monitoring.metrics_page import DAEMONS, METRICS
from walkeeper_common.metrics import Kind, Metric

SOURCE = {"type": "prometheus", "uid": "${source}"}
UNITS = {"bytes": "bytes", "seconds": "s", "": "short"}
WIDTH = 24
ON_CLUSTER = '{cluster=~"$cluster"}'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a title, and expressions with their legends."""

    title: str
    targets: tuple[tuple[str, str], ...]
    unit: str = ""
    is_stat: bool = False


def _p(quantile: float, name: str, by: str) -> str:
    rate = f"rate({name}_bucket{ON_CLUSTER}[5m])"
    return f"histogram_quantile({quantile}, sum by ({by}, le) ({rate}))"


FIRST = (
    Panel(
        "Quorum",
        ((f"max by (cluster) (walkeeper_proposer_quorum{ON_CLUSTER})", "{{cluster}}"),),
        is_stat=True,
    ),
    Panel(
        "Protected",
        ((f"max by (cluster) (walkeeper_proposer_synchronous{ON_CLUSTER})", "{{cluster}}"),),
        is_stat=True,
    ),
    Panel(
        "Members attached",
        ((f"sum by (cluster) (walkeeper_member_attached{ON_CLUSTER})", "{{cluster}}"),),
        is_stat=True,
    ),
    Panel(
        "Commits that wait",
        ((f"max by (cluster) (walkeeper_proposer_commits_waiting{ON_CLUSTER})", "{{cluster}}"),),
        is_stat=True,
    ),
    Panel(
        "Time of commits",
        (
            (_p(0.5, "walkeeper_proposer_commit_seconds", "cluster"), "half of {{cluster}}"),
            (_p(0.99, "walkeeper_proposer_commit_seconds", "cluster"), "99 % of {{cluster}}"),
        ),
        "seconds",
    ),
    Panel(
        "Time of fsyncs, 99 %",
        (
            (
                _p(0.99, "walkeeper_safekeeper_fsync_seconds", "cluster, safekeeper"),
                "{{safekeeper}}",
            ),
        ),
        "seconds",
    ),
    Panel(
        "WAL a second",
        ((f"rate(walkeeper_proposer_commit_lsn_bytes{ON_CLUSTER}[1m])", "{{cluster}}"),),
        "bytes",
    ),
    Panel(
        "Lag of members",
        ((f"walkeeper_member_lag_bytes{ON_CLUSTER}", "{{safekeeper}}"),),
        "bytes",
    ),
    Panel(
        "Free space", (("walkeeper_safekeeper_free_bytes", "safekeeper {{safekeeper}}"),), "bytes"
    ),
    Panel(
        "WAL not archived",
        (
            (
                f"walkeeper_safekeeper_commit_lsn_bytes{ON_CLUSTER}"
                f" - walkeeper_safekeeper_archived_lsn_bytes{ON_CLUSTER}",
                "safekeeper {{safekeeper}}",
            ),
        ),
        "bytes",
    ),
)


def _of(metric: Metric) -> Panel:
    """Return the panel of a metric that no other panel shows."""
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or metric.name
    name = metric.name + (ON_CLUSTER if "cluster" in metric.labels else "")
    if metric.kind is Kind.COUNTER:
        return Panel(metric.help.rstrip("."), ((f"rate({name}[5m])", legend),))
    if metric.kind is Kind.HISTOGRAM:
        expr = _p(0.99, metric.name, ", ".join(metric.labels))
        return Panel(metric.help.rstrip("."), ((expr, legend),), "seconds")
    return Panel(metric.help.rstrip("."), ((name, legend),), metric.unit)


def rest() -> list[Panel]:
    """Return a panel for each metric that FIRST lacks."""
    seen = {name for panel in FIRST for expr, _ in panel.targets for name in names_in(expr)}
    return [_of(metric) for each in DAEMONS.values() for metric in each if metric.name not in seen]


def _placed() -> Iterator[dict[str, object]]:
    x = y = 0
    for number, panel in enumerate((*FIRST, *rest()), 1):
        width, height = (6, 4) if panel.is_stat else (12, 7)
        if x + width > WIDTH:
            x, y = 0, y + height
        yield {
            "id": number,
            "title": panel.title,
            "type": "stat" if panel.is_stat else "timeseries",
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": width, "h": height},
            "fieldConfig": {"defaults": {"unit": UNITS[panel.unit]}, "overrides": []},
            "targets": [
                {"refId": chr(65 + place), "expr": expr, "legendFormat": legend}
                for place, (expr, legend) in enumerate(panel.targets)
            ],
        }
        x += width
        if x >= WIDTH:
            x, y = 0, y + height


def dashboard() -> str:
    """Return the text of the dashboard."""
    variables = [
        {"name": "source", "type": "datasource", "query": "prometheus"},
        {
            "name": "cluster",
            "type": "query",
            "datasource": SOURCE,
            "query": "label_values(walkeeper_proposer_leading, cluster)",
            "includeAll": True,
            "multi": True,
            "refresh": 2,
        },
    ]
    document = {
        "title": "walkeeper",
        "uid": "walkeeper",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": list(_placed()),
    }
    return json.dumps(document, indent=1) + "\n"


def shown() -> set[str]:
    """Return the metrics that some panel shows."""
    panels = (*FIRST, *rest())
    return {n for p in panels for e, _ in p.targets for n in names_in(e)} & set(METRICS)
