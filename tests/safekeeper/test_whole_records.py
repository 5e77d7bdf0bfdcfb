"""Up to where readers may have committed WAL: against the maker's own book."""

from __future__ import annotations

from random import Random

import pytest

from tests.safekeeper.test_wal_store import SEGMENT, filled, made_wal, make_store
from tests.support.faulty_disk import FaultyDisk
from tests.support.wal_maker import PAGE, WalMaker
from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES
from walkeeper_safekeeper.storage.wal_store import WalStore
from walkeeper_safekeeper.storage.whole_records import WholeRecords, whole_records


def whole_end(wal: WalMaker, commit_lsn: Lsn) -> Lsn:
    """Return the end of the readable WAL: a switch's padding may be read."""
    start, end = wal.end_before(commit_lsn)
    return next((made.end_lsn for made in wal.records if made.start_lsn == start), end)


def steps(wal: WalMaker, random: Random, begin: Lsn) -> list[Lsn]:
    """List where commit_lsn stops on its way: anywhere, at records' ends and at pages' ends."""
    ends = [made.end_lsn for made in wal.records]
    places = [Lsn(random.randrange(begin, wal.end_lsn)) for _ in range(200)]
    places += [lsn.round_up(PAGE) for lsn in random.sample(ends, min(len(ends), 20))]
    places += random.sample(ends, len(ends) // 2) + [wal.end_lsn]
    return sorted(lsn for lsn in places if begin < lsn <= wal.end_lsn)


@pytest.mark.parametrize("seed", range(40))
def test_the_end_moves_with_the_last_whole_record(seed: int) -> None:
    random, wal = Random(seed), made_wal(seed)
    store, known = filled(FaultyDisk(random), wal), WholeRecords()
    for commit_lsn in steps(wal, random, wal.start_lsn):
        known = whole_records(store, known, commit_lsn)
        assert known.end_lsn == whole_end(wal, commit_lsn), f"{commit_lsn=} {known=}"


@pytest.mark.parametrize("seed", range(40))
def test_other_wal_may_come_in_place_of_an_unfinished_record(seed: int) -> None:
    """The log is truncated behind its last whole record, and the end that is known stays right."""
    random, wal = Random(seed), made_wal(seed, 40_000)
    wal.record(random.randrange(PAGE, 3 * SEGMENT))
    begun = wal.records[-1]
    store = filled(FaultyDisk(random), wal)
    commit_lsn = Lsn(random.randrange(begun.start_lsn + 1, begun.end_lsn))
    known = whole_records(store, WholeRecords(), commit_lsn)
    assert known.end_lsn <= begun.start_lsn
    cut = whole_end(wal, commit_lsn)
    wal.forget_after(cut)
    for _ in range(random.randrange(1, 30)):
        wal.record(random.choice((20, 300, 9000, 3 * SEGMENT)))
    store.truncate(cut)
    store.append(cut, [wal.read(cut, wal.end_lsn)])
    for commit_lsn in steps(wal, random, cut):
        known = whole_records(store, known, commit_lsn)
        assert known.end_lsn == whole_end(wal, commit_lsn), f"{commit_lsn=} {known=}"


class CountingStore:
    """How much is read of a store."""

    def __init__(self, store: WalStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes_read, read = 0, store.read

        def counted(begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
            self.bytes_read += end_lsn - begin_lsn
            return read(begin_lsn, end_lsn)

        monkeypatch.setattr(store, "read", counted)


def test_only_the_last_page_header_of_a_record_that_goes_on_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wal = WalMaker(Random(1), segment_bytes=SEGMENT)
    wal.record(100)
    wal.record(20 * SEGMENT)
    wal.record(100)
    store = filled(FaultyDisk(Random(1)), wal)
    big = wal.records[1]
    known = whole_records(store, WholeRecords(), big.start_lsn + 2 * PAGE)
    counting = CountingStore(store, monkeypatch)
    for commit_lsn in range(big.start_lsn + 3 * PAGE, big.end_lsn, PAGE // 2):
        known = whole_records(store, known, Lsn(commit_lsn))
        assert known.end_lsn == big.start_lsn
        assert counting.bytes_read <= LONG_HEADER_BYTES, f"{commit_lsn=}"
        counting.bytes_read = 0
    assert whole_records(store, known, wal.end_lsn).end_lsn == wal.end_lsn


def test_a_page_or_two_of_small_records_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wal = WalMaker(Random(2), segment_bytes=SEGMENT)
    for _ in range(1000):
        wal.record(100)
    store, known = filled(FaultyDisk(Random(2)), wal), WholeRecords()
    counting = CountingStore(store, monkeypatch)
    for made in wal.records[::50]:
        known = whole_records(store, known, made.end_lsn)
        assert known.end_lsn == made.end_lsn
        assert counting.bytes_read <= 2 * PAGE
        counting.bytes_read = 0


def test_wal_that_fails_its_checks_is_an_error_that_names_its_place() -> None:
    wal = WalMaker(Random(3), segment_bytes=SEGMENT)
    for _ in range(20):
        wal.record(100)
    data, bad = bytearray(wal.read(wal.start_lsn, wal.end_lsn)), wal.records[10]
    data[bad.start_lsn - wal.start_lsn + 50] ^= 1
    store = make_store(FaultyDisk(Random(3)))
    store.create(wal.start_lsn)
    store.append(wal.start_lsn, [bytes(data)])
    with pytest.raises(CorruptWal, match=f"checksum in record at {bad.start_lsn}"):
        whole_records(store, WholeRecords(), wal.end_lsn)
