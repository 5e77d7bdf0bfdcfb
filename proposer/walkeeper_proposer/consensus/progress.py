"""The proposer's knowledge of each safekeeper, and the next WAL for it. Pure.

    ABSENT -> CONNECTED -> GREETING -> GREETED -> VOTING -> STREAMING;  a lost link -> ABSENT

etcd/raft's tracker with its Probe and Replicate; there is no probing here, because the vote says
exactly where the logs part. A member counts towards commit only once it has answered the
heartbeat behind ProposerElected on this very connection (docs/protocol.md R10).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AcceptorGreeting,
    Feedback,
    VoteResponse,
)

APPEND_BYTES_MAX = 128 << 10
IN_FLIGHT_BYTES_MAX = 8 << 20
DONOR_READS_MAX = 4
SILENT_TICKS_MAX = 10
REFUSED_TICKS = 10  # until a donor that could not be read is asked again


class Stage(Enum):
    ABSENT = "absent"
    CONNECTED = "connected"
    GREETING = "greeting"
    GREETED = "greeted"
    VOTING = "voting"
    STREAMING = "streaming"


@dataclass(slots=True)
class Member:
    """One safekeeper's address and what is behind it now."""

    link: int
    stage: Stage = Stage.ABSENT
    greeting: AcceptorGreeting | None = None
    name: str | None = None  # `id#incarnation` once it has greeted
    log_uuid: bytes | None = None  # the log in its last greeting
    vote: VoteResponse | None = None
    next_lsn: Lsn = ZERO_LSN  # the begin of the next AppendRequest
    sent_lsn: Lsn = ZERO_LSN  # the greatest that next_lsn was on earlier connections
    asked_lsn: Lsn = ZERO_LSN  # the begin of the next read from a donor, at or past next_lsn
    flush_lsn: Lsn = ZERO_LSN
    first_lsn: Lsn = ZERO_LSN  # where its log began when it voted
    donates_lsn: Lsn = ZERO_LSN  # it is not asked for older WAL on behalf of a laggard
    refused_ticks: int = 0  # how much longer it is asked for none at all
    durable_commit_lsn: Lsn = ZERO_LSN
    told_commit_lsn: Lsn = ZERO_LSN
    attached: bool = False
    silent_ticks: int = 0
    feedback: Feedback = NO_FEEDBACK
    donated: dict[Lsn, memoryview | None] = field(default_factory=dict)  # reads, by begin_lsn

    def greet(self, greeting: AcceptorGreeting) -> None:
        """Record its greeting."""
        self.greeting, self.stage = greeting, Stage.GREETED
        self.name = member_name(greeting.acceptor_id, greeting.incarnation)

    def told(self, greeting: AcceptorGreeting) -> Configuration | None:
        """Record the log that it holds, and return that log's configuration."""
        told = greeting.configuration
        self.log_uuid = None if told is None else told.log_uuid
        return told

    def forget(self) -> None:
        """Forget its greeting; it has to greet again."""
        self.greeting = self.name = None

    @property
    def in_flight_bytes(self) -> int:
        return int(self.next_lsn) - self.flush_lsn if self.attached else 0

    def lose(self) -> None:
        """The link is gone; what it had acknowledged is not counted until it attaches again."""
        self.stage, self.vote = Stage.ABSENT, None
        self.forget()
        self.flush_lsn, self.attached, self.silent_ticks = ZERO_LSN, False, 0
        self.feedback = NO_FEEDBACK
        self.donated.clear()

    def refuse_reads(self) -> None:
        """It could not be read: what has left its disk is in an archive that does not answer, or a
        read failed. Neither is for ever, and who else is asked meanwhile may be behind."""
        self.donates_lsn, self.refused_ticks = self.flush_lsn, REFUSED_TICKS

    def tick(self) -> None:
        self.silent_ticks += 1
        if self.refused_ticks:
            self.refused_ticks -= 1
            if not self.refused_ticks:
                self.donates_lsn = self.first_lsn

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
        self.stage, self.attached = Stage.STREAMING, False
        self.sent_lsn = max(self.sent_lsn, self.next_lsn)
        self.next_lsn = self.asked_lsn = start_lsn
        self.flush_lsn, self.first_lsn = ZERO_LSN, self.vote.first_lsn
        self.donates_lsn, self.refused_ticks = self.first_lsn, 0
        self.durable_commit_lsn = self.told_commit_lsn = ZERO_LSN
        self.donated.clear()


def donor_for(laggard: Member, members: Iterable[Member]) -> Member | None:
    """Return an attached member that has the next byte for `laggard`, or None.

    Attached means that it has processed ProposerElected, so its log is a part of ours
    (Neon: UpdateDonorShmem).
    """
    able = [
        m
        for m in members
        if m.attached and m is not laggard and m.donates_lsn <= laggard.asked_lsn < m.flush_lsn
    ]
    return max(able, key=lambda m: (m.flush_lsn, -m.link), default=None)
