"""The drivers' Worker in simulated time: jobs one after the other, each done at a later time."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim.world import World
from walkeeper_common.errors import WalkeeperError


class Worker:
    """A thread and the disk behind it; `stall` lets the disk answer nothing for a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._quick = Random(1)  # worlds without quick disks draw nothing for them
        self._jobs: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        self._is_running = False
        self._stalled_until_ms = 0.0
        self.is_dead = False

    def submit(
        self, job: Callable[[], object], done: Callable[[object], None], *, brief: bool = False
    ) -> None:
        self._jobs.append((job, done))
        self._next()

    def run_at_once(self, job: Callable[..., object], *arguments: object) -> object:
        """In a world of quick disks, mostly."""
        is_stalled = self._stalled_until_ms > self._world.now_ms
        if self._is_running or self._jobs or self.is_dead or is_stalled:
            return None
        if self._quick.random() >= self._world.options.quick_disks:
            return None
        try:
            return job(*arguments)
        except WalkeeperError as error:
            return error

    def stall(self, for_ms: float) -> None:
        """Nothing is finished before this time has passed."""
        self._stalled_until_ms = max(self._stalled_until_ms, self._world.now_ms + for_ms)

    def _next(self) -> None:
        if self._is_running or not self._jobs or self.is_dead:
            return
        self._is_running = True
        most_ms = 1 if self._world.is_healed else self._world.options.disk_ms
        self._world.later(self._world.random.uniform(0.05, most_ms), self._run)

    def _run(self) -> None:
        if self.is_dead:
            return
        stalled_ms = 0 if self._world.is_healed else self._stalled_until_ms - self._world.now_ms
        if stalled_ms > 0:
            self._world.later(stalled_ms, self._run)
            return
        job, done = self._jobs.pop(0)
        result: object
        try:
            result = job()
        except WalkeeperError as error:
            result = error
        self._is_running = False
        done(result)
        self._next()

    def current_job(self) -> Callable[[], object] | None:
        """What a power cut would find half done."""
        return self._jobs[0][0] if self._is_running and self._jobs else None
