"""Commands that take rows without a record for each, or leave records of no change."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    server_environment,
)
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_cli.program import run
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import REWRITTEN, ChangeReader
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.table_at import TableAt
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield server


def work(server: PostgresServer, *statements: str) -> None:
    with server.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def changes(server: PostgresServer, *names: str) -> list[Change]:
    server.sql("SELECT txid_current()")
    files = open_files(str(server.data / "pg_wal"))
    plan = make_plan(files)
    history = CatalogHistory.read(files, plan)
    database = history.database(history.end_lsn, "postgres")
    return ChangeReader(files, plan, history, database).read(names)


def short(found: list[Change]) -> list[tuple[Any, ...]]:
    """Return (operation, the first column before, and after)."""
    return [
        (
            c.operation,
            *(None if row is None else next(iter(row.values())) for row in (c.old, c.new)),
        )
        for c in found
    ]


def undo(server: PostgresServer, path: Path, *arguments: str) -> None:
    wal = str(server.data / "pg_wal")
    assert run(["history", "undo", "--path", wal, *arguments, "-o", str(path)]) == 0
    command = [program("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", server.dsn(), "-f", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=server_environment())
    assert done.returncode == 0, done.stderr


def test_an_insertion_that_lost_its_race_is_none(server: PostgresServer, tmp_path: Path) -> None:
    work(
        server,
        "CREATE TABLE up (k text NOT NULL, v int)",
        "CREATE FUNCTION slow(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN "
        "IF current_setting('my.lock', true) = 'on' THEN PERFORM pg_advisory_xact_lock(1); END IF; "
        "RETURN v; END $$",
        "CREATE INDEX ON up (slow(v))",
        "ALTER TABLE up ADD PRIMARY KEY (k)",
    )
    upsert = "INSERT INTO up VALUES ('a', 1) ON CONFLICT (k) DO UPDATE SET v = up.v + 100"
    waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    racer = Thread(target=work, args=(server, "SET my.lock = on", upsert))
    with server.connect() as holder:
        holder.execute(b"SELECT pg_advisory_lock(1)")
        racer.start()
        wait_until(lambda: server.sql(waits) == 1)
        work(server, "INSERT INTO up VALUES ('a', 50)")
    racer.join(LIMIT_S)
    found = changes(server, "up")
    assert short(found) == [("insert", None, "a"), ("update", "a", "a")]
    undo(server, tmp_path / "undo.sql", "--xid", str(found[1].commit.top_xid))
    assert server.rows("SELECT * FROM up") == [("a", 50)]


def test_a_truncation_is_where_its_record_is(server: PostgresServer, tmp_path: Path) -> None:
    work(
        server,
        "CREATE TABLE cut (id int)",
        "INSERT INTO cut VALUES (1), (2)",
        "BEGIN; INSERT INTO cut VALUES (3); DELETE FROM cut WHERE id = 1; TRUNCATE cut; "
        "INSERT INTO cut VALUES (8); TRUNCATE cut; INSERT INTO cut VALUES (9); COMMIT",
        "BEGIN; CREATE TABLE fresh (id int); INSERT INTO fresh VALUES (1); TRUNCATE fresh; "
        "INSERT INTO fresh VALUES (2); COMMIT",
        "DELETE FROM fresh",
        "VACUUM fresh",
    )
    found = changes(server, "cut")
    assert short(found)[2:] == [
        ("insert", None, "3"), ("delete", "1", None), ("truncate", None, None),
        ("insert", None, "9"),
    ]  # fmt: skip
    assert [c.start_lsn for c in found] == sorted(c.start_lsn for c in found)
    assert short(changes(server, "fresh")) == [("insert", None, "2"), ("delete", "2", None)]
    undo(server, tmp_path / "undo.sql", "--xid", str(found[2].commit.top_xid), "--table", "cut")
    assert server.rows("SELECT id FROM cut ORDER BY id") == [(1,), (2,)]


def test_unlogged_and_temporary_tables_have_no_changes(server: PostgresServer) -> None:
    with server.connect() as session:
        for statement in (
            "CREATE UNLOGGED TABLE ul (id int); TRUNCATE ul; DROP TABLE ul",
            "CREATE UNLOGGED TABLE later (id int)",
            "TRUNCATE later",
            "ALTER TABLE later SET LOGGED",
            "INSERT INTO later VALUES (1)",
            "CREATE TABLE orders (id int)",
            "CREATE TEMP TABLE orders (id int)",
            "TRUNCATE pg_temp.orders",
            "INSERT INTO public.orders VALUES (7)",
        ):
            session.execute(statement.encode())
        shown = {c.table.shown for c in changes(server)}
        assert {"public.later", "public.orders"} <= shown
        assert not any("ul" in name or "temp" in name for name in shown)
        assert short(changes(server, "later", "orders")) == [
            ("insert", None, "1"), ("insert", None, "7"),
        ]  # fmt: skip
        wal = str(server.data / "pg_wal")
        past = TableAt.open(wal, make_plan(open_files(wal)), "orders", database="postgres")
        assert past.whole().num_rows == 1


def test_a_table_that_moved_is_not_truncated(server: PostgresServer) -> None:
    place = make_directory()
    own(place)
    work(
        server,
        "CREATE TABLE moved (id int)",
        "INSERT INTO moved VALUES (1), (2)",
        f"CREATE TABLESPACE elsewhere LOCATION '{place}'",
        "ALTER TABLE moved SET TABLESPACE elsewhere",
        "DELETE FROM moved WHERE id = 1",
    )
    assert [c.operation for c in changes(server, "moved")] == ["insert", "insert", "delete"]


def test_a_long_value_of_a_column_that_came_later_is_known(server: PostgresServer) -> None:
    work(
        server,
        "CREATE TABLE late (id int)",
        "ALTER TABLE late ADD COLUMN body text",
        "ALTER TABLE late ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO late VALUES (1, repeat('long', 2000))",
    )
    (change,) = changes(server, "late")
    assert change.coverage == COMPLETE
    assert change.new == {"id": "1", "body": "long" * 2000}


def test_no_wrong_values_beside_a_rewrite(server: PostgresServer) -> None:
    work(
        server,
        "CREATE TABLE wide (a int, b int)",
        "BEGIN; INSERT INTO wide VALUES (5, 7); ALTER TABLE wide ALTER a TYPE bigint; COMMIT",
    )
    (change,) = changes(server, "wide")
    assert (change.operation, change.new, change.coverage) == ("insert", None, REWRITTEN)
    work(
        server,
        "CREATE TABLE shifted (a text, b text[])",
        "BEGIN; INSERT INTO shifted VALUES ('abc#' || repeat('z', 30), '{}'); "
        "ALTER TABLE shifted ALTER a TYPE int USING 1; COMMIT",
    )  # the row's text lies where its list would begin, were its first column an integer
    (change,) = changes(server, "shifted")
    assert (change.operation, change.new, change.coverage) == ("insert", None, REWRITTEN)


def test_no_wrong_values_beside_a_rewrite_that_moves_on_to_another_tablespace(
    server: PostgresServer,
) -> None:
    """The transaction's last file is a plain copy of the one that it rewrote."""
    place = server.directory / "further"
    place.mkdir()
    own(place)
    work(
        server,
        f"CREATE TABLESPACE further LOCATION '{place}'",
        "CREATE TABLE roamed (a text, b text)",
        "BEGIN; INSERT INTO roamed VALUES ('abcdefghijkl', 'c'); "
        "ALTER TABLE roamed ALTER b TYPE path USING '((0,0))', ALTER a TYPE path USING '((0,0))'; "
        "ALTER TABLE roamed SET TABLESPACE further; COMMIT",
    )
    (change,) = changes(server, "roamed")
    assert (change.operation, change.new, change.coverage) == ("insert", None, REWRITTEN)


def test_a_name_without_a_table_is_an_error_beside_other_names(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others' changes alone would be taken for all."""
    work(
        server,
        "CREATE TABLE named (id int)",
        "CREATE TABLE named_heir (more int) INHERITS (named)",
        "CREATE TABLE split (id int) PARTITION BY LIST (id)",
        "CREATE TABLE split_one PARTITION OF split FOR VALUES IN (1)",
        "INSERT INTO named VALUES (1)",
        "INSERT INTO split VALUES (1)",
    )
    wal = ["--path", str(server.data / "pg_wal")]
    for command in ("changes", "undo"):
        for name, said in (
            ("misspelt", "no table misspelt in database postgres"),
            ("split", "split is partitioned; its rows are in its partitions"),
        ):
            names = ["--table", "named", "--table", name]
            assert run(["history", command, *wal, *names]) == 1
            assert said in capsys.readouterr().err
        names = ["--table", "named", "--table", "split_one"]
        assert run(["history", command, *wal, *names, "--table", "named_heir"]) == 0
        assert "missing" not in capsys.readouterr().err
