"""A stream of a database that moves to another tablespace gives what `changes` gives of all WAL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.replay.test_catalogs_postgres import SETTINGS, Past, run
from tests.replay.test_change_stream_postgres import rows_of
from tests.support.postgres_server import PostgresServer
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.redo.bounded_pages import PAGES_MIN
from walkeeper_replay.redo.files_of_records import CopyDatabase, changes_of
from walkeeper_replay.redo.wal_pass import pass_over
from walkeeper_replay.streams.change_windows import PAGES_MAX, ChangeStream, Scope
from walkeeper_wal.sources.reading import Batch

pytestmark = pytest.mark.postgres
FILL = "SELECT i, repeat('x', 300), repeat(md5(i::text), 200) FROM generate_series(1, 3000) i"


@pytest.fixture(scope="module")
def pasts() -> Iterator[tuple[Past, Past]]:
    """The WAL of a table whose database moves away and back: alone, and over a base backup."""
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        run(server, "CREATE DATABASE app")
        run(
            server, "CREATE TABLE t (id int, v text, long text)",
            "ALTER TABLE t ALTER long SET STORAGE EXTERNAL", f"INSERT INTO t {FILL} LIMIT 1500",
            database="app",
        )  # fmt: skip
        backup = server.base_backup()
        try:
            server.make_tablespace("space")
            run(server, f"INSERT INTO t {FILL} OFFSET 1500", database="app")
            for number, target in enumerate(("space", "pg_default")):
                where = f"WHERE id % 50 = {number}"
                run(server, f"UPDATE t SET v = 'before {number}' {where}", database="app")
                run(server, f"ALTER DATABASE app SET TABLESPACE {target}")
                run(
                    server, f"UPDATE t SET v = 'after {number}' {where}",
                    f"DELETE FROM t WHERE id % 50 = {number} + 20", database="app",
                )  # fmt: skip
            yield Past(server), Past(server, backup.data)
        finally:
            backup.delete()


def copy_lsns(past: Past) -> list[int]:
    """Return the ends of the records that copy the database, before its row says so."""
    found: list[int] = []

    def take(batch: Batch) -> None:
        ends = batch.end_lsn()
        copies = [each for each in changes_of(batch) if isinstance(each, CopyDatabase)]
        found.extend(int(ends[each.record]) for each in copies if each.database == each.source)

    pass_over(past.files, past.plan, [take])
    return found


@pytest.mark.parametrize("pages_max", [PAGES_MIN, PAGES_MAX])
@pytest.mark.parametrize("over_base", [False, True])
@pytest.mark.parametrize("stops_between", [False, True])
def test_a_stream_takes_the_pages_of_a_moved_database_along(
    pasts: tuple[Past, Past], tmp_path: Path, pages_max: int, over_base: bool, stops_between: bool
) -> None:
    past = pasts[over_base]
    database = past.history.database(past.history.end_lsn, "app")
    reader = ChangeReader(past.files, past.plan, past.history, database, past.base)
    expected = rows_of(reader.read(["t"]), "app")
    assert {row["coverage"] for row in expected} == {"complete"}
    stops = copy_lsns(past)
    assert len(stops) == 2
    begin, base = past.plan.segments[0].begin_lsn, None if past.base is None else past.base.root
    scope = Scope(("t",), "app", None if base is None else str(base))
    found = []
    for stop in [*(stops if stops_between else []), past.history.end_lsn]:
        part = past.plan.within(begin, stop)
        assert part is not None, f"{stop=}"
        with closing(ChangeStream.open(tmp_path / "state", scope, pages_max=pages_max)) as stream:
            while stream.position < stop:
                found += rows_of(stream.advance(past.files, part).changes(), "app")
                assert not stream.missing
            stream.save()
    assert found == expected
