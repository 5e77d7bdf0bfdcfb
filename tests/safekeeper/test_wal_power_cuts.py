"""The WAL store with the power cut after every operation, in recovery too.

The oracle compares bytes. After any cut and a recovery, every record whose append had returned is
there. The log is the WAL that was appended, and only zeros follow it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

import pytest

from tests.safekeeper.test_wal_store import (
    SEGMENT,
    facts_of,
    filled,
    made_wal,
    make_store,
    plain_wal,
    recover,
    segments_of,
)
from tests.support.faulty_disk import FaultyDisk, PowerCut
from tests.support.wal_maker import PAGE, WalMaker
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.storage.disk_port import Disk
from walkeeper_safekeeper.storage.wal_recovery import DurableFacts, Recovered
from walkeeper_safekeeper.storage.wal_recovery import recover as recover_marking
from walkeeper_safekeeper.storage.wal_store import HEAD_MARK, WalStore


@dataclass
class Promises:
    """The positions that a safekeeper would have sent to others, and its control file's facts."""

    facts: DurableFacts
    acked_lsn: Lsn
    tried_lsn: Lsn
    is_created: bool = False


def boundary(wal: WalMaker, first_lsn: Lsn, lsn: Lsn) -> Lsn:
    return max(first_lsn, wal.end_before(lsn)[1])


def run_load(disk: Disk, wal: WalMaker, promises: Promises, random: Random) -> None:
    """Append all of `wal`, with truncations, removals and lazily written facts in between."""
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
            disk.sync_directory()  # only so that the power can be cut here
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
    assert end - tried < 8, f"{tried=} {end=}"  # the zeros that align a record need not be written
    assert store.read(store.first_lsn, end) == wal.read(store.first_lsn, end)
    assert store.record_end(end) == found.record
    assert found.record.end_lsn == end or end <= found.record.next_lsn
    last = end.round_down(SEGMENT)
    assert max(segments_of(store)) <= last
    if store.name_of(end) in disk.names():
        assert not any(store.read(end, store.file_end(end))), f"stale bytes behind {end}"
    assert not [name for name in disk.names() if name.endswith(".tmp")]


def cut_everywhere(
    make_wal: Callable[[], WalMaker], creation: int, seed: int, step: int = 1
) -> int:
    """Run the load with the power cut after 0, `step`, 2 `step`… operations; return how often."""
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
        disk = disk.crash(garbles=operations % 2 == 1)
        if promises.is_created:
            recover_with_cuts(disk, wal, promises, Random(operations))
        if not cut:
            return operations
        operations += step


def recover_with_cuts(disk: FaultyDisk, wal: WalMaker, promises: Promises, random: Random) -> None:
    """Cut recovery too, a few times; then let it finish, and fill the log to its end."""
    control = [promises.facts]

    def mark_cut(lsn: Lsn) -> None:
        if random.random() < 0.2:
            raise PowerCut
        control.append(replace(control[-1], truncating_to=lsn))

    for _ in range(3):
        disk.operations_left = random.randrange(12)
        with contextlib.suppress(PowerCut):
            recover_marking(make_store(disk), control[-1], mark_cut=mark_cut)
        disk = disk.crash(garbles=random.random() < 0.5)
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
        wal, sizes = WalMaker(Random(seed), segment_bytes=SEGMENT), Random(seed)
        wal.record(SEGMENT + 3000 * (seed + 1))
        wal.record(50)
        for _ in range(40):
            wal.record(sizes.randrange(900))
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


def test_a_power_cut_while_segments_are_removed_leaves_no_gap() -> None:
    wal = plain_wal(5, 250)
    facts = facts_of(wal, commit_lsn=wal.end_lsn)
    for seed in range(200):
        disk = FaultyDisk(Random(seed))
        store = filled(disk, wal)
        disk.operations_left = seed % 12
        with contextlib.suppress(PowerCut):
            store.remove_below(wal.start_lsn + 5 * SEGMENT)
        store = make_store(disk.crash())
        assert recover(store, facts).flush_lsn == wal.end_lsn
        assert store.read(store.first_lsn, wal.end_lsn) == wal.read(store.first_lsn, wal.end_lsn)


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
            disk.operations_left = (1, 3)[seed % 2]
            pieces = [wal.read(wal.start_lsn, Lsn(split)), wal.read(Lsn(split), wal.end_lsn)]
            with contextlib.suppress(PowerCut):
                store.append(wal.start_lsn, pieces)
            store = make_store(disk.crash())
            end = recover(store, facts_of(wal)).flush_lsn
            assert store.read(wal.start_lsn, end) == wal.read(wal.start_lsn, end)
