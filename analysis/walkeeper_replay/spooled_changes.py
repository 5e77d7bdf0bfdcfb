"""The changes of a window for a sink: in memory as one part, on disk as several.

    with SpooledChanges(folder, after=lsn) as spooled:
        spooled.take(found, "postgres")      again and again, in the order of commits
        len(spooled); spooled.reader()       all of them, as record batches of SCHEMA

Contract: memory has at most one part, and a batch of it. The file has no name, so that a death
leaves nothing. A full disk raises HistoryError, before a sink has got anything.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa

from walkeeper_replay.change_rows import SCHEMA, FoundChanges
from walkeeper_wal.errors import HistoryError

PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


class SpooledChanges:
    """See the module."""

    def __init__(self, folder: Path, after: int = 0) -> None:
        """Begin without changes. Those of commits that end at `after` or before are left out."""
        self._folder, self._after = folder, after
        self._first: tuple[FoundChanges, str] | None = None
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._opened = ExitStack()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def take(self, found: FoundChanges, database: str) -> None:
        """Take one part."""
        found = found.after(self._after)
        if not len(found):
            return
        self._count += len(found)
        if self._first is None and self._file is None:
            self._first = found, database
            return
        try:
            if self._first is not None:
                self._write(*self._first)
                self._first = None
            self._write(found, database)
        except OSError as error:
            raise HistoryError(
                f"{self._folder}: the changes of a large transaction do not fit there: {error}: "
                "make room, or begin with a --state on a larger disk, and start the stream again"
            ) from error

    def _write(self, found: FoundChanges, database: str) -> None:
        if self._file is None:
            made = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            self._file = self._opened.enter_context(made)
            self._writer = pa.ipc.new_stream(self._file, SCHEMA, options=PACKED)
        for batch in found.batches(database):
            self._writer.write_batch(batch)

    @property
    def is_on_disk(self) -> bool:
        """Return whether there are several parts."""
        return self._file is not None

    def reader(self) -> Any:
        """Return a RecordBatchReader of all changes, from the first one on."""
        if self._file is None:
            return pa.RecordBatchReader.from_batches(SCHEMA, self._batches())
        self._writer.close()
        self._file.seek(0)
        return pa.ipc.open_stream(self._file)

    def _batches(self) -> Iterator[Any]:
        if self._first is not None:
            found, database = self._first
            yield from found.batches(database)

    def __enter__(self) -> SpooledChanges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._opened.close()
