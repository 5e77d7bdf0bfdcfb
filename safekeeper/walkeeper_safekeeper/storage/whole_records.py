"""The end of committed whole records, up to which PostgreSQL's clients get WAL (R13).

    whole = whole_records(store, whole, commit_lsn)     brought up to commit_lsn; whole.end_lsn
    last_whole_end(store, readable_lsn)                 the same place, also of a log of entries

A quorum may have the beginning of a record that its primary never finishes, and then the next
election truncates that beginning (R5). No reader may have it by then: a stock standby keeps
received WAL in its segments, and pg_receivewal in finished ones. So a reader gets a record when all
of it is committed. Each call walks the new WAL only, or the last page if that is less. While a
record of up to 1 GB arrives, it is one page header. WAL that fails its checks is an error and stays
here.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.contrecords import unfinished_end
from walkeeper_safekeeper.storage.wal_store import WalStore


@dataclass(frozen=True, slots=True)
class WholeRecords:
    """The committed WAL below `end_lsn` consists of whole records, for good.

    The next record starts there. Padding after a switch counts as well, even if it is committed
    in part, because it holds no record. The next record would end at `unfinished_end_lsn`, or at
    an unknown LSN if that is None.
    """

    end_lsn: Lsn = ZERO_LSN
    unfinished_end_lsn: Lsn | None = None


def whole_records(store: WalStore, known: WholeRecords, commit_lsn: Lsn) -> WholeRecords:
    """Read the store; return the whole records up to commit_lsn.

    Raise CorruptWal with file and LSN, or StorageError.
    """
    if commit_lsn <= known.end_lsn:
        return known
    begun = known.unfinished_end_lsn
    if begun is not None and begun == _unfinished_end(store, commit_lsn):
        return known  # the same record still goes on
    end_lsn = store.record_end(commit_lsn, known.end_lsn).next_lsn
    if end_lsn >= commit_lsn:
        return WholeRecords(end_lsn)
    return WholeRecords(end_lsn, _unfinished_end(store, commit_lsn))


def last_whole_end(store: WalStore, readable_lsn: Lsn) -> Lsn:
    """Return where the last whole record below readable_lsn ends, or entry of a logical log.

    A quorum may have the beginning of one that goes on. The disk is read.
    Raise CorruptWal with file and LSN, or StorageError.
    """
    return min(store.record_end(readable_lsn).next_lsn, readable_lsn)


def _unfinished_end(store: WalStore, commit_lsn: Lsn) -> Lsn | None:
    return unfinished_end(store, limit_lsn=commit_lsn, segment_bytes=store.segment_bytes)
