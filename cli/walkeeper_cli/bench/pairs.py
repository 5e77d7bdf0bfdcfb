"""Rounds in which the sides take turns, and the ratios between the sides. Pure.

A disk and its neighbours are never the same twice, so figures of different moments cannot be
compared. Each round measures every side once, in another order each time. The ratio is taken
within the round. The report shows the median of these ratios.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


def order_of(sides: Sequence[str], number: int) -> list[str]:
    """Return the order of the sides in a round: forwards and backwards in turn."""
    return list(sides) if number % 2 == 0 else list(reversed(sides))


@dataclass(slots=True)
class Series:
    """One figure of every side, one value a round; `more` is True if a greater value is better."""

    what: str
    unit: str
    more: bool
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, side: str, value: float) -> None:
        self.values.setdefault(side, []).append(value)

    def median(self, side: str) -> float:
        return statistics.median(self.values[side])

    def ratio(self, side: str, against: str) -> float:
        """Return the median of the rounds' ratios; more than 1 means that `side` is better."""
        pairs = zip(self.values[side], self.values[against], strict=True)
        ratios = [(a / b) if self.more else (b / a) for a, b in pairs]
        return statistics.median(ratios)
