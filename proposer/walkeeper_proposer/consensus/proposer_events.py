"""Events of a proposer and the effects that it returns, the language between core and driver.

A link is one safekeeper's address; it comes up and is lost many times. There is one primary at
a time. PrimaryIdentified announces each (re)connection. The core compares the primary with the log
before it wants a stream (docs/steps.md#check-of-the-primary).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.timelines import parse_timeline_file
from walkeeper_common.values import value
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Feedback


@dataclass(frozen=True, slots=True)
class PrimaryIdentity:
    """A primary's answers on a new connection. `flush_lsn` is the end of its WAL.

    `timeline_file` is its `.history` file, verbatim, or empty on timeline 1.
    """

    system_id: int
    timeline: int
    flush_lsn: Lsn
    segment_bytes: int
    server_version: str
    server_version_num: int
    in_recovery: bool
    fsync: bool
    full_page_writes: bool
    timeline_file: bytes = b""

    @property
    def timeline_ends(self) -> list[tuple[int, Lsn]]:
        """(timeline, LSN where it ended) of each ancestor of its timeline, oldest first."""
        return parse_timeline_file(self.timeline_file)


@dataclass(frozen=True, slots=True)
class LinkUp:
    link: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    link: int


@value
class Received:
    link: int
    message: Message


@dataclass(frozen=True, slots=True)
class PrimaryIdentified:
    identity: PrimaryIdentity


@dataclass(frozen=True, slots=True)
class PrimaryLost:
    text: str


@dataclass(frozen=True, slots=True)
class PrimaryRead:
    """A piece of what ReadPrimary asked for, in order."""

    begin_lsn: Lsn
    wal: Buffer


@dataclass(frozen=True, slots=True)
class PrimaryReadFailed:
    """`removed`: the primary no longer has that WAL (58P01). Otherwise a retry may succeed."""

    text: str
    removed: bool


@value
class WalArrived:
    """WAL of the primary, contiguous from where StartStreaming asked."""

    begin_lsn: Lsn
    wal: memoryview


@dataclass(frozen=True, slots=True)
class NonceWritten:
    """The primary's WAL has a nonce that ends at end_lsn (R22).

    None means that the primary refuses nonces until something is changed there. Retention goes on
    without them.
    """

    end_lsn: Lsn | None


@dataclass(frozen=True, slots=True)
class BackedOff:
    """The pause that BackOff asked for is over."""


@value
class StreamTaken:
    """The fast path sent WAL to all members, and reported the acks of some to the primary.

    `sent`: each chunk with its CRC. `sent_commit_lsn`: the commit_lsn in the last append.
    `acks`: link, flush_lsn and durable commit_lsn of the members that acknowledged.
    `owed_lsn`: the commit_lsn at the last AnnounceSoon, or when the fast path put AnnounceDue off.
    It is 0 if the fast path does not know it."""

    commit_lsn: int
    sent_commit_lsn: Lsn
    sent: Sequence[tuple[memoryview, int]]
    acks: Sequence[tuple[int, int, int]]
    owed_lsn: int = 0


@dataclass(frozen=True, slots=True)
class AnnounceDue:
    """The moment that AnnounceSoon asked for has come."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A heartbeat's time has passed.

    On the links `receiving`, more of an incomplete message has come since the last Tick.
    """

    receiving: frozenset[int] = frozenset()


Event: TypeAlias = (
    LinkUp
    | LinkLost
    | Received
    | PrimaryIdentified
    | PrimaryLost
    | PrimaryRead
    | PrimaryReadFailed
    | WalArrived
    | NonceWritten
    | BackedOff
    | AnnounceDue
    | StreamTaken
    | Tick
)


@value
class Send:
    link: int
    message: Message


@dataclass(frozen=True, slots=True)
class DropLink:
    """Close this connection and connect again after a pause."""

    link: int
    text: str


@dataclass(frozen=True, slots=True)
class IdentifyPrimary:
    """Ask the primary again where its WAL ends: PrimaryIdentified or PrimaryLost follows."""


@dataclass(frozen=True, slots=True)
class ReadPrimary:
    """Read [begin_lsn, end_lsn) of `timeline` from the primary, to compare it."""

    begin_lsn: Lsn
    end_lsn: Lsn
    timeline: int


@dataclass(frozen=True, slots=True)
class StartStreaming:
    start_lsn: Lsn
    timeline: int


@dataclass(frozen=True, slots=True)
class PauseStreaming:
    """The window is full of WAL that no quorum has: read no more, go on answering."""


@dataclass(frozen=True, slots=True)
class ResumeStreaming:
    pass


@value
class Report:
    """Tell PostgreSQL that a quorum has everything below commit_lsn."""

    commit_lsn: Lsn
    feedback: tuple[Feedback, ...]


@dataclass(frozen=True, slots=True)
class RetainWal:
    """The primary has to keep its WAL from here on, and may recycle the WAL before (R22)."""

    begin_lsn: Lsn


@dataclass(frozen=True, slots=True)
class AnnounceSoon:
    """Come back with AnnounceDue in a moment: commit_lsn has moved, and new WAL may carry it."""


@dataclass(frozen=True, slots=True)
class BackOff:
    """Come back with BackedOff after a random pause that grows with `attempt` (Raft 9.3)."""

    attempt: int


class Outcome(Enum):
    """Why a proposer stopped, as the caller's next step."""

    DEPOSED = "deposed"  # a greater ballot exists: exit, never campaign again
    REFUSED = "refused"  # the primary or the log must be looked at first: exit
    CLOSED = "closed"  # the log takes no more WAL (M7): exit, and let no supervisor start it again
    NEW_ELECTION = "new election"  # this term cannot go on: start over as a new proposer
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of `settle`: the consensus end A, the donor's flush C, timeline and ballot.

    `behind`: the members that lack WAL, each with its flush_lsn, or None if it is not reachable.
    """

    consensus_lsn: Lsn
    flush_lsn: Lsn
    timeline: int
    ballot: Ballot
    sealed: bool = False
    behind: tuple[tuple[str, Lsn | None], ...] = ()
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    outcome: Outcome
    text: str
    settled: Settled | None = None


Effect: TypeAlias = (
    Send
    | DropLink
    | IdentifyPrimary
    | ReadPrimary
    | StartStreaming
    | PauseStreaming
    | ResumeStreaming
    | Report
    | RetainWal
    | AnnounceSoon
    | BackOff
    | Stop
    | Note
)
