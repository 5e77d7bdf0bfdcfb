"""The filling of a log that begins late keeps to its rate (M5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread
from walkeeper_safekeeper.archiving import back_fill
from walkeeper_safekeeper.archiving.back_fill import BackFill
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings

SEGMENT_BYTES = 1 << 20


class FilledDriver:
    """The driver of a log that begins at segment 5, without a disk."""

    def __init__(self) -> None:
        self.store = SimpleNamespace(segment_bytes=SEGMENT_BYTES, first_lsn=5 * SEGMENT_BYTES)

    def fill(self, begin_lsn: Lsn, wal: bytes, done: Callable[[object], None]) -> None:
        self.store.first_lsn = begin_lsn
        done(begin_lsn)


@pytest.mark.parametrize(("bytes_s", "pause_s"), [(SEGMENT_BYTES, 1.0), (4 * SEGMENT_BYTES, 0.25)])
def test_a_copied_segment_is_followed_by_a_pause_of_its_time(
    bytes_s: int, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    async def called(_: object, job: Callable[[], object]) -> object:
        return job()

    monkeypatch.setattr(back_fill, "call", called)
    monkeypatch.setattr(back_fill, "page_flaw", lambda *_: None)
    monkeypatch.setattr(back_fill, "lacks_bytes", lambda *_: 1)
    driver, source = FilledDriver(), SimpleNamespace(read=lambda *_: b"")
    thread = cast(WorkerThread, None)
    filling = BackFill("main", cast(Driver, driver), cast(Any, source), thread, bytes_s)

    async def fill_one() -> None:
        monkeypatch.setattr(asyncio, "sleep", sleep)
        await filling._fill_one()

    asyncio.run(fill_one())
    assert paused == [pause_s] and driver.store.first_lsn == 4 * SEGMENT_BYTES


@pytest.mark.parametrize(
    ("lacks_bytes", "offload", "problem", "rate", "reason"),
    [
        (0, object(), "the copy stops", 0, None),
        (9, object(), "the copy stops", 0, "the archive is to have it and has not all of it yet"),
        (9, None, None, 0, "--fill-rate is 0"),
        (9, None, "the copy stops", 0, "--fill-rate is 0"),
        (9, None, "the copy stops", 1, "the copy stops"),
        (9, None, None, 1, None),
    ],
    ids=("nothing", "archive", "rate", "rate-first", "problem", "under-way"),
)
def test_a_log_that_lacks_wal_says_why_nothing_is_copied(
    lacks_bytes: int, offload: object, problem: str | None, rate: int, reason: str | None
) -> None:
    filling = SimpleNamespace(problem=problem)
    found = reason_of(lacks_bytes, offload=offload, back_fill=filling, rate=rate)
    assert found == reason or (reason and found and found.startswith(reason)), found


def test_a_log_without_other_members_names_the_option_that_gives_them() -> None:
    found = reason_of(9, offload=None, back_fill=None, rate=1)
    assert found == "no address of another member is known: start it with --repair-from"


def reason_of(lacks_bytes: int, *, offload: object, back_fill: object, rate: int) -> str | None:
    """Return the reason of a log in this state."""
    log = SimpleNamespace(
        lacks_bytes=lacks_bytes, offload=offload, back_fill=back_fill,
        _settings=SimpleNamespace(fill_bytes_s=rate),
    )  # fmt: skip
    reason = HostedLog.lacks_reason
    assert isinstance(reason, property) and reason.fget is not None
    found: str | None = reason.fget(log)
    return found


@pytest.mark.parametrize(("rate", "fills"), [(1, True), (0, False)])
def test_a_rate_of_zero_copies_nothing(rate: int, fills: bool) -> None:
    settings = SafekeeperSettings(1, "data", ("h", 1), scrub_bytes_s=0, fill_bytes_s=rate)

    async def work() -> None:
        pass

    log = SimpleNamespace(
        readable=SimpleNamespace(logical=None, readers=[]), driver=None, offload=None,
        back_fill=SimpleNamespace(run=work), run=work, _settings=settings,
    )  # fmt: skip
    tasks = HostedLog.tasks(cast(HostedLog, log))
    for task in tasks.values():
        task.close()
    assert ("back-fill" in tasks) == fills
