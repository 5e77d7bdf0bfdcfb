"""Up to where committed WAL is whole records: what PostgreSQL's clients are sent (R13).

    whole = whole_records(store, whole, commit_lsn)     brought up to commit_lsn; whole.end_lsn

A quorum may have the beginning of a record that its primary never finishes, and then the next
election truncates that beginning (R5). Nobody may have got it: a stock standby keeps what it
was sent in its own segments, and pg_receivewal in finished ones. So a reader gets a record when all
of it is committed. Walks only what is new, or the last page if that is less; while a record of up
to 1 GB arrives, one page header a call. WAL that fails its checks is an error and is not sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.contrecords import unfinished_end
from walkeeper_safekeeper.storage.wal_store import WalStore


@dataclass(frozen=True, slots=True)
class WholeRecords:
    """What is committed below `end_lsn` is whole records, for good.

    The next one starts there, behind what pads a segment after a switch, of which less may be
    committed: that says nothing, so it may be read. It would end at `unfinished_end_lsn`; None if
    that is not known.
    """

    end_lsn: Lsn = ZERO_LSN
    unfinished_end_lsn: Lsn | None = None


def whole_records(store: WalStore, known: WholeRecords, commit_lsn: Lsn) -> WholeRecords:
    """Reads the store. CorruptWal names file and LSN; StorageError."""
    if commit_lsn <= known.end_lsn:
        return known
    begun = known.unfinished_end_lsn
    if begun is not None and begun == _unfinished_end(store, commit_lsn):
        return known  # the same record still goes on
    end_lsn = store.record_end(commit_lsn, known.end_lsn).next_lsn
    if end_lsn >= commit_lsn:
        return WholeRecords(end_lsn)
    return WholeRecords(end_lsn, _unfinished_end(store, commit_lsn))


def _unfinished_end(store: WalStore, commit_lsn: Lsn) -> Lsn | None:
    return unfinished_end(store, limit_lsn=commit_lsn, segment_bytes=store.segment_bytes)
