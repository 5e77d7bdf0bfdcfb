"""The values of changed rows as text by column, and what of them is not known. Pure."""

from __future__ import annotations

import numpy as np

from walkeeper_replay.catalogs.catalog import Catalog, Table
from walkeeper_replay.columns.arrow_text import texts
from walkeeper_replay.columns.columns_of_rows import AS_OIDS, UNREADABLE, RowColumns
from walkeeper_replay.redo.store import Events
from walkeeper_replay.table_at import COMPLETE
from walkeeper_replay.tuples.toast import Fetch
from walkeeper_wal.records.segment import Column

UNKNOWN_ROW = "its block was not known"
UNKNOWN_TYPE = "values of a type that is not known, as bytes"
UNKNOWN_VALUE = "values stored out of line before this WAL"


def changed_values(
    events: Events, rows: Column, table: Table, catalog: Catalog, fetch: Fetch
) -> tuple[list[dict[str, str | None] | None], list[str]]:
    """Return for each event its tuple's values by column, and what of them is not known."""
    known = np.flatnonzero(rows["length"] > 0)
    made = RowColumns(table, catalog.printer, fetch)
    arrays = made.arrays(events.arena, rows["place"][known], rows["length"][known])
    columns = [texts(array) for array in arrays.values()]
    values: list[dict[str, str | None] | None] = [None] * len(rows)
    doubts = [UNKNOWN_ROW] * len(rows)
    taken_of = zip(*columns, strict=True) if columns else [()] * len(known)
    for row, taken in zip(known.tolist(), taken_of, strict=True):
        values[row] = dict(zip(arrays, taken, strict=True))
        doubts[row] = COMPLETE
    as_bytes = [a.name for a in table.columns if not catalog.printer.knows(a.type)]
    for row in known.tolist() if as_bytes else ():
        value = values[row]
        if value is not None and any(value[name] is not None for name in as_bytes):
            doubts[row] = UNKNOWN_TYPE
    for row, _ in made.as_oids_places:
        if doubts[int(known[row])] == COMPLETE:
            doubts[int(known[row])] = AS_OIDS
    places = [(place, UNREADABLE) for place in made.unreadable_places]
    places += [(place, UNKNOWN_VALUE) for place in made.unknown_places]
    for (row, name), why in places:
        value = values[int(known[row])]
        if value is not None:
            value.pop(name, None)
        doubts[int(known[row])] = why
    return values, doubts
