"""`walkeeper history find` finds what was done, and recovery with its lines has undone it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres_server import PostgresServer, own
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres
ROWS = 500


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "1GB", "max_prepared_transactions": "5", "fsync": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def found(wal: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["history", "find", "--path", str(wal), "--json", *arguments]) == 0
    documents: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return documents


def filled(server: PostgresServer, *names: str) -> None:
    for name in names:
        server.sql(
            f"CREATE TABLE {name} (id int PRIMARY KEY, t text)",
            f"INSERT INTO {name} SELECT i, repeat('x', 100) FROM generate_series(1, {ROWS}) i",
        )


def path_of(server: PostgresServer, name: str) -> str:
    """Return the path as a finding shows it."""
    return str(server.sql(
        "SELECT '1663/' || (SELECT oid FROM pg_database WHERE datname = current_database()) || '/' "
        f"|| pg_relation_filenode('{name}')"
    ))  # fmt: skip


def test_each_kind_of_event_is_found_alone(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("dropped", "truncated", "clustered", "reindexed", "deleted", "kept", "twice")
    filled(server, *names)
    paths = {name: path_of(server, name) for name in names}
    xids = {}
    for name, statement in (
        ("dropped", "DROP TABLE dropped"),
        ("truncated", "TRUNCATE truncated"),
        ("clustered", "VACUUM FULL clustered"),
        ("reindexed", "REINDEX TABLE reindexed"),
        ("deleted", "DELETE FROM deleted WHERE id <= 123"),
    ):
        server.sql(statement)
        xids[name] = server.sql("SELECT txid_current()") - 1
    server.sql("BEGIN; DROP TABLE kept; ROLLBACK; BEGIN; DELETE FROM kept; ROLLBACK")
    server.sql("BEGIN; DELETE FROM twice WHERE id = 1; SAVEPOINT s; DELETE FROM twice WHERE id = 2;"
               " PREPARE TRANSACTION 'p'", "COMMIT PREPARED 'p'")  # fmt: skip
    server.sql("CREATE DATABASE gone", "DROP DATABASE gone")
    server.sql("SELECT pg_switch_wal()")
    wal = server.data / "pg_wal"
    by_kind = {kind: found(wal, capsys, kind) for kind in ("drop", "truncate", "rewrite", "delete")}
    tables = [d for d in by_kind["drop"] if d["kind"] == "drop"]
    assert [(d["xid"], paths["dropped"] in d["relations"]) for d in tables] == [
        (xids["dropped"], True)
    ]
    assert [d["kind"] for d in by_kind["drop"]] == ["drop", "drop database"]
    assert [(d["xid"], paths["truncated"] in d["relations"]) for d in by_kind["truncate"]] == [
        (xids["truncated"], True)
    ]
    rewritten = [d["xid"] for d in by_kind["rewrite"]]
    assert xids["clustered"] in rewritten and len(rewritten) == 2
    deletes = {d["relations"][0]: d["rows"] for d in by_kind["delete"]}
    assert deletes == {paths["deleted"]: 123, paths["twice"]: 2}
    node = paths["deleted"].rpartition("/")[2]
    assert len(found(wal, capsys, "delete", "--relation", node, "--min-rows", "123")) == 1
    assert not found(wal, capsys, "delete", "--relation", node, "--min-rows", "124")


@pytest.mark.parametrize(
    ("statements", "kinds"),
    [
        ("DROP TABLE a; CREATE TABLE a (id int)", ["drop"]),
        ("CREATE TABLE new (id int PRIMARY KEY, t text); DROP TABLE a", ["drop"]),
        ("CREATE TABLE new AS TABLE a; DROP TABLE a; ALTER TABLE new RENAME TO a", ["drop"]),
        ("ALTER TABLE a ADD n int; ALTER TABLE a RENAME TO o; DROP TABLE o; CREATE TABLE a (i int)",
         ["drop"]),
        ("CREATE TABLE new (id int); DROP TABLE new; TRUNCATE a", ["truncate"]),
        ("SAVEPOINT s; DROP TABLE a; ROLLBACK TO s; CREATE TABLE new (id int); TRUNCATE a",
         ["truncate"]),
        ("SAVEPOINT s; CREATE TABLE new (id int); RELEASE s; SAVEPOINT t; DROP TABLE a; RELEASE t",
         ["drop"]),
        ("ALTER TABLE a ALTER t TYPE int USING 1", ["rewrite"]),
        ("ALTER TABLE a ALTER t TYPE int USING 1; DROP TABLE b", ["drop", "rewrite"]),
        ("DROP TABLE b; ALTER TABLE a ALTER t TYPE int USING 1", ["drop", "rewrite"]),
        ("CREATE TABLE new (t text); ALTER TABLE a ADD n int; DROP TABLE a; DROP TABLE new",
         ["drop"]),
        ("CLUSTER a USING a_pkey; CREATE TABLE new (id int)", ["rewrite"]),
        ("REINDEX TABLE a", ["rewrite"]),
        ("CREATE TABLE new (id int PRIMARY KEY); DROP TABLE new", []),
    ],
)  # fmt: skip
def test_a_transaction_that_also_makes_tables_is_found_by_what_it_drops(
    server: PostgresServer, capsys: pytest.CaptureFixture[str], statements: str, kinds: list[str]
) -> None:
    filled(server, "a", "b")
    file = path_of(server, "b" if "DROP TABLE b" in statements else "a")
    begin = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    server.sql(f"BEGIN; {statements}; COMMIT", "SELECT pg_switch_wal()")
    documents = found(server.data / "pg_wal", capsys, "all", "--start-lsn", begin)
    assert [each["kind"] for each in documents] == kinds
    if "REINDEX" not in statements:
        assert all(file in each["relations"] for each in documents)


@pytest.mark.parametrize(
    ("statements", "kind"),
    [
        ("TRUNCATE n; INSERT INTO n VALUES (1)", "truncate"),
        ("TRUNCATE n; COPY n (i) FROM PROGRAM 'seq 5'", "truncate"),
        ("ALTER TABLE n ALTER i TYPE bigint; INSERT INTO n VALUES (1)", "rewrite"),
        ("ALTER TABLE n SET TABLESPACE away; INSERT INTO n VALUES (1)", "rewrite"),
        ("REINDEX INDEX n_j; INSERT INTO n VALUES (1)", "rewrite"),
    ],
)
def test_a_truncated_table_with_new_rows_is_found_as_truncated(
    server: PostgresServer, capsys: pytest.CaptureFixture[str], statements: str, kind: str
) -> None:
    """It has no TOAST relation, whose new file would stay empty."""
    server.sql("SET allow_in_place_tablespaces = on", "CREATE TABLESPACE away LOCATION ''")
    server.sql("CREATE TABLE n (i int, j int)", "CREATE INDEX n_j ON n (j)",
               "INSERT INTO n VALUES (7, 7)")  # fmt: skip
    begin = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    server.sql(f"BEGIN; {statements}; COMMIT", "SELECT pg_switch_wal()")
    documents = found(server.data / "pg_wal", capsys, "all", "--start-lsn", begin)
    assert [each["kind"] for each in documents] == [kind]


@pytest.mark.parametrize(
    "statement", ["DROP TABLE precious", "TRUNCATE precious", "DELETE FROM precious"]
)
def test_recovery_with_the_lines_has_the_table_as_it_was(
    server: PostgresServer, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(server, "precious")
    backup = server.base_backup({})
    try:
        server.sql(f"INSERT INTO precious SELECT i, 'late' FROM generate_series({ROWS + 1}, 600) i")
        server.sql(statement)
        filled(server, "later")
        server.sql("SELECT pg_switch_wal()")
        wal = server.data / "pg_wal"
        what = statement.split()[0].lower()
        finding = found(wal, capsys, what)[-1]
        assert finding["time"] and finding["xid"]
        backup.configure({"restore_command": f'cp "{wal}/%f" "%p"', "recovery_target_action":
                          "promote"})  # fmt: skip
        with (backup.data / "postgresql.conf").open("a") as file:
            file.write("\n".join(finding["recovery"]) + "\n")
        (backup.data / "recovery.signal").touch()
        own(backup.data)
        backup.start()
        assert backup.sql("SELECT count(*) FROM precious") == 600
        assert backup.sql("SELECT to_regclass('later') IS NULL")
    finally:
        backup.delete()


def test_a_transaction_is_found_by_its_xid(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(server, "one")
    server.sql("SELECT pg_switch_wal()")
    with server.connect() as connection:
        connection.execute("BEGIN")
        xid = connection.execute("SELECT txid_current()").fetchone()
        connection.execute("INSERT INTO one VALUES (-1)")
        server.sql("SELECT pg_switch_wal()")
        connection.execute("ROLLBACK")
    assert xid is not None
    server.sql("SELECT pg_switch_wal()")
    documents = found(server.data / "pg_wal", capsys, "--xid", str(xid[0]))
    assert [(d["kind"], d["xid"]) for d in documents] == [("abort", xid[0])]
    assert documents[0]["start_lsn"] < documents[0]["end_record_lsn"]


def test_find_needs_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["history", "find", "--path", "/nowhere"]) == 2
    assert run(["history", "find", "drop", "--xid", "5", "--path", "/nowhere"]) == 2
    assert "name the event" in capsys.readouterr().err
