"""Index the records of a segment by the blocks to which they refer. Pure.

    index = BlockIndex(first_lsn); index.add(batch)
    index.steps(place, block, until) -> [Step(start_lsn, end_lsn, is_whole)], in the log's order

A step is whole if it makes the page without the page's earlier content. That is an image that redo
restores, or an initialisation that redo knows. Contract: a block reference takes 17 bytes of
memory, and the records stay in their file. The index leaves out forks that WAL does not describe in
full (fsm, vm).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from walkeeper_pager.page_names import Place
from walkeeper_replay.redo.apply import FORK_MASK, HEAP, HEAP2, SEQUENCE
from walkeeper_replay.redo.files_of_records import Change, changes_of
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.walk import HAS_IMAGE
from walkeeper_wal.sources.reading import Batch

_HEAP_INIT = 0x80
_PLACE_FIELDS = ("tablespace", "database", "relfilenode")


class Step(NamedTuple):
    """One record that refers to a page."""

    start_lsn: int
    end_lsn: int
    is_whole: bool


class FileChange(NamedTuple):
    """A change that a record made to whole files."""

    end_lsn: int
    change: Change


@dataclass(slots=True)
class _Rows:
    """Block references, sorted by key and then in the order of the log."""

    keys: Column = field(default_factory=lambda: np.empty(0, np.int64))
    starts: Column = field(default_factory=lambda: np.empty(0, np.uint32))
    ends: Column = field(default_factory=lambda: np.empty(0, np.uint32))
    whole: Column = field(default_factory=lambda: np.empty(0, np.bool_))

    def joined(self, other: _Rows) -> _Rows:
        keys = np.concatenate((self.keys, other.keys))
        order = np.argsort(keys, kind="stable")
        pairs = ((self.starts, other.starts), (self.ends, other.ends), (self.whole, other.whole))
        return _Rows(keys[order], *(np.concatenate(pair)[order] for pair in pairs))


def replayed_blocks(batch: Batch) -> Column:
    """Return the batch's block references to forks that WAL describes in full."""
    forks = batch.blocks["flags"] & FORK_MASK
    rows: Column = np.flatnonzero((forks == 0) | (forks == 3))
    return rows


def number_places(batch: Batch, rows: Column, known: dict[Place, int]) -> Column:
    """Return the number of each row's place. Add a new place to `known`, with the next number."""
    blocks = batch.blocks[rows]
    names = np.empty((len(rows), 4), np.uint32)
    for column, name in enumerate(_PLACE_FIELDS):
        names[:, column] = blocks[name]
    names[:, 3] = blocks["flags"] & FORK_MASK
    whole = np.ascontiguousarray(names).view(np.dtype((np.void, 16))).reshape(-1)
    _, firsts, inverse = np.unique(whole, return_index=True, return_inverse=True)
    numbers = [
        known.setdefault(Place(*names[first].tolist()), len(known)) for first in firsts.tolist()
    ]
    found: Column = np.array(numbers, np.int64)[inverse] if numbers else np.empty(0, np.int64)
    return found


class BlockIndex:
    """The index of one segment."""

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = first_lsn
        self.end_lsn = first_lsn
        """The end of the last record in it, which may be in a later segment."""
        self.changes: list[FileChange] = []
        self._places: dict[Place, int] = {}
        self._rows = _Rows()

    def add(self, batch: Batch) -> None:
        """Add the next records of the segment."""
        starts, ends = batch.start_lsn(), batch.end_lsn()
        rows = replayed_blocks(batch)
        numbers = number_places(batch, rows, self._places)
        blocks = batch.blocks[rows]
        at = blocks["record"].astype(np.int64)
        rmids, infos = batch.records["rmid"][at], batch.records["info"][at]
        image = (blocks["flags"] & HAS_IMAGE != 0) & (
            blocks["image_info"] & batch.version.image_apply_flag != 0
        )
        heap = ((rmids == HEAP) | (rmids == HEAP2)) & (infos & _HEAP_INIT != 0)
        added = _Rows(
            numbers << 32 | blocks["block_number"].astype(np.int64),
            (starts[at] - self.first_lsn).astype(np.uint32),
            (ends[at] - self.first_lsn).astype(np.uint32),
            image | (heap & (blocks["block_id"] == 0)) | (rmids == SEQUENCE),
        )
        self._rows = self._rows.joined(added)
        self.changes += [
            FileChange(int(ends[change.record]), change) for change in changes_of(batch)
        ]
        self.end_lsn = batch.span()[1]

    def steps(self, place: Place, block: int, until: int) -> list[Step]:
        """Return the records of a page that end at or below `until`."""
        number = self._places.get(place)
        if number is None:
            return []
        key, rows = number << 32 | block, self._rows
        low, high = np.searchsorted(rows.keys, (key, key + 1)).tolist()
        first = self.first_lsn
        return [
            Step(first + start, first + end, whole)
            for start, end, whole in zip(
                rows.starts[low:high].tolist(),
                rows.ends[low:high].tolist(),
                rows.whole[low:high].tolist(),
                strict=True,
            )
            if first + end <= until
        ]

    @property
    def row_count(self) -> int:
        """The number of block references in the index."""
        return len(self._rows.keys)
