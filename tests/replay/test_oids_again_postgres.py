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
from walkeeper_history.rows.file_uses import FileUses, MadeFile
from walkeeper_history.rows.relation_names import NamedRelation, RelationNames, Tenancy
from walkeeper_replay.catalogs.catalog_history import Named
from walkeeper_replay.catalogs.table_lives import TableLives
from walkeeper_replay.changes.change_events import Tenure
from walkeeper_replay.changes.table_owners import TableOwners
from walkeeper_replay.redo.store import Relation
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
    full_lsn: str
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
        full_lsn = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
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
            yield Log(server, wal, backup.data, str(oid), full_lsn, str(dropped_lsn))
        finally:
            backup.delete()


@pytest.fixture(scope="module")
def other() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield server


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


@pytest.mark.postgres
def test_a_table_of_the_server_is_not_that_of_its_oid_before(log: Log, capsys: Output) -> None:
    where = ("--path", str(log.wal), "--dsn", log.server.dsn())
    assert run(["history", "table-at", "second", *where, "--lsn", log.full_lsn]) == 1
    assert "the WAL has public.first with this OID" in capsys.readouterr().err
    assert run(["history", "table-at", "second", *where]) == 0
    assert capsys.readouterr().out.split() == ["n,id", "1,8"]


@pytest.mark.postgres
@pytest.mark.parametrize(
    "change", ["ADD c int DEFAULT 7", "RENAME v TO w", "ALTER v TYPE varchar", "DROP v"]
)
def test_columns_of_now_are_not_those_that_the_wal_has_then(
    other: PostgresServer, capsys: Output, change: str
) -> None:
    other.sql("DROP TABLE IF EXISTS third", "CREATE TABLE third (id int, v text)")
    other.sql("INSERT INTO third VALUES (1, 'x')")
    where = ["table-at", "third", "--path", str(other.data / "pg_wal"), "--dsn", other.dsn()]
    where += ["--lsn", str(other.sql("SELECT pg_current_wal_insert_lsn()"))]
    assert run(["history", *where]) == 0
    other.sql(f"ALTER TABLE third {change}")
    capsys.readouterr()
    assert run(["history", *where]) == 1
    assert "or other columns: name that one, without --dsn" in capsys.readouterr().err


def found_by(log: Log, capsys: Output, *words: str) -> list[tuple[str, list[str | None]]]:
    """Return the kinds of findings, and the names of their relations."""
    assert run(["history", "find", words[0], "--path", str(log.wal), "--json", *words[1:]]) == 0
    documents = json.loads(capsys.readouterr().out)
    return [(each["kind"], each["names"]) for each in documents]


OF_FIRST, OF_SECOND = ["postgres.public.first"], ["postgres.public.second"]


@pytest.mark.postgres
def test_find_names_the_owner_that_a_file_had_then(log: Log, capsys: Output) -> None:
    base = ("--base", str(log.base))
    assert found_by(log, capsys, "delete", *base) == [("delete", OF_FIRST), ("delete", OF_SECOND)]
    found = found_by(log, capsys, "drop", *base)
    assert [(kind, names[:1]) for kind, names in found] == [("drop", OF_FIRST)]
    for name, expected in (("first", OF_FIRST), ("second", OF_SECOND)):
        found = found_by(log, capsys, "delete", *base, "--relation", f"public.{name}")
        assert found == [("delete", expected)]
    found = found_by(log, capsys, "delete", *base, "--relation", log.oid)
    assert found == [("delete", OF_FIRST), ("delete", OF_SECOND)]


@pytest.mark.postgres
def test_names_of_now_are_not_those_of_a_file_that_was_made_again(log: Log, capsys: Output) -> None:
    now = ("--dsn", log.server.dsn())
    assert found_by(log, capsys, "delete", *now) == [("delete", [None]), ("delete", OF_SECOND)]
    found = found_by(log, capsys, "delete", *now, "--relation", "second")
    assert found == [("delete", [None]), ("delete", OF_SECOND)], "the first may be of it"
    assert run(["history", "find", "delete", "--path", str(log.wal), *now]) == 0
    assert capsys.readouterr().out.count("the name then is not known") == 1


def named(oid: int, seen: str = "") -> NamedRelation:
    return NamedRelation(1663, 5, 9, oid, "d", f"public.t{oid}", seen)


def test_a_dump_names_the_file_that_was_there_when_it_was_taken() -> None:
    uses = FileUses()
    hour_us = 3_600_000_000
    uses.note([named(1).key], MadeFile(100, hour_us))
    uses.note([named(1).key], MadeFile(200, 2 * hour_us))
    names = RelationNames(None, [named(1, "2000-01-01T01:00:00Z")])
    assert [names.then(named(1).key, lsn, uses) for lsn in (50, 250)] == [None, None]
    assert names.then(named(1).key, 150, uses) == named(1, "2000-01-01T01:00:00Z")
    names.add(named(2, "2000-01-01T05:00:00Z"))
    assert names.then(named(1).key, 250, uses) == named(2, "2000-01-01T05:00:00Z")
    assert names.of(named(1).key) == "d.public.t1 or d.public.t2"
    assert names.columns[1] == ["public.t1 or public.t2", None]
    assert RelationNames(None, [named(3)]).then(named(3).key, 150, uses) is None, "seen never"
    for seen, place, is_known in (
        ("2000-01-01T01:00:00.000001Z", 150, True), ("2000-01-01T00:59:59.999999Z", 150, False),
        ("2000-01-01T01:59:59.999999Z", 150, True), ("2000-01-01T01:59:59Z", 150, False),
        ("2000-01-01T02:00:00.000000Z", 250, True), ("2000-01-01T01:59:59Z", 250, False),
    ):  # fmt: skip
        dumped = RelationNames(None, [named(1, seen)]).then(named(1).key, place, uses)
        assert (dumped is not None) == is_known, seen
    assert RelationNames(None, [named(3)]).then(named(3).key, 150, FileUses()) == named(3)


def test_replayed_names_do_not_reach_back_beyond_a_new_file() -> None:
    uses = FileUses()
    names = RelationNames()
    names.add(named(1))
    names.add(named(2), Tenancy(begin=0, after=-1, until=300, known_from=250))
    assert [names.then(named(2).key, lsn, uses) for lsn in (300, 301)] == [named(2), None]
    uses.note([named(2).key], MadeFile(200, 1))
    assert [names.then(named(2).key, lsn, uses) for lsn in (150, 200)] == [None, named(2)]


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


def test_a_table_goes_on_if_the_wal_does_not_describe_its_new_row() -> None:
    """No row of 7 follows at 20: it was dropped, or a page of pg_class is not known."""
    rows = [of_class(10, 20, 7), of_class(10, 20, 8), of_class(20, NEVER, 8, "renamed")]
    owners = TableOwners(
        TableLives.of(rows, lambda *_: False),
        [(Relation(1663, 5, row.oid), row, Tenure()) for row in rows],
    )
    assert owners.meant((), 15, 99) == {(7, 10), (8, 10)}
    assert owners.meant((), 30, 99) == {(8, 10)} and not owners.meant(["t"], 30, 99)
    assert owners.meant((), 30, 99, may_go_on=True) == {(7, 10), (8, 10)}
    assert owners.meant(["t"], 30, 99, may_go_on=True) == {(7, 10)}


@pytest.mark.postgres
def test_a_temporary_table_makes_no_name_ambiguous(capsys: Output) -> None:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        with server.connect() as session:
            session.execute(b"CREATE TABLE orders (id int)")
            session.execute(b"CREATE TEMPORARY TABLE orders (id int)")
            session.execute(b"INSERT INTO orders VALUES (7)")
            session.execute(b"INSERT INTO public.orders VALUES (1)")
        where = ("--path", str(server.data / "pg_wal"), "--table", "orders")
        assert run(["history", "undo", *where]) == 0
        assert "DELETE FROM ONLY" in capsys.readouterr().out
        assert run(["history", "changes", *where]) == 0
        assert "warning" not in capsys.readouterr().err
