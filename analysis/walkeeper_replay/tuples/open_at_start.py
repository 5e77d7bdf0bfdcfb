"""Transactions that had begun before the WAL, as far as the WAL itself shows it.

    start = OpenAtStart(); start.add(batch) again and again; start.below -> 783 or None

xids are given out in order. The first record of running transactions names those that are open,
and the next xid. A smaller xid that is not open there and has no record ended before the WAL.
Contract: each transaction below `below` had begun before. Others may have.
"""

from __future__ import annotations

from struct import unpack_from

import numpy as np

from walkeeper_history.rows.ended import detailed_endings
from walkeeper_history.rows.transactions import Ending
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

_STANDBY, _RUNNING = RMGR_IDS["Standby"], 0x10
_HEAD_BYTES = 24
XIDS_MAX = 1 << 20  # A snapshot this many transactions later does not tell what the start was like.


class OpenAtStart:
    """The xids up to the first usable record of running transactions, and `below` from there on."""

    def __init__(self) -> None:
        self.below: int | None = None
        self._seen: set[int] | None = set()

    @property
    def is_decided(self) -> bool:
        """True if no further record can change `below`."""
        return self._seen is None

    def add(self, batch: Batch) -> None:
        """Take the records of a batch, in the order of the log."""
        if self._seen is None:
            return
        records = batch.records
        kinds = records["info"] & 0xF0
        found = (records["rmid"] == _STANDBY) & (kinds == _RUNNING)
        begin, endings = 0, detailed_endings(batch)
        for row in [*np.flatnonzero(found).tolist(), len(records)]:
            self._note(batch, begin, row, endings)
            if row < len(records) and self._decide(_main(batch, row)):
                self._seen = None
                return
            begin = row

    def _note(
        self, batch: Batch, begin: int, end: int, endings: list[tuple[int, int, Ending]]
    ) -> None:
        assert self._seen is not None, "a snapshot was taken"
        records = batch.records[begin:end]
        self._seen.update(np.unique(records["xid"]).tolist())
        for row, top, ending in endings:
            if begin <= row < end:
                self._seen.update(ending.subxacts, (top,))

    def _decide(self, snapshot: bytes) -> bool:
        """Set `below` and return True if the snapshot names all open transactions."""
        assert self._seen is not None, "a snapshot was taken"
        count, more, overflows, next_xid = unpack_from("<II?3xI", snapshot)
        if overflows:
            return False
        running = unpack_from(f"<{count + more}I", snapshot, _HEAD_BYTES)
        known = self._seen.union(running) - {0}
        first = min(known, default=next_xid)
        if 0 < next_xid - first < XIDS_MAX:
            gone = (xid for xid in range(next_xid - 1, first, -1) if xid not in known)
            last = next(gone, None)
            self.below = None if last is None else last + 1
        return True


def _main(batch: Batch, row: int) -> bytes:
    record = batch.records[row]
    begin = int(record["main_offset"])
    return batch.payload[begin : begin + int(record["main_length"])].tobytes()
