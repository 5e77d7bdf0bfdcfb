"""Tells each safekeeper of the primary and of absent members, and the log of incidents. A shell.

    PrimaryReporter(…).run()     until cancelled

Each safekeeper has a connection of its own for this, since one of an older version closes it
(report_delivery). The links that carry WAL are not involved. Only a proposer that leads reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import time
from typing import NoReturn

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.operator_text.zones import lacking_zones
from walkeeper_common.quorum import member_id
from walkeeper_common.shell.log_lines.operator_log import log_note
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.primary_report import LOWERED_MAX, PrimaryReport, clipped
from walkeeper_proposer.away_members import AwayMembers, MemberView
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.incidents import Incidents, LeaderView
from walkeeper_proposer.postgres.sync_state import ABSENT, SyncState
from walkeeper_proposer.report_delivery import ReportDelivery

logger = logging.getLogger("walkeeper.commits")

REPORT_S = 10.0
LOOK_S = 0.5


class PrimaryReporter:
    """Looks at the core each LOOK_S; sends a changed report at once, and each REPORT_S anyway."""

    def __init__(
        self,
        cluster: str,
        core: Callable[[], Proposer],
        addresses: Callable[[], Sequence[Address]],
        sync_state: SyncState,
        repair: Callable[[], str] = lambda: "",
    ) -> None:
        """Report nothing yet. `repair` returns a text about a repair, or an empty text."""
        self._cluster, self._core, self._addresses = cluster, core, addresses
        self._repair = repair
        self._sync_state = sync_state
        self._since, self._state = 0, (False, False, "")
        self._away = AwayMembers()
        self._delivery = ReportDelivery(cluster)

    async def run(self) -> NoReturn:
        """Report until cancelled. A safekeeper that hangs delays the others by SEND_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        last_reports: tuple[Message, ...] = ()
        reported_s = 0.0
        while True:
            reports = self.reports()
            if reports and (reports != last_reports or loop.time() - reported_s >= REPORT_S):
                last_reports, reported_s = reports, loop.time()
                greetings = {member.link: member.greeting for member in self._core().members}
                await asyncio.gather(
                    *(
                        self._delivery.send(address, reports, greetings.get(link))
                        for link, address in enumerate(self._addresses())
                    )
                )
            await asyncio.sleep(LOOK_S)

    async def watch(self) -> NoReturn:
        """Log members that leave or come back, and commits that hang, until cancelled.

        The primary, asked soon while WAL waits, says how many commits wait and since when."""
        incidents, loop = Incidents(), asyncio.get_running_loop()
        while True:
            for line in incidents.observe(self._view(), loop.time()):
                log_note(logger, line.text, (), line.severity)
            if incidents.has_waited(loop.time()):
                self._sync_state.ask_soon()
            await asyncio.sleep(LOOK_S)

    def _view(self) -> LeaderView | None:
        core = self._core()
        leader = core.leader
        if leader is None:
            return None
        members = self._members()
        configuration = leader.configuration
        quorum = configuration.holders_min
        here = [member.name for member in core.members if member.attached]
        return LeaderView(
            members,
            quorum,
            leader.commit_lsn,
            leader.window.end_lsn,
            is_waited_for=self._sync_state.is_waited_for is not False,
            lowered=self._sync_state.commits.lowered,
            lacks=lacking_zones(configuration.sets, here) or "",
        )

    def _members(self) -> list[MemberView]:
        addresses = self._addresses()
        return [
            MemberView(
                shown_address(addresses[member.link]),
                member_id(member.name) if member.name else None,
                member.attached,
            )
            for member in self._core().members
        ]

    def reports(self) -> tuple[Message, ...]:
        """Return the present reports, or none if this proposer does not lead.

        A safekeeper of an older version closes the connection on the second one."""
        report = self.report()
        if report is None:
            return ()
        away = self._away.observe(self._members(), int(time()))
        return report, MembersReport(report.cluster, report.proposer_id, away)

    def report(self) -> PrimaryReport | None:
        """Return the present report on the primary, or None if this proposer does not lead."""
        core, commits = self._core(), self._sync_state.commits
        if core.leader is None:
            return None
        connected, streaming = core.primary is not None, core.leader.is_streaming
        # An answer without a row for us is older than the connection.
        is_known = connected and commits.sync_state not in (None, ABSENT)
        sync_state = commits.sync_state or "" if is_known else ""
        state = (connected, streaming, sync_state)
        if state != self._state or not self._since:
            self._state, self._since = state, int(time())
        return PrimaryReport(
            cluster=self._cluster,
            proposer_id=core.ballot.proposer_id,
            connected=connected,
            streaming=streaming,
            sync_state=clipped(sync_state),
            since=self._since,
            waiting=commits.waiting if connected else 0,
            waiting_since=commits.waiting_since if connected else 0,
            lowered=tuple(map(clipped, commits.lowered[:LOWERED_MAX])),
            error=clipped(commits.error),
            repair=clipped(self._repair()),
        )
