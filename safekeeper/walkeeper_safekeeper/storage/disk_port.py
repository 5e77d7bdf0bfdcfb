"""The port of a log's directory on disk: all that the storage of WAL asks of a disk.

    Disk        one directory; every call blocks
    Writer      one open file of it, for the open end of a log

A real directory fits it in production (real_disk.py). The tests and the simulator have one that
forgets unsynced data. The order in which the storage calls the port is its contract with a power
cut (wal_store.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import StorageError

HALF_MADE = ".tmp"


class Disk(Protocol):
    """One directory. All of it blocks; every failure but NoSpace is a StorageError with the name.

    Written data is durable only after `sync_data` of that file. Created, renamed and unlinked names
    are durable only after `sync_directory`. Names that end in HALF_MADE may be left over from a
    crash.
    """

    def names(self) -> list[str]: ...
    def size(self, name: str) -> int: ...
    def read_at(self, name: str, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes."""

    def read_cached(self, name: str, offset: int, size: int) -> Buffer | None:
        """Return `size` bytes without a wait for the disk, or None; never fail."""

    def write_at(self, name: str, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all bytes in sequence, or raise; NoSpace writes none and allows a retry."""

    def writer(self, name: str) -> Writer:
        """Open a file that keeps its name until it is closed; raise NoSpace if it cannot be now."""

    def sync_data(self, name: str) -> None: ...
    def sync_directory(self) -> None: ...
    def allocate(self, name: str, size: int) -> None:
        """Make a file of zeros, written and fsynced, or raise NoSpace and leave none."""

    def drop_cached(self, name: str) -> None:
        """Give the hint that no reader will need this file soon; never fail."""

    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, name: str) -> None: ...
    def replace(self, name: str, data: bytes) -> None:
        """Replace a file durably, never torn: another name, fsync, rename, fsync."""


class Writer(Protocol):
    """One open file. It stays open until `close`, so that a write looks nothing up.

    `descriptor` is -1 for a file that is none. Then `write` puts data at an offset and returns how
    many bytes it wrote. `sync` makes all that was written durable. They raise StorageError, or
    OSError, from which `failure` makes the StorageError.
    """

    descriptor: int

    def write(self, data: Buffer, offset: int, /) -> int: ...
    def sync(self) -> object: ...
    def observe(self, write_s: float, sync_s: float, /) -> None:
        """Count the time of one write, and of its sync."""
        ...

    def failure(self, error: OSError) -> StorageError: ...
    def cut_short(self, offset: int, written: int, size: int) -> StorageError: ...
    def close(self) -> None: ...
