"""A log that begins late gets its older segments one by one, and has no gap at any time (M5)."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.safekeeper.test_wal_forks import check_files, forked_wal, store_on
from tests.safekeeper.test_wal_store import SEGMENT, facts_of, make_store, plain_wal, recover
from tests.support.faulty_disk import FaultyDisk, PowerCut
from tests.support.wal_maker import WalMaker
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.archiving.back_fill import lacks_bytes, may_fill
from walkeeper_safekeeper.storage.segment_filling import fill_segment
from walkeeper_safekeeper.storage.wal_recovery import DurableFacts
from walkeeper_safekeeper.storage.wal_store import WalStore


def late_store(disk: FaultyDisk, wal: WalMaker, timelines: Timelines, base_lsn: Lsn) -> WalStore:
    store = store_on(disk, timelines)
    store.create(base_lsn)
    store.append(base_lsn, [wal.read(base_lsn, wal.end_lsn)])
    return store


def fill(store: WalStore, wal: WalMaker) -> None:
    """Fill the log down to where the WAL begins."""
    while store.first_lsn > wal.start_lsn:
        begin_lsn = Lsn(store.first_lsn - SEGMENT)
        assert fill_segment(store, begin_lsn, wal.read(begin_lsn, store.first_lsn)) == begin_lsn


def base_of(wal: WalMaker) -> Lsn:
    """Return a segment's start in the last third of the WAL."""
    return Lsn(wal.end_lsn - (wal.end_lsn - wal.start_lsn) // 3).round_down(SEGMENT)


def late_facts(wal: WalMaker, base_lsn: Lsn) -> DurableFacts:
    """Return the marks of a newcomer whose commit_lsn has passed a record's end since it joined."""
    commit_lsn = wal.end_before(Lsn(base_lsn + SEGMENT + 3000))[1]
    return replace(
        facts_of(wal), creation_lsn=base_lsn, commit_lsn=commit_lsn, reached_lsn=base_lsn
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_filled_log_has_the_files_of_one_that_began_early(seed: int) -> None:
    wal, timelines = forked_wal(seed)
    base_lsn, disk = base_of(wal), FaultyDisk(Random(seed))
    store = late_store(disk, wal, timelines, base_lsn)
    fill(store, wal)
    check_files(store, wal, wal.end_lsn)
    assert store.read(wal.start_lsn, wal.end_lsn) == wal.read(wal.start_lsn, wal.end_lsn)
    again = store_on(disk, timelines)
    assert recover(again, late_facts(wal, base_lsn)).flush_lsn == wal.end_lsn
    assert again.first_lsn == wal.start_lsn


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_while_a_log_is_filled_leaves_no_gap(seed: int) -> None:
    """After each operation: a start finds all WAL from where the filling was, and goes on."""
    firsts = set()
    for operations in count(0, 4):
        wal, timelines = forked_wal(seed)
        base_lsn, disk = base_of(wal), FaultyDisk(Random(operations))
        store = late_store(disk, wal, timelines, base_lsn)
        disk.operations_left = operations
        is_cut = True
        with contextlib.suppress(PowerCut):
            fill(store, wal)
            is_cut = False
        disk = disk.crash(garbles=operations % 2 == 1)
        again = store_on(disk, timelines)
        assert recover(again, late_facts(wal, base_lsn)).flush_lsn == wal.end_lsn
        firsts.add(again.first_lsn)
        assert again.first_lsn <= base_lsn
        assert again.read(again.first_lsn, wal.end_lsn) == wal.read(again.first_lsn, wal.end_lsn)
        fill(again, wal)
        check_files(again, wal, wal.end_lsn)
        if not is_cut:
            break
    assert len(firsts) > 2, "some cuts came between two segments"


def test_a_segment_is_not_put_where_it_would_leave_a_gap() -> None:
    wal, timelines = forked_wal(1)
    base_lsn, disk = base_of(wal), FaultyDisk(Random(1))
    store = late_store(disk, wal, timelines, base_lsn)
    begin_lsn = Lsn(base_lsn - SEGMENT)
    store.remove_below(Lsn(base_lsn + SEGMENT))  # retention was faster
    names = disk.names()
    with pytest.raises(Refused, match="the log begins at"):
        fill_segment(store, begin_lsn, wal.read(begin_lsn, base_lsn))
    assert sorted(disk.names()) == sorted(names)


def test_a_log_is_filled_once_its_first_record_is_committed() -> None:
    """A start trusts a record that goes on at the beginning by its mark, or by commit_lsn (D3)."""
    wal = plain_wal(3, 2, size=SEGMENT * 5)
    base_lsn = Lsn(wal.records[1].start_lsn + 2 * SEGMENT).round_down(SEGMENT)
    store = make_store(FaultyDisk(Random(1)))
    store.create(base_lsn)
    store.append(base_lsn, [wal.read(base_lsn, wal.end_lsn)])
    head_end = store.head_end()
    assert head_end > base_lsn + SEGMENT
    for commit_lsn, may in ((base_lsn, False), (Lsn(head_end - 1), False), (head_end, True)):
        assert may_fill(log(store, commit_lsn, wal.start_lsn)) == may, f"{commit_lsn} {head_end}"


def test_a_log_lacks_what_all_members_hold_or_what_slots_and_settings_keep() -> None:
    wal = plain_wal(3, 2, size=SEGMENT * 5)
    base_lsn = Lsn(wal.start_lsn + 3 * SEGMENT)
    store = make_store(FaultyDisk(Random(1)))
    store.create(base_lsn)
    late = log(store, base_lsn, wal.start_lsn, creation_lsn=wal.start_lsn)
    early = log(store, base_lsn, wal.start_lsn, begins_late=False, creation_lsn=wal.start_lsn)
    kept_lsn = Lsn(base_lsn - SEGMENT + 10)
    assert lacks_bytes(late) == 3 * SEGMENT and not lacks_bytes(early)
    assert lacks_bytes(late, kept_lsn) == 3 * SEGMENT and lacks_bytes(early, kept_lsn) == SEGMENT
    assert lacks_bytes(early, Lsn(0)) == 3 * SEGMENT, "the log begins there"
    places = {"older": object(), "creation_lsn": wal.start_lsn}
    archived = log(store, base_lsn, wal.start_lsn, oldest_lsn=wal.start_lsn, **places)
    assert not lacks_bytes(archived, ZERO_LSN), "the archive has it"
    gap = log(store, store.head_end(), wal.start_lsn, oldest_lsn=base_lsn, **places)
    assert lacks_bytes(gap) == 3 * SEGMENT and not may_fill(gap), "the archive is to have it"


def log(store: WalStore, commit_lsn: Lsn, restart_lsn: Lsn, **facts: Any) -> Any:
    """Return the part of a driver that the filling looks at."""
    creation_lsn = facts.get("creation_lsn", ZERO_LSN)
    begins_late = facts.get("begins_late", True)
    configuration = SimpleNamespace(begins_late=begins_late, creation_lsn=creation_lsn)
    durable = SimpleNamespace(commit_lsn=commit_lsn, configuration=configuration)
    oldest_lsn = facts.get("oldest_lsn", store.first_lsn)
    acceptor = SimpleNamespace(durable=durable, restart_lsn=restart_lsn, oldest_lsn=oldest_lsn)
    return SimpleNamespace(store=store, acceptor=acceptor, older=facts.get("older"))
