"""The ports of the compiled fast path to the core, the disk and the connections, and its own two.

`FastAppends` is the fast path as a safekeeper's driver uses it, `FastStream` as a proposer's does.
`StreamEnds` is the side of a proposer that faces PostgreSQL. `ReadCached` reads the page cache for
a safekeeper's readers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Protocol, TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.metrics import Times
from walkeeper_common.wire.messages import Feedback

TakeFrames: TypeAlias = Callable[[bytearray, int], int]
# (descriptor, size, offset) -> the bytes, or None if the kernel would wait for the disk.
ReadCached: TypeAlias = Callable[[int, int, int], Buffer | None]
# consume_input, get_copy_data, put_copy_data and flush, as psycopg's compiled PGconn has them.
LibpqCalls: TypeAlias = tuple[
    Callable[[], object],
    Callable[[int], tuple[int, memoryview]],
    Callable[[bytes], object],
    Callable[[], int],
]


class Expected(Protocol):
    """The next frames, as the core describes them (consensus/expected_append.py)."""

    @property
    def append(self) -> bytes: ...
    @property
    def ack(self) -> bytes: ...
    @property
    def limit_lsn(self) -> int: ...
    @property
    def knows_pages(self) -> bool: ...


class ExpectedFrames(Protocol):
    """A leader's frames, as the core describes them (consensus/expected_stream.py)."""

    @property
    def append(self) -> bytes: ...
    @property
    def links(self) -> Sequence[int]: ...
    @property
    def acks(self) -> Sequence[bytes]: ...
    @property
    def sets(self) -> Sequence[tuple[int, Sequence[int]]]: ...
    @property
    def start_lsn(self) -> int: ...
    @property
    def restart_lsn_max(self) -> int: ...
    @property
    def wal_bytes_max(self) -> int: ...
    @property
    def in_flight_bytes_max(self) -> int: ...
    @property
    def unsettled_bytes_max(self) -> int: ...
    @property
    def feedback(self) -> object: ...
    @property
    def bunched_bytes_max(self) -> int: ...


class Pace(Protocol):
    """The pace of the disk (walkeeper_common/pace.py)."""

    @property
    def now_s(self) -> Callable[[], float]: ...
    @property
    def brief_s(self) -> float:
        """Return the least time of a write that may end `Disk.is_quick`."""
        ...


class Disk(Protocol):
    """The open segment (storage/open_tail.py). `descriptor` is -1 if it has none."""

    @property
    def begin_lsn(self) -> int: ...
    @property
    def end_lsn(self) -> int: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def pace(self) -> Pace: ...
    @property
    def is_quick(self) -> bool: ...
    def write(self, data: Buffer, offset: int, /) -> int: ...
    def sync(self) -> object: ...
    def failed(self, error: Exception, lsn: int, /) -> Exception: ...
    def cut_short(self, lsn: int, written: int, size: int, /) -> Exception: ...
    def took(self, times: Sequence[tuple[float, float]], /) -> None:
        """Count the seconds of each write and of its sync; `is_quick` may end."""
        ...


class Sealed(Protocol):
    """The TLS of a connection: `seal` adds plaintext, `take` returns bytes for the socket."""

    @property
    def seal(self) -> Callable[[Buffer], int]:
        """Return what takes the first bytes of a buffer, and returns their number."""
        ...

    @property
    def take(self) -> Callable[[], bytes]: ...
    def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]]:
        """Return what `Answering.direct` returns of a plain connection."""
        ...

    def write_rest(self, ciphertext: memoryview, /) -> object:
        """Send bytes that the socket has not taken, before all others."""
        ...

    def on_refused(self, error: OSError, /) -> object:
        """Close the connection: TLS took no bytes."""
        ...


class Answering(Protocol):
    """The connection to which the fast path writes."""

    def write(self, buffers: Sequence[Buffer], size: int, /) -> object: ...
    def sealed(self) -> Sealed | None:
        """Return the TLS of a connection for which `direct` returns None, if it has one."""
        ...

    def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]] | None:
        """Return the socket's descriptor, its unsent bytes, and whether it is closing.

        Return None if bytes may not go to the socket as they are."""
        ...


class Feeding(Answering, Protocol):
    """The connection from which the fast path also gets what was received."""

    def receive_first(self, take: TakeFrames | None, /) -> object:
        """Give received bytes to `take` before the owner, until this is called with None."""
        ...


class Frames(Protocol):
    """The bytes of a connection that were received and not taken (wire/framing.py)."""

    memory: bytearray
    view: memoryview
    held_bytes: int

    def buffer(self) -> memoryview: ...


class Receiving(Protocol):
    """Get the frames that the fast path leaves (shell/safekeeper_links/framed_connection.py)."""

    def on_received(self, nbytes: int, /) -> None: ...
    def on_taken(self, taken: int, size: int, /) -> None: ...


class FastAppends(Protocol):
    """The next WAL of one leader: from received bytes to the disk and the ack.

    `taken` has the bytes of frames whose WAL was written last, or could not be written. The log is
    durable and acknowledged up to `end_lsn`. `on_news` is called when `settled` begins to have
    news. After an error, `take` raises it again."""

    on_news: Callable[[], None] | None

    @property
    def taken(self) -> int: ...
    @property
    def end_lsn(self) -> int: ...
    @property
    def groups_written(self) -> int: ...
    def take(self, memory: bytearray, size: int, /) -> int:
        """Make the WAL in the whole frames of `memory[:size]` durable, and acknowledge it.

        Return the number of their bytes. Return 0, with no effect, if the core has to decide.
        Raise StorageError if the WAL of the first `taken` bytes could not be made durable."""
        ...

    def settled(self) -> tuple[int, int, int] | None:
        """Return flush_lsn, commit_lsn and restart_lsn, if they moved since the last call."""
        ...


class Leading(Protocol):
    """The driver of a leader. No other event comes in between while `is_running` is True."""

    is_running: bool

    @property
    def has_standbys(self) -> bool:
        """Return True if members have standbys, which wait for the news of each commit."""
        ...

    @property
    def waiting(self) -> Sized:
        """Return the events that came meanwhile; `run_waiting` is called if there are any."""
        ...

    def run_waiting(self) -> object: ...
    def on_news(self) -> object:
        """Take the note that `settled` has news, once until it is called."""
        ...

    def on_idle(self) -> object:
        """Take the note that a quorum has all WAL that was sent, if there are standbys."""
        ...

    def on_bunch(self) -> object:
        """Take the note that WAL is kept back, and call `release` soon."""
        ...

    def report(self, commit_lsn: int, feedback: Sequence[Feedback], /) -> object: ...


class FastStream(Protocol):
    """The stream of one leader: WAL to all members that keep up, and their acks.

    `feedback` is that of all members, for the report to the primary. `owed_lsn` is the commit_lsn
    of `owe` and `puts_off`, whichever was last, or 0."""

    @property
    def owed_lsn(self) -> int: ...
    @property
    def feedback(self) -> Sequence[Feedback]: ...
    def lead(self, leader: Leading, /) -> None:
        """Take the leader that `stream` and `acknowledge` work for, until `end`."""
        ...

    def owe(self) -> None:
        """Note commit_lsn: the core has asked for the moment to announce it."""
        ...

    def puts_off(self) -> bool:
        """Note commit_lsn again, and return True, if the core would only ask for that moment again.

        Appends have sent all members what was owed, and another commit_lsn is owed since. Return
        False some times later, so that the core learns of it all."""
        ...

    def end(self) -> None:
        """Take nothing more: the template is void. `settled` goes on to work."""
        ...

    def bunch_for(self, link: int | None, /) -> None:
        """Send WAL to this link in bunches from now on, and to all others at once.

        `settled` sends a bunch first. If a commit has to wait for a bunch, all get WAL at once."""
        ...

    def release(self) -> tuple[int, bool]:
        """Send the bunch.

        Return the appends in bunches since the last call, and whether a commit waited for one."""
        ...

    def behind_commits(self) -> tuple[int, Sequence[tuple[int, int]]]:
        """Return how often commit_lsn moved since the last call, and how often each link lagged."""
        ...

    def stream(self, begin_lsn: int, wal: memoryview, /) -> bool:
        """Send WAL as `send` does, and notify the leader."""
        ...

    def acknowledge(self, link: int, memory: bytearray, size: int, /) -> int:
        """Take acks as `take` does, report, and notify the leader.

        Return `size`, or 0, with no effect, if the core has to see them."""
        ...

    def send(self, begin_lsn: int, wal: memoryview, /) -> bool:
        """Send WAL to all members. Return False, with no effect, if the core has to do it."""
        ...

    def take(self, link: int, memory: bytearray, size: int, /) -> int | None:
        """Take the acks in `memory[:size]`; return the LSN to report, or 0.

        Return None, with no effect, if the core has to see them."""
        ...

    def settled(
        self,
    ) -> tuple[int, int, Sequence[tuple[memoryview, int]], Sequence[tuple[int, int, int]]] | None:
        """Return what StreamTaken has, if there is news since the last call."""
        ...


class Libpq(Protocol):
    """A connection to PostgreSQL in CopyBoth mode (postgres/replication_connection.py)."""

    @property
    def wants_write(self) -> bool:
        """True while the last message has not left: no other may be sent."""
        ...

    def libpq(self) -> LibpqCalls:
        """Return the calls of libpq itself."""
        ...

    def flush_rest(self) -> object:
        """Send later what the socket has not taken."""
        ...


class Streaming(Protocol):
    """The owner of a primary's stream (postgres/primary.py)."""

    def on_readable(self) -> object:
        """Read all on the slow path."""
        ...

    def on_rest(self, payload: memoryview, /) -> object:
        """Take this CopyData, and read all after it, on the slow path."""
        ...

    def on_wal(self, begin_lsn: int, wal: memoryview, /) -> object:
        """Post WAL that the leader's fast path has left."""
        ...

    def on_stream_over(self, error: Exception | None, /) -> object:
        """End the connection, by the error or after the stream's end. Raise a defect again."""
        ...


class Commits(Protocol):
    """The sampled times of commits (postgres/commit_times.py)."""

    @property
    def times(self) -> Times: ...
    def on_wal(self, end_lsn: int, /) -> object: ...
    def on_commit(self, commit_lsn: int, /) -> object: ...
    def forget(self) -> None: ...


class StreamEnds(Protocol):
    """How far the stream of a primary has come, and what was reported.

    `feedback`: what the last report on the slow path said, if the next may say the same.
    `silent_statuses`: the statuses sent since anything came.
    """

    received_lsn: int
    flush_lsn: int
    apply_lsn: int
    silent_statuses: int
    feedback: Sequence[Feedback] | None

    @property
    def on_readable(self) -> Callable[[], object]:
        """Return what the loop calls when the socket has bytes."""
        ...

    def open(self, connection: Libpq, commits: Commits, /) -> None: ...
    def close(self) -> None: ...
    def stream_first(self, stream: FastStream, /) -> None:
        """Give WAL to this stream first, and report what it commits."""
        ...
