"""A process's clock, as its heartbeats show it: it may stand still, or many pass at once."""

from __future__ import annotations

from collections.abc import Callable

from tests.proof.sim.world import World

STANDS_MS = (2000, 20_000)
BURST_MAX = 20


class Clock:
    """The owner asks `stands` at each heartbeat."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self._stands_until_ms = 0.0

    @property
    def stands(self) -> bool:
        return self._world.now_ms < self._stands_until_ms

    def jump(self, tick: Callable[[], None]) -> None:
        """Time stands still here, or many heartbeats pass at once."""
        random = self._world.random
        self._world.trouble("clock jumps", self._name, "clock jumps")
        if random.random() < 0.5:
            self._stands_until_ms = self._world.now_ms + random.uniform(*STANDS_MS)
        for _ in range(random.randrange(BURST_MAX)):
            tick()

    def heal(self) -> None:
        self._stands_until_ms = 0.0
