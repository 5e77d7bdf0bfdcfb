"""The offload of one log in this process: what is whole, deaths at every step, reading back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.safekeeper.test_wal_store import make_store
from tests.support.faulty_disk import FaultyDisk
from tests.support.waiting import LIMIT_S, until
from tests.support.wal_maker import WalMaker
from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.archive_errors import ArchiveUnavailable
from walkeeper_archive.layout import Kind, Packing, WalFile, history_file, partial_file
from walkeeper_archive.object_store import ObjectStore, StoredObject
from walkeeper_archive.verification import survey, verify
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused, WalRemoved
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_safekeeper.archiving import archive_survey, archived_wal, offload
from walkeeper_safekeeper.archiving.archived_wal import ArchivedWal
from walkeeper_safekeeper.archiving.offload import Offload
from walkeeper_safekeeper.safekeeper_settings import ArchiveSettings

MB = 1 << 20
SYSTEM_ID = 7_000_000_000_000_000_001


class PowerCut(BaseException):
    """The process is gone, in the middle of a request."""


class MortalStore:
    """Dies before or after its n-th operation, and is silent from then on."""

    def __init__(self, store: ObjectStore, dies_at: float) -> None:
        self._store, self.left, self.url = store, dies_at, store.url

    def _operation(self) -> None:
        self.left -= 0.5
        if self.left <= 0:
            raise PowerCut

    def put_new(self, path: str, data: Buffer) -> bool:
        self._operation()
        done = self._store.put_new(path, data)
        self._operation()
        return done

    def get(self, path: str) -> memoryview | None:
        self._operation()
        return self._store.get(path)

    def digest(self, path: str) -> str | None:
        self._operation()
        return self._store.digest(path)

    def list_from(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        self._operation()
        return self._store.list_from(folder, after)

    def folders(self, folder: str) -> list[str]:
        self._operation()
        return self._store.folders(folder)

    def sync(self, path: str) -> None:
        self._operation()
        self._store.sync(path)

    def delete(self, path: str) -> None:
        self._operation()
        self._store.delete(path)
        self._operation()


class FakeLog:
    """As much of a HostedLog as is archived: WAL that a maker made, on a simulated disk."""

    def __init__(self, maker: WalMaker, *, acceptor_id: int = 1, fork: Lsn | None = None) -> None:
        self.cluster, self.maker = "main", maker
        store = make_store(FaultyDisk(Random(1)), MB)
        store.create(maker.start_lsn)
        store.append(maker.start_lsn, [maker.read(maker.start_lsn, maker.end_lsn)])
        members = tuple(f"{number}#aa" for number in (1, 2, 3))
        fragments = [Fragment(NO_BALLOT, maker.start_lsn, 1, False, members, 2)]
        if fork is not None:
            fragments.append(Fragment(NO_BALLOT, fork, 2, False, members, 2))
        durable = SimpleNamespace(acceptor_id=acceptor_id, history=tuple(fragments))
        acceptor = SimpleNamespace(durable=durable, flush_lsn=maker.end_lsn)
        self.damaged_lsn: Lsn | None = None  # a scrub has found damage there
        self.driver: Any = SimpleNamespace(
            store=store, acceptor=acceptor, is_damaged=lambda b, e: b <= (self.damaged_lsn or 0) < e
        )
        self.configuration = Configuration(
            1, bytes(16), SYSTEM_ID, MB, "15", LogKind.PHYSICAL, maker.start_lsn, 1, members, 2
        )
        self.readable_lsn = maker.end_lsn
        self.moved: list[Lsn] = []
        self.reaches: Lsn | None = None
        self.offload: Offload

    def timeline_history(self, timeline: int) -> bytes | None:
        return b"1\t0/200000\tno recovery target specified\n" if timeline == 2 else None

    def archive_moved(self) -> None:
        self.moved.append(self.offload.archived_lsn)

    def archive_reaches(self, oldest_lsn: Lsn) -> None:
        self.reaches = oldest_lsn

    async def save_archived(self, url: str, archived_lsn: Lsn) -> None:
        """Save no position, because the process is not started again."""

    def run(
        self,
        archive: Archive,
        wanted_lsn: Lsn,
        timeout_s: float = LIMIT_S,
        *,
        tail_lsn: Lsn | None = None,
        gap: tuple[Lsn, Lsn] | None = None,
        has: Callable[[Offload], bool] = lambda _: True,
    ) -> Offload:
        """Run until so much is archived, the tail goes so far, that gap is known and `has` holds.

        End as well when the time is over, or the offload dies.
        """
        died: list[BaseException] = []

        def is_done(made: Offload) -> bool:
            has_tail = tail_lsn is None or (made.tail_lsn or 0) >= tail_lsn
            has_all = made.archived_lsn >= wanted_lsn and has_tail and made.gap == gap
            return bool(died) or (has(made) and has_all)

        async def work() -> Offload:
            settings = ArchiveSettings("", Packing.PLAIN, tail_interval_s=5 * offload.TICK_S)
            made = Offload(self, archive, settings, saved_lsn=None, on_defect=died.append)
            self.offload = made
            task = asyncio.create_task(made.run())
            try:
                await until(lambda: is_done(made), timeout_s)
            finally:
                task.cancel()
                made.stop()
            for error in died:
                raise error
            return made

        return asyncio.run(work())


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "TICK_S", 0.01)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "archive").mkdir()
    return open_archive(f"file://{tmp_path}/archive", "main", SYSTEM_ID)


def wal_with(*records: int, seed: int = 1) -> WalMaker:
    maker = WalMaker(Random(seed), segment_bytes=MB, start_lsn=Lsn(MB))
    for size in records:
        maker.record(size)
    return maker


def segments(archive: Archive) -> list[str]:
    return [
        found.file.name
        for found in archive.objects()
        if found.is_receipt and found.file.kind is Kind.SEGMENT
    ]


def test_a_segment_whose_last_record_is_not_whole_is_not_archived(archive: Archive) -> None:
    """Segments 1 and 2 are committed as bytes; the record that starts in 1 ends in 3."""
    maker = wal_with(100_000, 2 * MB)
    log = FakeLog(maker)
    log.readable_lsn = Lsn(3 * MB + 100)
    with pytest.raises(AssertionError):
        log.run(archive, Lsn(2 * MB), timeout_s=0.7)
    assert segments(archive) == []
    log.readable_lsn = maker.end_lsn
    log.run(archive, Lsn(3 * MB))
    assert segments(archive) == ["000000010000000000000001", "000000010000000000000002"]


def test_damaged_wal_gets_no_receipt(archive: Archive) -> None:
    """A disk that lost a bit before a restart has the only copy that this process knows."""
    log = FakeLog(wal_with(*[300_000] * 12))
    store, at_lsn = log.driver.store, Lsn(2 * MB + 500_000)
    name, offset = store.name_of(at_lsn), at_lsn - store.segment_start(at_lsn)
    (byte,) = store.disk.read_at(name, offset, 1)
    store.disk.write_at(name, offset, [bytes([byte ^ 1])])
    made = log.run(archive, Lsn(2 * MB), has=lambda made: made.failure is not None)
    assert name not in segments(archive)
    assert f"segment {name}" in (made.failure or "")
    store.disk.write_at(name, offset, [bytes([byte])])
    log.run(archive, Lsn(3 * MB))


def test_a_segment_that_the_scrub_found_damaged_gets_no_receipt(archive: Archive) -> None:
    """Its records may be sound: other copies contradict it by digest."""
    log = FakeLog(wal_with(*[300_000] * 12))
    log.damaged_lsn = Lsn(2 * MB)
    log.run(archive, Lsn(2 * MB), has=lambda made: made.failure is not None)
    assert "000000010000000000000002" not in segments(archive)


def test_a_directory_that_is_away_for_long_is_reported_once(
    archive: Archive, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "archive").rmdir()
    log = FakeLog(wal_with(*[300_000] * 12))
    log.run(archive, log.maker.start_lsn, has=lambda made: made.failures > 4)
    told = [record.getMessage() for record in caplog.records]
    assert len([text for text in told if "cannot list the archive" in text]) == 1
    assert len([text for text in told if "cannot archive" in text]) == 1


def test_a_directory_that_is_away_is_a_failure_also_while_nothing_is_due(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_survey, "SURVEY_TICKS", 2)
    place, told = tmp_path / "archive", ""
    place.rmdir()

    def is_told_and_over(made: Offload) -> bool:
        nonlocal told
        if made.failure is not None and not told:
            told = made.failure
            place.mkdir()
        return bool(told) and made.failure is None

    log = FakeLog(wal_with(100_000))
    assert log.run(archive, Lsn(0), has=is_told_and_over).plan.due_segments == 0
    assert str(place) in told


def test_archive_is_the_log_byte_for_byte(archive: Archive) -> None:
    maker = wal_with(*[300_000] * 12)
    log = FakeLog(maker)
    whole = maker.end_lsn.round_down(MB)
    assert log.run(archive, whole).plan.problem is None
    for number in range(1, whole // MB):
        wal = archive.read(WalFile(1, f"0000000100000000{number:08X}"))
        assert wal == maker.read(Lsn(number * MB), Lsn((number + 1) * MB))
    assert log.moved[-1] == whole and log.reaches == maker.start_lsn


def test_the_history_of_a_timeline_is_there_before_its_first_segment(archive: Archive) -> None:
    maker = wal_with(*[300_000] * 12)
    log = FakeLog(maker, fork=Lsn(2 * MB + 4000))
    order: list[str] = []
    put_new = archive.store.put_new

    class Watching(MortalStore):
        def put_new(self, path: str, data: Buffer) -> bool:
            order.append(path.rpartition("/")[2])
            return put_new(path, data)

    log.run(Archive(Watching(archive.store, 1e9), "main", SYSTEM_ID), Lsn(4 * MB))
    assert segments(archive)[:3] == [
        "000000010000000000000001", "000000020000000000000002", "000000020000000000000003"
    ]  # fmt: skip
    first_of_2 = min(i for i, name in enumerate(order) if name.startswith("000000020000"))
    assert order.index("00000002.history.sha256") < first_of_2
    assert archive.read(history_file(2)) == log.timeline_history(2)


@pytest.mark.parametrize("seen", [Lsn(2 * MB + 3000), None], ids=["a tail of it is there", "none"])
def test_the_end_of_an_old_timeline_is_archived_up_to_the_fork(
    archive: Archive, tmp_path: Path, seen: Lsn | None
) -> None:
    """A recovery to timeline 1 asks for its last segment, which only timeline 2 has whole."""
    maker, fork = wal_with(*[300_000] * 12), Lsn(2 * MB + 4000)
    if seen is not None:
        archive.put(partial_file(1, seen, MB), maker.read(Lsn(2 * MB), seen))
    FakeLog(maker, fork=fork).run(archive, Lsn(4 * MB))
    last, target = "000000010000000000000002", tmp_path / "fetched"
    assert archive.fetch_tail(last, str(target), MB) == fork
    assert target.read_bytes() == maker.read(Lsn(2 * MB), fork).ljust(MB, b"\0")
    partials = [o.file.end_lsn for o in archive.objects(1) if o.file.kind is Kind.PARTIAL]
    assert set(partials) == {fork}, "what it replaces is gone"
    assert [problem.text for problem in verify(archive, survey(archive))] == []


def test_a_timeline_that_ends_in_the_tail_is_archived_with_it(archive: Archive) -> None:
    maker = wal_with(*[300_000] * 4)
    begin = maker.end_lsn.round_down(MB)
    log = FakeLog(maker, fork=begin + 50_000)
    log.run(archive, begin, tail_lsn=maker.end_lsn)
    newest = archive.newest_partial(f"00000001{begin // MB:016X}")
    assert newest is not None and newest.end_lsn == begin + 50_000
    assert archive.read(newest) == maker.read(begin, newest.end_lsn)


def test_an_offload_that_dies_at_any_step_is_finished_by_itself_or_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends before each request, or after it without an answer.

    The requests look, and put a history, a timeline's last part, a segment and the tail. The last
    one removes the files that the tail replaces.
    """
    monkeypatch.setattr(offload, "TICK_S", 0.001)
    monkeypatch.setattr(offload, "PARALLEL_MAX", 1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # see test_stores for that
    maker, fork = wal_with(*[300_000] * 4), Lsn(MB + 4000)
    whole, seen = maker.end_lsn.round_down(MB), Lsn(maker.end_lsn.round_down(MB) + 100)
    first, second = (FakeLog(maker, fork=fork, acceptor_id=number) for number in (1, 2))
    step, finished = 0, False
    while not finished:
        step += 1
        (tmp_path / str(step)).mkdir()
        archive = open_archive(f"file://{tmp_path}/{step}", "main", SYSTEM_ID)
        for part in (partial_file(1, fork - 8, MB), partial_file(2, seen, MB)):
            archive.put(part, maker.read(part.begin_lsn(MB), part.end_lsn))
        mortal = Archive(MortalStore(archive.store, step / 2), "main", SYSTEM_ID)
        try:
            first.run(mortal, whole, tail_lsn=maker.end_lsn)
            finished = True
        except PowerCut:
            assert_what_has_receipts_is_right(archive, maker)
        log = second if step % 3 == 2 else first  # itself, started again, or the next one
        assert log.run(archive, whole, tail_lsn=maker.end_lsn).plan.problem is None
        assert_what_has_receipts_is_right(archive, maker)
        contents = survey(archive)
        assert [problem.text for problem in verify(archive, contents)] == []
        assert [contents.runs(1), contents.runs(2)] == [[], [(MB, whole)]]
        assert contents.timelines[1].tail == partial_file(1, fork, MB)
        assert contents.timelines[2].tail == partial_file(2, maker.end_lsn, MB)
    assert step > 35, "that many requests"


def assert_what_has_receipts_is_right(archive: Archive, maker: WalMaker) -> None:
    for file in {found.file for found in archive.objects() if found.is_receipt}:
        if file.kind is not Kind.HISTORY:
            begin = file.begin_lsn(MB)
            end = file.end_lsn if file.kind is Kind.PARTIAL else begin + MB
            assert archive.read(file) == maker.read(begin, end), file


def test_a_put_that_dies_at_any_step_leaves_no_gap_and_no_conflict(tmp_path: Path) -> None:
    maker = wal_with(*[300_000] * 8)
    wal, files = {}, []
    for number in (1, 2):
        files.append(WalFile(1, f"0000000100000000{number:08X}"))
        wal[files[-1]] = maker.read(Lsn(number * MB), Lsn((number + 1) * MB))
    step, finished = 0, False
    while not finished:
        step += 1
        (tmp_path / str(step)).mkdir()
        archive = open_archive(f"file://{tmp_path}/{step}", "main", SYSTEM_ID)
        dying = Archive(MortalStore(archive.store, step / 2), "main", SYSTEM_ID)
        try:
            for file in files:
                dying.put(file, wal[file])
            finished = True
        except PowerCut:
            pass
        for found in archive.objects():
            if found.is_receipt:
                assert archive.read(found.file) == wal[found.file], step
        for file in files:
            archive.put(file, wal[file])
        assert [problem.text for problem in verify(archive, survey(archive))] == []
    assert step > 8


def test_two_that_archive_at_once_do_no_harm(archive: Archive) -> None:
    maker = wal_with(*[300_000] * 20)
    whole = maker.end_lsn.round_down(MB)
    logs = [FakeLog(maker, acceptor_id=number) for number in (1, 2, 3)]

    async def all_of_them() -> None:
        settings = ArchiveSettings("", Packing.ZSTD, tail_interval_s=0.05)
        for log in logs:
            log.offload = Offload(
                log, archive, settings, saved_lsn=None, on_defect=lambda error: None
            )
            log.offload.plan.is_offloading = True  # each believes that it is its turn
        tasks = [asyncio.create_task(log.offload.run()) for log in logs]
        await until(lambda: all(log.offload.archived_lsn >= whole for log in logs))
        for task, log in zip(tasks, logs, strict=True):
            task.cancel()
            log.offload.stop()
        assert [log.offload.plan.problem for log in logs] == [None] * 3

    asyncio.run(all_of_them())
    assert [problem.text for problem in verify(archive, survey(archive))] == []


def older_of(log: FakeLog, archive: Archive, folder: Path) -> ArchivedWal:
    return ArchivedWal(archive, log.driver.store, log.offload.file_of, str(folder))


def test_wal_that_left_the_disk_is_read_back_across_the_border(
    archive: Archive, tmp_path: Path
) -> None:
    maker = wal_with(*[300_000] * 24)
    log = FakeLog(maker)
    log.run(archive, maker.end_lsn.round_down(MB))
    log.driver.store.remove_below(Lsn(5 * MB))
    older = older_of(log, archive, tmp_path / "fetched")
    for begin, end in ((MB, 2 * MB), (MB + 7, MB + 9), (4 * MB - 5, 5 * MB + 5), (MB, 6 * MB)):
        assert older.read(Lsn(begin), Lsn(end)) == maker.read(Lsn(begin), Lsn(end))
    assert len(os.listdir(tmp_path / "fetched")) <= archived_wal.SEGMENTS_KEPT
    older_of(log, archive, tmp_path / "fetched")
    assert os.listdir(tmp_path / "fetched") == [], "what a crash left"


def test_a_store_that_does_not_answer_is_waited_for_and_what_was_pruned_is_gone(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_wal, "PAUSES_S", (0.01,) * 3)
    maker = wal_with(*[300_000] * 16)
    log = FakeLog(maker)
    log.run(archive, maker.end_lsn.round_down(MB))
    log.driver.store.remove_below(Lsn(3 * MB))
    older = older_of(log, archive, tmp_path / "fetched")
    fetch, failures = archive.fetch, 3

    def fails_first(name: str, to_path: str) -> bool:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ArchiveUnavailable("503")
        return fetch(name, to_path)

    monkeypatch.setattr(archive, "fetch", fails_first)
    assert older.read(Lsn(MB), Lsn(MB + 10)) == maker.read(Lsn(MB), Lsn(MB + 10))
    failures = 100
    with pytest.raises(Refused, match="in the archive, which cannot be read: 503"):
        older.read(Lsn(2 * MB), Lsn(2 * MB + 10))
    monkeypatch.setattr(archive, "fetch", lambda name, to_path: False)
    with pytest.raises(WalRemoved):
        older.read(Lsn(2 * MB), Lsn(2 * MB + 10))
