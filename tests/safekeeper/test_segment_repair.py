"""A damaged segment takes only a copy that continues the log and that all members agree on."""

from __future__ import annotations

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.safekeeper.test_wal_store import filled, plain_wal
from tests.safekeeper.test_whole_records import whole_end
from tests.support.faulty_disk import FaultyDisk
from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_common.addresses import Address
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread
from walkeeper_safekeeper.archiving import member_copies, segment_repair
from walkeeper_safekeeper.archiving.member_copies import Wanted, agreed_copy
from walkeeper_safekeeper.archiving.range_digests import ARCHIVE
from walkeeper_safekeeper.archiving.segment_repair import MEMBER, SegmentRepair
from walkeeper_safekeeper.storage.record_steps import step

PEERS: tuple[Address, ...] = (("h1", 1), ("h2", 2))


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


class Damaged:
    """A log whose second record's segment has lost a bit; `sound` is that segment before."""

    def __init__(self) -> None:
        self.wal = plain_wal(3, 400)
        self.end_lsn = whole_end(self.wal, self.wal.end_lsn)
        self.store = store = filled(FaultyDisk(Random(3)), self.wal)
        self.begin_lsn = store.segment_start(self.wal.records[1].start_lsn)
        while not self.begin_lsn > store.first_lsn:  # whole from its first byte on
            self.begin_lsn = Lsn(self.begin_lsn + store.segment_bytes)
        self.name = store.name_of(self.begin_lsn)
        self.sound = store.disk.read_at(self.name, 0, store.segment_bytes)
        inside = [r for r in self.wal.records if self.begin_lsn < r.start_lsn]
        offset = inside[5].start_lsn + 30 - self.begin_lsn
        store.disk.write_at(self.name, 0, [flipped(self.sound, offset)])
        at = step(store, self.wal.records[0].start_lsn, self.end_lsn)
        while at.flaw is None:
            at = step(store, at.next_lsn, self.end_lsn)
        self.at_lsn = at.next_lsn

    @property
    def wanted(self) -> Wanted:
        end_lsn = Lsn(self.begin_lsn + self.store.segment_bytes)
        return Wanted("main", bytes(16), 1, self.begin_lsn, end_lsn)

    def on_disk(self) -> bytes:
        return self.store.disk.read_at(self.name, 0, self.store.segment_bytes)

    async def repaired(self, wanted: Wanted | None = None, offload: Any = None) -> str | None:
        threads = [WorkerThread(name, lambda defect: None) for name in ("writer", "reader")]
        source = SegmentRepair(self.store, offload, PEERS, *threads)
        try:
            return await source.repair(wanted or self.wanted, self.at_lsn, self.end_lsn)
        finally:
            for thread in threads:
                thread.stop()


def test_a_copy_whose_records_are_sound_repairs_the_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = Damaged()
    monkeypatch.setattr(segment_repair, "agreed_copy", lambda wanted, peers: damaged.sound)
    assert damaged.on_disk() != damaged.sound
    assert asyncio.run(damaged.repaired()) == MEMBER
    assert damaged.on_disk() == damaged.sound


def test_a_copy_with_a_record_that_is_not_sound_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    damaged = Damaged()
    before = damaged.on_disk()
    late = next(r for r in reversed(damaged.wal.records) if r.end_lsn < damaged.wanted.end_lsn)
    copy = flipped(damaged.sound, late.start_lsn + 30 - damaged.begin_lsn)
    monkeypatch.setattr(segment_repair, "agreed_copy", lambda wanted, peers: copy)
    assert asyncio.run(damaged.repaired()) is None
    assert damaged.on_disk() == before


def offload_of(damaged: Damaged, copy: bytes | ArchiveError, archived_lsn: Lsn) -> Any:
    """Return an offload whose archive has this copy of the segment, or fails."""

    def read(file: object) -> bytes:
        if isinstance(copy, ArchiveError):
            raise copy
        return copy

    file = SimpleNamespace(name=damaged.name)
    archive = SimpleNamespace(read=read)
    return SimpleNamespace(archived_lsn=archived_lsn, archive=archive, file_of=lambda lsn: file)


def test_a_copy_that_another_member_has_archived_repairs_the_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This member cannot archive the segment, nor compare it, since its own bytes are damaged."""
    damaged = Damaged()
    monkeypatch.setattr(segment_repair, "agreed_copy", lambda wanted, peers: None)
    offload = offload_of(damaged, damaged.sound, damaged.begin_lsn)
    assert asyncio.run(damaged.repaired(offload=offload)) == ARCHIVE
    assert damaged.on_disk() == damaged.sound


@pytest.mark.parametrize("copy", ["damaged", ArchiveError("no answer")])
def test_an_archive_without_a_sound_copy_leaves_the_repair_to_the_members(
    monkeypatch: pytest.MonkeyPatch, copy: str | ArchiveError
) -> None:
    damaged = Damaged()
    monkeypatch.setattr(segment_repair, "agreed_copy", lambda wanted, peers: damaged.sound)
    found = damaged.on_disk() if isinstance(copy, str) else copy
    assert asyncio.run(damaged.repaired(offload=offload_of(damaged, found, Lsn(1 << 40)))) == MEMBER
    assert damaged.on_disk() == damaged.sound


def test_members_that_differ_give_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, copies = Damaged().wanted, {"h1": b"one", "h2": b"two"}
    monkeypatch.setattr(member_copies, "_copy", lambda wanted, peer: copies[peer[0]])
    assert agreed_copy(wanted, PEERS) is None
    copies["h2"] = b"one"
    assert agreed_copy(wanted, PEERS) == b"one"
