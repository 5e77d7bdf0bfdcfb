"""The WAL store over forks: whose file a byte is in, cuts, restarts, and power cuts everywhere."""

from __future__ import annotations

import threading
from random import Random

import pytest

from tests.safekeeper import test_wal_power_cuts
from tests.safekeeper.test_wal_store import SEGMENT, disk, facts_of, recover  # noqa: F401
from tests.support.wal_maker import SYSTEM_ID, WalMaker
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.storage.disk_port import Disk
from walkeeper_safekeeper.storage.wal_store import WalStore


def forked_wal(seed: int, *, count: int = 120, forks: int = 3) -> tuple[WalMaker, Timelines]:
    """Make records of some hundred bytes; the timeline changes after some of them."""
    random = Random(seed)
    wal = WalMaker(Random(seed), segment_bytes=SEGMENT)
    places = sorted(random.sample(range(1, count), forks))
    entries = [Fragment(NO_BALLOT, wal.start_lsn, 1, False, (), 1)]
    for number in range(count):
        wal.record(random.randrange(20, 1500))
        if number in places:
            wal.timeline += 1
            entries.append(Fragment(NO_BALLOT, wal.end_lsn, wal.timeline, False, (), 1))
    return wal, Timelines(entries)


def store_on(disk: Disk, timelines: Timelines) -> WalStore:  # noqa: F811
    return WalStore(
        disk, segment_bytes=SEGMENT, timelines=timelines, system_id=SYSTEM_ID, lock=threading.Lock()
    )


def filled(disk: Disk, wal: WalMaker, timelines: Timelines, seed: int) -> WalStore:  # noqa: F811
    """Fill a store in pieces of all sizes, with segments prepared ahead."""
    random, store = Random(seed), store_on(disk, timelines)
    store.create(wal.start_lsn)
    lsn = wal.start_lsn
    while lsn < wal.end_lsn:
        end = min(wal.end_lsn, lsn + random.choice([1, 100, 3000, SEGMENT, 3 * SEGMENT]))
        assert store.append(lsn, [wal.read(lsn, end)]) == end
        lsn = end
        if random.random() < 0.3:
            store.prepare_ahead(lsn)
    return store


def check_files(store: WalStore, wal: WalMaker, end_lsn: Lsn) -> None:
    """Check that the files are as PostgreSQL leaves them.

    A timeline's first segment begins with its parent's bytes. The parent's last one ends with
    zeros, and no timeline has a segment after its fork.
    """
    names = {name for name in store.disk.names() if len(name) == 24}
    wanted = {}
    for start in range(wal.start_lsn, end_lsn, SEGMENT):
        segment_end = min(Lsn(start + SEGMENT), end_lsn)
        for timeline in store.timelines.owners(Lsn(start), segment_end):
            own_end = min(segment_end, store.timelines.end_of(timeline))
            padding = bytes(SEGMENT - (own_end - Lsn(start)))
            name = segment_name(timeline, Lsn(start), SEGMENT)
            wanted[name] = wal.read(Lsn(start), own_end) + padding
    last = segment_name(store.timelines.at(end_lsn), end_lsn + SEGMENT, SEGMENT)
    here = segment_name(store.timelines.at(end_lsn), end_lsn, SEGMENT)
    assert wanted.keys() <= names <= wanted.keys() | {last, here}, names ^ wanted.keys()
    for name, data in wanted.items():
        assert store.disk.read_at(name, 0, SEGMENT) == data, name


@pytest.mark.parametrize("seed", range(6))
def test_each_timeline_has_files_of_its_own(disk: Disk, seed: int) -> None:  # noqa: F811
    wal, timelines = forked_wal(seed)
    store = filled(disk, wal, timelines, seed)
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    check_files(store, wal, wal.end_lsn)
    again = store_on(disk, timelines)
    assert recover(again, facts_of(wal)).flush_lsn == wal.end_lsn
    check_files(again, wal, wal.end_lsn)


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_takes_the_files_after_it(disk: Disk, seed: int) -> None:  # noqa: F811
    """Another branch may then use the same numbers for other bytes from other forks on."""
    wal, timelines = forked_wal(seed)
    random = Random(seed)
    store = filled(disk, wal, timelines, seed)
    for _ in range(3):
        kept = random.choice([made for made in wal.records if made.end_lsn <= wal.end_lsn])
        fork = random.choice([kept.end_lsn, *(lsn for _, lsn in timelines.ends())])
        store.truncate(fork)
        check_cut(store, wal, fork)
        wal.forget_after(fork)
        known = [(t, lsn) for t, lsn in timelines.ends() if lsn <= fork]
        entries = [Fragment(NO_BALLOT, wal.start_lsn, 1, False, (), 1)]
        entries += [Fragment(NO_BALLOT, lsn, t + 1, False, (), 1) for t, lsn in known]
        wal.timeline = entries[-1].timeline
        for _ in range(random.randrange(2, 20)):
            wal.record(random.randrange(20, 1500))
        wal.timeline += 1
        entries.append(Fragment(NO_BALLOT, wal.end_lsn, wal.timeline, False, (), 1))
        for _ in range(random.randrange(1, 40)):
            wal.record(random.randrange(20, 1500))
        timelines = Timelines(entries)
        store.follow(timelines)
        store.append(fork, [wal.read(fork, wal.end_lsn)])
        check_files(store, wal, wal.end_lsn)
    assert recover(store_on(disk, timelines), facts_of(wal)).flush_lsn == wal.end_lsn


def check_cut(store: WalStore, wal: WalMaker, end_lsn: Lsn) -> None:
    assert store.read(wal.start_lsn, end_lsn) == wal.read(wal.start_lsn, end_lsn)
    later = store.timelines.owners(end_lsn, Lsn(wal.end_lsn + 1))
    kept = {int(name[:8], 16) for name in store.disk.names() if len(name) == 24}
    assert not kept & set(later) - {store.timelines.before(end_lsn)}


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_anywhere_near_a_fork_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    _, timelines = forked_wal(seed, count=40)
    make = lambda on, segment_bytes=SEGMENT: store_on(on, timelines)  # noqa: E731
    monkeypatch.setattr(test_wal_power_cuts, "make_store", make)
    cuts = test_wal_power_cuts.cut_everywhere(
        lambda: forked_wal(seed, count=40)[0], 0, seed, step=3
    )
    assert cuts > 20


def test_a_fork_at_the_very_beginning_leaves_the_log_a_file(disk: Disk) -> None:  # noqa: F811
    wal = WalMaker(Random(1), segment_bytes=SEGMENT)
    first = Fragment(NO_BALLOT, wal.start_lsn, 1, False, (), 1)
    store = store_on(disk, Timelines([first]))
    store.create(wal.start_lsn)
    promoted = Timelines([first, Fragment(NO_BALLOT, wal.start_lsn, 2, False, (), 1)])
    store.follow(promoted)
    for _ in range(2):
        store = store_on(disk, promoted)
        assert recover(store, facts_of(wal)).flush_lsn == wal.start_lsn
    wal.timeline = 2
    wal.record(100)
    store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    store.truncate(wal.start_lsn)
    assert recover(store_on(disk, promoted), facts_of(wal)).flush_lsn == wal.start_lsn
    # The next leader's primary was never promoted; the power goes before anything is appended.
    store = store_on(disk, Timelines([first]))
    assert recover(store, facts_of(wal)).flush_lsn == wal.start_lsn
    wal.forget_after(wal.start_lsn)
    wal.timeline = 1
    wal.record(100)
    store.append(wal.start_lsn, [wal.read(wal.start_lsn, wal.end_lsn)])
    check_files(store, wal, wal.end_lsn)


@pytest.mark.parametrize("seed", range(6))
def test_a_segment_that_retention_had_half_removed_goes_at_the_next_start(
    disk: Disk,  # noqa: F811
    seed: int,
) -> None:
    """Found by the simulator: a crash between the files of two timelines looked like damage."""
    wal, timelines = forked_wal(seed)
    filled(disk, wal, timelines, seed)
    forks = [lsn for _, lsn in timelines.ends() if lsn % SEGMENT and wal.end_lsn - lsn > SEGMENT]
    start = forks[0].round_down(SEGMENT)
    for gone in range(wal.start_lsn, start, SEGMENT):
        for timeline in timelines.owners(Lsn(gone), Lsn(gone + SEGMENT)):
            disk.unlink(segment_name(timeline, Lsn(gone), SEGMENT))
    disk.unlink(segment_name(timelines.at(start), start, SEGMENT))
    again = store_on(disk, timelines)
    assert recover(again, facts_of(wal, commit_lsn=wal.end_lsn)).flush_lsn == wal.end_lsn
    assert again.first_lsn == start + SEGMENT
    assert not [name for name in disk.names() if name.endswith(segment_name(1, start, SEGMENT)[8:])]
