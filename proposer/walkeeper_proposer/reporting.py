"""Tells each safekeeper about the primary, and the log about incidents. An asyncio shell.

    PrimaryReporter(…).run()     until cancelled

Each safekeeper has a connection of its own for this, since one of an older version closes it. The
links that carry WAL are not involved. Only a proposer that leads reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import time
from typing import NoReturn

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.quorum import member_id
from walkeeper_common.shell.operator_log import log_note
from walkeeper_common.shell.safekeeper_connection import open_streams
from walkeeper_common.shell.tls_transport import identity_of
from walkeeper_common.wire.conversation import Conversation
from walkeeper_common.wire.primary_report import LOWERED_MAX, PrimaryReport, clipped
from walkeeper_common.zones import lacking_zones
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.incidents import Incidents, LeaderView, MemberView
from walkeeper_proposer.postgres.sync_state import SyncState

logger = logging.getLogger("walkeeper.commits")

REPORT_S = 10.0
LOOK_S = 0.5
SEND_TIMEOUT_S = 5.0


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
        """Report nothing yet. `repair` returns a text about a repair, or an empty one."""
        self._cluster, self._core, self._addresses = cluster, core, addresses
        self._repair = repair
        self._sync_state = sync_state
        self._since, self._state = 0, (False, False, "")

    async def run(self) -> NoReturn:
        """Report until cancelled. A safekeeper that hangs delays the others by SEND_TIMEOUT_S."""
        loop = asyncio.get_running_loop()
        told: PrimaryReport | None = None
        told_at = 0.0
        while True:
            report = self.report()
            if report is not None and (report != told or loop.time() - told_at >= REPORT_S):
                told, told_at = report, loop.time()
                await asyncio.gather(*(_send(each, report) for each in self._addresses()))
            await asyncio.sleep(LOOK_S)

    async def watch(self) -> NoReturn:
        """Log members that leave or come back, and commits that hang, until cancelled."""
        incidents, loop = Incidents(), asyncio.get_running_loop()
        while True:
            for line in incidents.observe(self._view(), loop.time()):
                log_note(logger, line.text, (), line.severity)
            await asyncio.sleep(LOOK_S)

    def _view(self) -> LeaderView | None:
        core, addresses = self._core(), self._addresses()
        leader = core.leader
        if leader is None:
            return None
        members = [
            MemberView(
                shown_address(addresses[member.link]),
                member_id(member.name) if member.name else None,
                member.attached,
            )
            for member in core.members
        ]
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

    def report(self) -> PrimaryReport | None:
        """Return the present report, or None if this proposer does not lead."""
        core, commits = self._core(), self._sync_state.commits
        if core.leader is None:
            return None
        connected, streaming = core.primary is not None, core.leader.is_streaming
        sync_state = (commits.sync_state or "") if connected else ""
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
            error="" if connected else clipped(commits.error),
            repair=clipped(self._repair()),
        )


async def _send(address: Address, report: PrimaryReport) -> None:
    """Connect, send and close. A safekeeper that is away learns the next report."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            _, writer = await open_streams(address)
            try:
                writer.write(Conversation(identity_of(writer.transport)).ask(report))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return
