"""A logical log on disk: WalStore's files and order of operations, with entries for records.

Each frame has its position and a CRC, also the first one of the log. So this store needs neither
mark of wal_store: no barrier before a page that cuts off a record, and no head of the log.
Allocation, appends, cuts, recovery and retention are WalStore's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from walkeeper_common import entries
from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walformat import RecordEnd, ScanEnd
from walkeeper_common.postgres.walpages import WalBytes
from walkeeper_safekeeper.storage.append_pieces import pieces
from walkeeper_safekeeper.storage.wal_store import WalStore


class EntryStore(WalStore):
    """Positions in the log are its LSNs (docs/logical.md)."""

    def scan(self, start_lsn: Lsn, limit_lsn: Lsn, wal: WalBytes | None = None) -> ScanEnd:
        source = self if wal is None else wal
        return entries.scan(
            source, start_lsn=start_lsn, limit_lsn=limit_lsn, segment_bytes=self.segment_bytes
        )

    def _record_end(self, first_lsn: Lsn, flush_lsn: Lsn) -> RecordEnd:
        return entries.record_end_before(
            self, first_lsn=first_lsn, flush_lsn=flush_lsn, segment_bytes=self.segment_bytes
        )

    def head_end(self) -> Lsn:
        return self.first_lsn

    def _pieces(
        self, begin: Lsn, buffers: Sequence[Buffer]
    ) -> Iterable[tuple[Lsn, list[memoryview]]]:
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        return pieces(begin, views, self.segment_bytes)
