"""The WAL store: one suite on a real directory and on the faulty disk, then power cuts.

The oracle of the power cuts compares bytes: after any cut and a recovery, every record whose
append had returned is there, the log is what was appended, and nothing but zeros follows it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from tests.faulty_disk import FaultyDisk, PowerCut
from tests.wal_maker import PAGE, WalMaker, random_wal
from walkeeper_common.errors import CorruptWal, NoSpace, Refused, StorageError, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper import real_disk
from walkeeper_safekeeper.real_disk import RESERVE, RealDisk, claim_data_directory
from walkeeper_safekeeper.wal_recovery import DurableFacts, Recovered
from walkeeper_safekeeper.wal_recovery import recover as recover_marking
from walkeeper_safekeeper.wal_store import HEAD_MARK, Disk, SegmentNotAllocated, WalStore

SEGMENT = 16384


def make_store(disk: Disk, segment_bytes: int = SEGMENT) -> WalStore:
    return WalStore(disk, segment_bytes=segment_bytes, timeline=1, lock=threading.Lock())


def recover(store: WalStore, facts: DurableFacts) -> Recovered:
    return recover_marking(store, facts, mark_cut=lambda lsn: None)


def made_wal(seed: int, size: int = 100_000) -> WalMaker:
    return random_wal(Random(seed), segment_bytes=SEGMENT, size=size)


def plain_wal(seed: int, count: int, size: int = 500) -> WalMaker:
    wal = WalMaker(Random(seed), segment_bytes=SEGMENT)
    for _ in range(count):
        wal.record(size)
    return wal


def facts_of(wal: WalMaker, **facts: Lsn | bool | None) -> DurableFacts:
    plain = DurableFacts(wal.start_lsn, wal.start_lsn, wal.start_lsn)
    return replace(plain, **facts)  # type: ignore[arg-type]


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


def test_what_is_appended_in_pieces_comes_back(disk: Disk) -> None:
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
        assert store.segments == [wal.start_lsn]
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
    assert store.segments == [wal.start_lsn, wal.start_lsn + SEGMENT]
    store.prepare_ahead(wal.end_lsn + 5 * SEGMENT)
    assert len(store.segments) == 2, "a late request leaves no gap"


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
    assert store.segments == [wal.start_lsn]


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


# Power cuts


@dataclass
class Promises:
    """What a safekeeper would have told others, and what its control file says."""

    facts: DurableFacts
    acked_lsn: Lsn
    tried_lsn: Lsn
    is_created: bool = False


def boundary(wal: WalMaker, first_lsn: Lsn, lsn: Lsn) -> Lsn:
    return max(first_lsn, wal.end_before(lsn)[1])


def run_load(disk: Disk, wal: WalMaker, promises: Promises, random: Random) -> None:
    """Appends all of `wal`, with truncations, removals and lazily written facts in between."""
    creation_lsn = promises.facts.creation_lsn
    store = make_store(disk)
    store.create(creation_lsn)
    promises.is_created = True
    while promises.acked_lsn < wal.end_lsn:
        begin = promises.acked_lsn
        promises.tried_lsn = min(wal.end_lsn, begin + random.choice([1, 700, PAGE, 3 * SEGMENT]))
        half = Lsn(random.randrange(begin, promises.tried_lsn + 1))
        pieces = [wal.read(begin, half), wal.read(half, promises.tried_lsn)]
        promises.acked_lsn = store.append(begin, pieces)
        dice = random.random()
        if dice < 0.3:
            lsn = Lsn(random.randrange(promises.facts.commit_lsn, promises.acked_lsn + 1))
            reached_lsn = boundary(wal, creation_lsn, lsn)
            promises.facts = replace(promises.facts, commit_lsn=lsn, reached_lsn=reached_lsn)
        elif dice < 0.4:
            store.prepare_ahead(promises.acked_lsn)
        elif dice < 0.6:
            start_lsn = store.record_end(promises.facts.commit_lsn).start_lsn
            if start_lsn is not None:
                store.remove_below(start_lsn)
        elif dice < 0.75:
            lowest = boundary(wal, creation_lsn, promises.facts.commit_lsn)
            cut = Lsn(random.randrange(lowest, promises.acked_lsn + 1))
            cut = random.choice([cut, boundary(wal, creation_lsn, cut)])
            promises.facts = replace(promises.facts, truncating_to=cut)
            store.truncate(cut)
            promises.acked_lsn = promises.tried_lsn = cut
            commit_lsn = min(promises.facts.commit_lsn, cut)
            reached_lsn = min(promises.facts.reached_lsn, cut)
            promises.facts = replace(
                promises.facts, truncating_to=None, commit_lsn=commit_lsn, reached_lsn=reached_lsn
            )


def check_recovered(
    disk: Disk, store: WalStore, found: Recovered, wal: WalMaker, promises: Promises
) -> None:
    creation_lsn, cut = promises.facts.creation_lsn, promises.facts.truncating_to  # as before
    end = found.flush_lsn
    promised = promises.acked_lsn if cut is None else min(cut, promises.acked_lsn)
    tried = promises.tried_lsn if cut is None else cut
    assert boundary(wal, creation_lsn, promised) <= end, f"{promised=} {end=} {found=}"
    # A switch record's zeros need not have been written to be there.
    assert end <= tried or end % SEGMENT == 0, f"{tried=} {end=}"
    assert store.read(store.first_lsn, end) == wal.read(store.first_lsn, end)
    assert store.record_end(end).end_lsn == end
    last = end.round_down(SEGMENT)
    assert max(store.segments) <= last
    if last in store.segments:
        assert not any(store.read(end, last + SEGMENT)), f"stale bytes behind {end}"
    assert not [name for name in disk.names() if name.endswith(".tmp")]


def cut_everywhere(
    make_wal: Callable[[], WalMaker], creation: int, seed: int, step: int = 1
) -> int:
    """Runs the load with the power cut after 0, `step`, 2 `step`… operations. How often it was."""
    operations = 0
    while True:
        wal, random = make_wal(), Random(seed)
        creation_lsn = wal.start_lsn + creation * SEGMENT
        promises = Promises(
            DurableFacts(creation_lsn, creation_lsn, creation_lsn), creation_lsn, creation_lsn
        )
        disk = FaultyDisk(Random(seed * 1000 + operations))
        disk.operations_left = operations
        cut = False
        try:
            run_load(disk, wal, promises, random)
        except PowerCut:
            cut = True
        disk = disk.crash()
        if promises.is_created:
            recover_with_cuts(disk, wal, promises, Random(operations))
        if not cut:
            return operations
        operations += step


def recover_with_cuts(
    disk: FaultyDisk, wal: WalMaker, promises: Promises, random: Random
) -> None:
    """Recovery is cut too, a few times; then it finishes, and the log can be filled to its end."""
    control = [promises.facts]

    def mark_cut(lsn: Lsn) -> None:
        if random.random() < 0.2:
            raise PowerCut
        control.append(replace(control[-1], truncating_to=lsn))

    for _ in range(3):
        disk.operations_left = random.randrange(12)
        with contextlib.suppress(PowerCut):
            recover_marking(make_store(disk), control[-1], mark_cut=mark_cut)
        disk = disk.crash()
    store = make_store(disk)
    found = recover(store, control[-1])
    check_recovered(disk, store, found, wal, promises)
    facts = replace(control[-1], truncating_to=found.flush_lsn, clean_stop=True)
    again = recover(make_store(disk), facts)
    assert again.flush_lsn == found.flush_lsn
    if found.flush_lsn < wal.end_lsn:
        store.append(found.flush_lsn, [wal.read(found.flush_lsn, wal.end_lsn)])
        facts = replace(
            promises.facts, truncating_to=None, commit_lsn=found.flush_lsn, reached_lsn=Lsn(0)
        )
        disk = disk.crash()
        end = recover(make_store(disk), facts).flush_lsn
        assert end == boundary(wal, facts.creation_lsn, wal.end_lsn)


@pytest.mark.parametrize("seed", range(12))
def test_no_power_cut_loses_an_acknowledged_record(seed: int) -> None:
    assert cut_everywhere(lambda: made_wal(seed, 60_000), 0, seed) > 10


@pytest.mark.parametrize("seed", range(12))
def test_no_power_cut_loses_a_record_of_a_log_that_starts_inside_one(seed: int) -> None:
    def make_wal() -> WalMaker:
        wal = WalMaker(Random(seed), segment_bytes=SEGMENT)
        wal.record(SEGMENT + 3000 * (seed + 1))
        wal.record(50)
        for _ in range(40):
            wal.record(wal._random.randrange(900))
        return wal

    assert cut_everywhere(make_wal, 1, seed) > 10


def test_a_torn_beginning_of_a_log_is_not_trusted_without_its_mark() -> None:
    wal = WalMaker(Random(1), segment_bytes=SEGMENT)
    wal.record(SEGMENT + 4000)
    wal.record(300)
    first_lsn = wal.start_lsn + SEGMENT
    facts = DurableFacts(first_lsn, first_lsn, first_lsn)
    disk = FaultyDisk(Random(1))
    store = make_store(disk)
    store.create(first_lsn)
    torn = bytearray(wal.read(first_lsn, wal.end_lsn))
    torn[1024:1536] = bytes(512)  # a sector that never made it, in front of a valid record
    disk.write_at(store.name_of(first_lsn), 0, [torn])
    disk.sync_data(store.name_of(first_lsn))
    assert recover(make_store(disk), facts).flush_lsn == first_lsn
    store = make_store(disk)
    recover(store, facts)
    store.append(first_lsn, [wal.read(first_lsn, wal.end_lsn)])
    assert HEAD_MARK in disk.names()
    assert recover(make_store(disk), facts).flush_lsn == wal.end_lsn
    store.truncate(first_lsn + 100)
    assert HEAD_MARK not in disk.names()


def test_an_overwritten_record_is_durable_before_the_page_that_cuts_it_off() -> None:
    wal = WalMaker(Random(1), segment_bytes=SEGMENT)
    wal.record(100)
    wal.record(12_000)
    page_lsn = wal.crash(wal.records[-1].end_lsn - 6000)
    wal.record(100)
    for split in range(page_lsn - 2, page_lsn + 5):
        for seed in range(40):
            disk = FaultyDisk(Random(seed))
            store = make_store(disk)
            store.create(wal.start_lsn)
            disk.operations_left = 3
            pieces = [wal.read(wal.start_lsn, Lsn(split)), wal.read(Lsn(split), wal.end_lsn)]
            with contextlib.suppress(PowerCut):
                store.append(wal.start_lsn, pieces)
            store = make_store(disk.crash())
            end = recover(store, facts_of(wal)).flush_lsn
            assert store.read(wal.start_lsn, end) == wal.read(wal.start_lsn, end)


# The real directory


def test_modes_are_private(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path / "a" / "wal"))
    disk.replace("control", b"x")
    disk.allocate("segment", 8192)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "wal").stat().st_mode & 0o777 == 0o700
    for name in disk.names():
        assert (tmp_path / "a" / "wal" / name).stat().st_mode & 0o777 == 0o600


def test_descriptors_are_bounded_and_follow_their_names(tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    for i in range(3 * real_disk.DESCRIPTORS_MAX):
        disk.replace(f"f{i}", b"%d" % i)
        assert disk.read_at(f"f{i}", 0, 1) == (b"%d" % i)[:1]
    assert len(os.listdir("/proc/self/fd")) - before <= real_disk.DESCRIPTORS_MAX
    disk.rename("f1", "f2")
    assert disk.read_at("f2", 0, 1) == b"1"
    disk.unlink("f2")
    disk.allocate("f2", 10)
    assert disk.read_at("f2", 0, 10) == bytes(10)
    disk.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_data_directory_has_one_process_and_one_id(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    claimed = claim_data_directory(path, 1)
    with pytest.raises(Refused, match=f"another safekeeper is running in {path}"):
        claim_data_directory(path, 1)
    code = f"from walkeeper_safekeeper.real_disk import *; claim_data_directory({path!r}, 1)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"another safekeeper is running" in child.stderr
    claimed.release()
    with pytest.raises(Refused, match="belongs to safekeeper 1: start it with --id 1"):
        claim_data_directory(path, 2)
    claim_data_directory(path, 1).release()
    (tmp_path / "data" / "safekeeper").write_bytes(b"?")
    with pytest.raises(StorageError, match="whose directory"):
        claim_data_directory(path, 1)


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a tmpfs here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(path: Path) -> None:
    with (path / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def test_the_control_file_can_be_written_on_a_full_disk(small_file_system: Path) -> None:
    disk = RealDisk(str(small_file_system), reserve_bytes=1 << 18)
    disk.replace("control", b"a" * 5000)
    fill(small_file_system)
    with pytest.raises(NoSpace, match="no space"):
        disk.allocate("segment", 1 << 16)
    for i in range(200):
        disk.replace("control", b"%d" % i * 3000)
        assert disk.read_at("control", 0, 3) == (b"%d" % i * 3)[:3]
        fill(small_file_system)  # somebody else takes what became free
    with pytest.raises(NoSpace):
        disk.allocate("segment", 1 << 16)
    assert "segment" not in disk.names()
    (small_file_system / "filler").unlink()
    disk.allocate("segment", 1 << 16)
    assert disk.size(RESERVE) == 1 << 18
    disk.close()


def test_a_log_on_a_full_disk_refuses_appends_and_goes_on_later(small_file_system: Path) -> None:
    wal = plain_wal(10, 150)
    disk = RealDisk(str(small_file_system), reserve_bytes=1 << 16)
    store = make_store(disk)
    store.create(wal.start_lsn)
    fill(small_file_system)
    with pytest.raises(SegmentNotAllocated) as full:
        store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    lsn = full.value.flush_lsn
    assert lsn == wal.start_lsn + SEGMENT
    assert store.record_end(lsn).end_lsn == wal.end_before(lsn)[1]
    (small_file_system / "filler").unlink()
    store.append(lsn, [wal.read(lsn, wal.end_lsn)])
    disk.close()
    disk = RealDisk(str(small_file_system), reserve_bytes=1 << 16)
    assert recover(make_store(disk), facts_of(wal)).flush_lsn == wal.end_lsn
    disk.close()


def test_segments_are_prepared_by_another_thread_while_wal_is_appended(tmp_path: Path) -> None:
    wal = plain_wal(13, 1500)
    disk = RealDisk(str(tmp_path))
    store = make_store(disk)
    store.create(wal.start_lsn)
    written, stop, failures = [wal.start_lsn], threading.Event(), []

    def prepare() -> None:
        try:
            while not stop.is_set():
                store.prepare_ahead(written[0])
                store.read(wal.start_lsn, written[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(2)]
    for thread in threads:
        thread.start()
    while written[0] < wal.end_lsn:
        end = min(wal.end_lsn, written[0] + 5000)
        written[0] = store.append(written[0], [wal.read(written[0], end)])
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    disk.close()
