"""A table that was dropped comes back from walkeeper's archive when everything else is gone."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import ArchivingCluster
from tests.support.cluster import walkeeper
from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]

ORDERS = (
    "CREATE TABLE orders (id int PRIMARY KEY, who text, amount numeric(10,2))",
    "INSERT INTO orders SELECT i, 'customer ' || i, i / 7.0 FROM generate_series(1, 5000) i",
    "UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0",
    "DELETE FROM orders WHERE id > 4000",
)


def test_a_dropped_table_comes_back_when_only_the_archive_is_left(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url = f"file://{tmp_path}/archive"
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server:
        with ArchivingCluster.archiving(server, url, "--archive-compress", "zstd") as cluster:
            server.sql(*ORDERS)
            before = server.rows("SELECT orders::text FROM orders ORDER BY id")
            server.sql("DROP TABLE orders", "SELECT pg_switch_wal()", "SELECT txid_current()")
            cluster.wait_archived()
        shutil.rmtree(server.data / "pg_wal")
        server.kill()
    found = walkeeper("history", "find", "drop", "--path", url)
    assert found.returncode == 0, found
    lsn = re.findall(r"recovery_target_lsn = '(.*)'", found.stdout)[0]
    done = walkeeper(
        "history", "table-at", "orders", "--path", url, "--lsn", lsn, "--database", "postgres",
        "--output", str(tmp_path / "orders.sql"),
    )  # fmt: skip
    assert done.returncode == 0, done
    with PostgresServer.create() as other:
        other.sql(ORDERS[0])
        psql = [program("psql"), "-Xq", "-v", "ON_ERROR_STOP=1", "-d", other.dsn(), "-f"]
        subprocess.run(
            [*psql, str(tmp_path / "orders.sql")],
            env=server_environment(),
            check=True,
            timeout=LIMIT_S,
        )
        assert other.rows("SELECT orders::text FROM orders ORDER BY id") == before
