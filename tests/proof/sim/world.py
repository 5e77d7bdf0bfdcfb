"""Simulated time. One Random(seed) decides everything; simultaneous events run in order.

    later(ms, what)    once             every(rate, what)   at random times, until the world heals
    play(plot)         a generator: it yields how long to wait, or an Until

Nodes, network and plots ask the world for time and for luck.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import TypeAlias, Unpack

from tests.proof.sim import zones
from tests.proof.sim.oracle import NoProgress
from tests.proof.sim.troubles import AskedOptions, Options

EVENTS_MAX = 1_000_000
LOOK_MS = 4


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until this is so, or for so long."""

    is_so: Callable[[], bool]
    most_ms: float


Plot: TypeAlias = Iterator[float | Until]


class World:
    """The clock, the agenda, the trace, and the tally of what went wrong."""

    def __init__(
        self,
        seed: int,
        *,
        show: Callable[[str], None] | None = None,
        **asked: Unpack[AskedOptions],
    ) -> None:
        """Draw the seed's options, except for those that `asked` sets."""
        self.seed, self.random = seed, Random(seed)
        self.options = replace(Options.draw(self.random), **asked)
        if zones.has_zones(seed):
            self.options = replace(self.options, has_zones=True)
        if self.options.has_archive or self.options.is_bulk:
            self.options = replace(self.options, retention_bytes=0)
        self.now_ms = 0.0
        self.events = 0
        self.is_healed = self.is_calm = False
        self.faults: Counter[str] = Counter()
        self.facts: Counter[str] = Counter()
        self._show = show
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    @property
    def is_rough(self) -> bool:
        """True while something may go wrong by itself."""
        return not (self.is_healed or self.is_calm)

    def later(self, delay_ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, next(self._serial), what))

    def say(self, who: str, text: str) -> None:
        if self._show is not None:
            self._show(f"{self.now_ms:10.1f} {who:<4} {text}")

    def trouble(self, kind: str, who: str = "", text: str = "") -> None:
        """Count a fault that was injected, and show it if there is a text."""
        self.faults[kind] += 1
        if text:
            self.say(who, text)

    def run_until(self, time_ms: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        while self._agenda and self._agenda[0][0] <= time_ms and not stop():
            self.now_ms, _, what = heapq.heappop(self._agenda)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise NoProgress(f"{EVENTS_MAX} events and no end: something spins")
            what()
        if not stop():
            self.now_ms = max(self.now_ms, time_ms)

    def chance(self, rate: float) -> bool:
        return self.is_rough and self.random.random() < rate

    def delay_ms(self) -> float:
        most = 2 if self.is_healed else self.options.delay_ms
        return self.random.uniform(0.1, most)

    def every(self, a_minute: float, what: Callable[[], object]) -> None:
        """Call `what` at random times, so often a simulated minute, until the world heals."""
        if not a_minute:
            return

        def again() -> None:
            if not self.is_healed:
                if self.is_rough:
                    what()
                self.later(self.random.expovariate(a_minute / 60_000), again)

        self.later(self.random.expovariate(a_minute / 60_000), again)

    def play(self, plot: Plot, then: Callable[[], None]) -> None:
        """Play a plot act by act, until it ends or the world heals."""

        def act() -> None:
            if self.is_healed:
                return
            wait = next(plot, None)
            if wait is None:
                then()
            elif isinstance(wait, Until):
                self._look(wait, self.now_ms + wait.most_ms, act)
            else:
                self.later(wait, act)

        act()

    def _look(self, wait: Until, end_ms: float, then: Callable[[], None]) -> None:
        if self.is_healed:
            return
        if wait.is_so() or self.now_ms >= end_ms:
            then()
        else:
            self.later(LOOK_MS, lambda: self._look(wait, end_ms, then))
