"""A proposer's session bounds the work and the memory that its peer can ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from tests.common.test_pure import CHANGED
from walkeeper_common.access.identity import ANYBODY, Identity
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import InstallMembers, final
from walkeeper_common.wire.messages import ProposerElected, ProposerGreeting
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_safekeeper.consensus.acceptor_events import Received
from walkeeper_safekeeper.proposer_session import LogCatalog, ProposerSession
from walkeeper_safekeeper.proposer_sessions import ProposerSessions

GREETING = ProposerGreeting(1, "main", bytes(16), 0, 0, "", bytes(16), LogKind.PHYSICAL, "w", None)
ANSWER = ReadResponse(NO_BALLOT, Lsn(0), 0, b"")


@dataclass
class Peer:
    """A connection whose socket is `is_full` when the test says so."""

    peer: str = "127.0.0.1:9"
    is_full: bool = False
    pauses: set[str] = field(default_factory=set)
    sent: list[Message] = field(default_factory=list)
    limit_of: Callable[[int], int] | None = None
    closed: list[str] = field(default_factory=list)

    def write(self, *_: object) -> None: ...

    def limit_frames(self, limit_of: Callable[[int], int]) -> None:
        self.limit_of = limit_of

    def close(self, reason: str) -> None:
        self.closed.append(reason)

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def pause_reading(self, why: str = "busy") -> None:
        self.pauses.add(why)

    def resume_reading(self, why: str = "busy") -> None:
        self.pauses.discard(why)


class OpenDoor:
    """A door that lets everybody in."""

    def heard(self, number: int) -> None: ...
    def left(self, number: int) -> None: ...
    def may_hold(self, number: int, *, is_expected: bool) -> bool:
        return True


def session_of(
    peer: Peer, identity: Identity = ANYBODY, *, greet: bool = True, audit: Audit | None = None
) -> tuple[ProposerSession, list[Message]]:
    """Return a session, and the list of the messages that reach its log after the greeting."""
    posted = list[Message]()

    def post(event: Received) -> None:
        posted.append(event.message)

    durable = SimpleNamespace(ballot=NO_BALLOT)
    driver = SimpleNamespace(
        acceptor=SimpleNamespace(durable=durable),
        is_busy=False,
        post=post,
        append_at_once=lambda *_: 0,
    )
    log = SimpleNamespace(cluster="main", driver=driver, sessions=ProposerSessions())
    session = ProposerSession(
        cast(FramedConnection, peer),
        cast(LogCatalog, SimpleNamespace(hosted=lambda cluster: log)),
        1,
        lambda *_, **__: None,  # type: ignore[arg-type]  # no request starts a task
        OpenDoor(),
        identity,
        audit,
    )
    if greet:
        session.on_message(GREETING)
    posted.clear()
    return session, posted


def test_reads_begin_one_after_the_other() -> None:
    """2,000 pipelined reads all began at once before, and their answers took 64 MiB."""
    peer = Peer()
    session, posted = session_of(peer)
    reads = [ReadRequest(NO_BALLOT, Lsn(n), 1 << 20) for n in range(2000)]
    for read in reads:
        session.on_message(read)
    assert posted == reads[:1] and peer.pauses, f"{len(posted)=}"
    for count in range(1, 2001):
        assert posted == reads[:count]
        session.send(ANSWER)
    assert posted == reads and not peer.pauses


def test_a_peer_that_does_not_read_gets_no_more_reads() -> None:
    peer = Peer()
    session, posted = session_of(peer)
    peer.is_full = True
    for n in range(3):
        session.on_message(ReadRequest(NO_BALLOT, Lsn(n), 1 << 20))
    assert not posted
    peer.is_full = False
    session._read_on()
    assert len(posted) == 1


def test_a_login_an_election_and_a_refusal_leave_a_line_each() -> None:
    """A safekeeper's log did not say which peer changed its members before."""
    lines = list[str]()
    audit = Audit(write=lines.append)
    session, _ = session_of(Peer(), audit=audit)
    session.on_message(ProposerElected(1, Ballot(7, b"p" * 16), Lsn(0), ()))
    session.on_message(InstallMembers("main", final(CHANGED)))
    with pytest.raises(RemoteProtocolError):
        session._limit_of(ReadResponse.TAG)
    words = [(line.split()[1], line.split()[2]) for line in lines]
    assert [event for event, _ in words] == [
        "event=login",
        "event=change",
        "event=change",
        "event=refusal",
    ]
    assert [word for _, word in words][1:] == ["act=elect", "act=install", "reason=role"]
    assert all("identity=anybody how=none address=127.0.0.1:9" in line for line in lines)
    assert audit.refusals == {"role": 1}
