"""The ports of the compiled fast path to the core, the disk and the connections, and its own two.

`FastAppends` is the fast path as a safekeeper's driver uses it, `FastStream` as a proposer's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.wire.messages import Feedback

TakeFrames: TypeAlias = Callable[[bytearray, int], int]


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
    """The connection that gets what the fast path leaves (shell/framed_connection.py)."""

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


class FastStream(Protocol):
    """The stream of one leader: WAL to all members that keep up, and their acks.

    `feedback` is that of all members, for the report to the primary."""

    @property
    def feedback(self) -> Sequence[Feedback]: ...
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
