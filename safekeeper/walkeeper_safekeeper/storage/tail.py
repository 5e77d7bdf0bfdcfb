"""The open end of a log: small WAL goes there without anything being looked up (wal_store.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walpages import overwriting_pages

Buffer: TypeAlias = bytes | bytearray | memoryview


class Writer(Protocol):
    """One open file. It stays open until `close`: nothing is looked up for a write."""

    def write(self, offset: int, data: Buffer) -> None:
        """All of it, durable when it returns; or a StorageError."""
        ...

    def close(self) -> None: ...


class Tail:
    """The segment that was written last, at the log's end: WAL that touches nothing else."""

    __slots__ = ("_begin_lsn", "_fail", "_write", "close", "end_lsn")

    def __init__(
        self,
        begin_lsn: Lsn,
        end_lsn: Lsn,
        writer: Writer,
        fail: Callable[[StorageError, int], StorageError],
    ) -> None:
        self._begin_lsn, self.end_lsn = int(begin_lsn), end_lsn
        self._write, self.close, self._fail = writer.write, writer.close, fail

    def append(self, lsn: int, wal: Buffer) -> bool:
        """Durable when it returns; below `end_lsn`. False, and nothing done, if it holds a page
        that `append` syncs before (wal_store.py, point 2)."""
        offset = lsn - self._begin_lsn
        if overwriting_pages(offset, wal):
            return False
        try:
            self._write(offset, wal)
        except StorageError as error:
            raise self._fail(error, lsn) from error
        return True
