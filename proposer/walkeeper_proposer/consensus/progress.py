"""The proposer's knowledge of each safekeeper, and the next WAL for it. Pure.

    ABSENT -> CONNECTED -> GREETING -> GREETED -> VOTING -> STREAMING;  a lost link -> ABSENT
                                          ^---- no space for WAL ----'

etcd/raft's tracker with its Probe and Replicate; there is no probing here, because the vote says
exactly where the logs diverge. A member counts towards commit only once it has answered the
heartbeat after ProposerElected on this very connection (docs/protocol.md R10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import Enum

from walkeeper_common.history import Ballot
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AcceptorGreeting,
    Feedback,
    RejectCode,
    VoteRequest,
    VoteResponse,
)
from walkeeper_proposer.consensus.own_wal import OwnWalCheck

APPEND_BYTES_MAX = 128 << 10
APPEND_BYTES_MIN = 1 << 10  # the least limit for a slow link; shorter WAL goes out at once
LATE_TICKS = 2  # an append that is not acknowledged for so long is late
GROW_APPENDS = 16  # acknowledged appends of a lowered limit, after which it is doubled
IN_FLIGHT_BYTES_MAX = 8 << 20
BUNCHED_BYTES_MAX = 32 << 10  # a longer append is not kept back from a safekeeper (bunches.py)
DONOR_READS_MAX = 4
LEARNER_BYTES_MAX = 4 << 30  # the most WAL that is kept for a safekeeper that is no member yet
SILENT_TICKS_MAX = 10
REFUSED_TICKS = 10  # until we ask a donor again that could not be read


class Stage(Enum):
    ABSENT = "absent"
    CONNECTED = "connected"
    GREETING = "greeting"
    GREETED = "greeted"
    VOTING = "voting"
    STREAMING = "streaming"


@dataclass(slots=True)
class Member:
    """One safekeeper's address, and its state now."""

    link: int
    stage: Stage = Stage.ABSENT
    greeting: AcceptorGreeting | None = None
    name: str | None = None  # `id#incarnation` once it has greeted
    log_uuid: bytes | None = None  # the log in its last greeting
    vote: VoteResponse | None = None
    comparison: OwnWalCheck | None = None  # before it goes on with WAL that it has of our term
    next_lsn: Lsn = ZERO_LSN  # the begin of the next AppendRequest
    known_lsn: Lsn = ZERO_LSN  # up to here we know that its log is ours, on earlier connections
    sent_lsn: Lsn = ZERO_LSN  # the greatest that next_lsn was on earlier connections
    asked_lsn: Lsn = ZERO_LSN  # the begin of the next read from a donor, at or past next_lsn
    flush_lsn: Lsn = ZERO_LSN
    oldest_lsn: Lsn = ZERO_LSN  # as of its vote, or of a later MembersState
    donates_lsn: Lsn = ZERO_LSN  # reads on behalf of a laggard begin here or later
    refused_ticks: int = 0  # how much longer we ask it for none at all
    is_tried: bool = False  # one read below donates_lsn is under way: its archive may have that WAL
    untried_ticks: int = 0  # how much longer no such read is sent
    durable_commit_lsn: Lsn = ZERO_LSN  # in its control file, so safe from a crash
    sent_commit_lsn: Lsn = ZERO_LSN  # in our last append to it
    attached: bool = False
    is_late: bool = False  # its connection is newer than our ballot, and no witness has answered
    awaits_witness: bool = False  # is_late, and we may be an older copy of ourselves (witness.py)
    silent_ticks: int = 0
    append_bytes: int = APPEND_BYTES_MAX  # the longest append that it is sent
    grows_lsn: Lsn = ZERO_LSN  # once this is acknowledged, a lowered append_bytes is doubled
    is_probed: bool = False  # it had no space, and has not taken an append since
    late_ticks: int = 0  # how long nothing of what is in flight has been acknowledged
    ticked_lsn: Lsn = ZERO_LSN  # its flush_lsn at the last tick
    feedback: Feedback = NO_FEEDBACK
    donated: dict[Lsn, memoryview | None] = field(default_factory=dict)  # reads, by begin_lsn

    def greet(self, greeting: AcceptorGreeting) -> None:
        """Record its greeting."""
        self.greeting, self.stage = greeting, Stage.GREETED
        self.name = member_name(greeting.acceptor_id, greeting.incarnation)

    def learn_log(self, greeting: AcceptorGreeting) -> Configuration | None:
        """Record the log that it holds, and return that log's configuration."""
        configuration = greeting.configuration
        self.log_uuid = None if configuration is None else configuration.log_uuid
        return configuration

    def forget(self) -> None:
        """Forget its greeting; it has to greet again."""
        self.greeting = self.name = None

    def ask(self, configuration: Configuration, ballot: Ballot) -> VoteRequest:
        """Return the request for its vote."""
        assert self.name is not None, f"{self=}"
        self.stage, self.vote, self.comparison = Stage.VOTING, None, None
        self.awaits_witness = False
        return VoteRequest(configuration.generation, ballot, configuration.log_uuid, self.name)

    @property
    def in_flight_bytes(self) -> int:
        return int(self.next_lsn) - self.flush_lsn if self.attached else 0

    @property
    def in_flight_bytes_max(self) -> int:
        """Another append goes out while less than this is in flight.

        A safekeeper that had no space gets one append, until it has taken one
        (scenarios/full_safekeeper_is_asked_again.txt)."""
        return 1 if self.is_probed else IN_FLIGHT_BYTES_MAX

    def lose(self) -> None:
        """Note the loss of the link. Its acknowledgements count again once it attaches.

        An append that was not acknowledged in time may be too long for the link, and it is sent
        again from its first byte. So appends are shorter on the next connection (R26,
        scenarios/append_that_was_late_is_sent_smaller.txt).
        """
        if self.late_ticks >= LATE_TICKS:
            self.append_bytes = max(self.append_bytes // 2, APPEND_BYTES_MIN)
        self._detach(Stage.ABSENT)
        self.forget()
        self.is_late, self.silent_ticks = True, 0

    def lacks_space(self, code: RejectCode) -> bool:
        """Return True if this refuses an append for want of space, or a later one because of that.

        The acceptor lets go of the term with the first, so it refuses the others as NOT_ELECTED."""
        if self.stage is Stage.STREAMING:
            return code is RejectCode.NO_SPACE
        return code is RejectCode.NOT_ELECTED and self.stage in (Stage.GREETED, Stage.VOTING)

    def wait_for_space(self) -> None:
        """Keep its connection after an append that it refused, until the leader asks it again."""
        self._detach(Stage.GREETED)
        self.is_probed = True

    def _detach(self, stage: Stage) -> None:
        """Count nothing of it until it attaches again."""
        self.late_ticks, self.grows_lsn, self.ticked_lsn = 0, ZERO_LSN, ZERO_LSN
        if self.attached:
            self.known_lsn = self.flush_lsn
        self.stage, self.vote, self.comparison = stage, None, None
        self.flush_lsn, self.attached, self.awaits_witness = ZERO_LSN, False, False
        self.feedback = NO_FEEDBACK
        self.donated.clear()

    def refuse_reads(self) -> None:
        """Ask it for no WAL for a while, since it could not be read. Perhaps WAL that has left its
        disk is in an archive that does not answer, or a read failed. Neither is for ever, and the
        other donors may lag meanwhile."""
        if self.is_tried:
            self.is_tried = False
            return
        self.donates_lsn, self.refused_ticks = self.flush_lsn, REFUSED_TICKS

    def try_read(self) -> None:
        """Record one read below donates_lsn: its archive may have got that WAL since its vote."""
        self.is_tried, self.untried_ticks = True, REFUSED_TICKS

    def has_donated(self, begin_lsn: Lsn) -> None:
        """Record that it has WAL from here on, as a read of it has shown."""
        if self.is_tried:
            self.is_tried, self.untried_ticks = False, 0
            self.donates_lsn = self.oldest_lsn = min(self.oldest_lsn, begin_lsn)

    def holds_from(self, oldest_lsn: Lsn) -> None:
        """Record where its log begins now, since it was filled (M5)."""
        self.oldest_lsn = min(self.oldest_lsn, oldest_lsn)
        if not self.refused_ticks:
            self.donates_lsn = min(self.donates_lsn, self.oldest_lsn)

    @property
    def is_slow(self) -> bool:
        """True if it is sent shorter appends than others."""
        return self.append_bytes < APPEND_BYTES_MAX

    def grow(self) -> None:
        """Grow append_bytes to its double once enough appends have arrived: flush_lsn has moved."""
        if self.flush_lsn < self.grows_lsn:
            return
        if self.grows_lsn:
            self.append_bytes = min(self.append_bytes * 2, APPEND_BYTES_MAX)
        self.grows_lsn = self.flush_lsn + GROW_APPENDS * self.append_bytes

    def tick(self, receiving: Set[int]) -> None:
        """Count how long it has been silent. Bytes of a message that is not complete are life."""
        self.silent_ticks = 0 if self.link in receiving else self.silent_ticks + 1
        is_late = self.in_flight_bytes > 0 and self.flush_lsn == self.ticked_lsn
        self.late_ticks = self.late_ticks + 1 if is_late else 0
        self.ticked_lsn = self.flush_lsn
        if self.untried_ticks:
            self.untried_ticks -= 1
        if self.refused_ticks:
            self.refused_ticks -= 1
            if not self.refused_ticks:
                self.donates_lsn = self.oldest_lsn

    def forget_reads(self) -> None:
        """Forget reads under way, which may get no or a short answer; keep the WAL before them."""
        end_lsn, payload = self.next_lsn, self.donated.get(self.next_lsn)
        kept: dict[Lsn, memoryview | None] = {}
        while payload is not None:
            kept[end_lsn] = payload
            end_lsn = end_lsn + len(payload)
            payload = self.donated.get(end_lsn)
        self.donated, self.asked_lsn = kept, end_lsn

    def start_streaming(self, start_lsn: Lsn) -> None:
        """Begin at the divergence point that ProposerElected carried."""
        assert self.vote is not None, f"{self.link=}"
        self.stage, self.attached, self.comparison = Stage.STREAMING, False, None
        self.is_late = self.awaits_witness = False
        self.sent_lsn = max(self.sent_lsn, self.next_lsn)
        self.next_lsn = self.asked_lsn = self.known_lsn = start_lsn
        self.flush_lsn, self.oldest_lsn = ZERO_LSN, self.vote.oldest_lsn
        self.donates_lsn, self.refused_ticks = self.oldest_lsn, 0
        self.is_tried, self.untried_ticks = False, 0
        self.durable_commit_lsn = self.sent_commit_lsn = ZERO_LSN
        self.donated.clear()


def asked(members: Iterable[Member]) -> list[Member]:
    """Return the members that have our VoteRequest, on connections that stand."""
    return [m for m in members if m.stage is Stage.VOTING]


def voters(members: Iterable[Member]) -> list[Member]:
    """Return the members that have granted it."""
    return [m for m in asked(members) if m.vote is not None]


def ticked(members: Iterable[Member], receiving: Set[int]) -> Iterator[Member]:
    """Count a tick at each member that is here, and yield it."""
    for member in members:
        if member.stage is not Stage.ABSENT and member.stage is not Stage.CONNECTED:
            member.tick(receiving)
            yield member


def repeat_reads(members: Iterable[Member]) -> None:
    """Forget all reads under way, so that the leader repeats them, perhaps at other donors."""
    for member in members:
        member.forget_reads()


def donor_for(laggard: Member, members: Iterable[Member]) -> Member | None:
    """Return an attached member that has the next byte for `laggard`, or None.

    Attached means that it has processed ProposerElected, so its log is a part of ours
    (Neon: UpdateDonorShmem). If none has that byte by its vote, return one to try.
    """
    further = [m for m in members if m.attached and m is not laggard]
    further = [m for m in further if laggard.asked_lsn < m.flush_lsn]
    able = [m for m in further if m.donates_lsn <= laggard.asked_lsn]
    untried = [m for m in further if not m.refused_ticks and not m.untried_ticks]
    return max(able or untried, key=lambda m: (m.flush_lsn, -m.link), default=None)


def kept_for(learners: Iterable[str], members: Iterable[Member], commit_lsn: Lsn) -> Lsn:
    """Return the LSN below which no learner needs WAL, within a bound (M2).

    A learner beyond the bound may be below restart_lsn. No leader folds its history before a leader
    of the joint members has compared it (docs/steps.md, "A history of many terms").
    """
    flushed = {member.name: member.flush_lsn for member in members if member.attached}
    slowest = min(flushed.get(name, ZERO_LSN) for name in learners)
    return max(slowest, Lsn(max(0, int(commit_lsn) - LEARNER_BYTES_MAX)))


def lacking(
    configuration: Configuration, members: Iterable[Member], restart_lsn: Lsn
) -> tuple[list[Member], Lsn]:
    """Return the members whose log begins late, and the LSN that restart_lsn may not pass (M5).

    They lack WAL that others hold. restart_lsn says that all members hold WAL, so it waits until
    these have it. A member that is away is no case of this: restart_lsn waits for it in any case.
    """
    if not configuration.begins_late:
        return [], LSN_MAX
    here = [member for member in members if member.vote is not None]
    known_lsn = max((m.vote.restart_lsn for m in here if m.vote is not None), default=ZERO_LSN)
    held_lsn = max(known_lsn, restart_lsn)
    late = [m for m in here if m.stage is Stage.STREAMING and m.oldest_lsn > held_lsn]
    return late, held_lsn if late else LSN_MAX


def behind_settle(
    configuration: Configuration, members: Iterable[Member], start_lsn: Lsn
) -> tuple[tuple[str, Lsn | None], ...]:
    """Return the members that do not know durably where the log ends, absent ones included.

    A standby of such a member would wait for ever, because no primary writes any more
    (scenarios/settle_waits_for_who_is_behind.txt).
    """
    by_name = {m.name: m for m in members if m.stage is not Stage.ABSENT}
    missing: list[tuple[str, Lsn | None]] = []
    for name in configuration.everyone:
        member = by_name.get(name)
        if member is None:
            missing.append((name, None))
        elif not member.attached or member.durable_commit_lsn < start_lsn:
            voted_lsn = member.vote.flush_lsn if member.vote is not None else ZERO_LSN
            missing.append((name, max(member.flush_lsn, min(voted_lsn, start_lsn))))
    return tuple(missing)
