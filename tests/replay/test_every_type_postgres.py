"""Each type of the running server: `table-at` prints what SELECT does, or it is not complete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.replay.every_type import EveryType
from tests.replay.restored import copied
from tests.support.installations import NEWEST, NPM_PACKAGES, WHEELS, binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.columns.columns_of_rows import AS_OIDS, UNREADABLE
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_replay.text.value_text import MONEY
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
DEBIANS = 15
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off", "autovacuum": "off"}
AS_BYTES = "values of a type that is not known, as bytes"
# Base types whose values come as bytes.
UNKNOWN = {
    "money", "gtsvector", "pg_brin_bloom_summary", "pg_dependencies",
    "pg_brin_minmax_multi_summary", "pg_mcv_list", "pg_ndistinct", "cube", "seg", "lquery",
    "ltxtquery", "query_int", "ean13", "isbn", "isbn13", "ismn", "ismn13", "issn", "issn13", "upc",
    "gtrgm", "intbig_gkey", "ltree_gist", "ghstore",
}  # fmt: skip


# Packages of npm have no pg_basebackup.
WITH_BACKUPS = versions({DEBIANS, *WHEELS})
ALL = versions({DEBIANS, *WHEELS, *NPM_PACKAGES})
IN_THE_GATE = ("13 WAL alone", "15 over a base", "18 WAL alone")
CASES = [
    pytest.param(
        *major.values,
        has_base,
        marks=[] if f"{major.values[0]} {name}" in IN_THE_GATE else [pytest.mark.soak],
        id=f"{major.values[0]} {name}",
    )
    for majors, has_base, name in ((ALL, False, "WAL alone"), (WITH_BACKUPS, True, "over a base"))
    for major in majors
]


def newest_in_the_gate(majors: list[ParameterSet]) -> list[ParameterSet]:
    """Return the same versions; the soak has all but the newest."""
    return [
        pytest.param(*each.values, marks=[] if NEWEST in each.values else [pytest.mark.soak])
        for each in majors
    ]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[EveryType]:
    options = ["--wal-segsize=1", "--encoding=UTF8", "--locale=C"]
    with ExitStack() as stack:
        if request.param != DEBIANS:
            stack.enter_context(installation(binaries_or_skip(request.param)))
        server = stack.enter_context(PostgresServer.create(SETTINGS, initdb_options=options))
        made = EveryType(server)
        made.create()
        yield made


@pytest.mark.parametrize(("made", "has_base"), CASES, indirect=["made"])
def test_values_are_those_of_select_or_not_complete(made: EveryType, has_base: bool) -> None:
    server, path = made.server, str(made.server.data / "pg_wal")
    backup = server.base_backup() if has_base else None
    try:
        base = None if backup is None else BaseDirectory(str(backup.data))
        server.sql("SELECT txid_current()")
        plan = make_plan(open_files(path), start_lsn=None if base is None else base.redo_lsn)
        history = CatalogHistory.read(open_files(path), plan, base=base)
        equal = 0
        for table, types in made.tables.items():
            past = TableAt.open(path, plan, table, database="postgres", base=base, history=history)
            assert past.printer.knows(MONEY) == has_base, "lc_monetary is in the base's files"
            equal += _compared(past, types, copied(server, table))
        sys.stderr.write(f"{made.major}: {equal} values equal of {made.types} types\n")
        assert equal > 2000
    finally:
        if backup is not None:
            backup.delete()


@pytest.mark.parametrize("made", newest_in_the_gate(WITH_BACKUPS), indirect=True)
def test_money_is_not_known_where_a_database_or_a_role_sets_its_form(made: EveryType) -> None:
    server, path = made.server, str(made.server.data / "pg_wal")
    server.sql("CREATE TABLE priced (a money)", "INSERT INTO priced VALUES (-123456.5)")
    backup = server.base_backup()
    try:
        base = BaseDirectory(str(backup.data))
        found = []
        for statement in ("SELECT txid_current()", "ALTER ROLE postgres SET lc_monetary = 'C'"):
            server.sql(statement, "SELECT txid_current()")
            plan = make_plan(open_files(path), start_lsn=base.redo_lsn)
            past = TableAt.open(path, plan, "priced", database="postgres", base=base)
            rows = past.whole()
            found.append((rows["a"].to_pylist(), coverage_of(rows)))
        assert found[0] == (["-$123,456.50"], COMPLETE)
        assert found[1][0][0].startswith("\\x") and found[1][1] == f"1 {AS_BYTES}"
    finally:
        server.sql("ALTER ROLE postgres RESET lc_monetary", "DROP TABLE priced")
        backup.delete()


def _compared(past: TableAt, types: dict[str, str], selected: list[tuple[Any, ...]]) -> int:
    """Return how many values are SELECT's; the others have their reason in the coverage."""
    rows = past.whole()
    shown = zip(*rows_of_text(rows.drop_columns(["coverage"])), strict=True)
    theirs_of = zip(*selected, strict=True)
    columns = zip(past.table.columns, types.values(), shown, theirs_of, strict=True)
    equal, reasons = 0, set()
    for attribute, name, ours, theirs in columns:
        is_known = past.printer.knows(attribute.type)
        if not is_known:
            assert _is_allowed(past, attribute.type), f"{name} is not known"
        for one, other in zip(ours, theirs, strict=True):
            if not is_known:
                reasons |= set() if one is None else {AS_BYTES}
                assert one is None or one.startswith("\\x"), f"{name}: {one}"
            elif one == other:
                equal += 1
            elif one is None:
                reasons.add(UNREADABLE)
            else:
                assert past.printer.has_names(attribute.type), f"{name}: {one} is not {other}"
                assert not past.printer.knows(MONEY), f"over a base: {name} {one}, not {other}"
                reasons.add(AS_OIDS)
    coverage = coverage_of(rows)
    assert all(reason in coverage for reason in reasons), (coverage, reasons)
    return equal


def _is_allowed(past: TableAt, oid: int) -> bool:
    """Return True if a type is, or has a part, known not to be known."""
    types = past.printer.types
    known = types.by_oid.get(types.base_of(oid))
    if known is None or known.kind == "c" or (known.kind == "d" and known.base >= 10_000):
        return True  # a type that initdb made: a view's row, say
    if known.name in UNKNOWN:
        return True
    return bool(known.element) and known.length == -1 and _is_allowed(past, known.element)


@pytest.mark.parametrize("made", newest_in_the_gate(ALL), indirect=True)
def test_changes_say_which_values_are_not_selects(made: EveryType) -> None:
    server, path = made.server, str(made.server.data / "pg_wal")
    server.sql("CREATE TABLE others (a regclass, b regrole, c inet, d aclitem)")
    server.sql("INSERT INTO others VALUES ('\"Other\".\"T b\"', NULL, '::ffff:1.2.3.4', NULL)")
    server.sql("INSERT INTO others VALUES (NULL, 'postgres', NULL, NULL)")
    server.sql("INSERT INTO others VALUES (NULL, NULL, NULL, 'postgres=r/postgres')")
    plan = make_plan(open_files(path))
    history = CatalogHistory.read(open_files(path), plan)
    database = history.database(history.end_lsn, "postgres")
    found = ChangeReader(open_files(path), plan, history, database).read(["others"])
    first, second, third = found[-3:]
    assert first.coverage == COMPLETE and first.new is not None
    assert (first.new["a"], first.new["c"]) == ('"Other"."T b"', "::ffff:1.2.3.4")
    assert second.new is not None and (second.new["b"], second.coverage) == ("10", AS_OIDS)
    assert third.coverage == UNREADABLE, "no role is described"
    server.sql("CREATE TABLE later (a money)", "INSERT INTO later VALUES (1)")
    history = CatalogHistory.read(open_files(path), plan := make_plan(open_files(path)))
    (change,) = ChangeReader(open_files(path), plan, history, database).read(["later"])
    server.sql("DROP TABLE later")
    assert change.coverage == AS_BYTES
