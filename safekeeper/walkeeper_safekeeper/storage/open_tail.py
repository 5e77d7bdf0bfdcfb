"""The open end of a log: small WAL is written there without any lookup (wal_store.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import AVERAGED_JOBS, BRIEF_S, Pace
from walkeeper_common.postgres.walpages import overwriting_pages

Buffer: TypeAlias = bytes | bytearray | memoryview


class Writer(Protocol):
    """One open file. It stays open until `close`, so that a write looks nothing up.

    `write` puts data at an offset and returns how many bytes it wrote. `sync` makes all that was
    written durable. They raise StorageError, or OSError, from which `failure` makes the
    StorageError.
    """

    def write(self, data: Buffer, offset: int, /) -> int: ...
    def sync(self) -> object: ...
    def observe(self, write_s: float, sync_s: float, /) -> None:
        """Count the time of one write, and of its sync."""
        ...

    def failure(self, error: OSError) -> StorageError: ...
    def cut_short(self, offset: int, written: int, size: int) -> StorageError: ...
    def close(self) -> None: ...


class Tail:
    """The segment that was written last, at the log's end, for WAL that touches nothing else."""

    __slots__ = (
        "_begin_lsn", "_fail", "_observe", "_pace", "_sync", "_write", "_writer", "close", "end_lsn"
    )  # fmt: skip

    def __init__(
        self,
        begin_lsn: Lsn,
        end_lsn: Lsn,
        writer: Writer,
        pace: Pace,
        fail: Callable[[StorageError, int], StorageError],
    ) -> None:
        self._begin_lsn, self.end_lsn = int(begin_lsn), end_lsn
        self._writer, self._pace, self._fail = writer, pace, fail
        self._write, self._sync, self.close = writer.write, writer.sync, writer.close
        self._observe = writer.observe

    def append(self, lsn: int, wal: Buffer) -> bool:
        """Write and sync WAL that ends at or below `end_lsn`, and return True.

        Return False, and write nothing, if the disk has become too slow to wait for it. Do so also
        if `wal` holds a page that `WalStore.append` syncs first (wal_store.py, point 2).
        """
        pace, size, offset = self._pace, len(wal), lsn - self._begin_lsn
        usual_s = pace.usual_s
        if usual_s >= BRIEF_S or overwriting_pages(offset, wal):
            return False
        started_s = pace.now_s()
        try:
            written = self._write(wal, offset)
            if written != size:
                raise self._writer.cut_short(offset, written, size)
            written_s = pace.now_s()
            self._sync()
        except OSError as error:
            raise self._fail(self._writer.failure(error), lsn) from error
        except StorageError as error:
            raise self._fail(error, lsn) from error
        synced_s = pace.now_s()
        self._observe(written_s - started_s, synced_s - written_s)
        pace.usual_s = usual_s + (synced_s - started_s - usual_s) / AVERAGED_JOBS
        return True
