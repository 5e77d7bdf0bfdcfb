"""The digests of a sealed segment: this disk's, those of other members, and the archive's.

    judge(own, others) -> Comparison     which copies differ, and whether ours is the wrong one
    await digest_of(store, reader, …)    this disk's digest
    CopyDigests(…).compare(…)            asks the archive's receipt and the peers, and judges

The CRC of a record bears out that record alone. It says nothing of the bytes between records, nor
whether all copies have the same record. Committed WAL is the same on every member. So a digest that
differs is damage, also where all CRCs hold. Our copy is the wrong one if at least two others agree
on another digest, and fewer copies have ours. Otherwise an operator has to find the wrong copy.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_common.addresses import Address
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread, call
from walkeeper_safekeeper.archiving.member_copies import Wanted, peer_digest
from walkeeper_safekeeper.archiving.offload import Offload
from walkeeper_safekeeper.storage.wal_store import WalStore

logger = logging.getLogger("walkeeper.scrub")

PIECE_BYTES = 1 << 20  # other reads of the disk go between two pieces
WITNESSES_MIN = 2  # so many other copies have to agree against ours
ARCHIVE = "the archive"
LOST = "the archive, which has lost it"  # an object between others, without a receipt


@dataclass(frozen=True, slots=True)
class Comparison:
    """The places whose copies differ from ours. `right` is most copies' digest if ours is wrong."""

    differing: tuple[str, ...] = ()
    right: str | None = None


def judge(own: str, others: Mapping[str, str]) -> Comparison:
    """Compare our digest with those of other places."""
    differing = tuple(sorted(place for place, digest in others.items() if digest != own))
    counts = Counter(digest for digest in others.values() if digest != own)
    if not counts:
        return Comparison()
    ((best, witnesses),) = counts.most_common(1)
    holders = 1 + len(others) - len(differing)
    is_wrong = witnesses >= WITNESSES_MIN and witnesses > holders
    return Comparison(differing, best if is_wrong else None)


async def digest_of(store: WalStore, reader: WorkerThread, begin_lsn: Lsn, end_lsn: Lsn) -> str:
    """Return the SHA-256 of WAL on this disk; raise WalRemoved or StorageError."""
    found = hashlib.sha256()
    for at in range(begin_lsn, end_lsn, PIECE_BYTES):
        to_lsn = min(Lsn(at + PIECE_BYTES), end_lsn)
        found.update(await call(reader, partial(store.read, Lsn(at), to_lsn)))
    return found.hexdigest()


@dataclass(frozen=True, slots=True)
class CopyDigests:
    """The other copies of one log: `offload` is None without an archive, `peers` may be empty."""

    store: WalStore
    offload: Offload | None
    peers: Sequence[Address]
    reader: WorkerThread

    async def compare(self, wanted: Wanted) -> Comparison:
        """Compare a sealed segment with the copies that answer. Raise as `digest_of` does."""
        others = await self._others(wanted)
        if not others:
            return Comparison()
        own = await digest_of(self.store, self.reader, wanted.begin_lsn, wanted.end_lsn)
        return judge(own, others)

    async def _others(self, wanted: Wanted) -> dict[str, str]:
        found: dict[str, str] = {}
        found |= await self._archived(wanted)
        for address in self.peers:
            try:
                answer = await asyncio.to_thread(peer_digest, wanted, address)
            except WalkeeperError as error:
                logger.debug("cluster %s: no digest to compare: %s", wanted.cluster, error)
                continue
            if answer is not None:
                found[f"safekeeper {answer[0]}"] = answer[1]
        return found

    async def _archived(self, wanted: Wanted) -> dict[str, str]:
        """Return the digest of the archive's receipt, or that the archive has lost the segment.

        A segment in which the timeline changes has two files, and no receipt of its own."""
        offload, begin_lsn = self.offload, wanted.begin_lsn
        if offload is None or offload.archived_lsn < wanted.end_lsn:
            return {}
        file = offload.file_of(begin_lsn)
        is_one = self.store.file_end(begin_lsn) == wanted.end_lsn
        if not is_one or file.name != self.store.name_of(begin_lsn):
            return {}
        try:
            receipt = await asyncio.to_thread(offload.archive.receipt, file)
            if receipt is not None:
                return {ARCHIVE: receipt.wal_sha256}
            earlier = offload.file_of(Lsn(begin_lsn - self.store.segment_bytes))
            is_lost = await asyncio.to_thread(offload.archive.receipt, earlier) is not None
        except ArchiveError as error:
            logger.debug("cluster %s: no receipt to compare: %s", wanted.cluster, error)
            return {}
        return {LOST: ""} if is_lost else {}  # else the archive begins later: it was pruned
