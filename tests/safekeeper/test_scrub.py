"""The scrub walks all committed WAL, and finds each byte that a record's CRC covers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from tests.safekeeper.test_dropped_logs import make, on_safekeeper
from tests.safekeeper.test_entry_store import EntryMaker
from tests.safekeeper.test_wal_store import filled, made_wal, plain_wal
from tests.safekeeper.test_whole_records import whole_end
from tests.support.faulty_disk import FaultyDisk
from tests.support.frames import give
from tests.support.waiting import until
from walkeeper_common.history import Ballot, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import LogKind
from walkeeper_common.shell.process.worker_thread import WorkerThread
from walkeeper_common.wire.messages import AppendRequest, ProposerElected
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_safekeeper.archiving.range_digests import Comparison
from walkeeper_safekeeper.hosting import scrub
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.log_catalog import LogCatalog
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.record_steps import Step, step
from walkeeper_safekeeper.storage.wal_store import WalStore


def walked(store: WalStore, end_lsn: Lsn) -> Step:
    """Return the last step of a pass."""
    at = Step(store.first_lsn)
    while at.next_lsn < end_lsn and at.flaw is None:
        at = step(store, at.next_lsn, end_lsn)
    return at


@pytest.mark.parametrize("seed", range(20))
def test_sound_wal_has_no_flaw_whatever_its_records(seed: int) -> None:
    wal = made_wal(seed, 400_000)
    end_lsn = whole_end(wal, wal.end_lsn)
    assert walked(filled(FaultyDisk(Random(seed)), wal), end_lsn) == Step(end_lsn)


@pytest.mark.parametrize("seed", range(20))
def test_one_flipped_bit_in_a_record_is_found_in_its_segment(seed: int) -> None:
    random, wal = Random(seed), plain_wal(seed, 100)
    disk = FaultyDisk(random)
    store = filled(disk, wal)
    record = random.choice(wal.records[:-1])
    at_lsn = Lsn(record.start_lsn + 24)  # in the body
    name, offset = store.name_of(at_lsn), at_lsn - store.segment_start(at_lsn)
    (byte,) = disk.read_at(name, offset, 1)
    disk.write_at(name, offset, [bytes([byte ^ 0x40])])
    found = walked(store, whole_end(wal, wal.end_lsn))
    assert found.flaw is not None and found.next_lsn == record.start_lsn, found
    assert store.name_of(record.start_lsn) in found.flaw


def test_a_logical_log_has_no_flaw_while_its_last_entry_goes_on(tmp_path: Path) -> None:
    """Found by a test under load: a scrub began while a large transaction was half committed."""
    entries = EntryMaker(4, 3 << 20, segment_bytes=1 << 20)
    inside = [Lsn(end - 1) for _, end in entries.ends if end > entries.start_lsn + (1 << 20)][-5:]

    async def story(catalog: LogCatalog) -> None:
        await make(catalog, kind=LogKind.LOGICAL)
        (log,) = catalog.logs()
        log.scrub._bytes_s = 1 << 40
        for commit_lsn in [*inside, entries.end_lsn]:
            await commit_entries(log, entries, commit_lsn)
            assert await log.scrub.one_pass() is None, commit_lsn
            assert await log.whole_end() == entries.end_before(commit_lsn)[1]
        name = log.driver.store.name_of(inside[0])
        log.driver.store.disk.write_at(name, 5000, [bytes(64)])
        found = await log.scrub.one_pass()
        assert found is not None and name in found.text

    on_safekeeper(tmp_path, story)


async def commit_entries(log: HostedLog, entries: EntryMaker, commit_lsn: Lsn) -> None:
    """Append all bytes up to there as a leader does, and let them be committed."""
    acceptor = log.driver.acceptor
    ballot = Ballot(1, b"p" * 16)
    if acceptor.durable.history[-1].ballot != ballot:
        (creation,) = acceptor.durable.history
        entry = Fragment(ballot, entries.start_lsn, 1, False, creation.members, 1)
        elected = ProposerElected(1, ballot, entries.start_lsn, (creation, entry))
        give(log.driver, 1, log.send, elected)
    begin_lsn = acceptor.write_lsn
    wal = entries.read(begin_lsn, commit_lsn)
    start_lsn = entries.start_lsn
    for told, end_lsn, sent in ((start_lsn, commit_lsn, wal), (commit_lsn, commit_lsn, b"")):
        at = Lsn(end_lsn - len(sent))
        give(
            log.driver, 1, log.send,
            AppendRequest(1, ballot, 1, at, end_lsn, told, start_lsn, crc_of(sent), sent),
        )  # fmt: skip
        await until(lambda: acceptor.flush_lsn == commit_lsn)
    await until(lambda: log.readable_lsn == commit_lsn)


class ScrubbedLog:
    """A log whose segments no archive has; `repairs` counts who asked for one."""

    cluster = "main"

    def __init__(self, store: WalStore, end_lsn: Lsn) -> None:
        self.driver = cast(Driver, SimpleNamespace(store=store, damaged=None))
        self.repairs, self._end_lsn = list[Lsn](), end_lsn
        self.place: str | None = None  # where the good copy is
        self.compared, self.copies = list[Lsn](), dict[Lsn, Comparison]()

    async def whole_end(self) -> Lsn:
        return self._end_lsn

    async def compare_segment(self, begin_lsn: Lsn, end_lsn: Lsn) -> Comparison:
        self.compared.append(begin_lsn)
        return self.copies.get(begin_lsn, Comparison())

    async def repair_segment(self, flaw: scrub.Flaw) -> str | None:
        self.repairs.append(flaw.begin_lsn)
        return self.place


def test_damage_is_withheld_and_one_place_is_repaired_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scrub, "PAUSE_S", 0.0)
    wal = plain_wal(3, 100)
    disk = FaultyDisk(Random(3))
    store = filled(disk, wal)
    at_lsn = Lsn(wal.records[len(wal.records) // 2].start_lsn + 24)
    name, offset = store.name_of(at_lsn), at_lsn - store.segment_start(at_lsn)
    (byte,) = disk.read_at(name, offset, 1)
    disk.write_at(name, offset, [bytes([byte ^ 0x40])])
    log = ScrubbedLog(store, whole_end(wal, wal.end_lsn))
    log.place = "a copy that is no better"

    async def story() -> None:
        reader = WorkerThread("scrub", lambda defect: None)
        scrubbing = scrub.Scrub(log, 1 << 40, reader)
        running = asyncio.create_task(scrubbing.run())
        await until(lambda: scrubbing.passes >= 3)
        running.cancel()
        reader.stop()

    asyncio.run(story())
    begin_lsn = store.segment_start(at_lsn)
    assert log.driver.damaged == (begin_lsn, begin_lsn + store.segment_bytes)
    assert log.repairs == [begin_lsn]


def test_damage_without_a_copy_is_tried_again_with_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another member may archive the segment a while later."""
    monkeypatch.setattr(scrub, "PAUSE_S", 0.0)
    wal = plain_wal(3, 400)
    store = filled(FaultyDisk(Random(3)), wal)
    log = ScrubbedLog(store, whole_end(wal, wal.end_lsn))
    begin_lsn = store.first_lsn.round_up(store.segment_bytes)
    log.copies = {begin_lsn: Comparison(("safekeeper 2", "safekeeper 3"), "d")}

    async def story() -> None:
        reader = WorkerThread("scrub", lambda defect: None)
        scrubbing = scrub.Scrub(log, 1 << 40, reader)
        running = asyncio.create_task(scrubbing.run())
        await until(lambda: len(log.repairs) >= 2)
        log.place = "the archive"
        await until(lambda: scrubbing.repairs == 1)
        log.copies = {}
        await until(lambda: scrubbing.flaw is None)
        running.cancel()
        reader.stop()

    asyncio.run(story())


def one_pass(log: ScrubbedLog) -> tuple[scrub.Scrub, scrub.Flaw | None]:
    """Return the scrub after one pass, and the flaw that it found."""

    async def story() -> tuple[scrub.Scrub, scrub.Flaw | None]:
        reader = WorkerThread("scrub", lambda defect: None)
        scrubbing = scrub.Scrub(log, 1 << 40, reader)
        flaw = await scrubbing.one_pass()
        reader.stop()
        return scrubbing, flaw

    return asyncio.run(story())


def test_each_whole_segment_is_compared_with_other_copies_once() -> None:
    wal = plain_wal(3, 400)
    store = filled(FaultyDisk(Random(3)), wal)
    end_lsn = whole_end(wal, wal.end_lsn)
    log = ScrubbedLog(store, end_lsn)
    _, flaw = one_pass(log)
    first = store.first_lsn.round_up(store.segment_bytes)
    last = end_lsn.round_down(store.segment_bytes)
    assert flaw is None and len(log.compared) > 1
    assert log.compared == list(range(first, last, store.segment_bytes)), "and no open one"


def test_a_segment_that_most_copies_contradict_is_a_flaw_though_its_records_are_sound() -> None:
    wal = plain_wal(3, 400)
    store = filled(FaultyDisk(Random(3)), wal)
    log = ScrubbedLog(store, whole_end(wal, wal.end_lsn))
    begin_lsn = store.first_lsn.round_up(store.segment_bytes)
    log.copies = {begin_lsn: Comparison(("safekeeper 2", "the archive"), "d")}
    scrubbing, flaw = one_pass(log)
    assert flaw is not None and flaw.right == "d" and scrubbing.differences == 0
    assert (flaw.begin_lsn, flaw.end_lsn) == (begin_lsn, begin_lsn + store.segment_bytes)
    assert "is not that of safekeeper 2, the archive" in flaw.text
    assert flaw.at_lsn in {record.start_lsn for record in wal.records} | {store.first_lsn}


def test_copies_that_differ_without_a_majority_are_reported_and_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wal = plain_wal(3, 400)
    store = filled(FaultyDisk(Random(3)), wal)
    log = ScrubbedLog(store, whole_end(wal, wal.end_lsn))
    begin_lsn = store.first_lsn.round_up(store.segment_bytes)
    log.copies = {begin_lsn: Comparison(("the archive",))}
    scrubbing, flaw = one_pass(log)
    assert flaw is None and scrubbing.differences == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"segment {store.name_of(begin_lsn)} is not the same here and at the archive" in line
