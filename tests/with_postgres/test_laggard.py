"""A safekeeper that was away while WAL flowed costs neither memory nor the primary's disk."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.waiting import wait_until
from tests.with_postgres.cluster import Cluster
from tests.with_postgres.conftest import Figure
from tests.with_postgres.wal_files import segments

pytestmark = pytest.mark.postgres

MEBIBYTE = 1 << 20
WAL_MB = 2048 if os.environ.get("WALKEEPER_BIG_TESTS") == "1" else 256
MESSAGE_MB = 8
RSS_MB_MAX = 200
PG_WAL_MB_MAX = 128
MESSAGE = f"SELECT pg_logical_emit_message(true, 'load', repeat('x', {MESSAGE_MB * MEBIBYTE}))"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """It keeps no more WAL than it must."""
    small = {"max_wal_size": "48MB", "min_wal_size": "32MB", "checkpoint_timeout": "30s"}
    with PostgresServer.create({**small, "wal_keep_size": "32MB"}) as server:
        yield server


def memory_mb(pid: int, name: str) -> float:
    """VmRSS now, VmHWM at most since the start."""
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found, name
    return int(found.group(1)) / 1024


def pg_wal_mb(primary: PostgresServer) -> float:
    size: int = primary.sql("SELECT sum(size) FROM pg_ls_waldir()")
    return float(size) / MEBIBYTE


def test_a_returned_laggard_is_fed_without_memory_or_disk_growing(
    cluster: Cluster, primary: PostgresServer, figure: Figure
) -> None:
    laggard = cluster.safekeepers[1]
    laggard.kill()
    most_pg_wal_mb = 0.0
    began_s = time.monotonic()
    for written_mb in range(0, WAL_MB, MESSAGE_MB):
        primary.sql(MESSAGE)
        if written_mb % 64 == 0:
            most_pg_wal_mb = max(most_pg_wal_mb, pg_wal_mb(primary))
    figure("bulk WAL, MB/s", WAL_MB / (time.monotonic() - began_s))
    primary.sql("CHECKPOINT")
    wait_until(lambda: pg_wal_mb(primary) < PG_WAL_MB_MAX, 40)
    figure("primary's pg_wal at most while one safekeeper is down, MB", most_pg_wal_mb)
    began_s = time.monotonic()
    laggard.start()
    primary.sql(MESSAGE)  # commits go on while it is fed
    cluster.wait_all_equal(600 if WAL_MB > 256 else 120)
    figure("a laggard is fed, MB/s", WAL_MB / (time.monotonic() - began_s))
    most_rss_mb = memory_mb(cluster.proposer.pid, "VmHWM")
    figure("proposer's memory at most, MB", most_rss_mb)
    for safekeeper in cluster.safekeepers:
        figure(f"{safekeeper.name}'s memory at most, MB", memory_mb(safekeeper.pid, "VmHWM"))
    assert most_pg_wal_mb < 2 * PG_WAL_MB_MAX
    assert most_rss_mb < RSS_MB_MAX
    assert_all_equal(cluster)


def assert_all_equal(cluster: Cluster) -> None:
    """Every segment of the three safekeepers, below the end that they have in common."""
    directories = [cluster.wal_dir(number) for number in (1, 2, 3)]
    common = set.intersection(*(set(segments(directory)) for directory in directories))
    assert len(common) * 16 >= min(WAL_MB, 1024) - 32  # --wal-keep-size is 1GB
    for name in common:
        first, *others = ((directory / name).read_bytes() for directory in directories)
        assert all(other == first for other in others), f"{name} differs"
