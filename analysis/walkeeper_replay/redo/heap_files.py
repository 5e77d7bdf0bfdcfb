"""Files that transactions changed rows in: the WAL knows this of a table without its name.

    heaps = HeapFiles(); heaps.add(batch)
    heaps.changed -> [Relation, …]          files with changed rows
    heaps.touched() -> {Relation: xids}     files with changed rows or dropped, and by which xids
    heaps.made -> {Relation: xid}           files that were not there before the WAL
    heaps.dropped -> {Relation: xid}        the transaction that dropped it

Contract: files of users' tables, their TOAST, large objects, and catalogs that were rewritten. The
files that other catalogs have from initdb on are left out. A file without changed rows may be an
index, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from walkeeper_history.rows.ended import detailed_endings
from walkeeper_history.rows.heap_changes import FIRST_NORMAL_OID, heap_changes
from walkeeper_history.rows.view import View
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

_STORAGE, _CREATE = RMGR_IDS["Storage"], 1
_XACT_COMMITS = (0, 3)  # also of a prepared transaction


class HeapFiles:
    """A consumer of `pass_over`."""

    def __init__(self) -> None:
        self._changed: dict[Relation, list[Column]] = {}
        self.made: dict[Relation, int] = {}
        self.dropped: dict[Relation, int] = {}

    @property
    def changed(self) -> list[Relation]:
        """The files with changed rows."""
        return list(self._changed)

    def touched(self) -> dict[Relation, set[int]]:
        """Return the transactions that changed rows of each file, or dropped it with all rows."""
        found = {r: set(np.concatenate(xids).tolist()) for r, xids in self._changed.items()}
        for relation, top in self.dropped.items():
            if relation.relfilenode >= FIRST_NORMAL_OID:
                found.setdefault(relation, set()).add(top)
        return found

    def keep(self, is_kept: Callable[[Column], Column]) -> None:
        """Forget the changes of transactions that the mask `is_kept(xids)` leaves out."""
        for relation, pieces in list(self._changed.items()):
            xids = np.unique(np.concatenate(pieces))
            xids = xids[is_kept(xids)]
            if len(xids):
                self._changed[relation] = [xids]
            else:
                del self._changed[relation]
        tops = np.array(list(self.dropped.values()), np.int64)
        kept = is_kept(tops).tolist()
        for relation, is_open in zip(list(self.dropped), kept, strict=True):
            if not is_open:
                del self.dropped[relation]
                self.made.pop(relation, None)

    def add(self, batch: Batch) -> None:
        """Take a batch of records."""
        self.add_files(batch)
        self.note(heap_changes(batch))

    def add_files(self, batch: Batch) -> None:
        """Take the files that a batch makes and drops, without the changes of rows."""
        kind = batch.records["info"] >> 4
        self.made.update(makers_of_files(batch))
        for row, top, ending in detailed_endings(batch):
            if int(kind[row]) & 7 in _XACT_COMMITS:
                self.drop([Relation(*place) for place in ending.dropped], top)

    def drop(self, relations: list[Relation], top: int) -> None:
        """Note the files that a transaction dropped."""
        self.dropped.update(dict.fromkeys(relations, top))

    def note(self, found: Column) -> None:
        """Take the rows of `heap_changes`."""
        # They are in the order of files: each file is one stretch.
        edges = np.flatnonzero((found[1:, :3] != found[:-1, :3]).any(axis=1)) + 1
        for stretch in np.split(found, edges) if len(found) else ():
            relation = Relation(*stretch[0, :3].tolist())
            self._changed.setdefault(relation, []).append(stretch[:, 3].copy())


def makers_of_files(batch: Batch) -> dict[Relation, int]:
    """Return the files that records of a batch make, each with its transaction, or 0 for none."""
    records = batch.records
    is_made = (records["rmid"] == _STORAGE) & (records["info"] >> 4 == _CREATE)
    rows = np.flatnonzero(is_made)
    if not len(rows):
        return {}
    view = View(batch).narrowed(rows)
    places = np.stack([view.main(4 * n, 4) for n in range(3)], axis=1)
    xids = records["xid"][rows].tolist()
    return {Relation(*place): xid for place, xid in zip(places.tolist(), xids, strict=True)}
