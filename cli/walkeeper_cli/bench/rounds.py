"""The form of a benchmark: some rounds, and in each of them the sides in turn. A shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from walkeeper_cli.bench.pairs import Series, order_of
from walkeeper_cli.bench.sides import Side

Say = Callable[[str], None]


class Bench(Protocol):
    """One subcommand. In each round, `measure` adds one value of each side to `series`."""

    title: str

    @property
    def series(self) -> list[Series]: ...
    async def measure(self, side: Side, say: Say) -> None:
        """Measure the side, which is attached."""
        ...


async def take_turns(bench: Bench, sides: Sequence[Side], rounds: int, say: Say) -> None:
    """Measure every side once in each round."""
    by_name = {side.name: side for side in sides}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name in order_of(list(by_name), number):
            async with by_name[name].attached():
                await bench.measure(by_name[name], say)
