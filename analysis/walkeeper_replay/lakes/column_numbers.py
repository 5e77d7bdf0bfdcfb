"""The numbers of a mirror's columns, which tell a column from another one of the same name.

    numbers = ColumnNumbers(notes.keep, "s3://lake/shop")
    numbers.refuse_others(table)        before a row of the table is written

The number is pg_attribute.attnum, which no ALTER TABLE changes. A column that was dropped and added
again has a new number, and is null in older rows. Columns that exchanged their names have each
other's. WAL has no changes of those rows. Contract: the notes have each name's first number.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from urllib.parse import quote

from walkeeper_replay.catalogs.catalog import Table
from walkeeper_wal.wal_errors import HistoryError

Keep = Callable[[str, str], str]
"""Keeps a text by a name, and returns the text that was kept first."""


class ColumnNumbers:
    """The numbers in the notes of a place."""

    def __init__(self, keep: Keep, shown: str) -> None:
        self._keep, self._shown = keep, shown
        self._last: dict[int, dict[str, int]] = {}

    def refuse_others(self, table: Table) -> None:
        """Note new columns. Raise HistoryError if a name is another column's than before."""
        own = {each.name: each.number for each in table.columns}
        if self._last.get(table.oid) == own:
            return
        first = json.loads(self._keep(f"{table.oid}.columns", json.dumps(own)))
        for name, number in own.items():
            before = first.get(name)
            if before is None:  # a column that was added later has a note of its own
                before = self._keep(f"{table.oid}.column.{quote(name, safe='')}", str(number))
            if int(before) != number:
                raise HistoryError(
                    f"{table.shown}: column {name} in {self._shown} is number {before} of the "
                    f"table (attnum of pg_attribute), and now it is {number}: it was dropped and "
                    "added again, or columns exchanged their names, and a mirror does not follow "
                    "this; begin anew with another --to"
                )
        self._last[table.oid] = own
