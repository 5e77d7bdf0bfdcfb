"""Jobs run in order wherever they run; a brief one holds up the loop only when that is quicker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest

from tests.support.waiting import LIMIT_S, until
from walkeeper_common.errors import StorageError
from walkeeper_common.pace import BRIEF_S
from walkeeper_common.shell.process import worker_thread
from walkeeper_common.shell.process.worker_thread import SHARE_S, LoopShare, WorkerThread

LOOP = "loop"


class Stage:
    """Workers on one loop; `ran` says which job ran where, in the order of their ends."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []
        self.defects: list[BaseException] = []
        self.results: list[object] = []
        self.workers: list[WorkerThread] = []
        self.now_s = 1000.0  # a job takes what its story says, on a busy machine too
        self._open = 0
        self._idle = asyncio.Event()

    def worker(self, name: str, share: LoopShare | None) -> WorkerThread:
        made = WorkerThread(name, self.defects.append, share)
        self.workers.append(made)
        return made

    def submit(
        self, worker: WorkerThread, name: str, *, brief: bool = True, takes_s: float = 0.0
    ) -> None:
        def job() -> str:
            self.now_s += takes_s
            here = threading.current_thread()
            self.ran.append((name, LOOP if here is threading.main_thread() else here.name))
            return name

        self._submit(worker, job, brief=brief)

    def _submit(self, worker: WorkerThread, job: Callable[[], object], *, brief: bool) -> None:
        self._open += 1
        worker.submit(job, self._done, brief=brief)

    def fail(self, worker: WorkerThread, error: BaseException) -> None:
        def job() -> None:
            raise error

        self._submit(worker, job, brief=True)

    def _done(self, result: object) -> None:
        self.results.append(result)
        self._open -= 1
        if not self._open:
            self._idle.set()

    async def finished(self) -> list[tuple[str, str]]:
        """Return where everything ran, once no job is under way."""
        async with asyncio.timeout(LIMIT_S):
            while self._open:
                self._idle.clear()
                await self._idle.wait()
        ran, self.ran = self.ran, []
        return ran


def played(story: Callable[[Stage], Coroutine[object, object, None]]) -> None:
    async def play() -> None:
        stage = Stage()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker_thread, "monotonic", lambda: stage.now_s)
            try:
                await story(stage)
            finally:
                for worker in stage.workers:
                    worker.stop()  # perhaps for the second time

    asyncio.run(play())


def test_a_brief_job_runs_on_the_loop_behind_what_the_loop_has_to_do() -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker("disk", LoopShare())
        stage.submit(worker, "one")
        assert stage.ran == [], "what has arrived by then belongs to the same group"
        assert await stage.finished() == [("one", LOOP)]

    played(story)


def test_without_a_share_and_when_it_is_not_brief_the_thread_runs_it() -> None:
    async def story(stage: Stage) -> None:
        stage.submit(stage.worker("reader", None), "read")
        stage.submit(stage.worker("disk", LoopShare()), "cut", brief=False)
        assert sorted(await stage.finished()) == [("cut", "disk"), ("read", "reader")]

    played(story)


def test_jobs_keep_their_order_wherever_they_run() -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker("disk", LoopShare())
        stage.submit(worker, "one")
        stage.submit(worker, "two", brief=False)  # takes "one" along to the thread
        stage.submit(worker, "three")
        at_once = await stage.finished()
        assert at_once == [("one", "disk"), ("two", "disk"), ("three", "disk")]
        stage.submit(worker, "four")
        assert await stage.finished() == [("four", LOOP)]

    played(story)


def test_a_slow_disk_is_left_to_the_thread_until_it_is_quick_again() -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker("disk", LoopShare())
        stage.submit(worker, "slow", takes_s=100 * BRIEF_S)
        stage.submit(worker, "after it")
        ran = await stage.finished()
        assert ran[0] == ("slow", LOOP)
        for _ in range(100):
            stage.submit(worker, "quick")
            ran += await stage.finished()
        assert ran[1] == ("after it", LOOP), "it was on its way already"
        assert ran[2] == ("quick", "disk")
        assert ran[-1] == ("quick", LOOP)

    played(story)


def test_brief_jobs_need_not_be_submitted_while_nothing_is_before_them() -> None:
    async def story(stage: Stage) -> None:
        share = LoopShare()
        worker = stage.worker("disk", share)
        pace = worker.at_once()
        assert pace is not None and stage.worker("reader", None).at_once() is None
        stage.submit(worker, "one")
        assert worker.at_once() is None, "behind what was submitted"
        await stage.finished()
        assert worker.at_once() is pace
        pace.usual_s = BRIEF_S  # as its last user has found
        assert worker.at_once() is None
        pace.usual_s = 0.0
        assert stage.worker("another", share).at_once() is None
        assert worker.at_once() is None, "there are two now"

    played(story)


def test_two_busy_workers_do_not_wait_for_each_other() -> None:
    share, now = LoopShare(), 100.0
    assert share.is_free_for("a", now)
    assert not share.is_free_for("b", now + SHARE_S / 2)
    assert not share.is_free_for("a", now + SHARE_S / 2)
    assert share.is_free_for("a", now + 2 * SHARE_S), "b has had nothing to do for a while"


def test_an_error_of_a_job_on_the_loop_is_reported_as_from_the_thread() -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker("disk", LoopShare())
        error = StorageError("no such disk")
        stage.fail(worker, error)
        await stage.finished()
        assert stage.results == [error] and not stage.defects
        defect = ValueError("a bug")
        stage.fail(worker, defect)
        await until(lambda: stage.defects)
        assert stage.defects == [defect] and stage.results == [error], "nobody is told of it"

    played(story)


def test_stop_lets_what_was_submitted_finish() -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker("disk", LoopShare())
        stage.submit(worker, "one")
        worker.stop()
        assert await stage.finished() == [("one", "disk")]

    played(story)


def test_a_worker_has_a_thread_only_while_there_are_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_thread, "IDLE_S", 0.05)

    def has_thread() -> bool:
        return any(thread.name == "quiet" for thread in threading.enumerate())

    async def story(stage: Stage) -> None:
        worker = stage.worker("quiet", None)
        assert not has_thread()
        for name in ("one", "two"):
            stage.submit(worker, name)
            assert await stage.finished() == [(name, "quiet")]
            await until(lambda: not has_thread())
        for number in range(200):  # each about when the thread would end
            stage.submit(worker, str(number))
            await asyncio.sleep(0.05 if number % 10 == 0 else 0)
        assert await stage.finished() == [(str(number), "quiet") for number in range(200)]

    played(story)


def test_a_stopped_worker_starts_no_thread() -> None:
    async def story(stage: Stage) -> None:
        worker = stage.worker("stopped", None)
        worker.stop()
        worker.submit(lambda: None, lambda result: None)
        assert not any(thread.name == "stopped" for thread in threading.enumerate())

    played(story)
