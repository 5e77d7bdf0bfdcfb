"""A thread that runs one job after the other and calls back on the event loop.

fsync blocks, and Python's loop must not: WAL is written here, in groups, one job at a time.
A job that raises a WalkeeperError hands it to `done`; any other exception is a defect and is
raised on the loop, where it ends the daemon.

A thread costs two wake-ups a job, more than a fast disk's fdatasync. So a *brief* job runs on the
loop itself, as soon as the loop has taken in what is there, while three things hold: nothing is
before it on the thread, such jobs have lately been short (BRIEF_S, on average), and no other worker
of this process does the same (`LoopShare`): two of them would wait for each other. Whoever has one
brief job after the other asks once (`at_once`) and keeps the pace of them.
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
from walkeeper_common.pace import AVERAGED_JOBS, BRIEF_S, Pace

Job = Callable[[], object]
Done = Callable[[object], None]
T = TypeVar("T")

# How long a worker counts as busy after it has asked for the loop: one that has many brief jobs
# asks each second, or at its log's next tick.
SHARE_S = 3.0


class LoopShare:
    """Which worker of a process may block its loop: the only one with brief jobs lately."""

    def __init__(self) -> None:
        self._worker: object = None
        self._used_s = self._shared_s = -SHARE_S

    def is_free_for(self, worker: object, now_s: float) -> bool:
        """Also notes that `worker` has a brief job now, or some from now on."""
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
        self._pace = Pace(monotonic)
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

    def at_once(self) -> Pace | None:
        """Until the next `submit`, brief jobs need not be submitted: whoever has one runs it on the
        loop, while this pace says that they are brief, and keeps it. None: one would have to wait
        for something, or should not hold up the loop."""
        share = self._share
        if share is None or self._on_loop or not self._may_block_loop(share, monotonic()):
            return None
        return self._pace

    def stop(self) -> None:
        while self._on_loop:
            self._hand_over(*self._on_loop.popleft())
        self._jobs.put(None)

    def _may_block_loop(self, share: LoopShare, now_s: float) -> bool:
        is_alone = share.is_free_for(self, now_s)
        return is_alone and self._on_thread == 0 and self._pace.usual_s < BRIEF_S

    def _run_timed(self, job: Job) -> object:
        """What it returned, or the WalkeeperError that it raised."""
        started_s = monotonic()
        try:
            return job()
        except WalkeeperError as error:
            return error
        finally:
            pace = self._pace
            pace.usual_s += (monotonic() - started_s - pace.usual_s) / AVERAGED_JOBS

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
