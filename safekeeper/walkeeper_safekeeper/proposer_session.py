"""One proposer's connection, or an operator's: frames to events, effects to frames.

It never decides. The first greeting of a connection fixes its log, and the core handles all that
follows. The catalogue answers requests for creation and status. `permissions` says what the peer's
role may send. The session checks that at the head of a frame, before the body arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from walkeeper_common.access.identity import ANYBODY, Identity
from walkeeper_common.errors import RemoteProtocolError, WalkeeperError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection, TakeFrames
from walkeeper_common.wire.framing import Message, first_frame_limit, frame_limit
from walkeeper_common.wire.log_removal import DropLog
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    PromiseMembers,
)
from walkeeper_common.wire.members_report import MembersReport
from walkeeper_common.wire.messages import (
    AppendRequest,
    ProposerElected,
    ProposerGreeting,
    Reject,
    RejectCode,
)
from walkeeper_common.wire.primary_report import PrimaryReport
from walkeeper_common.wire.range_digest import DigestQuery
from walkeeper_common.wire.requests import (
    ConfigureLog,
    LogQuery,
    PrepareLog,
    ReadRequest,
    StatusRequest,
)
from walkeeper_common.wire.shared_slots import SharedSlots
from walkeeper_common.wire.timeline_reservation import ReserveTimeline
from walkeeper_safekeeper.connections.permissions import (
    is_known,
    kind_name,
    may_reach,
    may_read,
    tags_of,
)
from walkeeper_safekeeper.consensus.acceptor_events import ConnectionLost, Received
from walkeeper_safekeeper.consensus.member_register import MembersRequest
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.log_catalog import AdminRequest
from walkeeper_safekeeper.requested_reads import RequestedReads

ADMIN_REQUESTS_MAX = 16
_READS = "reads"  # why a connection is not read: enough reads wait

_ACTS = {  # the requests that change the disk, by their words in the audit
    PrepareLog: "prepare",
    ConfigureLog: "create",
    JoinLog: "join",
    ReserveTimeline: "reserve-timeline",
    DropLog: "drop",
}


class LogCatalog(Protocol):
    """The session's port to the catalogue."""

    def hosted(self, cluster: str) -> HostedLog | Reject:
        """Return the log, or a Reject with the reason."""
        ...

    async def administer(self, ask: AdminRequest) -> Message: ...


class Door(Protocol):
    """The session's port to the places for connections."""

    def heard(self, number: int, /) -> None: ...
    def may_hold(self, number: int, /, *, is_expected: bool) -> bool: ...
    def left(self, number: int, /) -> None: ...


class ProposerSession:
    """The owner of one FramedConnection; `number` is never used again."""

    def __init__(
        self,
        connection: FramedConnection,
        catalog: LogCatalog,
        number: int,
        start: Callable[..., asyncio.Task[None]],
        door: Door,
        identity: Identity = ANYBODY,
        audit: Audit | None = None,
    ) -> None:
        self.connection, self._catalog, self._number = connection, catalog, number
        self._start = start
        self._log: HostedLog | None = None
        self._pending = 0
        self._door = door
        self._audit = audit or Audit()
        self._identity, self._tags = identity, tags_of(identity)
        connection.limit_frames(self._limit_of)
        self.on_frames: TakeFrames = _takes_nothing
        self._reads = RequestedReads()
        connection.on_room = self._read_on

    def on_message(self, message: Message) -> None:
        if isinstance(message, AppendRequest) and self._log is not None:
            self._post(message)
            return
        self._door.heard(self._number)
        match message:
            case LogQuery() | PrepareLog() | ConfigureLog() | StatusRequest() | JoinLog():
                self._administer(message)
            case ReserveTimeline() | DropLog() | SharedSlots() | DigestQuery():
                self._administer(message)
            case PrimaryReport() | MembersReport():
                self._learn(message)
            case ProposerGreeting():
                self._greet(message)
            case MembersQuery() | PromiseMembers() | AcceptMembers() | InstallMembers():
                self._change_members(message)
            case _ if self._log is None:
                self._refuse("greeting", f"{type(message).__name__} before a greeting")
            case ReadRequest() if not may_read(self._identity, message):
                self._refuse("role", f"{self._identity.name} may read committed WAL only")
            case ReadRequest():
                self._reads.ask(message)
                if self._reads.is_long:
                    self.connection.pause_reading(_READS)
                self._read_on()
            case ProposerElected():
                self._note_change("elect", cluster=self._log.cluster, ballot=message.ballot)
                self._post(message)
            case _:
                self._post(message)

    def _limit_of(self, tag: int) -> int:
        """Return the most bytes of a frame; raise RemoteProtocolError if the role forbids it."""
        if tag not in self._tags:
            roles = ", ".join(sorted(self._identity.roles))
            self._note_refusal("role", message=kind_name(tag))
            if not is_known(tag):
                raise RemoteProtocolError(
                    f"{kind_name(tag)} is unknown; a newer version may send it"
                )
            raise RemoteProtocolError(f"the role {roles} may not send {kind_name(tag)}")
        return first_frame_limit(tag) if self._log is None else frame_limit(tag)

    def _reaches(self, cluster: str) -> bool:
        """Return whether the peer may name this cluster; refuse it and close if not."""
        if may_reach(self._identity, cluster):
            return True
        self._refuse("cluster", f"{self._identity.name} may not reach cluster {cluster!r}")
        return False

    def _note_refusal(self, reason: str, **facts: object) -> None:
        self._audit.refusal(reason, self._identity, self.connection.peer, **facts)

    def _note_change(self, act: str, **facts: object) -> None:
        self._audit.change(act, self._identity, self.connection.peer, **facts)

    def _refuse(self, reason: str, text: str) -> None:
        self._note_refusal(reason, text=text)
        self.send(Reject(RejectCode.REFUSED, text, NO_BALLOT))
        self.connection.close(text)

    def _read_on(self) -> None:
        read = self._reads.next(is_full=self.connection.is_full)
        if not self._reads.is_long:
            self.connection.resume_reading(_READS)
        if read is not None:
            self._post(read)

    def _greet(self, greeting: ProposerGreeting) -> None:
        log = self._log_of(greeting.cluster)
        if log is not None:
            facts = {"cluster": greeting.cluster, "application": greeting.application_name}
            self._audit.login(self._identity, self.connection.peer, **facts)
            self._remember(log, greeting)
            self._post(greeting)

    def _learn(self, report: PrimaryReport | MembersReport) -> None:
        """Keep the report for `status`; a log that is not served here needs none."""
        found = self._catalog.hosted(report.cluster)
        if isinstance(found, Reject):
            return
        if isinstance(report, PrimaryReport):
            found.sessions.primary.learn(report)
        else:
            found.sessions.away.learn(report)

    def _change_members(self, ask: MembersRequest) -> None:
        if self._log_of(ask.cluster) is not None:
            if isinstance(ask, InstallMembers):
                generation = ask.configuration.generation
                self._note_change("install", cluster=ask.cluster, generation=generation)
            elif isinstance(ask, AcceptMembers):
                generation = ask.following.generation
                self._note_change("accept-members", cluster=ask.cluster, generation=generation)
            self._post(ask)

    def _log_of(self, cluster: str) -> HostedLog | None:
        """Fix and return the log of this connection, or refuse the peer and return None."""
        if not self._reaches(cluster):
            return None
        found = self._catalog.hosted(cluster)
        if isinstance(found, Reject):
            self._note_refusal("log", cluster=cluster)
            self.send(found)
            return None
        if self._log is not None and self._log is not found:
            self.connection.close("one connection speaks of one cluster")
            return None
        if self._log is None and not self._door.may_hold(
            self._number, is_expected=self._is_leaders_host(found)
        ):
            self._refuse("places", "too many connections of proposers are open already")
            return None
        self._log = found
        found.sessions.by_connection[self._number] = self
        if AppendRequest.TAG in self._tags:
            append = found.driver.append_at_once  # the next WAL of a steady leader
            self.on_frames = partial(append, self._number, self.connection)
        return found

    def _is_leaders_host(self, log: HostedLog) -> bool:
        """Return whether the newest leader greeted from this host."""
        known = log.sessions.known(log.driver.acceptor.durable.ballot.proposer_id)
        return known is not None and _host(known[0]) == _host(self.connection.peer)

    def _remember(self, log: HostedLog, greeting: ProposerGreeting) -> None:
        log.sessions.remember(
            greeting.proposer_id,
            self.connection.peer,
            greeting.application_name,
            leader_id=log.driver.acceptor.durable.ballot.proposer_id,
        )

    def _post(self, message: Message) -> None:
        assert self._log is not None
        self._log.driver.post(Received(self._number, message))
        if self._log.driver.is_busy:
            self.connection.pause_reading()
            self._log.sessions.pause(self)

    def _administer(self, ask: AdminRequest) -> None:
        if not self._reaches(ask.cluster):
            return
        if self._pending >= ADMIN_REQUESTS_MAX:
            self.connection.close("too many requests at once")
            return
        self._pending += 1
        self._start(self._answer(ask), name=f"request of {self.connection.peer}")

    async def _answer(self, ask: AdminRequest) -> None:
        try:
            answer = await self._catalog.administer(ask)
            act = _ACTS.get(type(ask))
            if act is not None and not isinstance(answer, Reject):
                self._note_change(act, cluster=ask.cluster)
        except WalkeeperError as error:
            self._note_refusal("request", request=type(ask).__name__, text=error)
            answer = Reject(RejectCode.REFUSED, str(error), NO_BALLOT)
        self._pending -= 1
        self.send(answer)

    def send(self, message: Message) -> None:
        self.connection.send(message)
        self._reads.on_sent(message)
        self._read_on()

    def receives_more(self) -> bool:
        return self.connection.receives_more()

    def resume(self) -> None:
        self.connection.resume_reading()

    def on_closed(self, reason: str) -> None:
        self._door.left(self._number)
        if self._log is not None:
            self._log.sessions.by_connection.pop(self._number, None)
            self._log.driver.post(ConnectionLost(self._number))


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _takes_nothing(memory: bytearray, size: int) -> int:
    """Take no bytes before a greeting has named a log."""
    return 0
