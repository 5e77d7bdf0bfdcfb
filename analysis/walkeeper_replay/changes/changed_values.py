"""The values of changed rows as text by column, and the values that are not known. Pure.

values = changed_values(events, rows, table, catalog, fetch)
values.dicts() -> a dict for each row     TextMaps([values, …]).maps(of, rows) -> an array of maps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
DAMAGED_VALUE = reason("values whose bytes do not have the layout of their type: damaged")
UNKNOWN_VALUE = reason("values stored out of line before this WAL")
DOUBTS = (COMPLETE, UNKNOWN_ROW, UNKNOWN_TYPE, AS_OIDS, UNREADABLE, UNKNOWN_VALUE,
          DAMAGED_VALUE)  # fmt: skip
_UNKNOWN_ROW, _UNKNOWN_TYPE, _AS_OIDS, _UNREADABLE, _UNKNOWN_VALUE, _DAMAGED = range(1, 7)


@dataclass(slots=True)
class ChangedValues:
    """The values of rows, one after another."""

    names: list[str]
    arrays: list[Any]
    """An array for each name, of the types of `table-at`, of the known rows alone."""
    columns: list[Any]
    """The same as strings."""
    places: Column
    """The place of each row in these arrays, or -1 for a row that is not known."""
    lost: Column | None
    """True by place and column where a value is not known, or None if all are known."""
    doubts: Column
    """The reason why a row is not known whole: a place in DOUBTS."""
    as_oids: frozenset[str] = frozenset()
    """The columns with a value in which an OID stands for a name that is not known."""

    def damaged(self) -> Column:
        """Return the places of the rows with a value that does not have its type's layout."""
        return np.flatnonzero(self.doubts == _DAMAGED)

    def typed(self, rows: Column) -> Any:
        """Return these rows as an Arrow table, null for -1 and for what is not known."""
        places = np.where(rows < 0, -1, self.places[rows])
        chosen = pa.array(places, mask=places < 0)
        return pa.Table.from_arrays([array.take(chosen) for array in self.arrays], self.names)

    def without_texts(self) -> ChangedValues:
        """Return the values as `typed` alone needs them."""
        return replace(self, columns=[])

    def dicts(self) -> list[dict[str, str | None] | None]:
        """Return the values of each row by column, or None for a row that is not known."""
        every = np.arange(len(self.places))
        rows = TextMaps([self]).maps(np.zeros(len(every), np.int64), every).to_pylist()
        return [None if row is None else dict(row) for row in rows]


class TextMaps:
    """The texts of several ChangedValues side by side, for maps of any of their rows.

    All texts are one Arrow array: column after column of the first, then of the next. So the maps
    of a batch are one selection, from however many tables its rows come.
    """

    def __init__(self, values: Sequence[ChangedValues | None]) -> None:
        known = [each for each in values if each is not None]
        columns = [column.cast(pa.large_string()) for each in known for column in each.columns]
        self._texts = pa.concat_arrays(columns or [pa.array([], pa.large_string())])
        self._names = pa.array([name for each in known for name in each.names], pa.string())
        self._places = np.concatenate([np.empty(0, np.int64), *(each.places for each in known)])
        # By the number of the values: how many columns and rows, and where the first of each are.
        self._width = np.array([len(each.names) if each else 0 for each in values], np.int64)
        self._count = np.array([len(each.columns[0]) if each and each.columns else 0
                                for each in values], np.int64)  # fmt: skip
        sizes = np.array([len(each.places) if each else 0 for each in values], np.int64)
        self._first_place = np.cumsum(sizes) - sizes
        self._first_name = np.cumsum(self._width) - self._width
        self._first_text = np.cumsum(self._width * self._count) - self._width * self._count
        self._lost: Column | None = None
        if any(each.lost is not None for each in known):
            self._lost = np.concatenate([_lost_by_column(each) for each in known])

    def maps(self, of: Column, rows: Column) -> Any:
        """Return a map from column to text for each row of the values `of`; null for row -1."""
        places = np.append(self._places, -1)[np.where(rows < 0, -1, self._first_place[of] + rows)]
        known = np.flatnonzero(places >= 0)
        of, places = of[known], places[known]
        widths = self._width[of]
        row = np.repeat(np.arange(len(known)), widths)
        column = np.arange(len(row)) - np.repeat(np.cumsum(widths) - widths, widths)
        texts = (self._first_text[of] + places)[row] + column * self._count[of][row]
        names = self._first_name[of][row] + column
        sizes = np.zeros(len(rows), np.int64)
        sizes[known] = widths
        if self._lost is not None:
            kept = ~self._lost[texts]
            texts, names = texts[kept], names[kept]
            sizes[known] = np.bincount(row[kept], minlength=len(known))
        is_null = np.ones(len(rows) + 1, bool)
        is_null[known] = is_null[-1] = False
        ends = np.append(0, np.cumsum(sizes)).astype(np.int32)
        return pa.MapArray.from_arrays(
            pa.array(ends, mask=is_null),
            self._names.take(pa.array(names)),
            self._texts.take(pa.array(texts)).cast(pa.string()),
        )


def _lost_by_column(values: ChangedValues) -> Column:
    """Return a mask of the texts that are not known, column after column."""
    if values.lost is None:
        return np.zeros(sum(len(column) for column in values.columns), bool)
    found: Column = values.lost.T.reshape(-1)
    return found


def changed_values(
    events: Events, rows: Column, table: Table, catalog: Catalog, fetch: Fetch
) -> ChangedValues:
    """Return the tuple of each event by column, with the reasons for values that are not known."""
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
        (made.damaged_places, _DAMAGED),
    ):  # fmt: skip
        if found and lost is None:
            lost = np.zeros((len(known), len(names)), bool)
        for row, name in found:
            assert lost is not None, "made before the first of them"
            lost[row, names.index(name)] = True
            doubts[row] = why
    every = np.full(len(rows), _UNKNOWN_ROW, np.uint8)
    every[known] = doubts
    as_oids = frozenset(name for _, name in made.as_oids_places)
    return ChangedValues(names, typed, columns, places, lost, every, as_oids)
