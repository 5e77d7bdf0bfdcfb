"""The form of a benchmark: some rounds, and in each of them the sides in turn. A shell."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence, Set
from typing import Protocol

from walkeeper_lab.bench.pairs import Series, order_of
from walkeeper_lab.bench.sides import Side, processes_of

Say = Callable[[str], None]
FORGOTTEN_S = 4.0
"""How long free memory rests before a side is measured, so that no side has the pages of another.

A virtual machine may give pages back to its host 2 s after they were freed. Such pages take ten
times the CPU when they are used again. A side that is attached sooner would find the others.
"""


class Bench(Protocol):
    """One subcommand. In each round, `measure` adds one value of each side to `series`."""

    title: str

    @property
    def series(self) -> list[Series]: ...
    async def measure(self, side: Side, say: Say) -> None:
        """Measure the side, which is attached."""
        ...


async def take_turns(
    bench: Bench,
    sides: Sequence[Side],
    rounds: int,
    say: Say,
    processors: Set[int] = frozenset(),
) -> list[Series]:
    """Measure every side once in each round, and return the memory of its largest receiver.

    A side's processes run on `processors`, if it is not empty.
    """
    by_name = {side.name: side for side in sides}
    idle = Series("memory of a receiver", "MB, idle", more=False)
    most = Series("", "MB, at most", more=False)
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for name in order_of(list(by_name), number):
            side = by_name[name]
            async with side.attached():
                if processors:
                    for child in processes_of(side):
                        child.run_on(processors)
                # No side waits for what another one left to the disk, such as removed segments.
                await asyncio.to_thread(os.sync)
                await asyncio.sleep(FORGOTTEN_S)
                _add_memory(idle, side, lambda now_mb, _: now_mb)
                await bench.measure(side, say)
                _add_memory(most, side, lambda _, most_mb: most_mb)
    return [idle, most]


def _add_memory(series: Series, side: Side, which: Callable[[float, float], float]) -> None:
    found = [which(*child.memory_mb()) for child in side.victims if child.is_running]
    if found:
        series.add(side.name, max(found))
