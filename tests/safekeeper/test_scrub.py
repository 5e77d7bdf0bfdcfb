"""The scrub walks all committed WAL, and finds each byte that a record's CRC covers."""

from __future__ import annotations

from random import Random

import pytest

from tests.safekeeper.test_wal_store import filled, made_wal, plain_wal
from tests.safekeeper.test_whole_records import whole_end
from tests.support.faulty_disk import FaultyDisk
from walkeeper_common.lsn import Lsn
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
