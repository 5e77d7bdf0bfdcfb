"""The ports of the compiled fast path: to the core, the disk and the connections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


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


class Pace(Protocol):
    """The pace of the disk (walkeeper_common/pace.py)."""

    @property
    def now_s(self) -> Callable[[], float]: ...
    def took(self, seconds: float, /) -> None: ...


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
    @property
    def observe(self) -> Callable[[float, float], None]:
        """Return what counts the seconds of one write, and of its sync."""
        ...


class Answer(Protocol):
    """The connection that gets the acks."""

    def write(self, buffers: Sequence[Buffer], size: int, /) -> object: ...
    def direct(self) -> tuple[int, Callable[[], int], Callable[[], bool]] | None:
        """Return the socket's descriptor, its unsent bytes, and whether it is closing.

        Return None if bytes may not go to the socket as they are."""
        ...
