"""docs/reference/metrics.md, from the definitions of each daemon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from walkeeper_common.metrics import BUILD_INFO, CERTIFICATE_END, HTTP_REFUSALS, Metric
from walkeeper_pager.pager_metrics import METRICS as OF_PAGER
from walkeeper_proposer.proposer_metrics import METRICS as OF_PROPOSER
from walkeeper_safekeeper.safekeeper_metrics import METRICS as OF_SAFEKEEPER

DAEMONS: dict[str, Sequence[Metric]] = {
    "every daemon": (BUILD_INFO, CERTIFICATE_END, HTTP_REFUSALS),
    "walkeeper safekeeper": OF_SAFEKEEPER,
    "walkeeper proposer": OF_PROPOSER,
    "walkeeper pager": OF_PAGER,
}
METRICS: dict[str, Metric] = {m.name: m for each in DAEMONS.values() for m in each}
HEAD = """# Metrics

Each daemon with `--http` has these figures in `/metrics`, in Prometheus' text format. A histogram
`NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. LSNs are in bytes. This page, the
[alert rules](../monitoring/alerts.yml) and the [dashboard](../monitoring/dashboard.json) are
generated from the definitions in the source.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join([HEAD, *(line for name in DAEMONS for line in _section(name))])


def _section(daemon: str) -> Iterator[str]:
    yield f"## {daemon}\n"
    yield "| metric | type | unit | labels | meaning |"
    yield "|---|---|---|---|---|"
    for metric in DAEMONS[daemon]:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        cells = (f"`{metric.name}`", metric.kind.value, metric.unit or "-", labels, metric.help)
        yield f"| {' | '.join(cells)} |"
    yield ""
