"""A composite type is known if the WAL describes all of its columns, and not before."""

from __future__ import annotations

import pytest

from walkeeper_replay.catalogs.catalog import Attribute, Catalog, Class, Database
from walkeeper_replay.text.value_text import REGCONFIG, Type

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
    made.finish(15, {}, lambda name: [])
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


@pytest.mark.parametrize(
    ("has_system", "shown"),
    [(True, ["english", "public.english", "own", '"Other".own', "7", "-"]),
     (False, ["english", "public.english", "16501", '"Other".own', "7", "-"])],
)  # fmt: skip
def test_a_configuration_is_a_name_where_it_is_known_what_hides_it(
    has_system: bool, shown: list[str]
) -> None:
    """Whole catalogs tell as well that there is no object 7."""
    made = Catalog(Database(5, "postgres"), 0, has_system=has_system)
    rows = [(3748, "english", 11), (16500, "english", 2200), (16501, "own", 2200)]
    named = [dict(zip("one", row, strict=True)) for row in [*rows, (16502, "own", 16400)]]
    made.schemas = {16400: "Other"}
    made.finish(15, {}, {"pg_ts_config": named}.__getitem__)
    printer = made.printer
    oids = (3748, 16500, 16501, 16502, 7, 0)
    assert [printer.text(REGCONFIG, oid.to_bytes(4, "little")) for oid in oids] == shown
    assert printer.as_oids == (0 if has_system else 2)
