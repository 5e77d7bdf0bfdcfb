"""Which files transactions changed rows in: what the WAL knows of a table whose name it has not.

    heaps = HeapFiles(); heaps.add(batch)
    heaps.changed -> {Relation: xids}; heaps.made       those that were not there before the WAL

Contract: files of users' tables, their TOAST, and catalogs that were rewritten; none of those that
catalogs have from initdb on.
"""

from __future__ import annotations

import numpy as np

from walkeeper_history.records.segment import Column
from walkeeper_history.records.versions import RMGR_IDS
from walkeeper_history.rows.view import View
from walkeeper_history.wal.reading import Batch
from walkeeper_replay.redo.store import Relation

FIRST_NORMAL_OID = 16384
_HEAP, _HEAP2, _STORAGE = (RMGR_IDS[name] for name in ("Heap", "Heap2", "Storage"))
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE, _MULTI_INSERT = 0, 1, 2, 4, 5
_CREATE = 1


class HeapFiles:
    """A consumer of `pass_over`."""

    def __init__(self) -> None:
        self.changed: dict[Relation, set[int]] = {}
        self.made: set[Relation] = set()

    def add(self, batch: Batch) -> None:
        records, blocks = batch.records, batch.blocks
        rmid, kind = records["rmid"], records["info"] >> 4
        for place in _places(batch, np.flatnonzero((rmid == _STORAGE) & (kind == _CREATE))):
            self.made.add(Relation(*place))
        operation = kind & 7
        of_rows = (rmid == _HEAP) & np.isin(operation, (_INSERT, _DELETE, _UPDATE, _HOT_UPDATE))
        of_rows |= (rmid == _HEAP2) & (operation == _MULTI_INSERT)
        blocks = blocks[of_rows[blocks["record"]] & (blocks["block_id"] == 0)]
        blocks = blocks[blocks["relfilenode"] >= FIRST_NORMAL_OID]
        names = ("tablespace", "database", "relfilenode")
        columns = [blocks[name] for name in names] + [records["xid"][blocks["record"]]]
        for *place, xid in np.unique(np.stack(columns, axis=1), axis=0).tolist():
            self.changed.setdefault(Relation(*place), set()).add(xid)


def _places(batch: Batch, rows: Column) -> list[list[int]]:
    """The file that each of these records makes."""
    if not len(rows):
        return []
    view = View(batch).narrowed(rows)
    found: list[list[int]] = np.stack([view.main(4 * n, 4) for n in range(3)], axis=1).tolist()
    return found
