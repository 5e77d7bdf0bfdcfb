"""Events of an acceptor and the effects that it returns, the language between core and driver.

Effects are a program, which the driver performs in order. `Persist` and `TruncateWal` finish
before the next effect and the next event. All other effects overlap, and return as events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.values import value
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import MembersQuery
from walkeeper_common.wire.messages import Feedback, ProposerElected, ProposerGreeting, VoteRequest
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_safekeeper.consensus.durable import Durable


@value
class Received:
    """A message arrived on a connection; `connection` is never used again after it is lost."""

    connection: int
    message: Message


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    connection: int


@value
class WalFlushed:
    """An fdatasync now covers everything below `flush_lsn`."""

    flush_lsn: Lsn


@value
class AppendsTaken:
    """The fast path made the leader's WAL durable up to `flush_lsn`, and acknowledged it.

    `commit_lsn` and `restart_lsn` are the newest in its appends."""

    flush_lsn: Lsn
    commit_lsn: Lsn
    restart_lsn: Lsn


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """No space for a segment: all writes from `flush_lsn` on are dropped, that far is durable."""

    flush_lsn: Lsn
    text: str


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """A write, an fsync or the control file failed, or the WAL is corrupt: final (R15)."""

    text: str


@dataclass(frozen=True, slots=True)
class RecordEndFound:
    """The answer to FindRecordEnd: the end of the last whole record below its flush_lsn."""

    asked: FindRecordEnd
    record_lsn: Lsn


@dataclass(frozen=True, slots=True)
class RecordEndCorrupt:
    """The answer to FindRecordEnd: the bytes there are not what was made durable (R18)."""

    asked: FindRecordEnd
    text: str


@dataclass(frozen=True, slots=True)
class WalRead:
    """The answer to ReadWal. `text` is set instead of a payload when it failed."""

    connection: int
    request: ReadRequest
    truncations: int
    payload: Buffer
    text: str | None = None


@dataclass(frozen=True, slots=True)
class SegmentsRemoved:
    """The log goes back to oldest_lsn now: retention removed segments, or M5 filled some."""

    oldest_lsn: Lsn


@dataclass(frozen=True, slots=True)
class StandbysReported:
    """The standbys that read from this safekeeper sent feedback."""

    feedback: Feedback


@dataclass(frozen=True, slots=True)
class Tick:
    """A heartbeat's time has passed. On the connections `receiving`, more of a message that is not
    complete has come since the last one."""

    receiving: frozenset[int] = frozenset()


Event: TypeAlias = (
    Received
    | ConnectionLost
    | WalFlushed
    | AppendsTaken
    | WriteRefused
    | StorageFailed
    | RecordEndFound
    | RecordEndCorrupt
    | WalRead
    | SegmentsRemoved
    | StandbysReported
    | Tick
)


@dataclass(frozen=True, slots=True)
class Persist:
    """Make the control file say this before anything that follows."""

    state: Durable


@dataclass(frozen=True, slots=True)
class TruncateWal:
    """Cut the WAL at `to_lsn`, durably, before anything that follows."""

    to_lsn: Lsn


@value
class WriteWal:
    """Append these bytes to all that was written before, and fdatasync them in a group."""

    begin_lsn: Lsn
    payload: Buffer


@dataclass(frozen=True, slots=True)
class FindRecordEnd:
    """Find the end of the last whole record below `flush_lsn`, as the log is now.

    Zero is the answer for what an archive alone has. `truncations` comes back with the answer:
    below the same LSN there may be other bytes then.
    """

    flush_lsn: Lsn
    truncations: int


@dataclass(frozen=True, slots=True)
class ReadWal:
    """Read [begin_lsn, end_lsn) for a connection; the core checks again when it comes back."""

    connection: int
    request: ReadRequest
    truncations: int
    end_lsn: Lsn


@value
class Send:
    connection: int
    message: Message


@value
class CommitMoved:
    """Readers may see up to `commit_lsn` now."""

    commit_lsn: Lsn


@dataclass(frozen=True, slots=True)
class EndReaders:
    """Half a record above `above_lsn` was taken back: end the readers that were sent more."""

    above_lsn: Lsn


Effect: TypeAlias = (
    Persist
    | TruncateWal
    | WriteWal
    | FindRecordEnd
    | ReadWal
    | Send
    | CommitMoved
    | EndReaders
    | Note
)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that is answered when the log is drained and its record end is known."""

    connection: int
    message: ProposerGreeting | VoteRequest | ProposerElected | MembersQuery
    flush_lsn: Lsn  # a greeting or a query is answered for the log's end at its arrival
