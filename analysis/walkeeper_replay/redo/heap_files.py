"""Files that transactions changed rows in: the WAL knows this of a table without its name.

    heaps = HeapFiles(); heaps.add(batch)
    heaps.changed -> {Relation: xids}; heaps.made       those that were not there before the WAL
    heaps.dropped -> {Relation: xid}                    the transaction that dropped it

Contract: files of users' tables, their TOAST, and catalogs that were rewritten. The files that
catalogs have from initdb on are left out.
"""

from __future__ import annotations

import numpy as np

from walkeeper_history.rows.heap_changes import heap_changes
from walkeeper_history.rows.transactions import HAS_INFO, parse_ending
from walkeeper_history.rows.view import View
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

_XACT, _STORAGE = (RMGR_IDS[name] for name in ("Transaction", "Storage"))
_CREATE = 1
_COMMITS = (0, 3)  # also of a prepared transaction


class HeapFiles:
    """A consumer of `pass_over`."""

    def __init__(self) -> None:
        self.changed: dict[Relation, set[int]] = {}
        self.made: set[Relation] = set()
        self.dropped: dict[Relation, int] = {}

    def add(self, batch: Batch) -> None:
        records = batch.records
        rmid, kind = records["rmid"], records["info"] >> 4
        for place in _places(batch, np.flatnonzero((rmid == _STORAGE) & (kind == _CREATE))):
            self.made.add(Relation(*place))
        detailed = (rmid == _XACT) & (records["info"] & HAS_INFO != 0) & np.isin(kind & 7, _COMMITS)
        for row in np.flatnonzero(detailed).tolist():
            data = View(batch).main_bytes(row)
            ending = parse_ending(data, int(records["info"][row]), batch.version)
            xid = int(records["xid"][row]) if ending.xid is None else ending.xid
            self.dropped.update({Relation(*place): xid for place in ending.dropped})
        for *place, xid in heap_changes(batch).tolist():
            self.changed.setdefault(Relation(*place), set()).add(xid)


def _places(batch: Batch, rows: Column) -> list[list[int]]:
    """Return the file that each of these records makes."""
    if not len(rows):
        return []
    view = View(batch).narrowed(rows)
    found: list[list[int]] = np.stack([view.main(4 * n, 4) for n in range(3)], axis=1).tolist()
    return found
