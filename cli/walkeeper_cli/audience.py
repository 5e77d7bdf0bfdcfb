"""Whoever reads what a command says of what it does. A shell.

Nothing may be left half done, nor commits hanging, because nobody reads that: the reader of a pipe
has gone, the disk below is full, the terminal was closed. So a command that changes something says
it through here. One that only answers need not: nobody hears the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO


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


def give_up(stream: TextIO) -> None:
    """What it still holds, and gets, goes nowhere; else Python would end with 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
