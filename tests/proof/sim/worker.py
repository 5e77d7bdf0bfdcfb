"""The drivers' Worker in simulated time: jobs one after the other, each done at a later time."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from tests.proof.sim.world import World
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.pace import Pace
from walkeeper_safekeeper.safekeeper_driver import Driver


class _Pace(Pace):
    """The pace that the worker's world chooses, without regard to any measurement."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        super().__init__(lambda: 0.0)

    @property
    def usual_s(self) -> float:
        return self._worker.usual_s()

    @usual_s.setter
    def usual_s(self, _: float) -> None:
        pass


class Worker:
    """A thread and its disk; `stall` lets the disk answer nothing for a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._quick = Random(1)  # worlds without quick disks draw nothing for them
        self._jobs: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        self._is_running = False
        self._stalled_until_ms = 0.0
        self.is_dead = False
        self.awaited: Callable[[], None] | None = None  # called once, when a job begins
        self._pace = _Pace(self)

    def submit(
        self, job: Callable[[], object], done: Callable[[object], None], *, brief: bool = False
    ) -> None:
        self._jobs.append((job, done))
        self._next()

    def at_once(self) -> Pace | None:
        return None if self._is_running or self._jobs or self.is_dead else self._pace

    def usual_s(self) -> float:
        """Return the job's usual time, drawn anew for each: mostly brief if the disks are quick."""
        is_stalled = self._stalled_until_ms > self._world.now_ms
        if self.is_dead or is_stalled:
            return inf
        return 0.0 if self._quick.random() < self._world.options.quick_disks else inf

    def stall(self, for_ms: float) -> None:
        """Let no job finish before this time has passed."""
        self._stalled_until_ms = max(self._stalled_until_ms, self._world.now_ms + for_ms)

    def _next(self) -> None:
        if self._is_running or not self._jobs or self.is_dead:
            return
        self._is_running = True
        most_ms = 1 if self._world.is_healed else self._world.options.disk_ms
        self._world.later(self._world.random.uniform(0.05, most_ms), self._run)
        if self.awaited is not None:
            self._world.later(0.0, self.awaited)
            self.awaited = None

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
        """Return the job that a power cut would find half done, or None."""
        return self._jobs[0][0] if self._is_running and self._jobs else None


class Bunches:
    """A part of the driver's Surroundings: when the core learns of the fast path's appends."""

    world: World
    driver: Driver | None

    def settle_later(self, settle: Callable[[], None]) -> None:
        """Wait in half of the worlds with quick disks."""
        driver, bunch_ms = self.driver, self.world.options.bunch_ms
        if bunch_ms:
            self.world.later(bunch_ms, lambda: settle() if driver is self.driver else None)
        else:
            settle()
