"""A change that is not all known is in the exit code, on stderr and among Spark's problems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_pgwal.replayed_tables import past_reader
from tests.replay.test_undescribed_postgres import copied, history, later_wal
from tests.support.postgres_server import PostgresServer
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off", "autovacuum": "off"}
AS_BYTES = "values of a type that is not known, as bytes"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield server


@pytest.fixture
def cubes(server: PostgresServer) -> str:
    """The WAL of a table with a value of a type that replay does not print."""
    server.sql(
        "CREATE EXTENSION cube",
        "CREATE TABLE shaped (id int PRIMARY KEY, c cube)",
        "INSERT INTO shaped VALUES (1, NULL), (2, '(1,2)'), (3, NULL)",
        "CREATE TABLE plain (id int)",
        "INSERT INTO plain VALUES (1)",
        "SELECT pg_switch_wal()",
    )
    return str(server.data / "pg_wal")


def test_a_value_of_an_unknown_type_is_in_the_exit_code(cubes: str, capsys: Output) -> None:
    code, out, said = history(capsys, "changes", "--table", "shaped", "--path", cubes)
    assert code == 1 and "\\x" in out and "3 changes" in said
    assert "not complete: table public.shaped: 1 of its changes, the first at 0/" in said
    assert AS_BYTES in said
    allowed = ("changes", "--table", "shaped", "--path", cubes, "--allow-missing")
    assert history(capsys, *allowed) == (0, out, said)
    code, _, said = history(capsys, "changes", "--table", "plain", "--path", cubes)
    assert code == 0 and "not complete" not in said


def test_a_condition_does_not_hide_what_it_cannot_see(cubes: str, capsys: Output) -> None:
    """The value sought may be one of those that are not known."""
    where = ("--table", "shaped", "--path", cubes, "--where", "c=(1, 2)")
    code, out, said = history(capsys, "changes", *where)
    assert code == 1 and "0 changes" in said and AS_BYTES in said and "\\x" not in out


def test_a_stream_says_in_its_exit_code_what_it_wrote(
    cubes: str, capsys: Output, tmp_path: Path
) -> None:
    where = ["stream", "--path", cubes, "--once", "--table", "shaped"]
    first = ("--to", str(tmp_path / "first"), "--state", str(tmp_path / "one"))
    code, _, said = history(capsys, *where, *first)
    assert code == 1 and "not complete: table public.shaped" in said and AS_BYTES in said
    assert len(list((tmp_path / "first").glob("changes-*.parquet"))) == 1
    second = ("--to", str(tmp_path / "second"), "--state", str(tmp_path / "two"))
    code, _, said = history(capsys, *where, *second, "--allow-missing")
    assert code == 0 and "not complete: table public.shaped" in said


def test_sparks_problems_have_the_changes_that_are_not_complete(cubes: str) -> None:
    made = past_reader({"table": "problems", "path": cubes}, None)
    (part,) = made.partitions()
    row = pa.Table.from_batches(made.read(part)).to_pylist()[-1]
    assert row["file"] == "public.shaped" and not row["fatal"]
    assert row["reason"].startswith("not complete: 1 of its changes, the first at 0/")
    assert AS_BYTES in row["reason"] and row["start_lsn"] == row["end_lsn"] > 0


def test_rows_of_unknown_blocks_are_in_the_exit_code(
    server: PostgresServer, capsys: Output, tmp_path: Path
) -> None:
    """The table is described by a later rewrite of the catalogs' rows; its block has no image."""
    server.configure({"full_page_writes": "off"})
    server.sql("SELECT pg_reload_conf()")
    server.sql("CREATE TABLE old (id int)", "INSERT INTO old VALUES (1), (2)")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("VACUUM FULL pg_class", "VACUUM FULL pg_attribute", "DELETE FROM old WHERE id = 1")
    path = copied(server, wal)
    code, out, said = history(capsys, "changes", "--path", path, "--database", "postgres")
    assert code == 1 and "1 change" in said and "missing:" not in said
    assert "not complete: table public.old: 1 of its changes" in said
    assert "its block was not known" in said
    code, out, said = history(capsys, "undo", "--table", "old", "--path", path)
    assert code == 1 and "-- not undone: delete of public.old" in out


def test_row_history_does_not_pass_over_a_value_that_it_does_not_know(cubes: str) -> None:
    """The row with the cube was left out, and no coverage could say so."""

    def found(**options: str) -> list[tuple[str, str]]:
        given = {"table": "row_history", "path": cubes, "relation": "shaped", "parts": "1"}
        made = past_reader(given | options, None)
        (part,) = made.partitions()
        rows = pa.Table.from_batches(made.read(part), SCHEMA).to_pylist()
        return [(row["operation"], dict(row["new"])["id"]) for row in rows]

    with pytest.raises(HistoryError, match=r"by c may lack changes: insert of public\.shaped at"):
        found(where="c=(1, 2)")
    assert not found(where="c=(1, 2)", allowmissing="true")
    assert found(where="id=3") == [("insert", "3")]
    assert not found(where="nothing=3"), "no table has the column"


def test_row_history_does_not_pass_over_a_name_that_stands_as_oid(server: PostgresServer) -> None:
    """WAL alone has no roles: 10 is postgres, so that its rows were left out."""
    server.sql(
        "CREATE DOMAIN who AS regrole",
        "CREATE TABLE owned (id int PRIMARY KEY, r regrole, rs regrole[], d who, t text)",
        "INSERT INTO owned VALUES (1, 'postgres', '{postgres}', 'postgres', '10')",
        "INSERT INTO owned VALUES (2, NULL, NULL, NULL, 'postgres')",
        "SELECT pg_switch_wal()",
    )

    def found(where: str, **options: str) -> list[str]:
        given = {"table": "row_history", "path": str(server.data / "pg_wal"), "relation": "owned"}
        made = past_reader({**given, "parts": "1", "where": where, **options}, None)
        (part,) = made.partitions()
        rows = pa.Table.from_batches(made.read(part), SCHEMA).to_pylist()
        return [dict(row["new"])["id"] for row in rows]

    for where in ("r=postgres", "rs={postgres}", "d=postgres"):
        with pytest.raises(HistoryError, match=r"may lack changes: insert of public\.owned at"):
            found(where)
        assert not found(where, allowmissing="true")
    assert found("r=10") == ["1"]
    assert (found("id=2"), found("id=3"), found("t=postgres")) == (["2"], [], ["2"])
