"""Write a file that an option of a command names: it appears whole or not at all.

Contract: until the end the file keeps its old content. A HistoryError has the file's name. A
symbolic link stays, and its target is written. A device, a pipe or this process's own stdout is
written directly, because no other file may take its place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from walkeeper_wal.wal_errors import HistoryError

OPEN_ALREADY = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")


@contextmanager
def whole_file(path: str | Path, *, encoding: str | None = None) -> Iterator[IO[Any]]:
    """Open for bytes, or for text in `encoding`. Blocks on a pipe until a reader opens it."""
    try:
        if _is_no_file(path):
            with _opened(path, encoding) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with _opened(partial, encoding) as file:
                yield file
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from error


def _is_no_file(path: str | Path) -> bool:
    if str(path).startswith(OPEN_ALREADY):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode)


def _opened(path: str | Path, encoding: str | None) -> IO[Any]:
    return open(path, "wb") if encoding is None else open(path, "w", encoding=encoding)
