"""One proposer's connection, or an operator's: frames to events, effects to frames.

It never decides. The first greeting of a connection fixes its log, and the core handles all that
follows. The catalogue answers requests for creation and status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.shell.framed_connection import FramedConnection, TakeFrames
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    PromiseMembers,
)
from walkeeper_common.wire.messages import (
    AppendRequest,
    ProposerGreeting,
    Reject,
    RejectCode,
)
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_common.wire.requests import (
    ConfigureLog,
    LogQuery,
    PrepareLog,
    StatusRequest,
)
from walkeeper_common.wire.timeline_reservation import ReserveTimeline
from walkeeper_safekeeper.consensus.acceptor_events import ConnectionLost, Received
from walkeeper_safekeeper.consensus.member_register import MembersRequest
from walkeeper_safekeeper.hosted_log import HostedLog
from walkeeper_safekeeper.log_catalog import AdminRequest

ADMIN_REQUESTS_MAX = 16
PROPOSERS_KNOWN_MAX = 100  # for `status`; each try of a proposer greets under a fresh id


class LogCatalog(Protocol):
    """The session's port to the catalogue."""

    def hosted(self, cluster: str) -> HostedLog | Reject:
        """Return the log, or a Reject with the reason."""
        ...

    async def administer(self, ask: AdminRequest) -> Message: ...


class ProposerSession:
    """The owner of one FramedConnection; `number` is never used again."""

    def __init__(
        self,
        connection: FramedConnection,
        catalog: LogCatalog,
        number: int,
        start: Callable[..., asyncio.Task[None]],
        among: set[ProposerSession],
    ) -> None:
        """Add this session to the open ones in `among`, until it is closed."""
        self.connection, self._catalog, self._number = connection, catalog, number
        self._start = start
        self._log: HostedLog | None = None
        self._pending = 0
        self._among = among
        among.add(self)
        self.on_frames: TakeFrames = _takes_nothing

    def on_message(self, message: Message) -> None:
        match message:
            case AppendRequest() if self._log is not None:
                self._post(message)
            case LogQuery() | PrepareLog() | ConfigureLog() | StatusRequest() | JoinLog():
                self._administer(message)
            case ReserveTimeline():
                self._administer(message)
            case PrimaryReport():
                self._learn(message)
            case ProposerGreeting():
                self._greet(message)
            case MembersQuery() | PromiseMembers() | AcceptMembers() | InstallMembers():
                self._change_members(message)
            case _ if self._log is None:
                text = f"{type(message).__name__} before a greeting"
                self.send(Reject(RejectCode.REFUSED, text, NO_BALLOT))
                self.connection.close(text)
            case _:
                self._post(message)

    def _greet(self, greeting: ProposerGreeting) -> None:
        log = self._log_of(greeting.cluster)
        if log is not None:
            self._remember(log, greeting)
            self._post(greeting)

    def _learn(self, report: PrimaryReport) -> None:
        """Keep the report for `status`; a log that is not served here needs none."""
        found = self._catalog.hosted(report.cluster)
        if not isinstance(found, Reject):
            found.primary.learn(report)

    def _change_members(self, ask: MembersRequest) -> None:
        if self._log_of(ask.cluster) is not None:
            self._post(ask)

    def _log_of(self, cluster: str) -> HostedLog | None:
        """Fix and return the log of this connection, or refuse the peer and return None."""
        found = self._catalog.hosted(cluster)
        if isinstance(found, Reject):
            self.send(found)
            return None
        if self._log is not None and self._log is not found:
            self.connection.close("one connection speaks of one cluster")
            return None
        self._log = found
        found.sessions[self._number] = self
        append = found.driver.append_at_once  # the next WAL of a steady leader
        self.on_frames = partial(append, self._number, self.connection.write)
        return found

    def _remember(self, log: HostedLog, greeting: ProposerGreeting) -> None:
        """Remember the newest proposers and the leader; greetings must not fill the memory."""
        known, leader_id = log.proposers, log.driver.acceptor.durable.ballot.proposer_id
        known.pop(greeting.proposer_id, None)
        known[greeting.proposer_id] = (self.connection.peer, greeting.application_name)
        if len(known) > PROPOSERS_KNOWN_MAX:
            del known[next(known_id for known_id in known if known_id != leader_id)]

    def _post(self, message: Message) -> None:
        assert self._log is not None
        self._log.driver.post(Received(self._number, message))
        if self._log.driver.is_busy:
            self.connection.pause_reading()
            self._log.paused.append(self)

    def _administer(self, ask: AdminRequest) -> None:
        if self._pending >= ADMIN_REQUESTS_MAX:
            self.connection.close("too many requests at once")
            return
        self._pending += 1
        self._start(self._answer(ask), name=f"request of {self.connection.peer}")

    async def _answer(self, ask: AdminRequest) -> None:
        try:
            answer = await self._catalog.administer(ask)
        except WalkeeperError as error:
            answer = Reject(RejectCode.REFUSED, str(error), NO_BALLOT)
        self._pending -= 1
        self.send(answer)

    def send(self, message: Message) -> None:
        self.connection.send(message)

    def receives_more(self) -> bool:
        return self.connection.receives_more()

    def resume(self) -> None:
        self.connection.resume_reading()

    def on_closed(self, reason: str) -> None:
        self._among.discard(self)
        if self._log is not None:
            self._log.sessions.pop(self._number, None)
            self._log.driver.post(ConnectionLost(self._number))


def _takes_nothing(memory: bytearray, size: int) -> int:
    """Take no bytes before a greeting has named a log."""
    return 0
