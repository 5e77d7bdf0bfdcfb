"""Progress lines of a command, whose reader may be gone. A shell.

The reader of a pipe may end, the disk of the output may be full, or the terminal may be closed. A
command may then leave no work half done, and no commits hanging. So a command that changes
something writes its lines through this module. A command that only answers does not need to: its
answer has no reader.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

STDOUT = "<stdout>"  # as Python names it


class Audience:
    """The audience of stdout or of stderr; rich may write to it as well.

    After the first failure all output goes to /dev/null. Otherwise Python would fail once more
    when it ends.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Take the stream, or None if a parent has closed it."""
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115  (until Python ends)
        self._failure: OSError | None = None

    def say(self, text: str) -> None:
        """Write one line at once."""
        self.write(f"{text}\n")
        self.flush()

    def write(self, text: str) -> int:
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _attempt(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._failure = self._failure or error
            give_up(self._stream)

    def raise_failure(self) -> None:
        """Raise the first failure as OSError, if there was one.

        A command calls this after all its work. The exit code then says that output was lost.
        """
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror, self._stream.name)


def prepare_stdout() -> None:
    """Prepare stdout so that each answer either reaches its reader or fails.

    On a stdout that a parent has closed, a write fails as it does on a full disk. A character that
    the locale lacks becomes an escape. In a UTF-8 locale, a file's name that is no UTF-8 keeps its
    bytes.
    """
    if sys.stdout is None:
        unwritable = io.FileIO(os.open(os.devnull, os.O_RDONLY), "w")
        unwritable.name = STDOUT
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(unwritable), "utf-8")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def give_up(stream: TextIO) -> None:
    """Send the rest of the stream's output to /dev/null.

    Otherwise Python would fail to flush the stream at its end, and exit with 120.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
