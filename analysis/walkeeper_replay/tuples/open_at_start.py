"""Transactions that had begun before the WAL, as far as the WAL itself shows it.

    start = OpenAtStart(); start.add(batch) again and again; start.below -> 783 or None
    start.shows_end(xid)     False if the transaction may have ended before the WAL
    start.later_from         787: this transaction and all after it began later; None: not known

xids are given out in order. The first record of running transactions names those that are open,
and the next xid. A smaller xid that is not open there and has no record ended before the WAL.
Contract: each transaction below `below` had begun before, and none from `later_from` on. Those
between may have: a record says nothing of its transaction's other records. Without a usable record
among XIDS_MAX transactions the search ends, and `below` stays None.

Each record of running transactions and each checkpoint has the next xid, the first one too, unless
the checkpoint began before the WAL.
"""

from __future__ import annotations

from struct import unpack_from

import numpy as np

from walkeeper_history.rows.ended import detailed_endings
from walkeeper_history.rows.transactions import Ending
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

_STANDBY, _RUNNING = RMGR_IDS["Standby"], 0x10
_XLOG, _CHECKPOINTS_UP_TO, _CHECKPOINT_BYTES_MIN = RMGR_IDS["XLOG"], 0x10, 88
_HEAD_BYTES = 24
XIDS_MAX = 1 << 20  # A snapshot this many transactions later does not tell what the start was like.


class OpenAtStart:
    """See the module. Keeps the xids up to the first usable record of running transactions, and
    those that are open there."""

    def __init__(self) -> None:
        self.below: int | None = None
        self.later_from: int | None = None
        self._begin_lsn: int | None = None
        self._known: set[int] = set()
        self._next_xid: int | None = None

    @property
    def is_decided(self) -> bool:
        """Return whether no further record can change the answers."""
        return self._next_xid is not None

    def shows_end(self, xid: int) -> bool:
        """Return False if the transaction may have ended before the WAL.

        It did not if it was open at the start, wrote a record, or began later."""
        began_later = self._next_xid is not None and not precedes(xid, self._next_xid)
        return began_later or xid in self._known

    def add(self, batch: Batch) -> None:
        """Take the records of a batch, in the order of the log."""
        if self._next_xid is not None:
            return
        if self._begin_lsn is None:
            self._begin_lsn = batch.segment.begin_lsn
        records = batch.records
        kinds = records["info"] & 0xF0
        self._look_for_later(batch, kinds)
        found = (records["rmid"] == _STANDBY) & (kinds == _RUNNING)
        begin, endings = 0, detailed_endings(batch)
        for row in [*np.flatnonzero(found).tolist(), len(records)]:
            self._note(batch, begin, row, endings)
            if row < len(records) and self._decide(_main(batch, row)):
                return
            begin = row
        if len(self._known) > XIDS_MAX:  # those of the start are older than the newest one by far
            self._next_xid = _newest(self._known)

    def _look_for_later(self, batch: Batch, kinds: Column) -> None:
        """Take the next xid of the first record that has it."""
        if self.later_from is not None:
            return
        records, begin_lsn = batch.records, self._begin_lsn
        assert begin_lsn is not None
        running = (records["rmid"] == _STANDBY) & (kinds == _RUNNING)
        checkpoints = (records["rmid"] == _XLOG) & (kinds <= _CHECKPOINTS_UP_TO)
        checkpoints &= records["main_length"] >= _CHECKPOINT_BYTES_MIN
        for row in np.flatnonzero(running | checkpoints).tolist():
            data = _main(batch, row)
            if running[row]:
                (self.later_from,) = unpack_from("<12xI", data)
                return
            redo_lsn, next_xid = unpack_from("<Q16xI", data)
            if redo_lsn >= begin_lsn:
                self.later_from = next_xid
                return

    def _note(
        self, batch: Batch, begin: int, end: int, endings: list[tuple[int, int, Ending]]
    ) -> None:
        records = batch.records[begin:end]
        self._known.update(np.unique(records["xid"]).tolist())
        for row, top, ending in endings:
            if begin <= row < end:
                self._known.update(ending.subxacts, (top,))

    def _decide(self, snapshot: bytes) -> bool:
        """Return whether the snapshot is one that says which transactions are open."""
        count, more, overflows, next_xid = unpack_from("<II?3xI", snapshot)
        if overflows:
            return False
        running = unpack_from(f"<{count + more}I", snapshot, _HEAD_BYTES)
        self._known.update(running)
        self._next_xid = next_xid
        known = self._known - {0}
        first = min(known, default=next_xid)
        if 0 < next_xid - first < XIDS_MAX:
            gone = (xid for xid in range(next_xid - 1, first, -1) if xid not in known)
            last = next(gone, None)
            self.below = None if last is None else last + 1
        return True


def _newest(xids: set[int]) -> int:
    """Return the xid that was given out last, of xids that are not far from each other."""
    some = next(iter(xids - {0}))
    return max(xids - {0}, key=lambda xid: (xid - some + 0x80000000) & 0xFFFFFFFF)


def precedes(a: int, b: int) -> bool:
    """Return whether xid `a` was given out before `b`. xids begin again after their last one."""
    return (a - b) & 0xFFFFFFFF >= 0x80000000


def _main(batch: Batch, row: int) -> bytes:
    record = batch.records[row]
    begin = int(record["main_offset"])
    return batch.payload[begin : begin + int(record["main_length"])].tobytes()
