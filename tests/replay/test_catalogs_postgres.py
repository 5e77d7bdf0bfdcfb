"""Databases of other encodings, moved databases, and values at the edges of what a type holds: as a
real server's COPY gives them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_cli.history.server_catalog import catalog_of_server
from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.undo import not_undone
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.columns.columns_of_rows import UNREADABLE
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.table_at import HEIRS, TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off"}
WORDS = """
CREATE TYPE "Stärke" AS ENUM ('groß', 'klein');
CREATE TABLE "Größe" (id int PRIMARY KEY, "Wört" text, j jsonb, e "Stärke", n name, a text[]);
INSERT INTO "Größe" VALUES (1, 'Größe', '{"ä": ["ö", 1.5, {"ü": null}]}', 'groß', 'Äpfel', '{ß,x}');
ALTER TABLE "Größe" ADD COLUMN later text DEFAULT 'später';
"""
JAPANESE = """
CREATE TABLE 日本 (id int, 名 text, j jsonb);
INSERT INTO 日本 VALUES (1, '東京\uff5e\uffe0ｱ', '{"名": "京都"}');
INSERT INTO 日本 VALUES (2, '①', NULL);
"""
BYTES = r"""
CREATE TYPE label AS ENUM (E'\344', 'plain');
CREATE TABLE mixed (id int, t text, e label);
INSERT INTO mixed VALUES (1, 'ascii', 'plain'), (2, E'\303\244', 'plain');
INSERT INTO mixed VALUES (3, E'gr\374n', E'\344');
"""


class Past:
    """The WAL's facts about one database as of now."""

    def __init__(self, server: PostgresServer, base: Path | None = None) -> None:
        self.server = server
        self.path = str(server.data / "pg_wal")
        self.base = None if base is None else BaseDirectory(str(base))
        self.files = open_files(self.path)
        begin = 0 if self.base is None else self.base.redo_lsn
        self.plan: Plan = make_plan(self.files, start_lsn=begin)
        self.history = CatalogHistory.read(self.files, self.plan, base=self.base)

    def table(self, database: str, name: str, lsn: int | None = None) -> Any:
        at = TableAt.open(
            self.path, self.plan, name, lsn=lsn, database=database, base=self.base,
            history=self.history,
        )  # fmt: skip
        return at.whole()

    def rows(self, database: str, name: str) -> list[tuple[str | None, ...]]:
        table = self.table(database, name)
        assert coverage_of(table) == COMPLETE
        return rows_of_text(table.drop_columns(["coverage"]))

    def changes(self, database: str, name: str) -> list[Change]:
        own = self.history.database(self.history.end_lsn, database)
        return ChangeReader(self.files, self.plan, self.history, own, self.base).read([name])


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def run(server: PostgresServer, *statements: str, database: str = "postgres") -> None:
    with server.connect(dbname=database, client_encoding="UTF8") as connection:
        for statement in statements:
            connection.execute(statement.encode())


def copied(
    server: PostgresServer, table: str, database: str = "postgres"
) -> list[tuple[str | None, ...]]:
    options = "-c timezone=UTC -c datestyle=ISO"
    with (
        server.connect(dbname=database, client_encoding="UTF8", options=options) as connection,
        connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy,
    ):
        return list(copy.rows())


def made_database(server: PostgresServer, name: str, encoding: str, *statements: str) -> None:
    run(server, f"CREATE DATABASE {name} ENCODING {encoding} LOCALE 'C' TEMPLATE template0")
    run(server, *statements, database=name)


def test_names_and_values_are_of_the_databases_encoding(server: PostgresServer) -> None:
    made_database(server, "latin", "LATIN1", WORDS)
    made_database(server, "japan", "EUC_JP", JAPANESE)
    past = Past(server)
    assert past.rows("latin", "Größe") == copied(server, '"Größe"', "latin")
    assert past.table("latin", "Größe").column_names[1] == "Wört"
    inserted = past.changes("latin", "Größe")[0]
    assert inserted.coverage == COMPLETE and inserted.new is not None
    assert inserted.new["e"] == "groß" and inserted.new["n"] == "Äpfel"
    table = past.table("japan", "日本")
    assert coverage_of(table) == f"1 {UNREADABLE}"  # a character that Python's codec lacks
    assert table["名"].to_pylist() == ["東京\uff5e\uffe0ｱ", None]
    assert table["j"].to_pylist() == ['{"名": "京都"}', None]
    first, second = past.changes("japan", "日本")
    assert first.coverage == COMPLETE
    assert second.coverage == UNREADABLE and second.new == {"id": "2", "j": None}
    assert not_undone([first, second]) == 1


def test_bytes_that_are_no_text_are_not_made_some(server: PostgresServer) -> None:
    """A SQL_ASCII database says nothing of its bytes: what is UTF-8 is text."""
    made_database(server, "bytes", "SQL_ASCII", BYTES)
    past = Past(server)
    table = past.table("bytes", "mixed")
    assert table["t"].to_pylist() == ["ascii", "ä", None]
    assert table["e"].to_pylist() == ["plain", "plain", None]
    assert coverage_of(table) == f"2 {UNREADABLE}"
    changes = past.changes("bytes", "mixed")
    assert [change.coverage for change in changes] == [COMPLETE, COMPLETE, UNREADABLE]
    assert changes[2].new == {"id": "3"}
    with pytest.raises(HistoryError, match="catalogs of the server: invalid byte"):
        catalog_of_server(server.dsn(dbname="bytes"), 0, system_id=None, database=None)
    made_database(server, "plain", "SQL_ASCII", "CREATE TABLE größe (id int)")
    catalog = catalog_of_server(server.dsn(dbname="plain"), 0, system_id=None, database=None)
    assert [a.name for a in catalog.find("größe").columns] == ["id"]


def test_a_deferrable_key_is_no_key_by_wal_nor_by_a_server(server: PostgresServer) -> None:
    made_database(
        server, "keys", "UTF8",
        "CREATE TABLE ranked (id int PRIMARY KEY, place int);"
        "CREATE TABLE moved_up (place int PRIMARY KEY DEFERRABLE)",
    )  # fmt: skip
    history = Past(server).history
    found = (
        history.at(history.end_lsn, history.database(history.end_lsn, "keys")),
        catalog_of_server(server.dsn(dbname="keys"), 0, system_id=None, database=None),
    )
    for catalog in found:
        assert (catalog.find("ranked").key, catalog.find("moved_up").key) == (("id",), ())


def test_a_database_moved_to_another_tablespace_is_read_before_and_behind(
    server: PostgresServer,
) -> None:
    fill = "SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 30) i"
    run(server, "CREATE DATABASE moved")
    run(
        server, "CREATE TABLE t (id int, x text)", f"INSERT INTO t {fill}",
        "TRUNCATE t", f"INSERT INTO t {fill}", database="moved",
    )  # fmt: skip
    backup = server.base_backup()
    try:
        server.make_tablespace("space")
        run(server, "UPDATE t SET id = -id WHERE id < 4", database="moved")
        before = copied(server, "t", "moved")
        lsn = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
        run(server, "ALTER DATABASE moved SET TABLESPACE space")
        run(
            server, "DELETE FROM t WHERE id = 9", "CREATE TABLE later (id int)",
            "ALTER TABLE t ADD COLUMN more int DEFAULT 5", database="moved",
        )  # fmt: skip
        for base in (None, backup.data):
            past = Past(server, base)
            assert past.rows("moved", "t") == copied(server, "t", "moved")
            assert past.rows("moved", "later") == []
            then = past.table("moved", "t", lsn).drop_columns(["coverage"])
            assert rows_of_text(then) == before
            changes = past.changes("moved", "t")
            assert {change.coverage for change in changes} == {COMPLETE}
            done = [change.operation for change in changes]
            assert done[-4:] == ["update", "update", "update", "delete"]
            assert done.count("truncate") == (base is None)
    finally:
        backup.delete()


@pytest.fixture
def other_server() -> Iterator[PostgresServer]:
    """A server whose backups have no tablespace: it would lie where the server's own does."""
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def test_a_database_that_was_moved_back_has_no_rows_of_before(other_server: PostgresServer) -> None:
    """Its catalogs are meant: rows updated and vacuumed elsewhere are in no page that came back."""
    server = other_server
    run(server, "CREATE DATABASE returned")
    run(
        server, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t ADD COLUMN more int DEFAULT 5", database="returned",
    )  # fmt: skip
    backup = server.base_backup()
    try:
        server.make_tablespace("far")
        for number, target in enumerate(("far", "pg_default", "far", "pg_default")):
            run(server, f"ALTER DATABASE returned SET TABLESPACE {target}")
            run(
                server, "VACUUM FULL t", f"INSERT INTO t VALUES ({number})",
                "VACUUM pg_class, pg_attribute", database="returned",
            )  # fmt: skip
            for base in (None, backup.data):
                assert Past(server, base).rows("returned", "t") == copied(server, "t", "returned")
    finally:
        backup.delete()


def test_a_damaged_page_is_damaged_in_another_tablespace_too(other_server: PostgresServer) -> None:
    server = other_server
    run(server, "CREATE DATABASE roaming")
    run(
        server, "CREATE TABLE far (id int)", "INSERT INTO far SELECT generate_series(1, 1000)",
        database="roaming",
    )  # fmt: skip
    path = server.sql("SELECT pg_relation_filepath('far')", dbname="roaming")
    backup = server.base_backup()
    try:
        data = bytearray((backup.data / path).read_bytes())
        data[PAGE_BYTES + 15] ^= 0x40
        (backup.data / path).write_bytes(data)
        server.make_tablespace("space")
        run(server, "ALTER DATABASE roaming SET TABLESPACE space")
        found = Past(server, backup.data).table("roaming", "far")
        assert 500 < len(found) < 1000
        assert "1 damaged block, the first is block 1 of file" in coverage_of(found)
    finally:
        backup.delete()


def test_a_default_that_is_stored_compressed_is_that_of_older_rows(server: PostgresServer) -> None:
    run(
        server,
        "CREATE TABLE grown (id int)",
        "INSERT INTO grown VALUES (1), (2)",
        "ALTER TABLE grown ADD COLUMN p text DEFAULT repeat('xyz', 2000)",
        "SET default_toast_compression = lz4",
        "ALTER TABLE grown ADD COLUMN l text[] DEFAULT ARRAY[repeat('ä', 3000)]",
        "DELETE FROM grown WHERE id = 1",
    )
    past = Past(server)
    assert past.rows("postgres", "grown") == copied(server, "grown")
    deleted = past.changes("postgres", "grown")[-1]
    assert deleted.coverage == COMPLETE and deleted.old is not None
    assert deleted.old == {"id": "1", "p": "xyz" * 2000, "l": "{" + "ä" * 3000 + "}"}


HARD = (
    "[x]", "x]", "[", "]", "(", ")", "{", "}", ",", ";", "a b", " ", "", "NULL", "null", '"',
    'a"b', "\\", "a\\b", "'", "a\tb", "a\nb", "a\rb", "\v", "\f", "\u00a0", "\u2003", "\u0085",
    "ä", "nul", "-", ":", "=", "[1:2]={1}",
)  # fmt: skip


def test_composites_arrays_and_ranges_quote_as_the_server(server: PostgresServer) -> None:
    run(
        server,
        "CREATE TYPE one AS (a text, b text)",
        "CREATE TYPE two AS (o one, l text[])",
        'CREATE TYPE texts AS RANGE (subtype = text, collation = "C")',
        "CREATE TABLE hard (t text, c one, a text[], r texts, w two, ca one[], ra texts[])",
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO hard SELECT t, ROW(t, NULL)::one, ARRAY[t, NULL], texts(t, NULL), "
            "ROW(ROW(t, t), ARRAY[t])::two, ARRAY[ROW(t, NULL)::one], ARRAY[texts(NULL, t, '(]')] "
            "FROM (VALUES (%s)) v(t)",
            [(text,) for text in HARD],
        )
    assert Past(server).rows("postgres", "hard") == copied(server, "hard")


def test_attributes_that_a_composite_has_lost_are_passed_over(server: PostgresServer) -> None:
    run(
        server,
        "CREATE TYPE worn AS (small int2, big int8, flag bool, words text, day date)",
        "CREATE TABLE parts (a int, gone numeric, b text)",
        "CREATE TABLE worn_out (id int, w worn, ws worn[], p parts)",
        "INSERT INTO worn_out VALUES (1, (1, 2, true, 'words', '2020-01-01'), "
        "ARRAY[(3, 4, false, repeat('w', 200), NULL)::worn], (5, 6.5, 'seven'))",
    )
    old = [text for row in copied(server, "worn_out") for text in row]
    for lost in ("small", "flag", "words", "big"):
        run(server, f"ALTER TYPE worn DROP ATTRIBUTE {lost}")
        run(server, "INSERT INTO worn_out (id, w) SELECT 2, w FROM worn_out WHERE id = 1")
    run(server, "ALTER TYPE worn ADD ATTRIBUTE later int", "ALTER TABLE parts DROP COLUMN gone")
    run(server, "INSERT INTO worn_out VALUES (3, ('2021-01-01', 9), NULL, (1, 'b'))")
    rows = copied(server, "worn_out")
    assert rows[0][1] == "(2020-01-01,)" and old[1] != rows[0][1]
    assert Past(server).rows("postgres", "worn_out") == rows


def test_a_table_with_heirs_says_that_their_rows_are_theirs(server: PostgresServer) -> None:
    run(
        server,
        "CREATE TABLE ancestor (id int)",
        "CREATE TABLE heir (more text) INHERITS (ancestor)",
        "INSERT INTO ancestor VALUES (1)",
        "INSERT INTO heir VALUES (2, 'two')",
    )
    past = Past(server)
    table = past.table("postgres", "ancestor")
    assert table["id"].to_pylist() == [1] and coverage_of(table) == HEIRS
    assert coverage_of(table).has_all, "undo needs no other rows"
    assert coverage_of(past.table("postgres", "heir")) == COMPLETE


def test_the_greatest_interval_is_no_infinity_before_17(server: PostgresServer) -> None:
    greatest = "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807"
    run(server, "CREATE TABLE spans (v interval, a interval[])")
    run(server, f"INSERT INTO spans VALUES ('{greatest}', ARRAY['{greatest}'::interval])")
    rows = copied(server, "spans")
    assert rows[0][0] == greatest, "the server is of a version before 17"
    assert Past(server).rows("postgres", "spans") == rows


def test_first_and_last_dates_and_times_are_the_servers(server: PostgresServer) -> None:
    dates = ("4714-11-24 BC", "5874897-12-31", "5874867-01-01", "5881580-07-11", "-infinity")
    times = (
        "4714-11-24 00:00:00 BC", "4714-11-24 00:00:00.000001 BC", "294246-12-31 23:59:59.999999",
        "294247-01-01", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808",
        "294276-12-31 23:59:59.999999", "294277-01-01", "infinity", "-infinity",
        "1969-12-31 23:59:59.999999", "0001-01-01 BC", "0001-01-01",
    )  # fmt: skip
    run(server, "CREATE TABLE edges (d date, t timestamp, z timestamptz)")
    with server.connect(options="-c timezone=UTC") as connection:
        for column, values in (("d", dates), ("t", times), ("z", times)):
            for value in values:
                try:
                    connection.execute(f"INSERT INTO edges ({column}) VALUES ('{value}')".encode())
                except psycopg.errors.DatetimeFieldOverflow:
                    assert value in ("5881580-07-11", "294277-01-01")
    past = Past(server)
    table = past.table("postgres", "edges")
    assert coverage_of(table) == f"6 {UNREADABLE}"
    beyond = ("294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808", "294276-12-31")
    real = [
        tuple(None if v is not None and v.startswith(beyond) else v for v in row)
        for row in copied(server, "edges")
    ]
    assert rows_of_text(table.drop_columns(["coverage"])) == real
    assert sum(c.coverage == UNREADABLE for c in past.changes("postgres", "edges")) == 6
