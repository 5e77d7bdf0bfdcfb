"""A logical log on disk, with the power cut after every operation, in recovery too.

The load, the disk and the oracle are those of test_wal_power_cuts.py; only what is stored differs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from tests.safekeeper import test_wal_power_cuts
from tests.safekeeper.test_wal_store import SEGMENT, facts_of, recover
from tests.support.entry_maker import LogBytes
from tests.support.faulty_disk import FaultyDisk
from walkeeper_common.entries import EntryKind
from walkeeper_common.errors import CorruptWal
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_proposer.logical.entry_writer import EntryWriter
from walkeeper_safekeeper.storage.disk_port import Disk
from walkeeper_safekeeper.storage.entry_store import EntryStore


class EntryMaker:
    """Entries of drawn sizes, with what WalMaker tells of records."""

    def __init__(self, seed: int, size: int = 60_000, *, segment_bytes: int = SEGMENT) -> None:
        self.start_lsn = Lsn(segment_bytes)
        self._log, self.ends = LogBytes(self.start_lsn), [(self.start_lsn, self.start_lsn)]
        draw = Random(seed)
        writer = EntryWriter(
            self.start_lsn, end_lsn=Lsn(1), timeline=1, segment_bytes=segment_bytes
        )
        while writer.position < self.start_lsn + size:
            start = writer.position
            writer.begin(EntryKind.TRANSACTION)
            writer.add(draw.randbytes(draw.choice([0, 50, 500, 500, 5000, 2 * segment_bytes])))
            writer.end(writer.end_lsn + 1)
            self.ends.append((start, writer.position))
        self._log.data += writer.take()[1]

    @property
    def end_lsn(self) -> Lsn:
        return self._log.end

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        return self._log.read(begin, end)

    def end_before(self, lsn: Lsn) -> tuple[Lsn, Lsn]:
        return max(e for e in self.ends if e[1] <= lsn)


def make_store(disk: Disk, segment_bytes: int = SEGMENT) -> EntryStore:
    creation = Fragment(NO_BALLOT, Lsn(segment_bytes), 1, False, (), 1)
    timelines = Timelines([creation])
    return EntryStore(
        disk, segment_bytes=segment_bytes, timelines=timelines, system_id=7, lock=threading.Lock()
    )


@pytest.mark.parametrize("seed", range(12))
def test_no_power_cut_loses_an_acknowledged_entry(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_wal_power_cuts, "make_store", make_store)
    cut_everywhere: Callable[..., int] = test_wal_power_cuts.cut_everywhere
    assert cut_everywhere(lambda: EntryMaker(seed), 0, seed) > 10


def test_damage_below_what_was_committed_is_refused_and_named() -> None:
    made = EntryMaker(3)
    disk = FaultyDisk(Random(1))
    store = make_store(disk)
    store.create(made.start_lsn)
    store.append(made.start_lsn, [made.read(made.start_lsn, made.end_lsn)])
    start, _ = made.end_before(made.end_lsn)
    name = store.name_of(start)
    at = start % SEGMENT + 50
    byte = disk.read_at(name, at, 1)[0]
    disk.write_at(name, at, [bytes([byte ^ 1])])
    disk.sync_data(name)
    facts = facts_of(made, commit_lsn=made.end_lsn)  # type: ignore[arg-type]  # as much as is used
    with pytest.raises(CorruptWal, match=name):
        recover(make_store(disk), facts)
