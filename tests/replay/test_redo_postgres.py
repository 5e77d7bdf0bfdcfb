"""Redo makes the pages that PostgreSQL made: its own consistency checking says so, 13 to 18."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.replay.heap_workload import SETTINGS, fill
from tests.replay.restored import copied
from tests.replay.schemas import TABLES, Schemas
from tests.support.installations import NPM_PACKAGES, WHEELS, binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation
from tests.support.seeds import drawn_seed
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.consistency import Checked, ConsistencyCheck
from walkeeper_replay.table_at import TableAt
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import SegmentReader

pytestmark = pytest.mark.postgres
DEBIANS = 15
# The records that this workload must have made, by the names of every version.
EXPECTED = {
    "INSERT", "INSERT+INIT", "DELETE", "UPDATE", "HOT_UPDATE", "LOCK", "MULTI_INSERT",
    "MULTI_INSERT+INIT", "LOCK_UPDATED",
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    major: int
    wal: Path
    lsn: int
    tables: dict[str, list[tuple[str | None, ...]]]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    with ExitStack() as stack:
        if request.param != DEBIANS:
            stack.enter_context(installation(binaries_or_skip(request.param)))
        server = stack.enter_context(
            PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"])
        )
        with server.connect(options="-c statement_timeout=120s") as connection:
            seed = drawn_seed()
            absent = fill(connection, seed, 800)
            connection.execute(b"SET search_path = public")
            work = Schemas(connection, seed)
            work.create()
            work.play(2, lambda: None)
            if request.param >= 18:
                connection.execute(
                    "CREATE TABLE virtual (a int, v int GENERATED ALWAYS AS (a * 2), dropped int, "
                    "b text, w int GENERATED ALWAYS AS (length(b)) VIRTUAL); "
                    "ALTER TABLE virtual DROP dropped; INSERT INTO virtual VALUES (7, DEFAULT, 'b')"
                )
        sys.stderr.write(f"PostgreSQL {request.param} cannot: {absent}\n")
        lsn = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
        tables = {name: copied(server, name) for name in TABLES}
        server.stop()
        yield Made(request.param, server.data / "pg_wal", lsn, tables)


def checked(wal: Path) -> ConsistencyCheck:
    files = open_files(str(wal))
    plan, reader, check = make_plan(files), SegmentReader(files), ConsistencyCheck()
    for index in range(len(plan.segments)):
        for batch in reader.read(plan.reachable, index):
            check.add(batch)
    return check


@pytest.mark.parametrize("made", versions([DEBIANS, *WHEELS, *NPM_PACKAGES]), indirect=True)
def test_every_heap_page_is_that_of_the_server(made: Made) -> None:
    check = checked(made.wal)
    rows = [row for row in check.rows() if row.name.partition("/")[0] != "XLOG"]
    total = sum(row.equal for row in rows)
    lines = [f"{row.name} {row.equal}" for row in rows if row.equal]
    sys.stderr.write(f"PostgreSQL {made.major}: {total} images equal: {', '.join(lines)}\n")
    wrong = [row for row in rows if row.different or row.not_redone]
    assert not wrong, f"{wrong}\n" + "\n".join(check.shown)
    names = {row.name for row in rows if row.equal}
    assert names >= EXPECTED, EXPECTED - names
    assert total > 10_000
    assert unknown(rows) < total / 1000


def unknown(rows: list[Checked]) -> int:
    """Count images of pages that no record made known; with full_page_writes, next to none."""
    return sum(row.not_known for row in rows)


@pytest.mark.parametrize("made", versions([DEBIANS, *WHEELS, *NPM_PACKAGES]), indirect=True)
def test_tables_of_every_type_are_read_from_the_wal_alone(made: Made) -> None:
    plan = make_plan(open_files(str(made.wal)))
    for name, expected in made.tables.items():
        past = TableAt.open(
            str(made.wal), plan, f"public.{name}", lsn=made.lsn, database="postgres"
        ).whole()
        assert rows_of_text(past.drop_columns(["coverage"])) == expected
        assert set(past["coverage"].to_pylist()) <= {COMPLETE}


@pytest.mark.parametrize("made", [18], indirect=True)
def test_virtual_columns_are_left_out_and_named(
    made: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their values are not in the WAL; null, in a row that is called complete, would be a lie."""
    arguments = ["--path", str(made.wal), "--lsn", str(Lsn(made.lsn)), "--database", "postgres"]
    assert run(["history", "table-at", "virtual", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out == "a,b\n7,b\n"
    assert "1 row without v, w (virtual generated columns: " in said.err
    assert run(["history", "table-at", "virtual", "--format", "sql", *arguments]) == 0
    assert '("a", "b") OVERRIDING SYSTEM VALUE VALUES' in capsys.readouterr().out
    arguments = [*arguments[:2], *arguments[4:], "--format", "json"]
    assert run(["history", "changes", "--table", "virtual", *arguments]) == 0
    assert '"new": {"a": "7", "b": "b"}' in capsys.readouterr().out
