"""Row changes, folded over time, are the table; undone, they are what it was before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.replay.schemas import Schemas
from tests.replay.sessions import Sessions
from tests.support.postgres_server import PostgresServer
from tests.support.seeds import drawn_seed
from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.table_at import TableAt
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
SETTINGS = {"max_prepared_transactions": "10", "wal_keep_size": "8GB", "fsync": "off"}
Row = dict[str, str | None]


@dataclass
class Worked:
    server: PostgresServer
    wal: Path
    lsns: list[int] = field(default_factory=list)

    def reader(self) -> ChangeReader:
        files = open_files(str(self.wal))
        plan = make_plan(files)
        history = CatalogHistory.read(files, plan)
        return ChangeReader(files, plan, history, history.database(history.end_lsn, "postgres"))

    def table_at(self, name: str, lsn: int) -> Any:
        plan = make_plan(open_files(str(self.wal)))
        return TableAt.open(str(self.wal), plan, name, lsn=lsn, database="postgres").whole()


@pytest.fixture(scope="module")
def worked() -> Iterator[Worked]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        with server.connect(options="-c statement_timeout=120s") as connection:
            work = Schemas(connection, drawn_seed())
            made = Worked(server, server.data / "pg_wal")
            work.create()

            def note() -> None:
                made.lsns.append(int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()"))))

            work.play(8, note)
            work.run("SELECT txid_current()", "CHECKPOINT")
        yield made


def test_changes_of_transactions_that_overlap_folded_are_the_table() -> None:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        work = Sessions(server, drawn_seed())
        work.create()
        work.goes_deep = True
        for number in range(400):
            if number == 200:
                work.crash()
            work.step()
        work.close()
        worked = Worked(server, server.data / "pg_wal")
        rows = folded(worked.reader().read(["public.plain"]))
        expected = server.rows("SELECT id::text, n::text, t FROM plain")
        assert sorted(map(str, (tuple(row.values()) for row in rows.values()))) == sorted(
            map(str, expected)
        )


def folded(changes: list[Change]) -> dict[str | None, Row]:
    """Return the rows by their key, after all of the changes."""
    rows: dict[str | None, Row] = {}
    for change in changes:
        if change.operation == "truncate":
            rows.clear()
        if change.operation in ("delete", "update"):
            assert change.old is not None, f"{change}"
            before = rows.pop(change.old["id"])
            # Columns may have come since; those of both rows are the same.
            assert {k: v for k, v in change.old.items() if k in before}.items() <= before.items()
        if change.operation in ("insert", "update"):
            assert change.new is not None, f"{change}"
            rows[change.new["id"]] = change.new
    return rows


@pytest.mark.parametrize("table", ["plain", "every_type"])
def test_changes_folded_are_the_table(worked: Worked, table: str) -> None:
    changes = worked.reader().read([f"public.{table}"])
    assert {c.coverage for c in changes} == {COMPLETE}
    for lsn in (worked.lsns[len(worked.lsns) // 2], worked.lsns[-1]):
        rows = folded([c for c in changes if c.commit.end_lsn <= lsn])
        past = worked.table_at(f"public.{table}", lsn).drop_columns(["coverage"])
        expected = {
            row[0]: dict(zip(past.column_names, row, strict=True)) for row in rows_of_text(past)
        }
        assert rows.keys() == expected.keys()
        for key, row in rows.items():
            shared = [name for name in row if name in expected[key]]
            assert shared, f"{key=}"
            assert [row[name] for name in shared] == [expected[key][name] for name in shared]
