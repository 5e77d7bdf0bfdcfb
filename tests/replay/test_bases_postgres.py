"""A base backup after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.postgres_server import PostgresServer
from walkeeper_history.plan import make_plan
from walkeeper_history.wal_files import open_files
from walkeeper_replay.base import BaseDirectory
from walkeeper_replay.catalog import Catalog
from walkeeper_replay.catalog_history import CatalogHistory
from walkeeper_replay.table_at import COMPLETE, TableAt, coverage_of

pytestmark = pytest.mark.postgres
SETTINGS = {"wal_level": "replica", "fsync": "off", "autovacuum": "off", "full_page_writes": "on"}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as made:
        yield made


def _past(
    server: PostgresServer,
    table: str,
    start: int,
    base: BaseDirectory | None,
    lsn: int | None = None,
    catalog: Catalog | None = None,
) -> Any:
    wal = str(server.data / "pg_wal")
    plan = make_plan(open_files(wal), start_lsn=start)
    past = TableAt.open(wal, plan, table, lsn=lsn, base=base, database="postgres", catalog=catalog)
    return past.whole()


def _ids(table: Any) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_what_a_crash_ended_has_not_committed(server: PostgresServer) -> None:
    server.sql(
        "CREATE TABLE crashed (id int)",
        "CREATE TABLE elsewhere (id int)",
        "INSERT INTO crashed SELECT generate_series(1, 10)",
        "SELECT count(*) FROM crashed",
        "CHECKPOINT",
    )
    with server.connect() as deletes, server.connect() as inserts:
        deletes.execute("BEGIN")
        deletes.execute("DELETE FROM crashed WHERE id <= 5")
        inserts.execute("BEGIN")
        inserts.execute("INSERT INTO crashed VALUES (100)")
        server.sql("CHECKPOINT")
        server.stop("immediate")
        deletes.close()
        inserts.close()
    server.start()
    backup = server.base_backup()
    try:
        base = BaseDirectory(str(backup.data))
        server.sql("INSERT INTO elsewhere VALUES (1)")
        past = _past(server, "public.crashed", base.redo_lsn, base)
        assert (_ids(past), coverage_of(past)) == (list(range(1, 11)), COMPLETE)

        # Without the backup nobody can know, and that is said: of the rows that are missing, too.
        server.sql("INSERT INTO crashed VALUES (11)")
        wal = open_files(str(server.data / "pg_wal"))
        history = CatalogHistory.read(wal, make_plan(wal, start_lsn=base.redo_lsn), base=base)
        at = history.end_lsn
        catalog = history.at(at, history.database(at, "postgres"))
        past = _past(server, "public.crashed", base.redo_lsn, None, catalog=catalog)
        said = coverage_of(past)
        assert _ids(past) == [6, 7, 8, 9, 10, 11, 100]
        assert "1 rows of transactions that ended before this WAL" in said
        assert "5 rows taken away by transactions that ended before this WAL" in said
    finally:
        backup.delete()
