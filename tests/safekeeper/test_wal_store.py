"""The WAL store and its recovery: one suite on a real directory and on the faulty disk.

Power cuts are in test_wal_power_cuts.py, what only a real directory has in test_real_disk.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.support.faulty_disk import FaultyDisk
from tests.support.waiting import LIMIT_S
from tests.support.wal_maker import PAGE, SYSTEM_ID, WalMaker, random_wal
from walkeeper_common.errors import CorruptWal, NoSpace, StorageError, WalRemoved
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.storage.disk_port import Disk
from walkeeper_safekeeper.storage.wal_recovery import DurableFacts, Recovered
from walkeeper_safekeeper.storage.wal_recovery import recover as recover_marking
from walkeeper_safekeeper.storage.wal_store import SegmentNotAllocated, WalStore

SEGMENT = 16384
ONE_TIMELINE = Timelines([Fragment(NO_BALLOT, Lsn(0), 1, False, (), 1)])


def make_store(disk: Disk, segment_bytes: int = SEGMENT) -> WalStore:
    return WalStore(
        disk,
        segment_bytes=segment_bytes,
        timelines=ONE_TIMELINE,
        system_id=SYSTEM_ID,
        lock=threading.Lock(),
    )


def recover(store: WalStore, facts: DurableFacts) -> Recovered:
    return recover_marking(store, facts, mark_cut=lambda lsn: None)


def segments_of(store: WalStore) -> list[Lsn]:
    """Return the starts of all segments there, also of those prepared ahead."""
    return sorted({start for start, _ in store.found_files()})


def made_wal(seed: int, size: int = 100_000) -> WalMaker:
    return random_wal(Random(seed), segment_bytes=SEGMENT, size=size)


def plain_wal(seed: int, count: int, size: int = 500) -> WalMaker:
    wal = WalMaker(Random(seed), segment_bytes=SEGMENT)
    for _ in range(count):
        wal.record(size)
    return wal


def facts_of(wal: WalMaker, **facts: Lsn | bool | None) -> DurableFacts:
    plain = DurableFacts(wal.start_lsn, wal.start_lsn, wal.start_lsn)
    return replace(plain, **facts)  # type: ignore[arg-type]  # fields of all types


@pytest.fixture(params=["real", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "faulty":
        yield FaultyDisk(Random(1))
        return
    real = RealDisk(str(tmp_path / "wal"), reserve_bytes=4096)
    yield real
    real.close()


def filled(disk: Disk, wal: WalMaker) -> WalStore:
    store = make_store(disk)
    store.create(wal.start_lsn)
    store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    return store


# On every disk


def test_an_empty_log_ends_where_it_was_created(disk: Disk) -> None:
    wal = plain_wal(1, 0)
    for _ in range(2):
        store = make_store(disk)
        store.create(wal.start_lsn)
        assert recover(make_store(disk), facts_of(wal)).flush_lsn == wal.start_lsn
    assert store.record_end(wal.start_lsn).end_lsn == wal.start_lsn


def test_wal_that_is_appended_in_pieces_comes_back(disk: Disk) -> None:
    wal, random = made_wal(3), Random(3)
    store = make_store(disk)
    store.create(wal.start_lsn)
    lsn = wal.start_lsn
    while lsn < wal.end_lsn:
        begin, buffers = lsn, []
        for _ in range(random.randrange(1, 5)):
            end = min(wal.end_lsn, lsn + random.choice([0, 1, 100, PAGE, 20000]))
            buffers.append(memoryview(wal.read(lsn, end)))
            lsn = end
        assert store.append(begin, buffers) == lsn
        want = wal.end_before(lsn)
        assert (store.record_end(lsn).start_lsn, store.record_end(lsn).end_lsn) == want
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    assert {disk.size(n) for n in disk.names() if len(n) == 24} == {SEGMENT}
    again = make_store(disk)
    assert recover(again, facts_of(wal)).flush_lsn == wal.end_before(wal.end_lsn)[1]


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [(4, 2, "is of timeline 2, not 1"), (24, SYSTEM_ID + 1, f"is of system {SYSTEM_ID + 1}")],
)
def test_a_page_that_is_not_this_logs_ends_a_scan(offset: int, value: int, reason: str) -> None:
    """No CRC covers its header, and a power cut may leave any WAL that was not acknowledged."""
    disk, wal = FaultyDisk(Random(1)), plain_wal(1, 70)
    filled(disk, wal)
    page_lsn = wal.start_lsn + SEGMENT
    name = segment_name(1, page_lsn, SEGMENT)
    size = 4 if offset == 4 else 8
    disk.damage(name, offset, value.to_bytes(size, "little"))
    found = recover(make_store(disk), facts_of(wal))
    assert found.flush_lsn == wal.end_before(page_lsn)[1] and reason in found.reason


def test_thousands_of_buffers_are_one_append(disk: Disk) -> None:
    wal = plain_wal(3, 30)
    store = make_store(disk)
    store.create(wal.start_lsn)
    data = wal.read(wal.start_lsn, wal.end_lsn)
    store.append(wal.start_lsn, [data[i : i + 3] for i in range(0, len(data), 3)])
    assert store.read(wal.start_lsn, wal.end_lsn) == data


def test_truncated_wal_is_gone_and_other_wal_takes_its_place(disk: Disk) -> None:
    wal = plain_wal(4, 150)
    store = filled(disk, wal)
    cut = wal.records[20].end_lsn
    for _ in range(2):
        store.truncate(cut)
        assert segments_of(store) == [wal.start_lsn]
        assert not any(store.read(cut, wal.start_lsn + SEGMENT))
    wal.forget_after(cut)
    for _ in range(50):
        wal.record(321)
    store.append(cut, [wal.read(cut, wal.end_lsn)])
    store = make_store(disk)
    assert recover(store, facts_of(wal)).flush_lsn == wal.end_lsn
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)


def test_removed_wal_is_refused_and_the_rest_is_served(disk: Disk) -> None:
    wal = plain_wal(5, 150)
    store = filled(disk, wal)
    store.remove_below(wal.start_lsn + 2 * SEGMENT + 5)
    assert store.first_lsn == wal.start_lsn + 2 * SEGMENT
    with pytest.raises(WalRemoved, match=str(store.first_lsn)):
        store.read(wal.start_lsn, wal.end_lsn)
    assert store.read(store.first_lsn, wal.end_lsn) == wal.read(store.first_lsn, wal.end_lsn)
    again = make_store(disk)
    assert recover(again, facts_of(wal, commit_lsn=wal.end_lsn)).flush_lsn == wal.end_lsn
    assert again.first_lsn == store.first_lsn


def test_foreign_files_are_left_alone(disk: Disk) -> None:
    wal = plain_wal(6, 50)
    filled(disk, wal)
    for name in ("00000002.history", "000000020000000000000001", "notes", "0" * 24 + ".partial"):
        disk.replace(name, b"x")
    disk.allocate("000000010000000000000009.tmp", 100)
    before = disk.names()
    assert recover(make_store(disk), facts_of(wal)).flush_lsn == wal.end_lsn
    assert set(before) - set(disk.names()) == {"000000010000000000000009.tmp"}


def test_the_next_segment_can_be_prepared_ahead(disk: Disk) -> None:
    wal = plain_wal(7, 3)
    store = filled(disk, wal)
    store.prepare_ahead(wal.end_lsn)
    assert segments_of(store) == [wal.start_lsn, wal.start_lsn + SEGMENT]
    store.prepare_ahead(wal.end_lsn + 5 * SEGMENT)
    assert len(segments_of(store)) == 2, "a late request leaves no gap"


def test_a_segment_that_is_prepared_beside_a_cut_leaves_no_gap(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The allocator is late: the cut takes the last segment, then the one that it goes by."""
    wal = plain_wal(9, 400)
    store = filled(disk, wal)
    last = segments_of(store)[-1]
    unlink, inside, cutting = disk.unlink, threading.Event(), threading.Event()

    def slow_unlink(name: str) -> None:
        unlink(name)
        inside.set()
        cutting.wait(0.2)

    monkeypatch.setattr(disk, "unlink", slow_unlink)
    cut = threading.Thread(target=store.truncate, args=(wal.end_before(wal.start_lsn + 900)[1],))
    cut.start()
    assert inside.wait(LIMIT_S)
    preparing = threading.Thread(target=store.prepare_ahead, args=(last - SEGMENT,))
    preparing.start()
    cut.join()
    preparing.join()
    assert segments_of(store) == [wal.start_lsn]


def test_a_control_file_is_replaced_whole(disk: Disk) -> None:
    for size in (10, 100_000, 1):
        disk.replace("control", b"x" * size)
        assert disk.read_at("control", 0, disk.size("control")) == b"x" * size


def test_a_short_read_and_a_missing_file_are_storage_errors(disk: Disk) -> None:
    disk.replace("control", b"abc")
    with pytest.raises(StorageError, match=r"control.*short"):
        disk.read_at("control", 1, 3)
    with pytest.raises(StorageError, match="nothing"):
        disk.read_at("nothing", 0, 1)
    with pytest.raises(StorageError, match="nothing"):
        disk.sync_data("nothing")


def test_truncation_inside_an_incomplete_record_and_at_a_segment_start(disk: Disk) -> None:
    wal = WalMaker(Random(1), segment_bytes=SEGMENT)
    wal.record(500)
    wal.record(3 * SEGMENT)
    for cut in (wal.start_lsn + 2 * SEGMENT, wal.start_lsn + SEGMENT + 99, wal.start_lsn + 99):
        store = make_store(disk)
        store.create(wal.start_lsn)
        recover(store, facts_of(wal, truncating_to=wal.start_lsn))
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
        store.truncate(cut)
        facts = facts_of(wal, truncating_to=cut, commit_lsn=cut)
        assert recover(make_store(disk), facts).flush_lsn == wal.end_before(cut)[1]
    store = make_store(disk)
    assert recover(store, facts_of(wal)).flush_lsn == wal.start_lsn
    assert segments_of(store) == [wal.start_lsn]


# Corruption


@pytest.mark.parametrize("committed", [30, 99])
def test_damage_below_the_durable_commit_lsn_is_corruption(committed: int) -> None:
    wal = plain_wal(8, 100)
    damaged = wal.records[29]
    disk = FaultyDisk(Random(1))
    store = filled(disk, wal)
    name = store.name_of(damaged.start_lsn)
    disk.damage(name, damaged.start_lsn % SEGMENT + 200, b"\0\0\0\0\0\0\0\0")
    facts = facts_of(wal, commit_lsn=wal.records[committed].end_lsn)
    if committed > 50:  # the damaged record is far below: only the last ones are checked
        assert recover(store, facts).flush_lsn == wal.end_lsn
        return
    at_damage = replace(facts, commit_lsn=damaged.end_lsn + 10)
    before = {n: disk.read_at(n, 0, disk.size(n)) for n in disk.names()}
    with pytest.raises(CorruptWal, match=f"{name}.*{damaged.start_lsn}"):
        recover(make_store(disk), at_damage)
    assert before == {n: disk.read_at(n, 0, disk.size(n)) for n in disk.names()}, "evidence"


def test_a_log_that_ends_below_a_term_start_that_it_had_reached_is_corrupt() -> None:
    wal = plain_wal(8, 100)
    disk = FaultyDisk(Random(1))
    store = filled(disk, wal)
    reached = wal.records[60].end_lsn
    disk.damage(store.name_of(reached - 100), (reached - 100) % SEGMENT, b"\1\2\3\4")
    with pytest.raises(CorruptWal, match=f"ends at {wal.records[60].start_lsn}.*{reached}"):
        recover(make_store(disk), facts_of(wal, reached_lsn=reached))
    ends = recover(make_store(disk), facts_of(wal, reached_lsn=wal.records[59].end_lsn))
    assert ends.flush_lsn == wal.records[59].end_lsn


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_missing_or_short_segment_is_corruption(index: int) -> None:
    wal = plain_wal(8, 85)
    assert wal.end_lsn < wal.start_lsn + 3 * SEGMENT
    facts = facts_of(wal, commit_lsn=wal.end_lsn)
    disk = FaultyDisk(Random(1))
    store = filled(disk, wal)
    name = store.name_of(wal.start_lsn + index * SEGMENT)
    whole = disk.read_at(name, 0, SEGMENT)
    disk.replace(name, whole[:-1])
    with pytest.raises(CorruptWal, match=f"{name}.*{SEGMENT - 1} bytes instead of {SEGMENT}"):
        recover(make_store(disk), facts)
    disk.unlink(name)
    if index > 0:
        with pytest.raises(CorruptWal, match=name if index == 2 else "missing"):
            recover(make_store(disk), facts)


def test_commit_lsn_may_lie_inside_one_incomplete_record_only() -> None:
    wal = plain_wal(9, 20)
    wal.record(20_000)
    last = wal.records[-1]
    for flush_lsn in (last.start_lsn + 10, last.start_lsn + 15_000):
        disk = FaultyDisk(Random(1))
        store = make_store(disk)
        store.create(wal.start_lsn)
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, flush_lsn)])
        facts = facts_of(wal, commit_lsn=flush_lsn)
        assert recover(make_store(disk), facts).flush_lsn == wal.records[-2].end_lsn
        disk.damage(store.name_of(last.start_lsn), last.start_lsn % SEGMENT + 8, b"\7")
        if flush_lsn > last.start_lsn + 16:
            with pytest.raises(CorruptWal):
                recover(make_store(disk), facts)


# Failures of the disk


def test_no_space_says_how_far_the_append_got_and_passes() -> None:
    wal = plain_wal(10, 150)
    disk = FaultyDisk(Random(1))
    disk.capacity_bytes = 2 * SEGMENT
    store = make_store(disk)
    store.create(wal.start_lsn)
    with pytest.raises(SegmentNotAllocated) as full:
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    lsn = full.value.flush_lsn
    assert lsn == wal.start_lsn + 2 * SEGMENT
    assert store.read(wal.start_lsn, lsn) == wal.read(wal.start_lsn, lsn)
    with pytest.raises(NoSpace):
        store.prepare_ahead(Lsn(lsn - 1))
    with pytest.raises(SegmentNotAllocated):
        store.append(lsn, [b"x"])
    disk.capacity_bytes = None
    assert store.append(lsn, [wal.read(lsn, wal.end_lsn)]) == wal.end_lsn
    disk = disk.crash()
    assert recover(make_store(disk), facts_of(wal)).flush_lsn == wal.end_lsn


def test_after_a_failed_fsync_nothing_is_appended_and_recovery_makes_the_tail_durable() -> None:
    for seed in range(20):
        wal = plain_wal(11, 40)
        disk = FaultyDisk(Random(seed))
        store = make_store(disk)
        store.create(wal.start_lsn)
        flush_lsn, end_lsn = wal.records[10].end_lsn, wal.records[15].end_lsn
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, flush_lsn)])
        disk.failing_syncs.add(store.name_of(flush_lsn))
        with pytest.raises(StorageError, match=f"{flush_lsn}.*Input/output error"):
            store.append(flush_lsn, [wal.read(flush_lsn, end_lsn)])
        with pytest.raises(StorageError, match="no more appends"):
            store.append(flush_lsn, [wal.read(flush_lsn, end_lsn)])
        # The process restarts, the page cache shows bytes that the disk does not have.
        suspect = facts_of(wal, suspect_from=flush_lsn if seed % 2 else None)
        found = recover(make_store(disk), suspect).flush_lsn
        assert found == (flush_lsn if seed % 2 else end_lsn)
        disk = disk.crash()
        assert recover(make_store(disk), facts_of(wal)).flush_lsn == found


def test_a_failed_fsync_while_allocating_leaves_no_segment() -> None:
    wal = plain_wal(12, 40)
    disk = FaultyDisk(Random(1))
    store = make_store(disk)
    store.create(wal.start_lsn)
    disk.failing_syncs.add(store.name_of(wal.start_lsn + SEGMENT) + ".tmp")
    with pytest.raises(StorageError):
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    found = recover(make_store(disk), facts_of(wal)).flush_lsn
    assert found == wal.end_before(wal.start_lsn + SEGMENT)[1]
    assert not [name for name in disk.names() if name.endswith(".tmp")]


@pytest.mark.parametrize("seed", range(6))
def test_a_log_that_is_cut_at_its_record_end_ends_there_after_a_restart(seed: int) -> None:
    """R5 cuts at the donor's record end, and every restart has to find that end again."""
    random = Random(seed)
    wal = WalMaker(random, segment_bytes=SEGMENT)
    for _ in range(6):  # each primary dies inside a long record; its successor aborts it
        wal.record(random.randrange(1000))
        long = wal.record(12_000)
        wal.crash(Lsn(random.randint(long.start_lsn + 1, long.start_lsn.round_up(PAGE))))
    places = [m.end_lsn + 40 for m in wal.records if not m.complete]
    assert len(places) > 3
    places += [Lsn(random.randint(wal.start_lsn, wal.end_lsn)) for _ in range(40)]
    for flush_lsn in places:
        store = make_store(FaultyDisk(Random(1)))
        store.create(wal.start_lsn)
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, flush_lsn)])
        end_lsn = store.record_end(flush_lsn).end_lsn
        store.truncate(end_lsn)
        assert recover(make_store(store.disk), facts_of(wal)).flush_lsn == end_lsn
