"""The changes of a window for a sink: in memory as one part, on disk as several.

    with SpooledChanges(folder, after=lsn) as spooled:
        spooled.take(found, "postgres")      again and again, in the order of commits
        len(spooled); spooled.reader()       all of them, as record batches of SCHEMA

Contract: memory has at most one part, and a batch of it. The file has no name, so that a death
leaves nothing. A full disk raises HistoryError, before a sink has got anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from walkeeper_replay.changes.change_rows import SCHEMA, FoundChanges
from walkeeper_replay.streams.unnamed_file import UnnamedFile

PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


class SpooledChanges(UnnamedFile):
    """The changes of one window; only the first part stays in memory, while it is alone."""

    def __init__(self, folder: Path, after: int = 0) -> None:
        """Begin without changes. Those of commits that end at `after` or before are left out."""
        super().__init__(folder, "the changes of a large transaction")
        self._after = after
        self._first: tuple[FoundChanges, str] | None = None
        self._writer: Any = None
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, found: FoundChanges, database: str) -> None:
        """Take one part."""
        found = found.after(self._after)
        if not len(found):
            return
        self._count += len(found)
        if self._first is None and not self.is_made:
            self._first = found, database
            return
        if self._first is not None:
            self._write(*self._first)
            self._first = None
        self._write(found, database)

    def _write(self, found: FoundChanges, database: str) -> None:
        with self.end() as file:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(file, SCHEMA, options=PACKED)
            for batch in found.batches(database):
                self._writer.write_batch(batch)

    @property
    def is_on_disk(self) -> bool:
        """True if there are several parts, which are on disk."""
        return self.is_made

    def reader(self) -> Any:
        """Return a RecordBatchReader of all changes, from the first one on."""
        if not self.is_made:
            return pa.RecordBatchReader.from_batches(SCHEMA, self._batches())
        self._writer.close()
        return pa.ipc.open_stream(self.at(0))

    def _batches(self) -> Iterator[Any]:
        if self._first is not None:
            found, database = self._first
            yield from found.batches(database)
