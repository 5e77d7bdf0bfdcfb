"""A table of another access method than heap is named, and none of its rows is printed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off"}
OTHER = "is of access method"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE ACCESS METHOD like_heap TYPE TABLE HANDLER heap_tableam_handler")
        yield server


def history(capsys: Output, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["history", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("has_base", [False, True])
def test_a_table_of_another_access_method_is_named(
    server: PostgresServer, capsys: Output, has_base: bool
) -> None:
    server.sql(
        "CREATE TABLE odd (a int, b text) USING like_heap",
        "INSERT INTO odd VALUES (1, 'before')",
    )
    base = server.base_backup() if has_base else None
    try:
        server.sql(
            "INSERT INTO odd VALUES (2, 'after')",
            "CREATE TABLE even (a int)",
            "INSERT INTO even VALUES (3)",
        )
        where = ["--path", str(server.data / "pg_wal")]
        where += ["--base", str(base.data)] if base is not None else []
        code, out, said = history(capsys, "table-at", "odd", *where)
        assert (code, out) == (1, "") and f"public.odd {OTHER}" in said
        for named in (["changes", "--table", "odd"], ["undo", "--table", "odd"]):
            code, out, said = history(capsys, *named, *where)
            assert (code, out) == (1, "") and "public.odd" in said and OTHER in said
        for everything in (["changes"], ["undo", "--all-tables"]):
            code, out, said = history(capsys, *everything, *where)
            assert code == 1 and "missing: table public.odd" in said and OTHER in said
            assert "even" in out and "odd" not in out
        assert history(capsys, "table-at", "even", *where)[:2] == (0, "a\n3\n")
    finally:
        if base is not None:
            base.delete()


def test_a_table_is_read_while_it_was_heap(server: PostgresServer, capsys: Output) -> None:
    """ALTER TABLE gives it another access method, and gives it back."""
    server.sql("CREATE TABLE turned (a int)", "INSERT INTO turned VALUES (1)")
    first = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    server.sql("ALTER TABLE turned SET ACCESS METHOD like_heap", "INSERT INTO turned VALUES (2)")
    second = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    server.sql("ALTER TABLE turned SET ACCESS METHOD heap", "INSERT INTO turned VALUES (3)")
    where = ("--path", str(server.data / "pg_wal"))
    assert history(capsys, "table-at", "turned", *where, "--lsn", first)[:2] == (0, "a\n1\n")
    code, out, said = history(capsys, "table-at", "turned", *where, "--lsn", second)
    assert (code, out) == (1, "") and OTHER in said
    assert history(capsys, "table-at", "turned", *where)[:2] == (0, "a\n1\n2\n3\n")
    code, out, said = history(capsys, "changes", *where)
    assert code == 1 and "missing: table public.turned" in said and OTHER in said
    assert '{""a"": ""1""}' in out and '{""a"": ""3""}' in out and '""2""' not in out
    code, out, said = history(capsys, "changes", *where, "--end-lsn", first)
    assert code == 0 and OTHER not in said


def test_an_index_of_another_access_method_hides_nothing(
    server: PostgresServer, capsys: Output
) -> None:
    """bloom's index pages are in generic WAL, and no table lacks them."""
    server.sql(
        "CREATE EXTENSION bloom",
        "CREATE TABLE sought (a int, b int)",
        "CREATE INDEX ON sought USING bloom (a, b)",
        "INSERT INTO sought SELECT g, g FROM generate_series(1, 3) g",
    )
    where = ("--path", str(server.data / "pg_wal"))
    assert history(capsys, "table-at", "sought", *where)[:2] == (0, "a,b\n1,1\n2,2\n3,3\n")
    code, _, said = history(capsys, "changes", *where)
    assert code == 0 and "missing" not in said and "3 changes" in said


def test_relations_without_rows_of_their_own_are_refused_by_name(
    server: PostgresServer, capsys: Output, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TABLE behind (a int)",
        "INSERT INTO behind VALUES (1)",
        "CREATE VIEW seen AS SELECT * FROM behind",
        "CREATE SEQUENCE counted",
        "SELECT nextval('counted')",
        "CREATE UNLOGGED TABLE quick (a int)",
        "INSERT INTO quick VALUES (7)",
        "CREATE EXTENSION file_fdw",
        "CREATE SERVER files FOREIGN DATA WRAPPER file_fdw",
        "CREATE FOREIGN TABLE afar (a int) SERVER files OPTIONS (filename '/dev/null')",
        "CREATE TABLE parent (a int) PARTITION BY RANGE (a)",
        "CREATE INDEX placed ON behind (a)",
    )
    where = ("--path", str(server.data / "pg_wal"))
    kinds = {
        "seen": "is a view",
        "counted": "is a sequence",
        "quick": "is unlogged",
        "afar": "is a foreign table",
        "parent": "is partitioned",
        "placed": "is an index",
    }
    for name, kind in kinds.items():
        for command in (
            ["table-at", name],
            ["changes", "--table", name],
            ["undo", "--table", name],
        ):
            code, out, said = history(capsys, *command, *where)
            assert (code, out) == (1, "") and f"{name} {kind}" in said, (command, said)


def test_a_table_is_named_where_no_record_of_heap_changed_it(
    server: PostgresServer, capsys: Output
) -> None:
    """Rows of a real one are in an extension's records, which need not name its file."""
    server.sql("CREATE TABLE odd (a int) USING like_heap", "CREATE TABLE even (a int)")
    where = ("--path", str(server.data / "pg_wal"))
    for named in ((), ("--table", "odd")):
        code, _, said = history(capsys, "changes", *where, *named)
        assert code == 1 and "missing: table public.odd" in said and "0 changes" in said
    code, _, said = history(capsys, "changes", *where, "--table", "even")
    assert code == 0 and "odd" not in said


def test_a_temporary_table_is_refused_by_its_number(server: PostgresServer, capsys: Output) -> None:
    with server.connect() as session:
        session.execute("CREATE TEMPORARY TABLE passing (a int)")
        found = session.execute("SELECT 'passing'::regclass::oid").fetchone()
        assert found is not None
        number = str(found[0])
        session.execute("CREATE TABLE staying (a int)")
        where = ("--path", str(server.data / "pg_wal"))
        for command in (("table-at", number), ("changes", "--table", number)):
            code, out, said = history(capsys, *command, *where)
            assert (code, out) == (1, "") and "is temporary" in said, said
