"""Names of functions, operators and collations: by the rules of regproc.c, without a server."""

from __future__ import annotations

import pickle

import pytest

from walkeeper_replay.catalogs.catalog import Catalog, Database
from walkeeper_replay.text.value_text import (
    REGCOLLATION,
    REGOPER,
    REGOPERATOR,
    REGPROC,
    REGPROCEDURE,
    Printer,
)

SYSTEM, PUBLIC, OTHER = 11, 2200, 16400
FUNCTIONS = (
    (1242, "boolin", SYSTEM, (2275,)),
    (1398, "abs", SYSTEM, (21,)), (1397, "abs", SYSTEM, (23,)),
    (16500, "once", PUBLIC, ()),
    (16501, "twice", PUBLIC, (23,)), (16502, "twice", PUBLIC, (25, 1002)),
    (16503, "boolin", PUBLIC, (2275,)),
    (16504, "Odd", OTHER, (99999,)),
)  # fmt: skip
OPERATORS = (
    (96, "=", SYSTEM, 23, 23), (558, "-", SYSTEM, 0, 23), (551, "+", SYSTEM, 23, 23),
    (16600, "##", PUBLIC, 23, 23), (16601, "+", OTHER, 25, 25), (16602, "+", PUBLIC, 23, 23),
)  # fmt: skip
LATIN1, UTF8 = 8, 6
COLLATIONS = (
    (100, "default", SYSTEM, "d", -1), (950, "C", SYSTEM, "c", -1),
    (12000, "en", SYSTEM, "c", LATIN1), (12001, "en", SYSTEM, "c", UTF8),
    (12002, "de", SYSTEM, "i", -1), (16700, "en", PUBLIC, "c", -1),
    (16701, "de", PUBLIC, "c", LATIN1),
)  # fmt: skip
ROWS = {
    "pg_proc": [dict(zip("onsa", row, strict=True)) for row in FUNCTIONS],
    "pg_operator": [dict(zip("onslr", row, strict=True)) for row in OPERATORS],
    "pg_collation": [dict(zip("onspe", row, strict=True)) for row in COLLATIONS],
}


def printer(*, encoding: int = UTF8, has_system: bool = True, major: int = 15) -> Printer:
    made = Catalog(Database(5, "postgres", encoding), 0, has_system=has_system)
    made.schemas = {OTHER: "Other"}
    types = [made.types.by_oid[oid] for oid in (16, 21, 23, 25, 18, 1002)]
    made.finish(major, {}, lambda name: ROWS[name] if name in ROWS else _rows_of(types))
    return made.printer


def _rows_of(types: object) -> list[dict[str, object]]:
    """Return rows of pg_type, with a type that only functions have."""
    assert isinstance(types, list)
    facts = [(each.oid, each.name, each.length, each.element) for each in types]
    return [
        {"oid": oid, "typname": name, "typnamespace": SYSTEM, "typlen": length, "typtype": "b",
         "typrelid": 0, "typelem": element, "typalign": "i", "typbasetype": 0}
        for oid, name, length, element in (*facts, (2275, "cstring", -2, 0))
    ]  # fmt: skip


def shown(made: Printer, kind: int, *oids: int) -> list[str]:
    return [made.text(kind, oid.to_bytes(4, "little")) for oid in oids]


def test_a_name_that_means_several_functions_has_its_schema() -> None:
    made = printer()
    assert shown(made, REGPROC, 1242, 1398, 16500, 16501, 16503, 16504, 7, 0) == [
        "boolin", "pg_catalog.abs", "once", "public.twice", "public.boolin", '"Other"."Odd"',
        "7", "-",
    ]  # fmt: skip
    assert made.as_oids == 0, "there is no function 7"
    assert shown(made, REGOPER, 96, 16600, 16601, 16602, 0) == [
        "=", "##", '"Other".+', "public.+", "0"
    ]  # fmt: skip


def test_arguments_are_named_as_format_type_does() -> None:
    made = printer()
    assert shown(made, REGPROCEDURE, 1242, 1397, 16500, 16502, 16503) == [
        "boolin(cstring)", "abs(integer)", "once()", 'twice(text,"char"[])',
        "public.boolin(cstring)",
    ]  # fmt: skip
    assert shown(made, REGOPERATOR, 558, 16601, 16602, 551) == [
        "-(NONE,integer)", '"Other".+(text,text)', "public.+(integer,integer)",
        "+(integer,integer)",
    ]  # fmt: skip
    assert shown(made, REGPROCEDURE, 16504) == ["16504"] and made.as_oids == 1, "a type is unknown"


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        (UTF8, ['"default"', '"C"', "pg_catalog.en", "en", "de", "public.en", "public.de"]),
        (LATIN1, ['"default"', '"C"', "en", "pg_catalog.en", "de", "public.en", "public.de"]),
        (0, ['"default"', '"C"', "pg_catalog.en", "pg_catalog.en", "pg_catalog.de", "en",
             "public.de"]),
    ],
)  # fmt: skip
def test_a_collation_is_hidden_by_those_of_the_encoding(encoding: int, expected: list[str]) -> None:
    made = printer(encoding=encoding)
    assert shown(made, REGCOLLATION, *(row[0] for row in COLLATIONS)) == expected


def test_sql_has_names_that_input_takes_for_one_object() -> None:
    made = printer().for_sql()
    assert shown(made, REGPROC, 1242, 1398, 16500, 16501, 16504) == [
        "pg_catalog.boolin", "1398", "public.once", "16501", '"Other"."Odd"'
    ]  # fmt: skip
    assert shown(made, REGPROCEDURE, 16502) == ['public.twice(pg_catalog.text,pg_catalog."char"[])']
    assert shown(made, REGOPERATOR, 558) == ["pg_catalog.-(NONE,integer)"]
    assert shown(made, REGCOLLATION, 950, 12000, 12001) == [
        'pg_catalog."C"', "12000", "pg_catalog.en"
    ]  # fmt: skip
    assert made.as_oids == 0


def test_a_number_in_catalogs_in_parts_is_not_known() -> None:
    made = printer(has_system=False)
    assert shown(made, REGPROC, 7, 16500, 16504) == ["7", "16500", '"Other"."Odd"']
    assert made.as_oids == 2
    assert shown(made, REGPROCEDURE, 1242, 16503) == ["boolin(cstring)", "public.boolin(cstring)"]
    assert shown(made, REGCOLLATION, 950, 16700) == ["950", "16700"]


def test_names_are_sent_with_a_table_that_has_them() -> None:
    made = printer().with_names_for([REGPROC])
    sent = pickle.loads(pickle.dumps(made.types.names))
    assert sent.name(REGPROC, 16500) == "once" and sent.name(REGOPER, 96) is None
    assert sent.for_sql().name(REGPROC, 16501) == "16501"
