"""The transactions that a batch ends: each with its subtransactions, its place and its time.

    ended_of(batch) -> Ended                 committed and rolled back, also prepared ones

Contract: a prepared transaction is ended by COMMIT PREPARED or ROLLBACK PREPARED alone. A
transaction that was rolled back has the end 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from walkeeper_history.rows.transactions import (
    FLAGS_AT,
    FLAGS_BYTES,
    HAS_INFO,
    NAMING,
    Ending,
    parse_ending,
)
from walkeeper_wal.records.gather import integers
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

ROLLED_BACK = 0
_XACT = RMGR_IDS["Transaction"]
_COMMIT, _PREPARE, _ABORT, _COMMIT_PREPARED, _ABORT_PREPARED = 0x00, 0x10, 0x20, 0x30, 0x40
_ENDINGS = (_COMMIT, _ABORT, _COMMIT_PREPARED, _ABORT_PREPARED)


@dataclass(frozen=True, slots=True)
class Ended:
    """Columns, all int64 and of one length: a row for each transaction and subtransaction."""

    xids: Column
    tops: Column
    """The transaction itself, or the top-level transaction of a subtransaction."""
    end_lsns: Column
    """The end of the commit's record, or ROLLED_BACK."""
    times: Column
    """PostgreSQL's microseconds since 2000."""

    def chosen(self, mask: Column) -> Ended:
        """Return the transactions that a mask or places name."""
        return Ended(*(column[mask] for column in self._columns))

    def joined(self, more: Ended) -> Ended:
        """Return these and more of them."""
        pairs = zip(self._columns, more._columns, strict=True)
        return Ended(*(np.concatenate(pair) for pair in pairs))

    @property
    def committed(self) -> Ended:
        """The transactions that were not rolled back."""
        return self.chosen(self.end_lsns != ROLLED_BACK)

    @property
    def _columns(self) -> tuple[Column, ...]:
        return self.xids, self.tops, self.end_lsns, self.times


def ended_of(batch: Batch) -> Ended:
    """Return the transactions that end in a batch."""
    records = batch.records
    ops, ends = records["info"] & 0x70, batch.end_lsn()
    plain = (records["rmid"] == _XACT) & np.isin(ops, (_COMMIT, _ABORT))
    plain[naming_endings(batch)] = False
    rows = np.flatnonzero(plain)
    xids = records["xid"][rows].astype(np.int64)
    lsns = np.where(ops[rows] == _COMMIT, ends[rows], ROLLED_BACK)
    times = integers(batch.payload, records["main_offset"][rows].astype(np.int64), 8)
    pieces: list[tuple[Column, ...]] = [(xids, xids, lsns, times)]
    for row, top, ending in detailed_endings(batch):
        family = np.array([top, *ending.subxacts], np.int64)
        is_committed = int(ops[row]) in (_COMMIT, _COMMIT_PREPARED)
        values = (top, int(ends[row]) if is_committed else ROLLED_BACK, ending.time or 0)
        pieces.append((family, *(np.full(len(family), value, np.int64) for value in values)))
    return Ended(*(np.concatenate(column) for column in zip(*pieces, strict=True)))


def naming_endings(batch: Batch) -> Column:
    """Return the rows of endings that name other transactions, or files that go away."""
    records = batch.records
    found = (records["rmid"] == _XACT) & (records["info"] & HAS_INFO != 0)
    rows = np.flatnonzero(found & np.isin(records["info"] & 0x70, _ENDINGS))
    places = records["main_offset"][rows].astype(np.int64) + FLAGS_AT
    cut_off = records["main_length"][rows] < FLAGS_AT + FLAGS_BYTES
    flags = integers(batch.payload, places, FLAGS_BYTES)
    naming: Column = rows[~cut_off & (flags & NAMING != 0)]
    return naming


def naming_records(batch: Batch) -> Column:
    """Return the rows of `naming_endings`, and those of PREPARE, which names subtransactions."""
    records = batch.records
    prepared = (records["rmid"] == _XACT) & (records["info"] & 0x70 == _PREPARE)
    return np.concatenate([naming_endings(batch), np.flatnonzero(prepared)])


def detailed_endings(batch: Batch) -> list[tuple[int, int, Ending]]:
    """Return (row, xid, content) of each ending that `naming_endings` finds."""
    records = batch.records
    made = []
    for row in naming_endings(batch).tolist():
        begin, info = int(records["main_offset"][row]), int(records["info"][row])
        data = batch.payload[begin : begin + int(records["main_length"][row])].tobytes()
        ending = parse_ending(data, info, batch.version)
        top = ending.xid if ending.xid is not None else int(records["xid"][row])
        made.append((row, top, ending))
    return made
