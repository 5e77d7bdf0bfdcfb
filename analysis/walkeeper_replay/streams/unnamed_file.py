"""A file without a name, for what does not fit into memory: a death leaves nothing of it.

    with UnnamedFile(folder, "the changes of a window") as spool:
        with spool.end() as file: …      the open file, made at the first call, at its end
        spool.at(begin)                  the same file at a byte, for a reader

Contract: a full disk raises HistoryError with the folder, what did not fit, and the remedy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from walkeeper_wal.wal_errors import HistoryError


class UnnamedFile:
    """A file without a name in `folder`. A class that keeps changes in one is a subclass."""

    def __init__(self, folder: Path, kept: str) -> None:
        """Begin without a file; `kept` names its content in errors."""
        self.folder, self._kept = folder, kept
        self._file: IO[bytes] | None = None
        self._opened = ExitStack()

    @property
    def is_made(self) -> bool:
        """Return True if something was written."""
        return self._file is not None

    @contextmanager
    def end(self) -> Iterator[IO[bytes]]:
        """Yield the file for a write at its end; raise HistoryError if the write does not fit."""
        try:
            if self._file is None:
                made = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115
                self._file = self._opened.enter_context(made)
            self._file.seek(0, 2)
            yield self._file
            self._file.flush()  # a full disk may show only here
        except OSError as error:
            raise HistoryError(
                f"{self.folder}: {self._kept} do not fit there: {error}: make room, or begin with "
                "a --state on a larger disk, and start the stream again"
            ) from error

    def at(self, begin: int) -> IO[bytes]:
        """Return the file at a byte of it, for a reader."""
        assert self._file is not None, "it was written"
        self._file.seek(begin)
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._opened.close()
