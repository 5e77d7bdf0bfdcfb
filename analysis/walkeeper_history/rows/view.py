"""A batch's records as columns, each made at its first use.

Contract: LSNs are int64. `narrowed` makes a view of some of the records. A view's block references
are those of its records, and need a view in which no record is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeVar, cast

import numpy as np

from walkeeper_history.rows.record_kinds import record_kind
from walkeeper_wal.records.gather import integers
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

Kept = TypeVar("Kept")


class View:
    """Records of one batch."""

    def __init__(self, batch: Batch, rows: Column | None = None) -> None:
        self.batch = batch
        self._rows = rows
        self._kept: dict[str, object] = {}

    def narrowed(self, choice: Column) -> View:
        """Return a view of some records, by a mask or by their indices (which may repeat)."""
        rows = np.arange(len(self.batch.records)) if self._rows is None else self._rows
        return View(self.batch, rows[choice])

    def kept(self, name: str, make: Callable[[View], Kept]) -> Kept:
        """Return the result of `make` for this view, computed once."""
        if name not in self._kept:
            self._kept[name] = make(self)
        return cast(Kept, self._kept[name])

    def of_kind(self, rmgr: str, *nibbles: int) -> View:
        """Return a view of one resource manager's records whose kinds have these high nibbles."""
        found = self.narrowed(self.records["rmid"] == RMGR_IDS[rmgr])
        return found.narrowed(np.isin(found.kind & 15, nibbles))

    @property
    def payload(self) -> Bytes:
        return self.batch.payload

    @cached_property
    def records(self) -> Column:
        records = self.batch.records
        return self._narrowed(records)

    @cached_property
    def blocks(self) -> Column:
        """Their `record` is an index into this view's records."""
        blocks: Column = self.batch.blocks
        if self._rows is None:
            return blocks
        places = np.full(len(self.batch.records), -1, np.int64)
        places[self._rows] = np.arange(len(self._rows))
        kept = places[blocks["record"]]
        blocks = blocks[kept >= 0]
        blocks["record"] = kept[kept >= 0]
        return blocks

    def __len__(self) -> int:
        return len(self.records)

    def _narrowed(self, column: Column) -> Column:
        narrowed: Column = column if self._rows is None else column[self._rows]
        return narrowed

    @cached_property
    def start_lsn(self) -> Column:
        return self._narrowed(self.batch.start_lsn())

    @cached_property
    def end_lsn(self) -> Column:
        return self._narrowed(self.batch.end_lsn())

    @cached_property
    def timeline(self) -> Column:
        return self._narrowed(self.batch.timeline())

    @cached_property
    def kind(self) -> Column:
        return record_kind(self.records)

    def main(self, offset: Column | int, size: int) -> Column:
        """Return integers of `size` bytes at `offset` in each record's main data."""
        return integers(self.payload, self.records["main_offset"] + np.int64(offset), size)

    def main_bytes(self, row: int) -> bytes:
        """Return one record's main data."""
        record = self.records[row]
        begin = int(record["main_offset"])
        return self.payload[begin : begin + int(record["main_length"])].tobytes()
