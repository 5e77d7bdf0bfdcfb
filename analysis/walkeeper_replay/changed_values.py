"""The values of changed rows as text by column, and what of them is not known. Pure.

values = changed_values(events, rows, table, catalog, fetch)
values.maps(places) -> an Arrow array of maps      values.dicts() -> a dict for each row
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_replay.catalogs.catalog import Catalog, Table
from walkeeper_replay.columns.arrow_text import text_column
from walkeeper_replay.columns.columns_of_rows import AS_OIDS, UNREADABLE, RowColumns
from walkeeper_replay.redo.store import Events
from walkeeper_replay.text.coverage import COMPLETE, reason
from walkeeper_replay.tuples.toast import Fetch
from walkeeper_wal.records.segment import Column

UNKNOWN_ROW = reason("its block was not known")
UNKNOWN_TYPE = reason("values of a type that is not known, as bytes")
UNKNOWN_VALUE = reason("values stored out of line before this WAL")
DOUBTS = (COMPLETE, UNKNOWN_ROW, UNKNOWN_TYPE, AS_OIDS, UNREADABLE, UNKNOWN_VALUE)
_UNKNOWN_ROW, _UNKNOWN_TYPE, _AS_OIDS, _UNREADABLE, _UNKNOWN_VALUE = range(1, 6)


@dataclass(slots=True)
class ChangedValues:
    """The values of rows, one after another."""

    names: list[str]
    arrays: list[Any]
    """An array for each name, of the types of `table-at`, of the known rows alone."""
    columns: list[Any]
    """The same as strings."""
    places: Column
    """Each row's place in them, or -1 of a row that is not known."""
    lost: Column | None
    """True by place and column where a value is not known, or None if all are known."""
    doubts: Column
    """For each row what is not known: a place in DOUBTS."""

    def typed(self, rows: Column) -> Any:
        """Return these rows as a table; null where a row or a value is not known, and for -1."""
        places = np.where(rows < 0, -1, self.places[rows])
        chosen = pa.array(places, mask=places < 0)
        return pa.Table.from_arrays([array.take(chosen) for array in self.arrays], self.names)

    def maps(self, rows: Column) -> Any:
        """Return a map from column to text for each of these rows; null for -1."""
        places = np.where(rows < 0, -1, self.places[rows])
        known = np.flatnonzero(places >= 0)
        width, taken = len(self.names), places[known]
        chosen = pa.array(taken)
        by_column = pa.concat_arrays([each.take(chosen) for each in self.columns] or [_NO_TEXTS])
        order = np.arange(len(known))[:, None] + np.arange(width)[None, :] * len(known)
        keys = np.broadcast_to(np.arange(width), order.shape)
        counts = np.full(len(known), width)
        if self.lost is not None:
            kept = ~self.lost[taken]
            order, keys, counts = order[kept], keys[kept], kept.sum(axis=1)
        sizes = np.zeros(len(places), np.int64)
        sizes[known] = counts
        ends = np.append(0, np.cumsum(sizes)).astype(np.int32)
        offsets = pa.array(ends, mask=np.append(places < 0, False))
        names = pa.array(self.names, pa.string()).take(pa.array(keys.reshape(-1)))
        items = by_column.take(pa.array(order.reshape(-1)))
        return pa.MapArray.from_arrays(offsets, names, items)

    def dicts(self) -> list[dict[str, str | None] | None]:
        """Return the values of each row, or None of one that is not known."""
        rows = self.maps(np.arange(len(self.places))).to_pylist()
        return [None if row is None else dict(row) for row in rows]


_NO_TEXTS = pa.array([], pa.string())


def changed_values(
    events: Events, rows: Column, table: Table, catalog: Catalog, fetch: Fetch
) -> ChangedValues:
    """Return each event's tuple by column, and what of it is not known."""
    known = np.flatnonzero(rows["length"] > 0)
    places = np.full(len(rows), -1, np.int64)
    places[known] = np.arange(len(known))
    made = RowColumns(table, catalog.printer, fetch)
    arrays = made.arrays(events.arena, rows["place"][known], rows["length"][known])
    names, typed = list(arrays), list(arrays.values())
    columns = [text_column(array) for array in typed]
    doubts = np.zeros(len(known), np.uint8)
    as_bytes = {a.name for a in table.columns if not catalog.printer.knows(a.type)}
    for name in as_bytes & arrays.keys():
        doubts[arrays[name].is_valid().to_numpy(zero_copy_only=False)] = _UNKNOWN_TYPE
    for row, _ in made.as_oids_places:
        doubts[row] = doubts[row] or _AS_OIDS
    lost: Column | None = None
    for found, why in (
        (made.unreadable_places, _UNREADABLE), (made.unknown_places, _UNKNOWN_VALUE),
    ):  # fmt: skip
        if found and lost is None:
            lost = np.zeros((len(known), len(names)), bool)
        for row, name in found:
            assert lost is not None, "made before the first of them"
            lost[row, names.index(name)] = True
            doubts[row] = why
    every = np.full(len(rows), _UNKNOWN_ROW, np.uint8)
    every[known] = doubts
    return ChangedValues(names, typed, columns, places, lost, every)
