"""The open end of a log: WAL that stays in one segment is written there without any lookup.

The fast path writes (walkeeper_fastpath). This module holds what it writes to, and makes its errors
those of the store (wal_store.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.pace import Pace
from walkeeper_safekeeper.storage.disk_port import Writer


class Tail:
    """The segment at the log's end that was written last, for WAL that stays in it.

    It ends at `end_lsn`, where another file begins. Each write is followed by a sync at once.
    """

    __slots__ = (
        "_fail",
        "_writer",
        "begin_lsn",
        "close",
        "descriptor",
        "end_lsn",
        "pace",
        "sync",
        "write",
    )

    def __init__(
        self,
        begin_lsn: Lsn,
        end_lsn: Lsn,
        writer: Writer,
        pace: Pace,
        fail: Callable[[StorageError, int], StorageError],
    ) -> None:
        self.begin_lsn, self.end_lsn, self.pace = begin_lsn, end_lsn, pace
        self._writer, self._fail = writer, fail
        self.descriptor = writer.descriptor
        self.write, self.sync, self.close = writer.write, writer.sync, writer.close

    @property
    def is_quick(self) -> bool:
        """Return True if the loop may wait for the disk."""
        return self.pace.is_brief

    def took(self, times: Sequence[tuple[float, float]]) -> None:
        """Count the seconds of each write and of its sync."""
        pace_took, observe = self.pace.took, self._writer.observe
        for write_s, sync_s in times:
            pace_took(write_s + sync_s)
            observe(write_s, sync_s)

    def failed(self, error: Exception, lsn: int) -> StorageError:
        """Return the error of a write or a sync at `lsn`; no append is accepted after it (R15)."""
        if isinstance(error, OSError):
            return self._fail(self._writer.failure(error), lsn)
        assert isinstance(error, StorageError), f"{error!r}"
        return self._fail(error, lsn)

    def cut_short(self, lsn: int, written: int, size: int) -> StorageError:
        """Return the error of a write at `lsn` that wrote less than `size` bytes, as `failed`."""
        offset = int(lsn) - self.begin_lsn
        return self._fail(self._writer.cut_short(offset, written, size), lsn)
