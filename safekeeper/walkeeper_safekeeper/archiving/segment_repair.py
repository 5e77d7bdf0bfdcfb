"""A damaged segment is rewritten from its copy in the archive, or on another member.

    SegmentRepair(…).repair(…)     the place of the copy, or None if there is no good one at hand

The archive's copy was compared with this log once. Where copies were compared by digest, only one
with the digest of most copies is taken. A member's copy must continue the record at
which the scrub stopped, by the CRCs of all its records. The driver serves nothing of the segment
until a later pass of the scrub has found it sound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_common.addresses import Address
from walkeeper_common.errors import StorageError, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.worker_thread import WorkerThread, call
from walkeeper_safekeeper.archiving.member_copies import Wanted, agreed_copy
from walkeeper_safekeeper.archiving.offload import Offload
from walkeeper_safekeeper.archiving.range_digests import ARCHIVE
from walkeeper_safekeeper.storage.record_steps import PatchedWal
from walkeeper_safekeeper.storage.wal_store import WalStore

MEMBER = "another member"


@dataclass(frozen=True, slots=True)
class SegmentRepair:
    """The sources of one log: `offload` is None without an archive, `peers` may be empty."""

    store: WalStore
    offload: Offload | None
    peers: Sequence[Address]
    writer: WorkerThread
    reader: WorkerThread

    async def repair(self, wanted: Wanted, at_lsn: Lsn, whole_lsn: Lsn) -> str | None:
        """Rewrite the segment; return the place of the copy, or None without a good one.

        `at_lsn` is the record at which the scrub stopped, `whole_lsn` the end of whole records. The
        writer's thread rewrites, which also removes segments. Appends do not reach so far below
        the end. After a crash in the middle the next scrub finds the damage again."""
        begin_lsn = wanted.begin_lsn
        if not begin_lsn >= self.store.first_lsn:
            return None
        wal, place = await self._archived(begin_lsn, wanted.end_lsn), ARCHIVE
        if wal is None or not wanted.takes(wal):
            wal, place = await self._members(wanted, at_lsn, whole_lsn), MEMBER
        if wal is None or len(wal) != self.store.segment_bytes:
            return None
        copy = wal
        await call(self.writer, lambda: self._rewrite(begin_lsn, copy))
        return place

    def _rewrite(self, begin_lsn: Lsn, wal: bytes) -> None:
        store = self.store
        if begin_lsn >= store.first_lsn:
            name = store.name_of(begin_lsn)
            store.disk.write_at(name, 0, [wal])
            store.disk.sync_data(name)

    async def _archived(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | None:
        offload = self.offload
        if offload is None or offload.archived_lsn < end_lsn:
            return None
        file = offload.file_of(begin_lsn)
        if file.name != self.store.name_of(begin_lsn):
            return None
        found = await asyncio.to_thread(offload.archive.read, file)
        return None if found is None else bytes(found)

    async def _members(self, wanted: Wanted, at_lsn: Lsn, whole_lsn: Lsn) -> bytes | None:
        """Return the copy of the members, or None if it does not bear out the scrub's record.

        A segment in which the timeline changes has two files, and needs the archive."""
        begin_lsn, end_lsn = wanted.begin_lsn, wanted.end_lsn
        if not self.peers or self.store.file_end(begin_lsn) != end_lsn:
            return None
        wal = await asyncio.to_thread(agreed_copy, wanted, self.peers)
        if wal is None:
            return None
        patched = PatchedWal(self.store, begin_lsn, wal)
        try:
            sound = await call(self.reader, lambda: patched.bears_out(at_lsn, whole_lsn))
        except (StorageError, WalRemoved):
            return None
        return wal if sound else None
