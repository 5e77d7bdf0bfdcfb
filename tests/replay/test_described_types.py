"""A composite type is known if the WAL describes all of its columns, and not before."""

from __future__ import annotations

import pytest

from walkeeper_replay.catalogs.catalog import Attribute, Catalog, Class, Database
from walkeeper_replay.text.value_text import Type

INT4, PAIR, PAIRS = 23, 16500, 16501
COLUMNS = [
    Attribute(name, number, INT4, -1, 4, 4, False, None) for number, name in ((1, "a"), (2, "b"))
]


def catalog(columns: list[Attribute]) -> Catalog:
    """Return the catalog of `CREATE TYPE pair AS (a int, b int)`, as far as it is described."""
    made = Catalog(Database(5, "postgres"), 0)
    made.classes[16499] = Class(16499, "pair", "public", "c", 0, 0, 0, 2, "p", PAIR)
    made.attributes[16499] = columns
    made.types.by_oid[PAIR] = Type(PAIR, "pair", -1, 8, "c", relation=16499)
    made.types.by_oid[PAIRS] = Type(PAIRS, "_pair", -1, 8, "b", element=PAIR)
    made.finish(15, {})
    return made


def test_a_composite_type_with_all_its_columns_is_known() -> None:
    printer = catalog(COLUMNS).printer
    assert printer.knows(PAIR) and printer.knows(PAIRS)


@pytest.mark.parametrize("columns", [[], COLUMNS[:1], COLUMNS[1:]])
def test_a_composite_type_with_a_part_of_its_columns_is_bytes(columns: list[Attribute]) -> None:
    """It was printed as `()`, and the answer said that it was complete."""
    printer = catalog(columns).printer
    assert not printer.knows(PAIR) and not printer.knows(PAIRS)
    assert printer.text(PAIR, b"\x01") == "\\x01"
