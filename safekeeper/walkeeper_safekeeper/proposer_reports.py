"""The last reports of proposers, in memory only. Pure.

learn(report)     a proposer's; `status` shows that of the elected one
tick()            each heartbeat: an old report is forgotten
"""

from __future__ import annotations

from typing import Generic, TypeVar

from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.primary_report import PrimaryReport

TICKS_MAX = 30  # a proposer repeats its report every REPORT_S
REPORTS_MAX = 8  # by different proposers, as anybody who reaches the port can send one
Report = TypeVar("Report", PrimaryReport, MembersReport)


class ProposerReports(Generic[Report]):
    """The reports of one kind by proposer, the newest last."""

    def __init__(self) -> None:
        self._reports: dict[bytes, tuple[Report, int]] = {}
        self._ticks = 0

    def learn(self, report: Report) -> None:
        """Keep the report in the place of this proposer's last one."""
        self._reports.pop(report.proposer_id, None)
        self._reports[report.proposer_id] = (report, self._ticks)
        if len(self._reports) > REPORTS_MAX:
            del self._reports[next(iter(self._reports))]

    def tick(self) -> None:
        """Count one heartbeat, and forget reports that are older than TICKS_MAX."""
        self._ticks += 1
        for proposer_id, (_, at_ticks) in list(self._reports.items()):
            if self._ticks - at_ticks > TICKS_MAX:
                del self._reports[proposer_id]

    def of(self, proposer_id: bytes) -> Report | None:
        """Return this proposer's report, or None if there is none that is recent."""
        found = self._reports.get(proposer_id)
        return None if found is None else found[0]
