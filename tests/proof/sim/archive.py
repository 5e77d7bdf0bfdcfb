"""The archive of a simulated log: the shipping driver reports to it and reads from it.

All safekeepers share one `Archived`. Each archives its committed WAL in whole records, and compares
it with the segments that another one has archived before. An archived segment never changes, so a
difference is a violation. Failing uploads belong to the archive's own tests (tests/archive).
"""

from __future__ import annotations

from collections.abc import Callable

from tests.proof.sim.oracle import Committed, Retention
from walkeeper_common.errors import WalkeeperError, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.driver_ports import Worker
from walkeeper_safekeeper.storage.wal_store import WalStore


class Archived:
    """Whole segments by their start: the object store that outlives all nodes."""

    def __init__(self) -> None:
        self.segments: dict[Lsn, bytes] = {}


class NodesArchive:
    """One safekeeper's view in one life; the driver's `OlderWal`."""

    def __init__(
        self, name: str, archived: Archived, store: WalStore, worker: Worker, committed: Committed
    ) -> None:
        self._name, self._archived, self._store = name, archived, store
        self._worker, self._committed = worker, committed
        self.archived_lsn = store.first_lsn

    def archive(self, commit_lsn: Lsn, segments_max: int) -> None:
        """Archive committed WAL up to the last whole record, at most `segments_max` segments."""
        whole_lsn = self._committed.whole_end(self._name, self._store, commit_lsn)
        size = self._store.segment_bytes
        end_lsn = min(whole_lsn, self.archived_lsn + segments_max * size)
        while self.archived_lsn + size <= end_lsn:
            begin_lsn = self.archived_lsn
            wal = self._store.read(begin_lsn, begin_lsn + size)
            if self._archived.segments.setdefault(begin_lsn, wal) != wal:
                self._committed.fail(f"{self._name} archives other bytes at {begin_lsn}")
            self.archived_lsn = begin_lsn + size

    def reaches(self) -> Lsn:
        """Return the LSN from which all WAL is on this disk or in the archive."""
        lsn, size = self._store.first_lsn, self._store.segment_bytes
        while lsn - size in self._archived.segments:
            lsn = lsn - size
        return lsn

    def check_removal(self, retention: Retention, began_lsn: Lsn) -> None:
        """Check that the archive has all WAL from `began_lsn` on that this disk has removed."""
        lsn, size = self._store.first_lsn - self._store.segment_bytes, self._store.segment_bytes
        while lsn >= began_lsn:
            if lsn not in self._archived.segments:
                retention.check(self._name, self._store.first_lsn, ["the archive"])
            lsn = lsn - size

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, done: Callable[[object], None]) -> None:
        self._worker.submit(lambda: self._read(begin_lsn, end_lsn), done)

    def _read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes | WalkeeperError:
        pieces, lsn = [], begin_lsn
        while lsn < end_lsn:
            start = self._store.segment_start(lsn)
            end = min(start + self._store.segment_bytes, end_lsn)
            if start < self._store.first_lsn and start in self._archived.segments:
                pieces.append(self._archived.segments[start][lsn - start : end - start])
            elif start < self._store.first_lsn:
                raise WalRemoved(begin_lsn, self._store.first_lsn)
            else:
                pieces.append(self._store.read(lsn, end))
            lsn = end
        return b"".join(pieces)
