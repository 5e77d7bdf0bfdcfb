"""The last record on each page that does not need the page before it: an image, or an init.

    noted = PageResets(); noted.add(batch)           a consumer of an earlier pass over the same WAL
    last = noted.last_of(relations, until)           of the pages of a store's relations
    last.needed(batch, chosen)                       the references that redo still needs

A later pass leaves out the redo of all that is before a page's last reset. Contract: the page's
state at the end is the same. A pass that knows fewer resets does more redo, and is right as well.
So the oldest resets go where there would be more than `rows_max`, and a pass that ends before the
noted one ended has none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from walkeeper_replay.redo.apply import RESET_ROW
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.reading import Batch

ROWS_MAX = 1 << 23
"""Rows of 24 bytes, so 200 MB: the images of about 60 GB of WAL."""
File = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LastResets:
    """A hash table with the last reset of each page."""

    keys: Column
    lsns: Column

    def needed(self, batch: Batch, chosen: Column) -> Column:
        """Return the references that are not before the last reset of their page.

        They are moved to the front of `chosen`.
        """
        count = loops.leave_out(batch.records, batch.blocks, self.keys, self.lsns, chosen)
        needed: Column = chosen[:count]
        return needed


class PageResets:
    """See the module."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._end_lsn = self._count = 0
        self._pieces: deque[Column] = deque()
        self._room: Column = np.empty(0, RESET_ROW)

    def __reduce__(self) -> tuple[type[PageResets], tuple[()]]:
        """Return an empty one: a copy for another machine would be large, and each part is right
        without it."""
        return PageResets, ()

    def add(self, batch: Batch) -> None:
        """Note the resets of a batch, whatever their relations."""
        if len(self._room) < len(batch.blocks):
            self._room = np.empty(len(batch.blocks), RESET_ROW)
        flag = batch.version.image_apply_flag
        count = loops.list_resets(batch.records, batch.blocks, flag, self._room)
        self._end_lsn = batch.span()[1]
        if count:
            self._pieces.append(self._room[:count].copy())
            self._count += count
        while self._count > self._rows_max:
            self._count -= len(self._pieces.popleft())

    def last_of(self, relations: Sequence[File], until: int) -> LastResets | None:
        """Return the last resets of pages of these relations, which have their numbers in a store.

        Return None if there are none, or if some may be of records that end after `until`.
        """
        found = [] if self._end_lsn > until else [self._rows_of(file) for file in relations]
        count = sum(map(len, found))
        if not count:
            return None
        size = 1 << (2 * count).bit_length()
        keys, lsns = np.full(size, -1, np.int64), np.zeros(size, np.int64)
        for number, rows in enumerate(found):
            loops.enter_resets(keys, lsns, number, rows)
        return LastResets(keys, lsns)

    def _rows_of(self, file: File) -> Column:
        found = [np.empty(0, RESET_ROW)]
        for piece in self._pieces:
            own = piece["relfilenode"] == file[2]
            own &= (piece["tablespace"] == file[0]) & (piece["database"] == file[1])
            found.append(piece[own])
        return np.concatenate(found)
