"""pgbench's four sums agree at any LSN, while four clients were at it."""

from __future__ import annotations

import random

import pyarrow.compute as compute
import pytest

from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from tests.support.seeds import drawn_seed
from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.table_at import TableAt
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off", "checkpoint_timeout": "30s"}
COLUMNS = {
    "accounts": "abalance",
    "branches": "bbalance",
    "tellers": "tbalance",
    "history": "delta",
}
LSNS = 5


def test_the_four_sums_agree_at_random_places() -> None:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        run_as_server_user([program("pgbench"), "-iq", "-s", "1", server.dsn()])
        first = Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()"))
        run_as_server_user([program("pgbench"), "-n", "-c", "4", "-t", "600", server.dsn()])
        last = Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()"))
        wal = str(server.data / "pg_wal")
        seeded, files = random.Random(drawn_seed()), open_files(wal)
        plan = make_plan(files)
        seen = set()
        for lsn in sorted(seeded.randrange(first, last) for _ in range(LSNS)):
            history = CatalogHistory.read(files, plan, until=lsn)
            sums = {}
            for table, column in COLUMNS.items():
                past = TableAt.open(wal, plan, f"pgbench_{table}", lsn=lsn, history=history)
                rows = past.whole()
                assert set(rows["coverage"].to_pylist()) <= {COMPLETE}
                sums[table] = compute.sum(rows[column]).as_py() or 0
            assert len(set(sums.values())) == 1, f"{Lsn(lsn)}: {sums}"
            seen |= set(sums.values())
        assert len(seen) > 1
