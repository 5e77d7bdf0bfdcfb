"""The figures of a pager's /metrics, in one table."""

from __future__ import annotations

from walkeeper_common.metrics import Figure, gauge
from walkeeper_pager.pager import PagerState

FIGURES: tuple[Figure[tuple[PagerState, int]], ...] = (
    Figure(
        gauge("walkeeper_pager_received_lsn", "The end of received WAL.", unit="bytes"),
        lambda seen: seen[0].received_lsn,
    ),
    Figure(
        gauge("walkeeper_pager_applied_lsn", "The end of the last usable record.", unit="bytes"),
        lambda seen: seen[0].applied_lsn,
    ),
    Figure(
        gauge("walkeeper_pager_horizon_lsn", "Older pages are no longer kept.", unit="bytes"),
        lambda seen: seen[0].horizon_lsn,
    ),
    Figure(
        gauge("walkeeper_pager_indexed_blocks", "Block references in the history."),
        lambda seen: seen[0].indexed_blocks,
    ),
    Figure(
        gauge("walkeeper_pager_waiting", "Requests for an LSN that is still to come."),
        lambda seen: seen[1],
    ),
)
METRICS = tuple(figure.metric for figure in FIGURES)
