"""The proposer's core against any safekeepers, and a primary that comes and goes.

An input is a head (how many members, which quorum, what for) and a list of events, one a chunk.
Safekeepers may say anything. Links and the primary's connection behave as the shell makes them
(links.py, primary.py). No message is received on a link that is down or was dropped. WAL arrives in
order from where it was requested. A read of the primary that no code waits for any more may still
come in.

Promises: no message of a safekeeper makes the core raise. Every message fits into a frame. The
proposer has one ballot while it leads. PostgreSQL gets a report of no more than was received, and
than an ack quorum of links has acknowledged in this term. No safekeeper is sent WAL that the
primary did not send.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from tests.proof.fuzz.choices import Choices, chunks
from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.drawn import Scope, check_sendable
from tests.proof.fuzz.mutation import chunked
from tests.support.scenario_words import CREATION_LSN, SEGMENT_BYTES, SYSTEM_ID, configuration_of
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, ProposerElected
from walkeeper_common.wire.requests import LogQuery, ReadRequest
from walkeeper_proposer.consensus.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    AnnounceSoon,
    BackedOff,
    BackOff,
    DropLink,
    Effect,
    Event,
    IdentifyPrimary,
    LinkLost,
    LinkUp,
    PrimaryIdentified,
    PrimaryIdentity,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    ReadPrimary,
    Received,
    Report,
    Send,
    StartStreaming,
    Stop,
    Tick,
    WalArrived,
)

CHUNK = 16
QUORUMS = ((3, 2), (3, 2), (3, 1), (3, 3), (1, 1), (2, 2), (5, 3), (4, 3))
WINDOWS = (48 << 20, 3000, 600)
WAL_BYTES_MAX = 1 << 16  # the limit for one story


def wal_at(begin: int, size: int) -> bytes:
    """Make the primary's WAL: the same bytes at the same place, on every server."""
    return b"".join((at // 8).to_bytes(8, "little") for at in range(begin & ~7, begin + size, 8))[
        begin & 7 : (begin & 7) + size
    ]


class Link:
    """One safekeeper's connection, as the shell has it."""

    def __init__(self) -> None:
        self.is_up = self.is_dropped = False
        self.forget()

    def forget(self) -> None:
        """Forget the messages of the last connection."""
        self.reads: list[ReadRequest] = []
        self.acked_lsn: Lsn | None = None
        self.sent_lsn: Lsn | None = None  # the end of the appends since ProposerElected
        self.is_elected = False


class Story:
    """One proposer and its surroundings."""

    def __init__(self, choices: Choices) -> None:
        members, ack_quorum = choices.pick(QUORUMS)
        self.configuration = configuration_of(members, ack_quorum)
        self.purpose = choices.pick((Purpose.ATTACH, Purpose.ATTACH, Purpose.SETTLE, Purpose.SEAL))
        self.core = Proposer(
            Campaign(
                cluster="main",
                proposer_id=b"c" * 16,
                links=members,
                purpose=self.purpose,
                take_over=choices.one_in(2),
                window_bytes_max=choices.pick(WINDOWS),
            )
        )
        creation = Fragment(
            NO_BALLOT, CREATION_LSN, 1, False, self.configuration.members, ack_quorum
        )
        self.scope = Scope(self.configuration, history=(creation,))
        self.links = [Link() for _ in range(members)]
        self.has_primary = self.is_asked = False
        self.flush_lsn = CREATION_LSN + 8 * choices.byte()  # the primary's
        self.reads: list[ReadPrimary] = []  # under way, perhaps for nobody
        self.arrived_lsn: Lsn | None = None  # where the stream is, while there is one
        self.received_lsn = CREATION_LSN
        self.reported_lsn = Lsn(0)
        self.pauses = self.announcements = 0
        self.is_over = False

    def tell(self, choices: Choices) -> None:
        number = choices.below(len(self.links))
        link = self.links[number]
        match choices.below(16):
            case 0:
                self._step(Tick())
            case 1 if link.is_up:
                link.is_up = False
                link.forget()
                self._step(LinkLost(number))
            case 2 if self.pauses:
                self.pauses -= 1
                self._step(BackedOff())
            case 2 if self.announcements:
                self.announcements -= 1
                self._step(AnnounceDue())
            case 3 | 4 if self.purpose is Purpose.ATTACH:
                self._primary(choices)
            case 5 | 6 if self.arrived_lsn is not None:
                self._wal_arrives(choices)
            case 7 if self.reads:
                self._read_of_primary(choices)
            case _ if not link.is_up:
                link.is_up, link.is_dropped = True, False
                link.forget()
                self._step(LinkUp(number))
            case _ if not link.is_dropped:
                self._receive(number, self._message(number, link, choices))

    def _primary(self, choices: Choices) -> None:
        if not self.has_primary:
            self.has_primary = True
            self._step(PrimaryIdentified(self._identity(choices)))
        elif self.is_asked:
            self.is_asked = False
            self._step(PrimaryIdentified(self._identity(choices)))
        elif choices.one_in(3):
            self.has_primary = self.is_asked = False
            self.arrived_lsn = None
            self._step(PrimaryLost("the connection was reset"))

    def _identity(self, choices: Choices) -> PrimaryIdentity:
        odd = choices.byte()
        self.flush_lsn = max(self.flush_lsn, self.received_lsn)
        return PrimaryIdentity(
            system_id=1 if odd == 255 else SYSTEM_ID,
            timeline=2 if odd == 254 else 1,
            flush_lsn=CREATION_LSN if odd == 253 else self.flush_lsn,
            segment_bytes=SEGMENT_BYTES,
            server_version="15.18",
            server_version_num=150018,
            in_recovery=odd == 252,
            fsync=odd != 251,
            full_page_writes=True,
        )

    def _wal_arrives(self, choices: Choices) -> None:
        begin = self.arrived_lsn
        assert begin is not None
        size = choices.pick((8, 40, 100, 500))
        if begin + size > CREATION_LSN + WAL_BYTES_MAX:
            return
        self.arrived_lsn = begin + size
        self.received_lsn = max(self.received_lsn, begin + size)
        self._step(WalArrived(begin, memoryview(wal_at(begin, size))))

    def _read_of_primary(self, choices: Choices) -> None:
        at = choices.below(len(self.reads))
        read = self.reads.pop(at)
        if choices.one_in(6):
            self._step(PrimaryReadFailed("gone", removed=choices.one_in(2)))
            return
        size = read.end_lsn - read.begin_lsn
        if choices.one_in(3) and size > 8:
            size = 1 + choices.number(2) % (size - 1)
            self.reads.insert(at, ReadPrimary(read.begin_lsn + size, read.end_lsn, 1))
        wal = wal_at(read.begin_lsn, size)
        if choices.one_in(30):
            wal = bytes(size)
        self._step(PrimaryRead(read.begin_lsn, wal))

    # Messages of safekeepers

    def _message(self, number: int, link: Link, choices: Choices) -> Message:
        core, scope = self.core, self.scope
        member, leader = core.members[number], core.leader
        scope.ballots = [core.ballot, core.seen_ballot]
        scope.lsns = [CREATION_LSN, self.flush_lsn, member.next_lsn, self.received_lsn]
        if leader is not None:
            scope.lsns += [leader.start_lsn, leader.window.end_lsn, leader.commit_lsn]
            if choices.one_in(4):
                scope.history = leader.history
        kind = choices.below(12)
        match member.stage.value:
            case "greeting" if kind < 9:
                return scope.acceptor_greeting(choices, number + 1)
            case "voting" if kind < 9:
                return scope.vote(choices, core.ballot)
            case "streaming" if kind < 6:
                return scope.append_response(choices, core.ballot)
        if kind < 9 and link.reads:
            asked = link.reads.pop(0)
            wal = wal_at(asked.begin_lsn, min(asked.size_max, WAL_BYTES_MAX))
            return scope.read_response(choices, asked, wal)
        match choices.below(8):
            case 0:
                return scope.acceptor_greeting(choices, number + 1)
            case 1:
                return scope.vote(choices, core.ballot)
            case 2:
                return scope.append_response(choices, core.ballot)
            case 3:
                return scope.read_response(choices, None, b"w" * choices.byte())
            case 4:
                return LogQuery("main")
            case 5 | 6:
                return scope.reject(choices)
            case _:
                return scope.acceptor_greeting(choices, number + 1)

    def _receive(self, number: int, message: Message) -> None:
        link = self.links[number]
        ours = isinstance(message, AppendResponse) and message.ballot == self.core.ballot
        if ours and link.is_elected and isinstance(message, AppendResponse):
            link.acked_lsn = message.flush_lsn
        self._step(Received(number, message))

    # Effects of the proposer

    def _step(self, event: Event) -> None:
        core = self.core
        ballot, was_leading = core.ballot, core.phase is Phase.LEADING
        commit_lsn = core.leader.commit_lsn if core.leader is not None else Lsn(0)
        for effect in core.step(event):
            self._perform(effect)
        require(core.ballot >= ballot, "core.ballot={} ballot={}", core.ballot, ballot)
        require(
            not was_leading or core.ballot == ballot,
            "P2: core.ballot={} ballot={}",
            core.ballot,
            ballot,
        )
        leader = core.leader
        if leader is not None:
            require(
                leader.commit_lsn >= commit_lsn,
                "leader.commit_lsn={} commit_lsn={}",
                leader.commit_lsn,
                commit_lsn,
            )
            if leader.commit_lsn > commit_lsn:
                self._check_acknowledged(leader)

    def _check_acknowledged(self, leader: Leader) -> None:
        commit_lsn = leader.commit_lsn
        having = [k for k in self.links if k.acked_lsn is not None and k.acked_lsn >= commit_lsn]
        wanted = leader.configuration.ack_quorum  # as the first one that greeted has it
        require(len(having) >= wanted, "{} is on {} of {}", commit_lsn, len(having), wanted)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(number, message):
                check_sendable(message)
                self._send(self.links[number], message)
            case DropLink(number):
                # Its acknowledgements stay true until the link is lost.
                self.links[number].is_dropped = self.links[number].is_up
            case IdentifyPrimary():
                self.is_asked = self.has_primary
            case ReadPrimary():
                self.reads.append(effect)
            case StartStreaming(start_lsn):
                require(self.has_primary, "streaming without a primary")
                require(
                    start_lsn <= max(self.received_lsn, self.flush_lsn), "start_lsn={}", start_lsn
                )
                self.arrived_lsn = start_lsn
                self.received_lsn = max(self.received_lsn, start_lsn)
            case Report(commit_lsn):
                require(self.arrived_lsn is not None, "a report without a stream")
                require(
                    commit_lsn <= self.received_lsn,
                    "P1: {} self.received_lsn={}",
                    commit_lsn,
                    self.received_lsn,
                )
                require(
                    commit_lsn >= self.reported_lsn,
                    "{} self.reported_lsn={}",
                    commit_lsn,
                    self.reported_lsn,
                )
                self.reported_lsn = commit_lsn
            case AnnounceSoon():
                self.announcements += 1
            case BackOff():
                self.pauses += 1
            case Stop(outcome):
                self.is_over = True
                require(outcome.value != "settled" or effect.settled is not None, "{}", effect)

    def _send(self, link: Link, message: Message) -> None:
        if not link.is_up or link.is_dropped:
            return  # the shell has no connection to send it on
        match message:
            case ProposerElected():
                link.is_elected, link.acked_lsn = True, None
                link.sent_lsn = message.start_lsn
            case AppendRequest() if message.payload:
                begin, end = message.begin_lsn, message.end_lsn
                require(begin == link.sent_lsn, "{} behind {}", begin, link.sent_lsn)
                leader = self.core.leader
                assert leader is not None, f"{message=}"
                window_lsn = leader.window.end_lsn
                require(end <= window_lsn, "WAL up to {} of {}", end, window_lsn)
                link.sent_lsn = end
            case ReadRequest():
                link.reads.append(message)


def run_proposer(data: bytes) -> None:
    first, *steps = chunks(data, CHUNK) or [b""]
    story = Story(Choices(first))
    for step in steps:
        if story.is_over:
            return
        story.tell(Choices(step))


# A chunk of zeros says what an honest safekeeper says; these are the events of one.
UP, IDENTIFIED, SAYS, TICKS, LOST = 8, 3, 8, 0, 1
ACKS_ALL = bytes([0, 0, 0, 0, 0, 0, 0, 2, 2])  # Choices of _message: flush_lsn is what was sent


def _event(link: int, kind: int, more: bytes = b"") -> bytes:
    return (bytes([link, kind]) + more).ljust(CHUNK, b"\0")


def election(*, window: int = 0, purpose: int = 0) -> bytes:
    """Make three safekeepers, of which two are elected with; the third has greeted."""
    story = [bytes([0, purpose, 1, window]).ljust(CHUNK, b"\0")]
    story += [_event(link, UP) for link in range(3)]
    story += [_event(0, IDENTIFIED)] * (purpose == 0)
    story += [_event(link, SAYS) for link in range(3)]
    story += [_event(0, IDENTIFIED)] * (purpose == 0)
    story += [_event(link, SAYS) for link in range(2)]
    story += [_event(0, IDENTIFIED)] * (purpose == 0)
    return b"".join(story)


def streaming(rounds: int) -> bytes:
    """Let WAL arrive, and the first two acknowledge it."""
    one = [_event(0, 5, b"\3"), _event(0, SAYS, ACKS_ALL), _event(1, SAYS, ACKS_ALL)]
    return b"".join(one * rounds)


def _seeds() -> Iterable[bytes]:
    attach = b"".join(_event(link, SAYS) for link in range(2))
    laggard = _event(2, SAYS) + _event(2, SAYS)  # votes, attaches
    feeds = b"".join(_event(link, SAYS, b"\0\6") for link in (0, 1, 0, 1))
    feeds += _event(2, SAYS, ACKS_ALL)
    again = _event(0, 4, b"\2") + _event(0, IDENTIFIED) + _event(0, 7, b"\0\0\2")
    for window in range(3):
        yield election(window=window) + attach + streaming(4) + laggard + feeds
        yield election(window=window) + attach + streaming(2) + again + streaming(2)
        yield election(window=window) + attach + _event(1, LOST) + _event(0, TICKS) + streaming(1)
    for purpose in (2, 3):
        yield election(purpose=purpose) + attach + laggard
    for seed in range(10):
        random = Random(seed)
        yield b"".join(random.randbytes(2) + bytes(CHUNK - 2) for _ in range(10 + 2 * seed))
        yield b"".join(random.randbytes(CHUNK) for _ in range(10 + seed))


PROPOSER = Target(
    name="proposer",
    about="the proposer's core against any safekeepers",
    run=run_proposer,
    seeds=_seeds,
    bytes_max=100 * CHUNK,
    alter=chunked(CHUNK),
)
