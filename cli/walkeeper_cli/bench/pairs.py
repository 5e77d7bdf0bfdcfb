"""Rounds in which the sides take turns, and what they are to each other. Pure.

A disk and its neighbours are never the same twice, so figures of different moments are not
compared: in each round every side is measured once, in another order each time, and the ratio is
taken within the round. What is told is the median of these ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


def order_of(sides: Sequence[str], number: int) -> list[str]:
    """Round `number`'s order: forwards and backwards in turn."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


@dataclass(slots=True)
class Series:
    """One figure of every side, a value a round; `more` says whether more of it is better."""

    what: str
    unit: str
    more: bool
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, value: float) -> None:
        self.values.setdefault(side, []).append(value)

    def median(self, side: str) -> float:
        return statistics.median(self.values[side])

    def ratio(self, side: str, against: str) -> float:
        """The median of the rounds' ratios, so that more than 1 is better."""
        pairs = zip(self.values[side], self.values[against], strict=True)
        ratios = [(a / b) if self.more else (b / a) for a, b in pairs]
        return statistics.median(ratios)
