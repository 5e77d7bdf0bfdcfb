"""Rewrite a damaged segment from its copy in the archive, or on another member.

    SegmentRepair(…).repair(…)     the place of the copy, or None if there is no good one at hand

A copy must continue the record at which the scrub stopped, by the CRCs of all its records. Where
copies were compared by digest, it must have the digest of most of them. If no copy fits, since the
next segment is damaged too, the archive's is taken. It was compared with this log once. The driver
serves nothing of the segment until a later pass of the scrub has found it sound.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_common.addresses import Address
from walkeeper_common.errors import StorageError, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread, call
from walkeeper_safekeeper.archiving.member_copies import Wanted, agreed_copy
from walkeeper_safekeeper.archiving.offload import Offload
from walkeeper_safekeeper.archiving.range_digests import ARCHIVE
from walkeeper_safekeeper.storage.record_steps import PatchedWal
from walkeeper_safekeeper.storage.wal_store import WalStore

logger = logging.getLogger("walkeeper.scrub")

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
        archived = await self._archived(wanted)
        wal, place = archived, ARCHIVE
        if not await self._fits(wal, wanted, at_lsn, whole_lsn):
            wal, place = await self._members(wanted), MEMBER
        if not await self._fits(wal, wanted, at_lsn, whole_lsn):
            wal, place = self._only_copy(archived, wanted), ARCHIVE
        if wal is None:
            return None
        copy = wal
        await call(self.writer, lambda: self._rewrite(begin_lsn, copy))
        return place

    async def _fits(self, wal: bytes | None, wanted: Wanted, at_lsn: Lsn, whole_lsn: Lsn) -> bool:
        """Return True for a whole segment with the wanted digest, all of whose records are sound
        from the scrub's record on."""
        if wal is None or len(wal) != self.store.segment_bytes or not wanted.takes(wal):
            return False
        patched = PatchedWal(self.store, wanted.begin_lsn, wal)
        try:
            return await call(self.reader, lambda: patched.bears_out(at_lsn, whole_lsn))
        except (StorageError, WalRemoved):
            return False

    def _only_copy(self, archived: bytes | None, wanted: Wanted) -> bytes | None:
        """Return the archive's copy if its last record may go on in the next damaged segment.

        This log has compared it with its own bytes, before they were damaged."""
        is_whole = archived is not None and len(archived) == self.store.segment_bytes
        offload = self.offload
        was_compared = offload is not None and offload.archived_lsn >= wanted.end_lsn
        return archived if is_whole and was_compared and wanted.sha256 is None else None

    def _rewrite(self, begin_lsn: Lsn, wal: bytes) -> None:
        store = self.store
        if begin_lsn >= store.first_lsn:
            name = store.name_of(begin_lsn)
            store.disk.write_at(name, 0, [wal])
            store.disk.sync_data(name)

    async def _archived(self, wanted: Wanted) -> bytes | None:
        """Return the archive's copy, which another member may have put, or None."""
        offload, begin_lsn = self.offload, wanted.begin_lsn
        if offload is None:
            return None
        file = offload.file_of(begin_lsn)
        if file.name != self.store.name_of(begin_lsn):
            return None
        try:
            found = await asyncio.to_thread(offload.archive.read, file)
        except ArchiveError as error:
            logger.warning("cluster %s: no copy for the repair: %s", wanted.cluster, error)
            return None
        return None if found is None else bytes(found)

    async def _members(self, wanted: Wanted) -> bytes | None:
        """Return the copy of the members.

        A segment in which the timeline changes has two files, and needs the archive."""
        if not self.peers or self.store.file_end(wanted.begin_lsn) != wanted.end_lsn:
            return None
        return await asyncio.to_thread(agreed_copy, wanted, self.peers)
