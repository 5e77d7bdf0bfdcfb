"""After 2**32 OIDs a new table gets the OID and the file of a dropped one: they stay two tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.oids_again import next_oid_from
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run
from walkeeper_replay.catalogs.catalog_history import Named
from walkeeper_replay.catalogs.table_lives import TableLives
from walkeeper_replay.tuples.xids import NEVER

Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "1GB", "fsync": "off"}


@dataclass(frozen=True, slots=True)
class Log:
    """The WAL of a server on which `second` has the OID and the file of `first`."""

    server: PostgresServer
    wal: Path
    base: Path
    oid: str
    dropped_lsn: str


@pytest.fixture(scope="module")
def log() -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            "CREATE TABLE first (id int, v text)",
            "CREATE TABLE beside (id int)",
            "INSERT INTO first SELECT g, 'of the first' FROM generate_series(1, 5) g",
        )
        oid = server.sql("SELECT 'first'::regclass::oid")
        backup = server.base_backup()
        try:
            server.sql("DELETE FROM first WHERE id < 3", "DROP TABLE first")
            dropped_lsn = server.sql("SELECT pg_current_wal_insert_lsn()")
            server.sql("CHECKPOINT", "VACUUM pg_class")
            server.stop()
            next_oid_from(server, oid)
            server.start()
            server.sql(
                "CREATE TABLE second (n int, id int)",
                "INSERT INTO second VALUES (1, 7), (1, 8)",
                "DELETE FROM second WHERE id = 7",
            )
            assert server.sql("SELECT pg_relation_filenode('second')") == oid
            assert server.sql("SELECT 'second'::regclass::oid") == oid
            wal = server.data / "pg_wal"
            yield Log(server, wal, backup.data, str(oid), str(dropped_lsn))
        finally:
            backup.delete()


def changes_of(log: Log, capsys: Output, *more: str) -> tuple[list[str], str]:
    """Return the changes as `first: insert 3`, and what the command says."""
    assert run(["history", "changes", "--path", str(log.wal), "--format", "json", *more]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    shown = [(row["table"], row["operation"], row["new"] or row["old"]) for row in rows]
    return [f"{table}: {deed} {values['id']}" for table, deed, values in shown], said.err


SECOND = ["second: insert 7", "second: insert 8", "second: delete 7"]
FIRST = ["first: delete 1", "first: delete 2"]


@pytest.mark.postgres
def test_a_name_means_the_table_that_had_it_not_all_of_its_oid(log: Log, capsys: Output) -> None:
    base = ("--base", str(log.base))
    assert changes_of(log, capsys, "--table", "second", *base) == (
        SECOND, "walkeeper: 3 changes\n"
    )  # fmt: skip
    assert changes_of(log, capsys, "--table", "first", *base) == (FIRST, "walkeeper: 2 changes\n")
    assert changes_of(log, capsys, "--table", "second")[0] == SECOND, "by the WAL alone"
    assert changes_of(log, capsys, *base)[0] == FIRST + SECOND


@pytest.mark.postgres
def test_an_oid_that_two_tables_had_is_said(log: Log, capsys: Output) -> None:
    both = ("--base", str(log.base), "--table", log.oid)
    found, said = changes_of(log, capsys, *both)
    assert found == FIRST + SECOND
    assert (
        f"{log.oid}: 2 tables had this name in the range" in said
        and "by a range of its time" in said
    )
    assert changes_of(log, capsys, *both, "--end-lsn", log.dropped_lsn) == (
        FIRST, "walkeeper: 2 changes\n"
    )  # fmt: skip
    assert changes_of(log, capsys, *both, "--start-lsn", log.dropped_lsn) == (
        SECOND, "walkeeper: 3 changes\n"
    )  # fmt: skip


@pytest.mark.postgres
def test_a_name_that_no_table_had_in_the_range_is_said(log: Log, capsys: Output) -> None:
    after = ("--base", str(log.base), "--start-lsn", log.dropped_lsn)
    found, said = changes_of(log, capsys, "--table", "first", *after)
    assert found == [] and "first: no table had this name in the range" in said


@pytest.mark.postgres
def test_undo_does_not_put_the_rows_of_a_dropped_table_into_the_new_one(
    log: Log, capsys: Output, tmp_path: Path
) -> None:
    words = ["history", "undo", "--path", str(log.wal), "--base", str(log.base)]
    assert run([*words, "--table", log.oid]) == 1
    assert "2 tables had this name in the range; say which one to undo" in capsys.readouterr().err
    assert run([*words, "--table", "first"]) == 1
    out = capsys.readouterr().out
    assert "second" not in out and out.count("first: the table was dropped since") == 2
    assert run([*words, "--all-tables", "-o", str(tmp_path / "undo.sql")]) == 1
    sql = (tmp_path / "undo.sql").read_text()
    assert sql.count("first: the table was dropped since") == 2
    assert run([*words, "--table", "second", "-o", str(tmp_path / "undo.sql")]) == 0
    with log.server.connect() as session:
        for statement in (tmp_path / "undo.sql").read_text().replace("COMMIT;", "").splitlines():
            assert "first" not in statement
        session.execute((tmp_path / "undo.sql").read_text().replace("COMMIT;", "").encode())
        assert session.execute("SELECT count(*) FROM second").fetchone() == (0,)
        session.execute("ROLLBACK")


def of_class(begin: int, end: int, oid: int = 9, name: str = "t") -> Named:
    return Named(begin, end, "public", name, "r", oid, "p", 2)


def test_a_life_begins_after_the_end_of_all_before() -> None:
    versions = [of_class(10, 20), of_class(20, 30), of_class(40, NEVER), of_class(0, 25)]
    lives = TableLives.of(versions, lambda _, lsn: lsn in (10, 40))
    assert lives.begins == {9: [0, 40]}, "a copied row, frozen, begins no life"
    assert [lives.at(9, lsn) for lsn in (0, 20, 39, 40, NEVER)] == [0, 0, 0, 40, 40]
    assert [lives.is_last(9, lsn) for lsn in (39, 40)] == [False, True]
    assert TableLives.of(versions, lambda *_: False).begins == {9: [0]}, "nothing created it"
    assert lives.at(8, 5) == 0 and lives.is_last(8, 5)
