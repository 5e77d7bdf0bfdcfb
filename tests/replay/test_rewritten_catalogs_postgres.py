"""Catalogs that VACUUM FULL rewrote, databases that were copied or moved after it, and schemas that
were renamed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.replay.test_catalogs_postgres import SETTINGS, Past, copied, run
from tests.support.postgres_server import PostgresServer
from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_files import CatalogMaps, nodes_by_rows
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.catalogs.schema_names import SchemaNames
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.redo.parallel_pass import CatalogFiles, Taken, taken_of
from walkeeper_replay.tuples.xids import NEVER
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.threaded_reading import Part, SweepOptions, read_each

DATABASE = 5


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def changed(past: Past, name: str, start: int = 0) -> list[tuple[str, str | None]]:
    """Return the names of changed tables, and the id of each row that was inserted."""
    found = ChangeReader(
        past.files, past.plan, past.history, past.history.database(past.history.end_lsn, "app"),
        past.base,
    ).read([name], start)  # fmt: skip
    return [(each.table.shown, (each.new or {}).get("id")) for each in found]


@pytest.mark.postgres
def test_a_schema_of_a_rewritten_catalog_has_its_name(server: PostgresServer) -> None:
    run(server, "CREATE DATABASE app")
    run(
        server, "VACUUM FULL pg_namespace", "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int)", "INSERT INTO sales.orders VALUES (1)",
        database="app",
    )  # fmt: skip
    assert changed(Past(server), "sales.orders") == [("sales.orders", "1")]
    backup = server.base_backup()
    try:
        run(server, "INSERT INTO sales.orders VALUES (2)", database="app")
        assert changed(Past(server, backup.data), "sales.orders") == [("sales.orders", "2")]
    finally:
        backup.delete()


@pytest.mark.postgres
def test_a_name_means_each_table_whose_schema_had_its_name_then(server: PostgresServer) -> None:
    made = ("CREATE SCHEMA sales", "CREATE TABLE sales.orders (id int)")
    run(server, "CREATE DATABASE app")
    run(
        server, *made, "INSERT INTO sales.orders VALUES (1)", "ALTER SCHEMA sales RENAME TO old",
        *made, "INSERT INTO sales.orders VALUES (2)", database="app",
    )  # fmt: skip
    start = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
    run(
        server, "INSERT INTO old.orders VALUES (3)", "INSERT INTO sales.orders VALUES (4)",
        database="app",
    )  # fmt: skip
    past = Past(server)
    every = [
        ("sales.orders", "1"),
        ("sales.orders", "2"),
        ("old.orders", "3"),
        ("sales.orders", "4"),
    ]
    assert changed(past, "sales.orders") == every
    assert changed(past, "old.orders") == [every[0], every[2]]
    assert changed(past, "sales.orders", start) == [every[3]]


@pytest.mark.postgres
def test_a_rewritten_catalog_keeps_no_name_of_before(server: PostgresServer) -> None:
    run(server, "CREATE DATABASE app")
    run(
        server, "CREATE TABLE t (id int)", "VACUUM FULL pg_class",
        "ALTER TABLE t RENAME TO t_before", "CREATE TABLE t (id int)", database="app",
    )  # fmt: skip
    start = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
    run(server, "INSERT INTO t VALUES (1)", "INSERT INTO t_before VALUES (2)", database="app")
    assert changed(Past(server), "t", start) == [("public.t", "1")]


REWRITTEN = tuple(
    f"VACUUM FULL {name}"
    for name in ("pg_class", "pg_attribute", "pg_enum", "pg_index", "pg_namespace")
)


@pytest.mark.postgres
def test_a_moved_database_has_the_catalogs_that_were_rewritten_before(
    server: PostgresServer,
) -> None:
    run(server, "CREATE DATABASE app")
    run(
        server, "CREATE TYPE mood AS ENUM ('good')", "CREATE SCHEMA sales",
        "CREATE TABLE sales.orders (id int PRIMARY KEY, m mood)",
        "INSERT INTO sales.orders VALUES (1, 'good')", *REWRITTEN, database="app",
    )  # fmt: skip
    backup = server.base_backup()
    try:
        run(server, "INSERT INTO sales.orders VALUES (2, 'good')", *REWRITTEN, database="app")
        server.make_tablespace("space")
        run(server, "ALTER DATABASE app SET TABLESPACE space")
        run(server, "INSERT INTO sales.orders VALUES (3, 'good')", database="app")
        for base in (None, backup.data):
            past = Past(server, base)
            assert past.rows("app", "sales.orders") == copied(server, "sales.orders", "app")
            assert past.table("app", "sales.orders").schema.names[:2] == ["id", "m"]
            assert changed(past, "sales.orders") == [
                ("sales.orders", id_) for id_ in "123" if base is None or id_ != "1"
            ]
    finally:
        backup.delete()


@pytest.mark.postgres
def test_a_moved_database_has_the_columns_of_after_the_move(server: PostgresServer) -> None:
    run(server, "CREATE DATABASE app")
    run(
        server, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (0)", *REWRITTEN,
        database="app",
    )  # fmt: skip
    backup = server.base_backup()
    try:
        server.make_tablespace("space")
        run(server, "ALTER DATABASE app SET TABLESPACE space")
        run(
            server, "ALTER TABLE t ADD COLUMN more text", "INSERT INTO t VALUES (1, 'one')",
            database="app",
        )  # fmt: skip
        past = Past(server, backup.data)
        assert past.rows("app", "t") == copied(server, "t", "app")
        assert [each.new for each in past.changes("app", "t")] == [{"id": "1", "more": "one"}]
    finally:
        backup.delete()


@pytest.mark.postgres
@pytest.mark.parametrize("strategy", ["file_copy", "wal_log"])
def test_records_of_a_copied_catalog_are_chosen(server: PostgresServer, strategy: str) -> None:
    """A copy has the number of a rewritten catalog, and nothing wanted that file before."""
    run(server, "CREATE DATABASE model")
    run(server, "CREATE TABLE t (id int)", *REWRITTEN, database="model")
    backup = server.base_backup()
    try:
        is_asked = int((server.data / "PG_VERSION").read_text()) >= 15  # files are copied before
        how = f"STRATEGY {strategy}" if is_asked else ""
        run(server, f"CREATE DATABASE app TEMPLATE model {how}")
        run(
            server, "ALTER TABLE t ADD COLUMN more text", "INSERT INTO t VALUES (1, 'one')",
            database="app",
        )  # fmt: skip
        past = Past(server, backup.data)

        def decode(wanted: CatalogFiles) -> Iterator[Part[Taken]]:
            def make(reading: Reading) -> Taken:
                return taken_of(reading, None, wanted.choose)

            return iter(read_each(past.files, past.plan, make, SweepOptions(threads=1)))

        chosen = CatalogHistory.read(past.files, past.plan, base=past.base, decode=decode)
        for history in (past.history, chosen):
            catalog = history.at(history.end_lsn, history.database(history.end_lsn, "app"))
            assert [each.name for each in catalog.find("t").columns] == ["id", "more"]
    finally:
        backup.delete()


def test_a_mapped_catalog_leaves_a_file_where_the_next_map_has_another_one() -> None:
    log = [
        (0, DATABASE, {1259: 16390, 1249: 1249}), (70, DATABASE, {1249: 16400}),
        (80, 6, {1259: 16401}), (90, DATABASE, {1259: 16402, 1249: 16400}),
    ]  # fmt: skip
    maps = CatalogMaps(log)
    assert maps.nodes(DATABASE, 1259) == {1259: NEVER, 16390: 90, 16402: NEVER}
    assert maps.nodes(DATABASE, 1249) == {1249: 70, 16400: NEVER}
    assert maps.nodes(6, 1259) == {1259: 80, 16401: NEVER}
    assert maps.nodes(7, 1259) == {1259: NEVER}


def test_a_catalog_leaves_a_file_where_its_row_of_pg_class_ends() -> None:
    rows = [((0, 50), 2615), ((50, 60), 16390), ((50, 90), 16390), ((90, NEVER), 16400)]
    classes = [(span, {"oid": 2615, "relfilenode": node}) for span, node in rows]
    other = [((10, 20), {"oid": 1259, "relfilenode": 0})]
    assert nodes_by_rows(2615, classes + other) == {2615: 50, 16390: 90, 16400: NEVER}
    assert nodes_by_rows(2615, classes[1:]) == {2615: 50, 16390: 90, 16400: NEVER}
    assert nodes_by_rows(2615, other) == {2615: NEVER}


def test_a_span_has_a_part_for_each_name_of_its_schema() -> None:
    rows = [((20, 30), "a"), ((40, NEVER), "c"), ((30, 40), "b"), ((30, 50), "b")]
    names = SchemaNames.of((span, {"oid": 7, "nspname": name}) for span, name in rows)
    assert names.within(7, 5, 35) == [(5, 30, "a"), (30, 35, "b")]
    assert names.within(7, 30, 40) == [(30, 40, "b")]
    assert names.within(7, 31, 99) == [(31, 40, "b"), (40, 99, "c")]
    assert names.within(7, 0, NEVER) == [(0, 30, "a"), (30, 40, "b"), (40, NEVER, "c")]
    assert names.within(8, 5, 35) == [(5, 35, None)]
