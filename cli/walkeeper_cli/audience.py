"""Whoever reads what a command says of what it does. A shell.

Nothing may be left half done, nor commits hanging, because nobody reads that: the reader of a pipe
has gone, the disk below is full, the terminal was closed. So a command that changes something says
it through here. One that only answers need not: nobody hears the answer.
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
    """Of stdout or stderr, which rich may write to as well. After the first failure what is said
    goes nowhere, so that Python does not fail once more when it ends."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream`: None if a parent has closed it."""
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115  (until Python ends)
        self._failure: OSError | None = None

    def say(self, text: str) -> None:
        """One line, now."""
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
        """When all is done: the exit code says that not all was heard."""
        if self._failure is not None:
            raise OSError(self._failure.errno, self._failure.strerror, self._stream.name)


def prepare_stdout() -> None:
    """So that every answer is heard or fails. On one that a parent has closed a write fails, as it
    does on a full disk. In a locale that lacks a character it is shown as an escape; a file's name
    that is no UTF-8 as the bytes that it has."""
    if sys.stdout is None:
        unwritable = io.FileIO(os.open(os.devnull, os.O_RDONLY), "w")
        unwritable.name = STDOUT
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(unwritable), "utf-8")
    elif isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def give_up(stream: TextIO) -> None:
    """What it still holds, and gets, goes nowhere; else Python would end with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
