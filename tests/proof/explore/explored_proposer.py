"""A proposer process in the explored world, with the primary that it is attached to.

    node.receive(...) -> Outcome        the node is changed; take a clone

The shipping core runs as it is, its check of the primary too. The primary is the most harmful one
that the check lets pass. Its WAL is the donor's up to where the term starts, and from there on it
is its own. A proposer that has lost an election or was deposed is gone; another life takes its
place.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import astuple, dataclass, field, replace

from tests.proof.explore.bounds import Bounds
from tests.proof.explore.fast_step import StreamStep, fast_ack, fast_wal
from tests.proof.explore.tiny_wal import (
    CREATION_LSN,
    LATE_SEGMENT_BYTES,
    SEGMENT_BYTES,
    at_lsn,
    filled,
    offset_of,
    valid_end,
)
from tests.proof.sim.oracle import Violation
from tests.support.sound_server import SOUND_SERVER
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, LogKind, member_name
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AcceptorGreeting,
    AppendResponse,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.requests import ReadResponse
from walkeeper_proposer.consensus.campaign import TERMS_MAX, Campaign, Phase, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.primary_check import PrimaryCheck, Verdict
from walkeeper_proposer.consensus.progress import Member, Stage
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    AnnounceSoon,
    BackOff,
    DropLink,
    Effect,
    Event,
    IdentifyPrimary,
    LinkLost,
    LinkUp,
    PrimaryIdentified,
    PrimaryIdentity,
    PrimaryRead,
    ReadPrimary,
    Received,
    Report,
    Send,
    Settled,
    Stop,
    WalArrived,
)
from walkeeper_proposer.consensus.wal_window import Chunk

SYSTEM_ID = 7_000_000_000_000_000_001
LIVES_MAX = 4  # lives of one proposer that take the same term
THE_PRIMARY = PrimaryIdentity(
    system_id=SYSTEM_ID,
    timeline=1,
    flush_lsn=at_lsn(1000),
    segment_bytes=SEGMENT_BYTES,
    **SOUND_SERVER,
)

LATE_PRIMARY = replace(THE_PRIMARY, segment_bytes=LATE_SEGMENT_BYTES)


def incarnation(acceptor: int) -> bytes:
    return bytes((acceptor,)) * 16


def configuration(bounds: Bounds) -> Configuration:
    return Configuration(
        generation=1,
        log_uuid=b"explored-log-001",
        system_id=SYSTEM_ID,
        segment_bytes=LATE_SEGMENT_BYTES if bounds.late else SEGMENT_BYTES,
        server_version="15.18",
        kind=LogKind.PHYSICAL,
        creation_lsn=CREATION_LSN,
        timeline=1,
        members=tuple(member_name(a + 1, incarnation(a)) for a in range(bounds.members)),
        ack_quorum=bounds.ack_quorum,
        ack_zones=bounds.ack_zones,
        zones=bounds.zones,
    )


def greeting_of(acceptor: int, bounds: Bounds) -> AcceptorGreeting:
    """Return the part of a greeting that a proposer keeps once it is a candidate: its acceptor."""
    config = configuration(bounds)
    entry = Fragment(NO_BALLOT, CREATION_LSN, 1, False, config.members, config.ack_quorum)
    return AcceptorGreeting(
        acceptor + 1, incarnation(acceptor), config.log_uuid, config, NO_BALLOT, (entry,),
        CREATION_LSN, CREATION_LSN, CREATION_LSN, CREATION_LSN, None,
    )  # fmt: skip


def ballot_of(term: int, slot: int, life: int) -> Ballot:
    return Ballot(term, bytes((slot, life)).ljust(16, b"\0"))


@dataclass(slots=True)
class Outcome:
    """`sent` has (link, message), `dropped` links, `reported` the WAL that PostgreSQL got a report
    of. `elected` says that this event won the election, `closed` has the WAL of a closed log."""

    sent: list[tuple[int, Message]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    reported: bytes | None = None
    elected: bool = False
    is_over: bool = False
    closed: bytes | None = None


class SureCheck(PrimaryCheck):
    """A check for which each record tells that this primary wrote it (R22).

    Else the check alone would keep out a leader that lacks what is below a late newcomer's log."""

    def _compared(self) -> list[Effect]:
        if self._lost is not None:
            return super()._compared()
        self.verdict = Verdict.PASSED
        return []


class ProposerNode:
    """`wal` is what the primary has sent; `tail` what the donor had behind the term's start.

    A node that `closes` is a command without a primary."""

    def __init__(
        self, bounds: Bounds, *, term: int, slot: int, life: int, closes: bool = False
    ) -> None:
        assert life < LIVES_MAX, f"{life=}"
        self.bounds, self.closes = bounds, closes
        self.writer = (term * 2 + slot) * LIVES_MAX + life  # its primary's, in what it writes
        self.wal = self.tail = b""
        self.votes: dict[int, bytes] = {}  # the voters' logs
        campaign = Campaign(
            cluster="main",
            proposer_id=ballot_of(term, slot, life).proposer_id,
            links=bounds.acceptors,
            purpose=Purpose.CLOSE if closes else Purpose.ATTACH,
            take_over=True,
            terms_max=1 if bounds.folds else TERMS_MAX,
            examine=SureCheck if bounds.late else PrimaryCheck,
        )
        self.core = Proposer(campaign)
        self.greetings = [greeting_of(a, bounds) for a in range(bounds.acceptors)]
        self._to_compare: ReadPrimary | None = None

    def clone(self) -> ProposerNode:
        twin = copy.copy(self)
        twin.votes = dict(self.votes)
        core = twin.core = copy.copy(self.core)
        core.members = [_copied(member) for member in core.members]
        core._refusals = dict(core._refusals)
        if core.candidate is not None:
            candidate = core.candidate = copy.copy(core.candidate)
            candidate.members = core.members
        if core.leader is not None:
            leader = core.leader = copy.copy(core.leader)
            leader.members = core.members
            leader.window = copy.copy(leader.window)
            leader.window._chunks = deque(leader.window._chunks)
            leader.feeder = replace(leader.feeder, window=leader.window)
        if core.check is not None:
            check = core.check = copy.copy(core.check)
            assert isinstance(check, PrimaryCheck), f"{check=}"
            check._comparison = copy.deepcopy(check._comparison)
        return twin

    def permuted(self, order: tuple[int, ...]) -> ProposerNode:
        """Return the same with acceptor `order[i]` in the place of acceptor i."""
        twin = self.clone()
        twin.core.members[:] = [twin.core.members[old] for old in order]
        for link, member in enumerate(twin.core.members):
            member.link = link
            if member.comparison is not None and member.comparison.donor is not None:
                member.comparison.donor = order.index(member.comparison.donor)
            if member.greeting is not None:
                greeting = member.greeting = twin.greetings[link]
                member.name = member_name(greeting.acceptor_id, greeting.incarnation)
        twin.votes = {new: self.votes[old] for new, old in enumerate(order) if old in self.votes}
        return twin

    def key(self) -> tuple[object, ...]:
        """Return the state that sets this node apart; `_fold` sets the rest."""
        core = self.core
        members = tuple(
            (
                m.stage, m.greeting, m.vote, m.next_lsn, m.asked_lsn, m.flush_lsn,
                m.donates_lsn, m.attached, m.known_lsn, m.comparison and astuple(m.comparison),
                m.is_late, m.awaits_witness, self.closes and m.durable_commit_lsn,
                tuple((lsn, wal and bytes(wal)) for lsn, wal in m.donated.items()),
            )
            for m in core.members
        )  # fmt: skip
        votes = tuple(sorted(self.votes.items()))
        leader = core.leader and _leader_key(core.leader)
        scope = core.check and core.check.scope
        return (
            self.closes,
            self.writer, self.wal, self.tail, votes, core.ballot, core.seen_ballot, core.phase,
            core.primary is not None, members, leader, scope, core.configuration, self._to_compare,
            _sent_lsn(core),
        )  # fmt: skip

    def _fold(self) -> None:
        """Fold two nodes that can never behave differently into one."""
        core = self.core
        if core.phase not in (Phase.CAMPAIGNING, Phase.LEADING):
            return
        core._phase_ticks = core._attempt = 0
        core.seen_ballot = core.ballot
        sent_lsn = _sent_lsn(core)
        for member in core.members:
            member.sent_lsn = sent_lsn  # before next_lsn is forgotten below
            member.silent_ticks = member.refused_ticks = member.late_ticks = 0
            member.sent_commit_lsn = ZERO_LSN
            if not self.closes:  # a close is reported when a quorum knows of it
                member.durable_commit_lsn = ZERO_LSN
            member.feedback = NO_FEEDBACK
            if member.greeting is not None:
                member.greeting = self._plain(member.link, member.greeting)
            if member.stage is not Stage.VOTING:
                member.vote = None
            if member.stage is Stage.ABSENT:
                member.is_late = True  # it is, as soon as it is connected again
            if member.stage is not Stage.STREAMING:
                member.next_lsn = member.asked_lsn = member.donates_lsn = ZERO_LSN
            member.oldest_lsn = CREATION_LSN
        if core.leader is not None:
            assert core.candidate is not None
            core.candidate.donor_vote = None
            core.leader.donor_flush_lsn = core.leader.start_lsn
            if not self.bounds.folds:
                core.leader.feeder.restart_lsn = CREATION_LSN
            self.votes.clear()
            if not self.bounds.trims:
                self._keep_all(core.leader)

    def _plain(self, link: int, greeting: AcceptorGreeting) -> AcceptorGreeting:
        """Return what counts of a greeting later: its sender and the members."""
        plain, members = self.greetings[link], greeting.configuration
        return plain if plain.configuration == members else replace(plain, configuration=members)

    def _keep_all(self, leader: Leader) -> None:
        window = leader.window
        start, wal = leader.start_lsn, memoryview(self.wal)[offset_of(leader.start_lsn) :]
        window.begin_lsn = start
        window._chunks = deque([Chunk(start, window.end_lsn, wal)] if wal else [])

    @property
    def leads(self) -> bool:
        return self.core.leader is not None and self.core.leader.is_streaming

    # Events

    def start(self) -> Outcome:
        """Start a fresh process that is connected to its primary, if it has one."""
        if self.closes:
            return Outcome()
        return self._handle(PrimaryIdentified(self._primary))

    @property
    def _primary(self) -> PrimaryIdentity:
        return LATE_PRIMARY if self.bounds.late else THE_PRIMARY

    def link_up(self, acceptor: int) -> Outcome:
        return self._handle(LinkUp(acceptor))

    def link_lost(self, acceptor: int) -> Outcome:
        self.votes.pop(acceptor, None)
        return self._handle(LinkLost(acceptor))

    def receive(self, acceptor: int, message: Message, log: bytes) -> Outcome:
        """Take a message. `log` is what its sender had when it sent this; kept of a vote."""
        if isinstance(message, VoteResponse) and message.granted:
            self.votes[acceptor] = log
        if not (self.leads and isinstance(message, AppendResponse)):
            return self._handle(Received(acceptor, message))
        twin = self.clone()
        outcome = self._handle(Received(acceptor, message))
        taken = fast_ack(twin.core, acceptor, message, at_lsn(len(self.wal)))
        twin._take_fast(self, taken, outcome)
        return outcome

    def write(self, wal: bytes) -> Outcome:
        """Let the primary write on."""
        begin_lsn = at_lsn(len(self.wal))
        self.wal, self.tail = self.wal + wal, b""
        twin = self.clone()
        outcome = self._handle(WalArrived(begin_lsn, memoryview(wal)))
        twin._take_fast(self, fast_wal(twin.core, begin_lsn, wal), outcome)
        return outcome

    def _take_fast(self, slow: ProposerNode, taken: StreamStep | None, outcome: Outcome) -> None:
        """Take what the fast path took, if anything, and end as the slow path did."""
        if taken is None:
            return
        leader, news = slow.core.leader, taken.news
        if leader is None or leader.commit_lsn != news.commit_lsn:
            commits = "ends" if leader is None else f"has {leader.commit_lsn}"
            raise Violation("Fast path", f"commits {Lsn(news.commit_lsn)}, the slow path {commits}")
        fast = self._handle(news)
        fast.sent[:0] = taken.sent
        if taken.reported:
            self._perform(Report(Lsn(taken.reported), ()), deque(), fast)
        if (self.key(), fast) != (slow.key(), outcome):
            raise Violation("Fast path", f"{taken}: {fast}, on the slow path {outcome}")

    def _handle(self, event: Event) -> Outcome:
        outcome = Outcome()
        led = self.core.leader is not None
        events = deque([event])
        while events:
            happened = events.popleft()
            for effect in self.core.step(happened):
                self._perform(effect, events, outcome)
            self._compare(happened, events)
        leader = self.core.leader
        if not led and leader is not None:
            self._won(leader)
            outcome.elected = True
        if self.closes and leader is not None and leader.commit_lsn >= leader.start_lsn:
            outcome.reported = self.wal  # it has no primary, and readers may have that WAL now
        self._fold()
        return outcome

    def _won(self, leader: Leader) -> None:
        """Give the primary what the donor had: from now on it is known."""
        candidate = self.core.candidate
        assert candidate is not None
        donors = [m.link for m in self.core.members if m.vote is candidate.donor_vote]
        log, start = self.votes[donors[0]], offset_of(leader.start_lsn)
        for other in self.votes.values():  # a voter has to hold the WAL that a donor lacks (M5)
            log = filled(log, other)
        self.wal, self.tail = log[:start], log[start:]

    def _compare(self, event: Event, events: deque[Event]) -> None:
        """Answer for the primary with the donor's own bytes, when these are known."""
        is_read = isinstance(event, Received) and isinstance(event.message, ReadResponse)
        asked = self._to_compare
        if asked is None or not is_read:
            return
        assert isinstance(event, Received) and isinstance(event.message, ReadResponse)
        self._to_compare = None
        if self.core.check is not None:
            events.append(PrimaryRead(asked.begin_lsn, event.message.payload))

    def _perform(self, effect: Effect, events: deque[Event], outcome: Outcome) -> None:
        match effect:
            case Send(link, message):
                is_named = isinstance(message, VoteRequest) and not self.bounds.commands
                if is_named:  # every acceptor runs as member 1
                    assert isinstance(message, VoteRequest)
                    message = replace(message, member=member_name(1, incarnation(0)))
                outcome.sent.append((link, message))
            case DropLink(link):
                outcome.dropped.append(link)
            case IdentifyPrimary():
                events.append(PrimaryIdentified(self._primary))
            case ReadPrimary():
                self._to_compare = effect
            case Report(commit_lsn):
                outcome.reported = self.wal[: valid_end(self.wal[: offset_of(commit_lsn)])[0]]
            case AnnounceSoon():  # heartbeats may be as late as they like on their way
                events.append(AnnounceDue())
            case Stop(_, text) if "we know of having sent" in text:
                raise Violation("Leadership", f"no machine was set back: {text}")
            case BackOff():
                outcome.is_over = True
            case Stop(settled=settled):
                outcome.is_over = True
                if isinstance(settled, Settled) and settled.closed:
                    outcome.closed = self.wal


def _copied(member: Member) -> Member:
    twin = copy.copy(member)
    twin.donated = dict(member.donated)
    twin.comparison = copy.copy(member.comparison)
    return twin


def _sent_lsn(core: Proposer) -> Lsn:
    """Return the end of all WAL that was sent: a leader compares late votes with it (R20)."""
    return max(max(m.sent_lsn, m.next_lsn) for m in core.members)


def _leader_key(leader: Leader) -> tuple[object, ...]:
    window = leader.window
    return (
        leader.history, leader.start_lsn, leader.commit_lsn, leader.is_streaming,
        leader.is_paused, leader.feeder.restart_lsn, window.begin_lsn, window.end_lsn,
        tuple((c.begin_lsn, bytes(c.wal)) for c in window._chunks),
    )  # fmt: skip
