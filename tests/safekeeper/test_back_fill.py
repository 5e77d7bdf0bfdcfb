"""Older WAL that others keep is copied, and a source that fails ends nothing (M5, M6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walkeeper_common.errors import NoSpace, StorageError, Unreachable, WalkeeperError, WalRemoved
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread
from walkeeper_safekeeper.archiving import back_fill
from walkeeper_safekeeper.archiving.back_fill import BackFill
from walkeeper_safekeeper.hosting.retention import LOW_MARK, copied_from
from walkeeper_safekeeper.safekeeper_driver import Driver

SEGMENT = 1 << 20
FIRST = Lsn(5 * SEGMENT)
END = Lsn(100)


@pytest.mark.parametrize(
    ("slots", "keep_bytes", "size_max", "expected"),
    [
        ((), 10, None, 90),
        ((), 200, None, 0),
        ((60, 70), 10, None, 60),
        ((95,), 10, None, 90),
        ((), 90, 100, 50),
        ((20,), 10, 100, 50),
        ((60,), 10, 100, 60),
    ],
)
def test_slots_and_settings_say_what_is_copied(
    slots: tuple[int, ...], keep_bytes: int, size_max: int | None, expected: int
) -> None:
    found = copied_from(map(Lsn, slots), flush_lsn=END, keep_bytes=keep_bytes, size_max=size_max)
    assert found == expected
    assert size_max is None or END - found < size_max * LOW_MARK, "else retention removes it again"


class Members:
    """Other members: each read pops the next answer, and the last one stays."""

    def __init__(self, *answers: WalkeeperError | None) -> None:
        self.answers, self.reads = list(answers), 0

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is not None:
            raise answer
        return bytes(end_lsn - begin_lsn)


class Filling:
    """A filling of a log that begins at FIRST; `rounds` ends it after so many pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: Members, kept_lsn: Lsn) -> None:
        monkeypatch.setattr(back_fill, "call", self._called)
        monkeypatch.setattr(back_fill, "page_flaw", lambda *_: None)
        monkeypatch.setattr(back_fill, "may_fill", lambda _: True)
        configuration = SimpleNamespace(begins_late=False, creation_lsn=ZERO_LSN)
        durable = SimpleNamespace(configuration=configuration)
        self.store = SimpleNamespace(segment_bytes=SEGMENT, first_lsn=FIRST)
        acceptor = SimpleNamespace(durable=durable, restart_lsn=LSN_MAX)
        self.driver = SimpleNamespace(
            store=self.store, acceptor=acceptor, older=None, fill=self._fill
        )
        self.disk: WalkeeperError | None = None
        thread, driver = cast(WorkerThread, None), cast(Driver, self.driver)
        self.work = BackFill("main", driver, cast(Any, source), thread, 1, lambda: kept_lsn)
        self._monkeypatch = monkeypatch

    def run(self, rounds: int) -> None:
        """Run until the filling ends by itself, or has paused so many times."""
        left = iter(range(rounds))

        async def sleep(_: float) -> None:
            if next(left, None) is None:
                raise asyncio.CancelledError

        self._monkeypatch.setattr(asyncio, "sleep", sleep)
        try:
            asyncio.run(self.work.run())
        except asyncio.CancelledError:
            self.is_cancelled = True
        else:
            self.is_cancelled = False
        self._monkeypatch.undo()

    async def _called(self, _: object, job: Callable[[], object]) -> object:
        return job()

    def _fill(self, begin_lsn: Lsn, wal: bytes, done: Callable[[object], None]) -> None:
        if self.disk is None:
            self.store.first_lsn = begin_lsn
        done(begin_lsn if self.disk is None else self.disk)


def test_what_the_others_keep_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    filling = Filling(monkeypatch, Members(None), Lsn(3 * SEGMENT + 10))
    assert filling.work.lacks_bytes == 2 * SEGMENT
    filling.run(20)
    assert filling.store.first_lsn == 3 * SEGMENT and not filling.work.lacks_bytes


def test_wal_that_no_member_holds_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    members = Members(WalRemoved(ZERO_LSN, FIRST))
    filling = Filling(monkeypatch, members, ZERO_LSN)
    assert filling.work.lacks_bytes == 5 * SEGMENT
    filling.run(20)
    assert members.reads == 1 and not filling.work.lacks_bytes and filling.work.problem is None


@pytest.mark.parametrize("error", [Unreachable("silent"), NoSpace("full")])
def test_a_source_that_fails_is_asked_again(
    error: WalkeeperError, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = Members(error, error, None)
    filling = Filling(monkeypatch, members, Lsn(4 * SEGMENT))
    filling.run(2)
    assert filling.is_cancelled and filling.work.problem is not None
    assert str(error) in filling.work.problem
    filling = Filling(monkeypatch, members, Lsn(4 * SEGMENT))
    filling.run(20)
    assert filling.store.first_lsn == 4 * SEGMENT and filling.work.problem is None


def test_a_disk_that_fails_ends_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver has posted the failure. No code retries a failed fsync."""
    filling = Filling(monkeypatch, Members(None), Lsn(4 * SEGMENT))
    filling.disk = StorageError("an fsync failed")
    filling.run(20)
    assert not filling.is_cancelled
