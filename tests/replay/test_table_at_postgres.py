"""A table as of an LSN is what SELECT gives on a real restore to it; all types, DDL, drops, and
transactions that overlap."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.proof.recoveries.folds import difference
from tests.replay.restored import restored
from tests.replay.schemas import Schemas
from tests.replay.sessions import Sessions
from tests.support.postgres_server import PostgresServer, run_as_server_user
from tests.support.seeds import drawn_seed
from walkeeper_common.lsn import Lsn
from walkeeper_history.rows.events import XACT_COLUMNS, lock_arrays, transactions_of
from walkeeper_history.rows.view import View
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.wal_pass import pass_over
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import Batch
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
LSNS = int(os.environ.get("REPLAY_LSNS") or 4)
SETTINGS = {
    "wal_level": "replica",
    "max_prepared_transactions": "10",
    "wal_keep_size": "8GB",
    "fsync": "off",
    "hot_standby": "on",
}


@dataclass
class Played:
    """A server that has worked and stopped: its WAL, a backup from before, LSNs in between."""

    wal: Path
    backup: PostgresServer
    before: Path
    lsns: list[int] = field(default_factory=list)
    dropped_at: int = 0
    doomed: list[tuple[str | None, ...]] = field(default_factory=list)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    seed = drawn_seed()
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        with server.connect(options="-c statement_timeout=120s") as connection:
            work = Schemas(connection, seed)
            work.create()
            # The segments of a server of 15 begin with initdb's: catalogs are known from here on.
            backup = server.base_backup()
            made = Played(server.data / "pg_wal", backup, backup.directory / "base")
            run_as_server_user(["cp", "-a", str(backup.data), str(made.before)])
            made.lsns.append(_lsn(server))
            work.play(6, lambda: made.lsns.append(_lsn(server)))
            made.dropped_at = _lsn(server)
            made.doomed = [
                (str(row[0]), row[1]) for row in server.rows("SELECT * FROM doomed ORDER BY ctid")
            ]
            work.run("DROP TABLE doomed", "CREATE TABLE later (id int)", "SELECT pg_switch_wal()")
        server.stop()
        yield made
        backup.delete()


@pytest.fixture
def overlapped() -> Iterator[Played]:
    """By sessions whose transactions were open at the backup, and some at the crash."""
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        work = Sessions(server, drawn_seed())
        work.create()
        for _ in range(100):
            work.step()
        backup = server.base_backup()
        made = Played(server.data / "pg_wal", backup, backup.directory / "base")
        run_as_server_user(["cp", "-a", str(backup.data), str(made.before)])
        made.lsns.append(_lsn(server))
        work.goes_deep = True
        for number in range(400):
            if number == 200:
                work.crash()
            work.step()
        made.dropped_at = _lsn(server)
        work.close()
        server.sql("SELECT pg_switch_wal()")
        server.stop()
        yield made
        backup.delete()


def _lsn(server: PostgresServer) -> int:
    return int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))


def test_rows_are_those_of_a_restore_to_random_places(played: Played) -> None:
    _compare(played)


def test_rows_are_those_of_a_restore_while_transactions_overlap(overlapped: Played) -> None:
    _compare(overlapped)


def _compare(played: Played) -> None:
    seed = drawn_seed()
    chosen = sorted(random.Random(seed).sample(_record_ends(played), LSNS))
    base = BaseDirectory(str(played.before))
    with restored(played.backup, played.wal) as restore:
        for lsn in chosen:
            restore.to(lsn)
            tables = restore.tables()
            for table in tables:
                past = _table_at(played, table, lsn, base)
                assert past.column_names[-1] == "coverage"
                rows = rows_of_text(past.drop_columns(["coverage"]))
                expected = restore.rows(table)
                assert rows == expected, f"{table} at {Lsn(lsn)}: {difference(rows, expected)}"
                assert set(past["coverage"].to_pylist()) <= {COMPLETE}
            sys.stderr.write(f"{Lsn(lsn)}: {len(tables)} tables equal\n")


def _table_at(
    played: Played, table: str, lsn: int, base: BaseDirectory | None, threads: int = 1
) -> Any:
    return _opened(played, table, lsn, base).whole(threads)


def _opened(played: Played, table: str, lsn: int, base: BaseDirectory | None) -> TableAt:
    plan = make_plan(open_files(str(played.wal)), start_lsn=base.redo_lsn if base else None)
    return TableAt.open(
        str(played.wal), plan, f"public.{table}", lsn=lsn, base=base, database="postgres"
    )


def _record_ends(played: Played) -> list[int]:
    """Return the ends of all records after the backup, but those under AccessExclusiveLocks.

    There a real standby answers no query (under VACUUM FULL pg_class not even a connection).
    """
    ends: list[int] = []
    locked: dict[int, int] = {}
    unlocked: dict[int, int] = {}

    def take(batch: Batch) -> None:
        ends.extend(batch.end_lsn().tolist())
        arrays = lock_arrays(View(batch))
        pairs = zip(arrays["xid"].to_pylist(), arrays["start_lsn"].to_pylist(), strict=True)
        for xid, lsn in pairs:
            locked.setdefault(xid, lsn)
        over = transactions_of(View(batch))
        kinds = XACT_COLUMNS["kind"].make(over).to_pylist()
        xids = XACT_COLUMNS["xid"].make(over).to_pylist()
        for xid, kind, lsn in zip(xids, kinds, over.end_lsn.tolist(), strict=True):
            if kind != "prepare":
                unlocked[xid] = lsn

    plan = make_plan(
        open_files(str(played.wal)), start_lsn=played.lsns[0], end_lsn=played.dropped_at + 2000
    )
    pass_over(open_files(str(played.wal)), plan, [take])
    spans = [(begin, unlocked.get(xid, 1 << 62)) for xid, begin in locked.items()]
    return [e for e in ends if not any(begin < e < end for begin, end in spans)]


def test_a_dropped_table_comes_back_from_the_archive_alone(played: Played) -> None:
    """It was made within the WAL, so no backup is needed; behind the drop it is not there."""
    past = _table_at(played, "doomed", played.dropped_at, None)
    assert rows_of_text(past.drop_columns(["coverage"])) == played.doomed
    assert set(past["coverage"].to_pylist()) == {COMPLETE}
    with pytest.raises(HistoryError, match=r"no table public\.doomed"):
        _table_at(played, "doomed", played.lsns[-1] + (1 << 20), None)


def test_shares_of_blocks_are_the_whole_table(played: Played) -> None:
    past = _opened(played, "every_type", played.dropped_at, BaseDirectory(str(played.before)))
    shares = [batch for part in range(3) for batch in past.read(part, 3)]
    three = pa.Table.from_batches(shares, past.schema)
    assert sorted(rows_of_text(past.whole()), key=str) == sorted(rows_of_text(three), key=str)


def test_threads_make_the_same_rows_in_the_same_order(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = BaseDirectory(str(played.before))
    one = _table_at(played, "every_type", played.dropped_at, base)
    monkeypatch.setattr("walkeeper_replay.table_at.PAGES_PER_BATCH", 1)
    three = _table_at(played, "every_type", played.dropped_at, base, threads=3)
    assert max(column.num_chunks for column in three.columns) > 2, "pages are shared out"
    assert rows_of_text(three) == rows_of_text(one) and coverage_of(three) == coverage_of(one)
