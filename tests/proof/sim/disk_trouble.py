"""The trouble that a machine makes for one safekeeper's disks, within what disks may do.

A disk keeps the bytes that it has synced. A power cut may replace all other bytes, also by garbage.
So bits are flipped after the last byte that this safekeeper ever vouched for: in sectors with a
write under way, and in blank ones. A lost disk is another matter: the promises are lost with it,
and the safekeeper may not take part any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from copy import copy
from enum import Enum
from random import Random

from tests.proof.sim.world import World
from tests.support.faulty_disk import SECTOR, FaultyDisk, PowerCut
from walkeeper_common.errors import StorageError
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, parse_segment_name, segment_name
from walkeeper_common.postgres.walpages import (
    BKP_REMOVABLE,
    FIRST_IS_OVERWRITE_CONTRECORD,
    FLAGS_OFFSET,
    LONG_HEADER_BYTES,
)
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.storage.log_folder import CONTROL
from walkeeper_safekeeper.storage.wal_store import HEAD_MARK

SEGMENT_NAME_LENGTH = 24
FLIPPED_TAIL_BYTES = 3000
HOLE = bytes(SECTOR // 2)


class Loss(Enum):
    """How a disk was lost, and so what its safekeeper answers."""

    WIPED = "empty"
    PREPARED = "prepared anew"
    REBORN = "another incarnation"
    DAMAGED = "a damaged control file"


class Disks:
    """The folder, its wal and its orphans."""

    def __init__(self, world: World, segment_bytes: int, timelines: Timelines) -> None:
        """Take the safekeeper's own `timelines`, which it keeps up to date."""
        self.world, self.segment_bytes, self.timelines = world, segment_bytes, timelines
        self.folder, self.wal = FaultyDisk(world.random), FaultyDisk(world.random)
        # The cuts that are kept change no schedule: this disk has luck of its own.
        self.orphans = FaultyDisk(Random(segment_bytes))
        self.lost: Disks | None = None

    def power_cut(self, vouched_lsn: Lsn) -> None:
        """Lose any part of the bytes without a sync; sometimes garble it."""
        options = self.world.options
        is_garbled = self.world.chance(options.bit_flips)
        if is_garbled:
            self.world.trouble("garbled tails")
        self.folder, self.orphans = self.folder.crash(), self.orphans.crash()
        # With wrong bits everywhere no record stays whole, so that no single one can go unseen.
        is_spoilt = is_garbled and self.world.random.random() < 0.5
        under_way = self.wal.under_way()
        self.wal = self.wal.crash(garbles=is_spoilt, spared=self._vain_bits)
        if self.folder.lost_changes + self.wal.lost_changes:
            self.world.trouble("renames, creations or unlinks lost")
        if is_garbled and self._may_flip(vouched_lsn):
            for _ in range(self.world.random.randrange(3)):
                self._flip(vouched_lsn, under_way)

    def _may_flip(self, vouched_lsn: Lsn) -> bool:
        """Return True if no flip can hit bytes that the mark of the log's first bytes vouches for.

        The mark vouches for them before any acknowledgement.
        """
        if HEAD_MARK not in self.wal.names():
            return True
        names = [n for n in self.wal.names() if len(n) == SEGMENT_NAME_LENGTH]
        first_lsn = min(parse_segment_name(n, self.segment_bytes)[1] for n in names)
        return vouched_lsn > first_lsn + 2 * self.segment_bytes

    def _flip(self, vouched_lsn: Lsn, under_way: dict[tuple[str, int], int]) -> None:
        """Flip one bit after all that the safekeeper vouched for.

        The bit is in WAL that is there, mostly where no CRC covers it, or not far after that WAL.
        """
        distance = self.world.random.expovariate(1 / FLIPPED_TAIL_BYTES)
        wal, luck = self._wal_behind(vouched_lsn), int(distance * 1000)
        if wal and luck % 2:
            distance = self._unchecked(wal, int(distance) % len(wal), vouched_lsn, luck // 2)
        lsn = vouched_lsn + int(distance)
        name = segment_name(self.timelines.at(lsn), lsn, self.segment_bytes)
        if name not in self.wal.names() or self.wal.size(name) < self.segment_bytes:
            return
        offset = lsn % self.segment_bytes
        sector = offset // SECTOR
        data = self.wal.read_at(name, sector * SECTOR, self.segment_bytes - sector * SECTOR)
        is_blank = not any(data[:SECTOR]) and not self._has_wal_behind(name, data[SECTOR:])
        if is_blank or offset >= under_way.get((name, sector), self.segment_bytes):
            self.world.trouble("bits flipped in the tail")
            self._flip_bit(self.wal, name, offset)

    def _has_wal_behind(self, name: str, rest: bytes) -> bool:
        """Return True if a blank sector is a segment's padding. WAL behind it was written after
        the padding was synced."""
        later = (n for n in self.wal.names() if len(n) == SEGMENT_NAME_LENGTH and n > name)
        return any(rest) or any(any(self.wal.read_at(n, 0, self.wal.size(n))) for n in later)

    def _wal_behind(self, lsn: Lsn) -> bytes:
        """Return the bytes from `lsn` to a hole that a power cut left, or to the segment's end."""
        name = segment_name(self.timelines.at(lsn), lsn, self.segment_bytes)
        if name not in self.wal.names() or self.wal.size(name) < self.segment_bytes:
            return b""
        offset = lsn % self.segment_bytes
        data = self.wal.read_at(name, offset, self.segment_bytes - offset)
        return data.partition(HOLE)[0].rstrip(b"\0")

    def _unchecked(self, wal: bytes, at: int, begin_lsn: Lsn, luck: int) -> int:
        """Return an offset from `at` on: a zero that may align a record, a header, or `at`."""
        ends = range(at + (-(begin_lsn + at) - 1) % 8, len(wal), 8)  # the last byte of each word
        headers = range(at + -(begin_lsn + at) % WAL_PAGE_BYTES, len(wal), WAL_PAGE_BYTES)
        if luck % 4 == 0 and headers:
            return headers[0] + luck // 4 % LONG_HEADER_BYTES
        return next((end for end in ends if not wal[end]), at) if luck % 4 < 3 else at

    def _vain_bits(self, name: str, offset: int) -> int:
        """Return the bits whose damage no reader of WAL can see if all others are sound.

        See wal_store, point 2. Real disks lose sectors, and a page's header lies in one.
        """
        if len(name) != SEGMENT_NAME_LENGTH or (in_page := offset % WAL_PAGE_BYTES) > FLAGS_OFFSET:
            return 0
        page_lsn = parse_segment_name(name, self.segment_bytes)[1] + (offset - in_page)
        is_first = page_lsn == self.first_kept()
        if in_page < FLAGS_OFFSET:
            return 0xFF if is_first else 0  # the magic
        return BKP_REMOVABLE | (FIRST_IS_OVERWRITE_CONTRECORD if is_first else 0)

    def _flip_bit(self, disk: FaultyDisk, name: str, offset: int) -> None:
        bit = 1 << self.world.random.randrange(8)
        if disk is self.wal:
            bit &= ~self._vain_bits(name, offset)
        disk.damage(name, offset, bytes([disk.read_at(name, offset, 1)[0] ^ bit]))

    def lose(self, loss: Loss) -> None:
        """Replace the disks by empty ones, or damage the control file."""
        random, self.lost = self.world.random, copy(self)
        if loss is Loss.DAMAGED:
            self._flip_bit(self.folder, CONTROL, random.randrange(self.folder.size(CONTROL)))
        else:
            self.folder, self.wal = FaultyDisk(random), FaultyDisk(random)

    def fail_sync(self, flush_lsn: Lsn) -> None:
        """Let the next fdatasync fail, of the current segment or of the control file."""
        if self.world.random.random() < 0.7:
            timeline = self.timelines.at(flush_lsn)
            self.wal.failing_syncs.add(segment_name(timeline, flush_lsn, self.segment_bytes))
        else:
            self.folder.failing_syncs.add("control.tmp")

    def fill(self) -> None:
        """Let no new segment be allocated."""
        self.wal.capacity_bytes = sum(self.wal.size(name) for name in self.wal.names())

    def heal(self) -> None:
        self.wal.capacity_bytes = None
        for disk in (self.wal, self.folder):
            disk.failing_syncs.clear()

    def half_do(self, job: Callable[[], object]) -> None:
        """Run the current job up to some operation of the disk."""
        most = 2 if self.world.random.random() < 0.5 else 8  # an append is a write and a sync
        self.wal.operations_left = self.folder.operations_left = self.world.random.randrange(most)
        self.orphans.operations_left = self.wal.operations_left
        with suppress(PowerCut, StorageError):
            job()
        self.wal.operations_left = self.folder.operations_left = None
        self.orphans.operations_left = None

    def first_kept(self) -> Lsn | None:
        """Return the first LSN that a power cut leaves for sure, or None if no segment is left."""
        names = [n for n in self.wal._durable_names if len(n) == SEGMENT_NAME_LENGTH]
        return min((parse_segment_name(n, self.segment_bytes)[1] for n in names), default=None)

    def kept_bytes(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return the bytes that a power cut leaves for sure of a range, up to the first gap."""
        kept, lsn = [], begin_lsn
        while lsn < end_lsn:
            start = lsn.round_down(self.segment_bytes)
            name = segment_name(self.timelines.at(lsn), lsn, self.segment_bytes)
            file = self.wal._durable_names.get(name)
            if file is None:
                break
            fork_lsn = self.timelines.next_fork(lsn)
            upto = min(start + self.segment_bytes, end_lsn, fork_lsn)
            kept.append(bytes(file.durable[lsn - start : upto - start]))
            lsn = upto
        return b"".join(kept)

    def held(self, begin_lsn: Lsn, wal: bytes) -> bool:
        """Return True if this disk `holds` the WAL, or did when it was lost.

        An acknowledgement may come later than the loss.
        """
        lost = self.lost
        return self.holds(begin_lsn, wal) or (lost is not None and lost.holds(begin_lsn, wal))

    def holds(self, begin_lsn: Lsn, wal: bytes) -> bool:
        """Return True if a power cut leaves this range here, but for segments removed before."""
        first_lsn = self.first_kept()
        if first_lsn is None:
            return False
        skipped = max(0, first_lsn - begin_lsn)
        return self.kept_bytes(begin_lsn + skipped, begin_lsn + len(wal)) == wal[skipped:]
