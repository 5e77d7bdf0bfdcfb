"""After each statement of an unusual past: `table-at` is SELECT's, and changes fold to the next."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import pytest

from tests.replay.odd_steps import Steps, steps
from tests.support.installations import binaries_or_skip, versions
from tests.support.postgres_server import (
    PostgresServer,
    binary_directory,
    installation,
    make_directory,
)
from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
Row = tuple[str | None, ...]
SETTINGS = {"wal_keep_size": "4GB", "fsync": "off"}
COLUMNS = (
    "SELECT attname::text FROM pg_attribute WHERE attrelid = '{0}'::regclass AND attnum > 0 "
    "AND NOT attisdropped AND attgenerated <> 'v' ORDER BY attnum"
)
IS_LOGGED = "SELECT relpersistence = 'p' FROM pg_class WHERE oid = to_regclass('{0}')"


@dataclass(frozen=True, slots=True)
class Seen:
    """A table as the server shows it behind a statement, or without rows if WAL has none."""

    statement: str
    lsn: int
    names: tuple[str, ...] = ()
    rows: tuple[Row, ...] | None = None


def seen(server: PostgresServer, table: str, statement: str) -> Seen:
    lsn = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
    if not server.sql(IS_LOGGED.format(table)):
        return Seen(statement, lsn)
    names = tuple(row[0] for row in server.rows(COLUMNS.format(table)))
    shown = ", ".join(names)
    text = f"COPY (SELECT {shown} FROM ONLY {table} ORDER BY ctid) TO STDOUT".encode()
    with (
        server.connect(options="-c timezone=UTC -c datestyle=ISO") as connection,
        connection.cursor().copy(text) as copy,
    ):
        return Seen(statement, lsn, names, tuple(copy.rows()))


def worked(server: PostgresServer, each: Steps) -> list[Seen]:
    """Run the statements, and return what is there before the first and behind each."""
    found = [seen(server, each.table, "")]
    with server.connect() as connection:
        for statement in each.statements:
            connection.execute(statement.encode())
            found.append(seen(server, each.table, statement))
    return found


def folded(rows: Iterable[Row], found: list[Change], names: tuple[str, ...]) -> Counter[Row]:
    left = Counter(rows)
    for change in found:
        if change.operation == "truncate":
            left.clear()
        for values, count in ((change.old, -1), (change.new, 1)):
            if values is not None:
                left[tuple(values.get(name, "absent") for name in names)] += count
    return Counter({row: count for row, count in left.items() if count})


class Past:
    """The server's WAL, with each step compared."""

    def __init__(self, server: PostgresServer, until: int) -> None:
        server.sql("SELECT pg_switch_wal()", "SELECT txid_current()")
        self.path = str(server.data / "pg_wal")
        self.files = open_files(self.path)
        self.plan: Plan = make_plan(self.files)
        self.history = CatalogHistory.read(self.files, self.plan, until=until)
        self.database = self.history.database(self.history.end_lsn, "postgres")
        self.figures = Counter[str]()

    def compare_rows(self, table: str, place: Seen) -> None:
        try:
            past = TableAt.open(self.path, self.plan, table, lsn=place.lsn, history=self.history,
                                database=self.database.name)  # fmt: skip
        except HistoryError:
            assert place.rows is None, place
            return
        found = past.whole()
        assert coverage_of(found) == COMPLETE, place.statement
        rows = rows_of_text(found.drop_columns([past.coverage_column]))
        names = tuple(a.name for a in past.table.columns)
        assert (names, tuple(rows)) == (place.names, place.rows), place.statement
        self.figures["tables equal"] += 1

    def compare_changes(self, table: str, before: Seen, after: Seen, found: list[Change]) -> None:
        own = [c for c in found if before.lsn < c.commit.end_lsn <= after.lsn]
        own = [c for c in own if c.table.name == table]
        if after.rows is None or (before.rows is not None and before.names != after.names):
            return
        rows = folded(before.rows or (), own, after.names)
        if rows == Counter(after.rows):
            self.figures["folds equal"] += 1
            return
        reader = ChangeReader(self.files, self.plan, self.history, self.database)
        reader.find([table], before.lsn, after.lsn)
        is_said = reader.undescribed(before.lsn, after.lsn) or reader.remarks()
        assert is_said or {c.coverage for c in own} - {COMPLETE}, after.statement
        self.figures["ranges not complete, said"] += 1


def compare(server: PostgresServer, major: int) -> Counter[str]:
    server.sql(f"CREATE TABLESPACE elsewhere LOCATION '{make_directory()}'")
    pasts = {each.table: worked(server, each) for each in steps(major)}
    past = Past(server, max(place.lsn for places in pasts.values() for place in places))
    found = ChangeReader(past.files, past.plan, past.history, past.database).read()
    for table, places in pasts.items():
        for before, after in pairwise(places):
            past.compare_rows(table, after)
            past.compare_changes(table, before, after, found)
    return past.figures


@pytest.mark.soak
@pytest.mark.parametrize("major", [15, *versions({13, 14, 16, 17, 18})])
def test_each_step_is_that_of_the_server(major: int) -> None:
    own = int(binary_directory().parent.name) if binary_directory().parent.name.isdigit() else 0
    chosen = contextlib.nullcontext() if major == own else installation(binaries_or_skip(major))
    with chosen, PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        figures = compare(server, major)
        assert figures["tables equal"] > 60 and figures["folds equal"] > 40, figures
