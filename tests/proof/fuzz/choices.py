"""Bytes as decisions: a well-formed story from any input. At the end every choice is the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Takes decisions from the front of `data`; never runs out."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def byte(self) -> int:
        at = self._at
        self._at = at + 1
        return self._data[at] if at < len(self._data) else 0

    def below(self, end: int) -> int:
        """Draw from `range(end)`; `end` is at most 256."""
        return self.byte() % end

    def pick(self, items: Sequence[T]) -> T:
        return items[self.byte() % len(items)]

    def one_in(self, count: int) -> bool:
        """Return True once in `count`, never at the end of the data: a rare event needs data."""
        return self.byte() % count == count - 1

    def number(self, size: int) -> int:
        """Draw a number of `size` bytes."""
        at = self._at
        self._at = at + size
        return int.from_bytes(self._data[at : at + size], "little")


def chunks(data: bytes, size: int) -> list[bytes]:
    """Split into one event each, so that a mutation of one does not change all later ones."""
    return [data[at : at + size] for at in range(0, len(data), size)]
