"""Undo of an INSERT leaves a row alone of which a column that was added since was changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay.test_undo_postgres import applied
from tests.replay.test_undo_triggers_postgres import in_one, rows_of, written
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

ANEW = "a row of public.t was written anew since, and has columns that were added since: note."
KEYS = pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "keyless"])


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def made(server: PostgresServer, key: str) -> None:
    server.sql("DROP TABLE IF EXISTS t", f"CREATE TABLE t (id int {key}, v text)")
    server.sql("INSERT INTO t VALUES (1, 'a')")


@KEYS
@pytest.mark.parametrize(
    ("later", "is_left"),
    [
        ("UPDATE t SET note = 'x' WHERE id = 2", False),
        ("UPDATE t SET note = 'x' WHERE id = 1", True),
        ("SELECT FROM t FOR UPDATE", True),
        ("VACUUM FREEZE t", True),
        ("VACUUM FULL t", True),
        ("CREATE INDEX i ON t (id); CLUSTER t USING i", True),
        ("ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (id + 1) STORED", False),
        ("ALTER TABLE t ADD COLUMN r float DEFAULT random()", False),
    ],
    ids=["note", "other row", "lock", "freeze", "vacuum full", "cluster", "generated", "volatile"],
)
def test_a_row_of_which_a_later_column_may_have_changed_stays(
    server: PostgresServer, tmp_path: Path, key: str, later: str, is_left: bool
) -> None:
    made(server, key)
    xid = in_one(server, "SAVEPOINT s", "INSERT INTO t VALUES (2, 'b')", "RELEASE s")
    server.sql("ALTER TABLE t ADD COLUMN note text DEFAULT 'none'")
    server.sql(*later.split("; "))
    after = rows_of(server, "t")
    done = applied(server, written(server, tmp_path, "--xid", xid))
    if is_left:
        assert done.returncode == 0, done.stderr
        assert server.rows("SELECT id FROM t") == [(1,)]
    else:
        assert done.returncode != 0 and ANEW.removesuffix(".") in done.stderr
        assert rows_of(server, "t") == after


@KEYS
def test_a_generated_column_that_was_added_is_no_doubt(
    server: PostgresServer, tmp_path: Path, key: str
) -> None:
    made(server, key)
    xid = in_one(server, "INSERT INTO t VALUES (2, 'b')")
    server.sql("ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (id + 1) STORED")
    done = applied(server, written(server, tmp_path, "--xid", xid))
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT id FROM t") == [(1,)]


@KEYS
@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize(
    "updates",
    [["UPDATE t SET v = 'c' WHERE id = 2"], ["UPDATE t SET id = id WHERE id = 2"],
     ["UPDATE t SET id = 3 WHERE id = 2", "UPDATE t SET v = v WHERE id = 3"]],
    ids=["values", "none", "keys"],
)  # fmt: skip
def test_updates_between_do_not_hide_a_change_of_a_later_column(
    server: PostgresServer, tmp_path: Path, key: str, noted: bool, updates: list[str]
) -> None:
    made(server, key)
    lsn = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    in_one(server, "INSERT INTO t VALUES (2, 'b')")
    for update in updates:
        in_one(server, update)
    end = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    server.sql("ALTER TABLE t ADD COLUMN note text")
    if noted:
        server.sql("UPDATE t SET note = 'x' WHERE id > 1")
    after = rows_of(server, "t")
    words = ("--table", "t", "--start-lsn", lsn, "--end-lsn", end)
    done = applied(server, written(server, tmp_path, *words))
    if noted:
        assert done.returncode != 0 and ANEW in done.stderr
        assert rows_of(server, "t") == after
    else:
        assert done.returncode == 0, done.stderr
        assert server.rows("SELECT id FROM t") == [(1,)]


@KEYS
def test_undo_of_an_update_keeps_what_a_later_column_has(
    server: PostgresServer, tmp_path: Path, key: str
) -> None:
    made(server, key)
    xid = in_one(server, "UPDATE t SET v = 'bad'")
    server.sql("ALTER TABLE t ADD COLUMN note text", "UPDATE t SET note = 'x'")
    done = applied(server, written(server, tmp_path, "--xid", xid))
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT id, v, note FROM t") == [(1, "a", "x")]


def test_the_inserted_row_is_chosen_among_alike_ones(
    server: PostgresServer, tmp_path: Path
) -> None:
    made(server, "")
    xid = in_one(server, "INSERT INTO t VALUES (1, 'a')")
    server.sql("ALTER TABLE t ADD COLUMN note text", "UPDATE t SET note = 'x' WHERE ctid = '(0,1)'")
    assert server.sql("SELECT count(*) FROM t") == 2
    done = applied(server, written(server, tmp_path, "--xid", xid))
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT id, v, note FROM t") == [(1, "a", "x")]
    both = in_one(
        server, "CREATE TABLE u (id int)", "INSERT INTO u VALUES (1)",
        "ALTER TABLE u ADD COLUMN note text", "INSERT INTO u VALUES (1, 'x')",
    )  # fmt: skip
    done = applied(server, written(server, tmp_path, "--xid", both, "--table", "u"))
    assert done.returncode == 0, done.stderr
    assert rows_of(server, "u") == []
