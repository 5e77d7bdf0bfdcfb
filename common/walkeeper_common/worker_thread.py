"""A thread that runs one job after the other and calls back on the event loop.

fsync blocks, and Python's loop must not: WAL is written here, in groups, one job at a time.
A job that raises a WalkeeperError hands it to `done`; any other exception is a defect and is
raised on the loop, where it ends the daemon.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from walkeeper_common.errors import WalkeeperError

Job = Callable[[], object]
Done = Callable[[object], None]
T = TypeVar("T")


class WorkerThread:
    """Started at once; `stop` lets the queued jobs finish."""

    def __init__(self, name: str, on_defect: Callable[[BaseException], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[tuple[Job, Done] | None] = SimpleQueue()
        self._on_defect = on_defect
        # A daemon thread: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job, done: Done) -> None:
        """Run `job` after those before it; `done` gets what it returned or raised."""
        self._jobs.put((job, done))

    def stop(self) -> None:
        self._jobs.put(None)

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
            self._call(done, result)

    def _call(self, what: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, argument)
        except RuntimeError:
            return  # the loop is closed: nobody is waiting any more


async def call(thread: WorkerThread, job: Callable[[], T]) -> T:
    """The job's result; raises the WalkeeperError that it raised."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: object) -> None:
        if future.done():
            return
        if isinstance(result, WalkeeperError):
            future.set_exception(result)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    thread.submit(job, done)
    return await future
