"""Files that transactions changed rows in: the WAL knows this of a table without its name.

    heaps = HeapFiles(); heaps.add(batch)
    heaps.changed -> [Relation, …]; heaps.xids(file)    files with changed rows, and by which xids
    heaps.made                                          files that were not there before the WAL
    heaps.dropped -> {Relation: xid}                    the transaction that dropped it

Contract: files of users' tables, their TOAST, and catalogs that were rewritten. The files that
catalogs have from initdb on are left out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from walkeeper_history.rows.ended import detailed_endings
from walkeeper_history.rows.heap_changes import heap_changes
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
        self.made: set[Relation] = set()
        self.dropped: dict[Relation, int] = {}

    @property
    def changed(self) -> list[Relation]:
        """The files with changed rows."""
        return list(self._changed)

    def xids(self, relation: Relation) -> set[int]:
        """Return the transactions that changed rows of a file."""
        return set(np.concatenate(self._changed[relation]).tolist())

    def keep(self, is_kept: Callable[[Column], Column]) -> None:
        """Forget the changes of transactions that the mask `is_kept(xids)` leaves out."""
        for relation, pieces in list(self._changed.items()):
            xids = np.unique(np.concatenate(pieces))
            xids = xids[is_kept(xids)]
            if len(xids):
                self._changed[relation] = [xids]
            else:
                del self._changed[relation]

    def add(self, batch: Batch) -> None:
        """Take a batch of records."""
        self.add_files(batch)
        self.note(heap_changes(batch))

    def add_files(self, batch: Batch) -> None:
        """Take the files that a batch makes and drops, without the changes of rows."""
        kind = batch.records["info"] >> 4
        self.made.update(files_made(batch))
        for row, top, ending in detailed_endings(batch):
            if int(kind[row]) & 7 in _XACT_COMMITS:
                self.dropped.update({Relation(*place): top for place in ending.dropped})

    def note(self, found: Column) -> None:
        """Take the rows of `heap_changes`."""
        # They are in the order of files: each file is one stretch.
        edges = np.flatnonzero((found[1:, :3] != found[:-1, :3]).any(axis=1)) + 1
        for stretch in np.split(found, edges) if len(found) else ():
            relation = Relation(*stretch[0, :3].tolist())
            self._changed.setdefault(relation, []).append(stretch[:, 3].copy())


def files_made(batch: Batch) -> list[Relation]:
    """Return the files that records of a batch make."""
    records = batch.records
    is_made = (records["rmid"] == _STORAGE) & (records["info"] >> 4 == _CREATE)
    rows = np.flatnonzero(is_made)
    if not len(rows):
        return []
    view = View(batch).narrowed(rows)
    places = np.stack([view.main(4 * n, 4) for n in range(3)], axis=1)
    return [Relation(*place) for place in places.tolist()]
