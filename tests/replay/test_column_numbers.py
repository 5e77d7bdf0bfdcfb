"""A column of a mirror is the same one as before, or the table is refused."""

from __future__ import annotations

import pytest

from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.lakes.column_numbers import ColumnNumbers
from walkeeper_replay.redo.store import Relation
from walkeeper_wal.wal_errors import HistoryError


def table_of(**numbers: int) -> Table:
    columns = tuple(Attribute(name, number, 23, -1, 4, 4) for name, number in numbers.items())
    return Table(16384, "public", "t", Relation(1663, 5, 16384), columns, None, ("id",))


def test_a_name_that_is_another_column_is_refused_by_each_later_stream() -> None:
    notes: dict[str, str] = {}
    for again in range(2):
        numbers = ColumnNumbers(notes.setdefault, "lake")
        numbers.refuse_others(table_of(id=1, t=2))
        numbers.refuse_others(table_of(id=1, t=2, added=3))
        numbers.refuse_others(table_of(id=1, added=3))
        with pytest.raises(HistoryError, match=r"column t in lake is number 2 .* now it is 4"):
            numbers.refuse_others(table_of(id=1, added=3, t=4))
        with pytest.raises(HistoryError, match=r"column added in lake is number 3 .* now it is 5"):
            numbers.refuse_others(table_of(id=1, t=2, added=5))
        assert len(notes) == 2, again


def test_a_name_with_any_characters_has_a_note_of_its_own() -> None:
    notes: dict[str, str] = {}
    numbers = ColumnNumbers(notes.setdefault, "lake")
    numbers.refuse_others(table_of(id=1))
    numbers.refuse_others(table_of(**{"id": 1, "a/b": 2, "a_b": 3, "../ä": 4}))
    assert [name for name in notes if "/" in name] == []
    with pytest.raises(HistoryError, match="column a/b in lake is number 2"):
        numbers.refuse_others(table_of(**{"id": 1, "a/b": 5}))
