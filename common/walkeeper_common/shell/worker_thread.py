"""A thread that runs one job after the other and calls back on the event loop.

fsync blocks, and Python's loop must not: WAL is written here, in groups, one job at a time.
A job that raises a WalkeeperError hands it to `done`; any other exception is a defect and is
raised on the loop, where it ends the daemon.

A thread costs two wake-ups a job, more than a fast disk's fdatasync. So a *brief* job runs on the
loop itself, as soon as the loop has taken in what is there, while three things hold: nothing is
before it on the thread, such jobs have lately been short (BRIEF_S, on average), and no other worker
of this process does the same (`LoopShare`): two of them would wait for each other.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from time import monotonic
from typing import TypeVar

from walkeeper_common.errors import WalkeeperError

Job = Callable[[], object]
Done = Callable[[object], None]
T = TypeVar("T")

BRIEF_S = 0.005
SHARE_S = 1.0  # how long a worker counts as busy after its last brief job
AVERAGED_JOBS = 8


class LoopShare:
    """Which worker of a process may block its loop: the only one with brief jobs lately."""

    def __init__(self) -> None:
        self._worker: object = None
        self._used_s = self._shared_s = -SHARE_S

    def is_free_for(self, worker: object, now_s: float) -> bool:
        """Also notes that `worker` has a brief job now."""
        if worker is not self._worker:
            if self._used_s + SHARE_S > now_s:
                self._shared_s = now_s
            self._worker = worker
        self._used_s = now_s
        return self._shared_s + SHARE_S <= now_s


class WorkerThread:
    """Started at once; `stop` lets the queued jobs finish."""

    def __init__(
        self, name: str, on_defect: Callable[[BaseException], None], share: LoopShare | None = None
    ) -> None:
        """Without a `share` every job is the thread's."""
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._on_defect, self._share = on_defect, share
        self._on_thread = 0  # jobs that the thread has, or whose `done` has not been called yet
        self._on_loop: deque[tuple[Job, Done]] = deque()
        self._usual_s = 0.0  # what a brief job takes, averaged over the last ones
        # A daemon thread: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done, *, brief: bool = False) -> None:
        """Run `job` after those before it; `done` gets what it returned or raised."""
        if brief and self._share is not None:
            if self._may_block_loop(self._share, monotonic()):
                self._on_loop.append((job, done))
                self._loop.call_soon(self._run_on_loop)
                return
            job = partial(self._run_timed, job)
        while self._on_loop:  # they come first
            self._hand_over(*self._on_loop.popleft())
        self._hand_over(job, done)

    def run_at_once(self, job: Callable[..., object], *arguments: object) -> object:
        """What a brief job returned, or the WalkeeperError that it raised; None, and nothing done,
        if it would have to wait for something or should not hold up the loop."""
        share, started_s = self._share, monotonic()
        if share is None or self._on_loop or not self._may_block_loop(share, started_s):
            return None
        try:
            result = job(*arguments)
        except WalkeeperError as error:
            result = error
        except BaseException as error:
            self._on_defect(error)
            raise
        self._usual_s += (monotonic() - started_s - self._usual_s) / AVERAGED_JOBS
        return result

    def stop(self) -> None:
        while self._on_loop:
            self._hand_over(*self._on_loop.popleft())
        self._jobs.put(None)

    def _may_block_loop(self, share: LoopShare, now_s: float) -> bool:
        is_alone = share.is_free_for(self, now_s)
        return is_alone and self._on_thread == 0 and self._usual_s < BRIEF_S

    def _run_timed(self, job: Job) -> object:
        """What it returned, or the WalkeeperError that it raised."""
        started_s = monotonic()
        try:
            return job()
        except WalkeeperError as error:
            return error
        finally:
            self._usual_s += (monotonic() - started_s - self._usual_s) / AVERAGED_JOBS

    def _run_on_loop(self) -> None:
        if not self._on_loop:
            return  # it was handed over to the thread
        job, done = self._on_loop.popleft()
        try:
            result = self._run_timed(job)
        except BaseException as error:
            self._on_defect(error)
            return
        done(result)

    def _hand_over(self, job: Job, done: Done) -> None:
        self._on_thread += 1
        self._jobs.put((job, done))

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, done = entry
            try:
                result = job()
            except WalkeeperError as error:
                result = error
            except BaseException as error:
                self._call(self._on_defect, error)
                return
            self._call(self._finish, done, result)

    def _finish(self, done: Done, result: object) -> None:
        self._on_thread -= 1
        done(result)

    def _call(self, what: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            return  # the loop is closed: nobody is waiting any more


async def call(thread: WorkerThread, job: Callable[[], T]) -> T:
    """The job's result; raises the WalkeeperError that it raised."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread.submit(job, partial(resolve, future))
    return await future


def resolve(future: asyncio.Future[T], result: T | WalkeeperError) -> None:
    """What a Done is told, for whoever awaits it; they may have gone."""
    if future.done():
        return
    if isinstance(result, WalkeeperError):
        future.set_exception(result)
    else:
        future.set_result(result)
