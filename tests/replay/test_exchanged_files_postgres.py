"""A file that several tables had in turn: each change is that of the table which had it then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from walkeeper_cli.program import run
from walkeeper_replay.catalogs.catalog_history import Named
from walkeeper_replay.changes.change_events import ALWAYS, Tenure, tenures
from walkeeper_replay.changes.lost_changes import TAKEN_OVER
from walkeeper_replay.tuples.xids import NEVER

Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "1GB", "fsync": "off"}
INITDB = ["--wal-segsize=1"]
EXCHANGE = (
    "BEGIN; CREATE TEMP TABLE both_files ON COMMIT DROP AS SELECT oid, relfilenode, reltoastrelid "
    "FROM pg_class WHERE relname IN ('busy', 'repacked'); "
    "UPDATE pg_class c SET relfilenode = n.relfilenode, reltoastrelid = n.reltoastrelid "
    "FROM both_files n WHERE c.relname IN ('busy', 'repacked') AND c.oid <> n.oid; COMMIT"
)


def owner(begin: int, end: int, oid: int) -> Named:
    return Named(begin, end, "public", f"t{oid}", "r", oid, "p", 2)


def found_in(owned: list[Named], created: set[tuple[int, int]]) -> list[Tenure]:
    return [tenure for _, tenure in tenures(owned, lambda *place: place in created)]


def test_a_file_is_a_tables_until_another_one_has_it() -> None:
    versions = [owner(0, 50, 7), owner(50, 90, 7), owner(120, NEVER, 7)]
    assert found_in(versions, set()) == [ALWAYS] * 3
    once, again = Tenure(-1, 90), Tenure(90, NEVER)
    assert found_in(versions, {(7, 120)}) == [once, once, again]
    assert found_in([*versions[:2], owner(120, NEVER, 8)], set()) == [once, once, again]
    exchanged = [*versions[:2], owner(90, 130, 8), owner(130, NEVER, 9)]
    taken = [Tenure(90, 130, is_taken_over=True), Tenure(130, NEVER, is_taken_over=True)]
    assert found_in(exchanged, set()) == [once, once, *taken]


def changes_of(name: str, wal: Path, capsys: Output, *more: str) -> tuple[list[str], str]:
    """Return a table's changes as `insert 3`, and what the command says."""
    words = ["--path", str(wal), "--format", "json", "--allow-missing", *more]
    assert run(["history", "changes", "--table", name, *words]) == 0
    said = capsys.readouterr()
    rows = [json.loads(line) for line in said.out.splitlines()]
    shown = [(row["operation"], row["new"] or row["old"] or {}) for row in rows]
    assert {row["table"] for row in rows} == {name}
    return [f"{deed} {values.get('id', '')}".strip() for deed, values in shown], said.err


@pytest.mark.postgres
def test_changes_are_of_the_table_that_had_the_file(capsys: Output) -> None:
    with PostgresServer.create(SETTINGS, initdb_options=INITDB) as server:
        with server.connect() as session:
            for statement in (
                "SET allow_system_table_mods = on",
                "CREATE TABLE busy (id int, v text)",
                "INSERT INTO busy VALUES (1), (2)",
                "CREATE TABLE repacked (id int, v text)",
                "INSERT INTO repacked VALUES (1), (2)",
                "DELETE FROM busy WHERE id = 2",
                "DELETE FROM repacked WHERE id = 2",
                EXCHANGE,
                "INSERT INTO busy VALUES (3)",
            ):
                session.execute(statement.encode())
        begin = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
        server.sql("DROP TABLE repacked", "UPDATE busy SET id = -id")
        wal = server.data / "pg_wal"
        deeds, said = changes_of("busy", wal, capsys)
        assert deeds == ["insert 1", "insert 2", "delete 2", "insert 3", "update -1", "update -3"]
        assert TAKEN_OVER.split("{}")[0] in said
        deeds, said = changes_of("busy", wal, capsys, "--start-lsn", begin)
        assert deeds == ["update -1", "update -3"] and "missing" not in said
        deeds, said = changes_of("repacked", wal, capsys)
        assert deeds == ["insert 1", "insert 2", "delete 2"]
        assert run(["history", "changes", "--table", "busy", "--path", str(wal)]) == 1


@pytest.mark.postgres
@pytest.mark.parametrize("again", ["TRUNCATE kept", "CREATE TABLE gone (n int, id int)"])
def test_a_new_file_with_a_dropped_ones_number_has_its_own_changes(
    again: str, capsys: Output
) -> None:
    with PostgresServer.create(SETTINGS, initdb_options=INITDB) as server:
        server.sql(
            "CREATE TABLE gone (id int, v text)",
            "CREATE TABLE kept (n int, id int)",
            "INSERT INTO kept VALUES (8, 8)",
        )
        number = server.sql("SELECT pg_relation_filenode('gone')")
        server.stop()
        numbers = ("-o", str(number), "-f", "-D", str(server.data))
        run_as_server_user([program("pg_resetwal"), *numbers])  # as after 2**32 OIDs
        server.start()
        backup = server.base_backup()
        try:
            server.sql("INSERT INTO gone VALUES (3, 'three')")
            lsn = server.sql("SELECT pg_current_wal_insert_lsn()")
            server.sql("DROP TABLE gone", "CHECKPOINT", "VACUUM pg_class", again)
            name = "kept" if "kept" in again else "gone"
            server.sql(f"INSERT INTO {name} VALUES (5, 6)")
            assert server.sql(f"SELECT pg_relation_filenode('{name}')") == number
            wal, base = server.data / "pg_wal", ("--base", str(backup.data))
            own = ["truncate", "insert 6"] if name == "kept" else ["insert 3", "insert 6"]
            deeds, said = changes_of(name, wal, capsys, *base)
            assert (deeds, "missing" in said) == (own, False)
            deeds, said = changes_of("gone", wal, capsys, *base, "--end-lsn", lsn)
            assert (deeds, "missing" in said) == (["insert 3"], False)
        finally:
            backup.delete()
