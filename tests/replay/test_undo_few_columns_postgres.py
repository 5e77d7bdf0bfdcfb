"""SQL for rows of few columns or none, and for rows that are alike but for a column added since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay.test_undo_postgres import applied, changed, undone
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def count(server: PostgresServer, table: str) -> int:
    return int(server.sql(f"SELECT count(*) FROM {table}"))


@pytest.mark.parametrize("columns", ["", "g int GENERATED ALWAYS AS (1 + 1) STORED"])
def test_rows_without_stored_columns_come_back(
    server: PostgresServer, tmp_path: Path, columns: str
) -> None:
    server.sql("DROP TABLE IF EXISTS bare", f"CREATE TABLE bare ({columns})")
    server.sql("INSERT INTO bare SELECT FROM generate_series(1, 250)")
    emptied = changed(server, "DELETE FROM bare")
    assert count(server, "bare") == 0
    assert (done := undone(server, tmp_path, emptied)).returncode == 0, done.stderr
    assert count(server, "bare") == 250
    xid = server.sql("BEGIN; TRUNCATE bare; SELECT txid_current()", "COMMIT") or server.sql(
        "SELECT txid_current() - 1"
    )
    assert count(server, "bare") == 0
    assert (done := undone(server, tmp_path, str(xid))).returncode == 0, done.stderr
    assert count(server, "bare") == 250


def test_table_at_writes_rows_without_columns(server: PostgresServer, tmp_path: Path) -> None:
    server.sql("CREATE TABLE blank ()", "INSERT INTO blank SELECT FROM generate_series(1, 101)")
    script = tmp_path / "blank.sql"
    words = ["table-at", "blank", "--path", str(server.data / "pg_wal"), "--output", str(script)]
    assert run(["history", *words]) == 0
    assert (done := applied(server, script)).returncode == 0, done.stderr
    assert count(server, "blank") == 202


@pytest.mark.parametrize("column", ["", "id int"])
def test_a_row_that_a_later_column_sets_apart_is_left_alone(
    server: PostgresServer, tmp_path: Path, column: str
) -> None:
    server.sql("DROP TABLE IF EXISTS alike", f"CREATE TABLE alike ({column})")
    row = "VALUES (1)" if column else "DEFAULT VALUES"
    server.sql(f"INSERT INTO alike {row}")
    xid = changed(server, f"INSERT INTO alike {row}")
    server.sql("DELETE FROM alike WHERE ctid = '(0,1)'", "VACUUM alike")
    server.sql("ALTER TABLE alike ADD note text")
    others = "id, note) VALUES (1, 'another')" if column else "note) VALUES ('another')"
    server.sql(f"INSERT INTO alike ({others}")
    assert server.sql("SELECT note FROM alike WHERE ctid = '(0,1)'") == "another"
    assert (done := undone(server, tmp_path, xid)).returncode == 0, done.stderr
    assert server.rows("SELECT note FROM alike") == [("another",)]


def test_an_update_of_one_of_the_rows_that_a_later_column_sets_apart_stays(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE apart (id int)", "INSERT INTO apart VALUES (1)")
    xid = changed(server, "UPDATE apart SET id = 2")
    server.sql("INSERT INTO apart VALUES (2)", "ALTER TABLE apart ADD note text")
    server.sql("UPDATE apart SET note = 'another' WHERE ctid = '(0,3)'")
    assert server.sql("SELECT count(DISTINCT ROW(note)) FROM apart") == 2
    done = undone(server, tmp_path, xid)
    assert done.returncode != 0 and "is not as it was left" in done.stderr
    server.sql("DELETE FROM apart WHERE note = 'another'")
    assert (done := undone(server, tmp_path, xid)).returncode == 0, done.stderr
    assert server.rows("SELECT id, note FROM apart") == [(1, None)]
