"""A file that a command is told to write: it appears whole or not at all.

Contract: until the end the file has what it had; HistoryError names it. A symbolic link stays, and
what it points to is written. What is no file (a device, a pipe, this process's own stdout) has no
other name to be prepared under, and nothing may take its place: it is written into.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from walkeeper_history.errors import HistoryError

OPEN_ALREADY = ("/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/")


@contextmanager
def whole_file(path: str | Path, *, encoding: str | None = None) -> Iterator[IO[Any]]:
    """Open for bytes, or for text in `encoding`. Blocks, on a pipe until somebody reads."""
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
