"""A thread that runs one job after the other and calls back on the event loop.

fsync blocks, and Python's loop must not: WAL is written here, in groups, one job at a time.
A job's WalkeeperError goes to `done`. Any other exception is a defect: it is reported on the loop
and ends the daemon.

A thread costs two wake-ups a job, more than a fast disk's fdatasync. So a *brief* job runs on the
loop itself, as soon as the loop has taken in what is there, while three things hold:

* no job is before it on the thread;
* such jobs have lately been short (BRIEF_S, on average);
* no other worker of this process does the same (`LoopShare`), or the two would wait for each other.

A caller with one brief job after the other asks once (`at_once`) and keeps the pace of them.

A worker without jobs has no thread: its thread ends after IDLE_S, and the next job starts another.
So a safekeeper with hundreds of quiet logs has a few threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.pace import Pace

Job = Callable[[], object]
Done = Callable[[object], None]
T = TypeVar("T")

# A worker counts as busy for so long after it has asked for the loop. A worker with many brief jobs
# asks each second, or at its log's next tick.
SHARE_S = 3.0
IDLE_S = 2.0


class LoopShare:
    """The right to block the loop of a process: the only worker with brief jobs lately has it."""

    def __init__(self) -> None:
        self._worker: object = None
        self._used_s = self._shared_s = -SHARE_S

    def is_free_for(self, worker: object, now_s: float) -> bool:
        """Return True if no other worker used the loop lately; note that `worker` does now."""
        if worker is not self._worker:
            if self._used_s + SHARE_S > now_s:
                self._shared_s = now_s
            self._worker = worker
        self._used_s = now_s
        return self._shared_s + SHARE_S <= now_s


class WorkerThread:
    """One thread at most, while there are jobs; `stop` lets the queued jobs finish."""

    def __init__(
        self, name: str, on_defect: Callable[[BaseException], None], share: LoopShare | None = None
    ) -> None:
        """Name the thread; run every job on it if there is no `share`."""
        self._name, self._loop = name, asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._on_defect, self._share = on_defect, share
        self._on_thread = 0  # jobs that the thread has, or whose `done` has not been called yet
        self._on_loop: deque[tuple[Job, Done]] = deque()
        self._pace = Pace(monotonic)
        self._starting = threading.Lock()  # guards the two below
        self._has_thread = self._is_stopped = False

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
        """Return the pace to keep if a caller may run its brief jobs on the loop itself, or None.

        It may until the next `submit`, while the pace says that they are brief, and then need not
        submit them. None means that a job would have to wait or should not hold up the loop.
        """
        share = self._share
        if share is None or self._on_loop or not self._may_block_loop(share, monotonic()):
            return None
        return self._pace

    def stop(self) -> None:
        while self._on_loop:
            self._hand_over(*self._on_loop.popleft())
        with self._starting:
            self._is_stopped = True
            self._jobs.put(None)

    def _may_block_loop(self, share: LoopShare, now_s: float) -> bool:
        is_alone = share.is_free_for(self, now_s)
        return is_alone and self._on_thread == 0 and self._pace.is_brief

    def _run_timed(self, job: Job) -> object:
        """Return the job's result, or the WalkeeperError that it raised."""
        started_s = monotonic()
        try:
            return job()
        except WalkeeperError as error:
            return error
        finally:
            self._pace.took(monotonic() - started_s)

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
        with self._starting:
            self._jobs.put((job, done))
            if self._has_thread or self._is_stopped:
                return
            self._has_thread = True
        # A daemon thread: a disk that never answers must not keep the process from ending.
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _next(self) -> tuple[Job, Done] | None:
        """Return the next job, or None if the thread is to end."""
        try:
            return self._jobs.get(timeout=IDLE_S)
        except Empty:
            pass
        with self._starting:
            try:
                return self._jobs.get_nowait()  # it came in between
            except Empty:
                self._has_thread = False
                return None

    def _run(self) -> None:
        while (entry := self._next()) is not None:
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
            return  # the loop is closed: no caller waits any more


async def call(thread: WorkerThread, job: Callable[[], T]) -> T:
    """Return the job's result; raise the WalkeeperError that it raised."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    thread.submit(job, partial(resolve, future))
    return await future


def resolve(future: asyncio.Future[T], result: T | WalkeeperError) -> None:
    """Resolve the future with the job's result or error, unless it is done: a waiter may have gone.

    A WorkerThread's Done.
    """
    if future.done():
        return
    if isinstance(result, WalkeeperError):
        future.set_exception(result)
    else:
        future.set_result(result)
