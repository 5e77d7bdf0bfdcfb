"""A safekeeper that was away while WAL flowed costs neither memory nor the primary's disk."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.postgres_server import PostgresServer
from tests.support.segment_files import segments
from tests.support.waiting import wait_until
from tests.with_postgres.conftest import Figure

pytestmark = pytest.mark.postgres

MEBIBYTE = 1 << 20
WAL_MB = 2048 if os.environ.get("WALKEEPER_BIG_TESTS") == "1" else 256
MESSAGE_MB = 8
BACKLOG_MB = 256
RSS_MB_MAX = 200
PG_WAL_MB_MAX = 128
MESSAGE = f"SELECT pg_logical_emit_message(true, 'load', repeat('x', {MESSAGE_MB * MEBIBYTE}))"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """It keeps no more WAL than it must."""
    small = {"max_wal_size": "48MB", "min_wal_size": "32MB", "checkpoint_timeout": "30s"}
    with PostgresServer.create({**small, "wal_keep_size": "32MB"}) as server:
        yield server


def pg_wal_mb(primary: PostgresServer) -> float:
    size: int = primary.sql("SELECT sum(size) FROM pg_ls_waldir()")
    return float(size) / MEBIBYTE


@pytest.mark.soak
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
    wait_until(lambda: pg_wal_mb(primary) < PG_WAL_MB_MAX)
    figure("primary's pg_wal at most while one safekeeper is down, MB", most_pg_wal_mb)
    began_s = time.monotonic()
    laggard.start()
    primary.sql(MESSAGE)  # commits go on while it is fed
    cluster.wait_all_equal(600 if WAL_MB > 256 else 120)
    figure("a laggard is fed, MB/s", WAL_MB / (time.monotonic() - began_s))
    most_rss_mb = cluster.proposer.most_memory_mb()
    figure("proposer's memory at most, MB", most_rss_mb)
    for safekeeper in cluster.safekeepers:
        figure(f"{safekeeper.name}'s memory at most, MB", safekeeper.most_memory_mb())
    assert most_pg_wal_mb < 2 * PG_WAL_MB_MAX
    assert most_rss_mb < RSS_MB_MAX
    assert_all_equal(cluster)


def write_locally(primary: PostgresServer, megabytes: int) -> None:
    """Write without a wait for the quorum."""
    for _ in range(0, megabytes, MESSAGE_MB):
        primary.sql("SET synchronous_commit = local", MESSAGE)


@pytest.mark.parametrize("away", ["killed", pytest.param("frozen", marks=pytest.mark.soak)])
def test_without_a_quorum_the_proposer_waits_and_does_not_collect_wal_in_memory(
    cluster: Cluster, primary: PostgresServer, figure: Figure, away: str
) -> None:
    for safekeeper in cluster.safekeepers[:2]:
        safekeeper.signal(signal.SIGKILL if away == "killed" else signal.SIGSTOP)
    write_locally(primary, BACKLOG_MB)
    for safekeeper in cluster.safekeepers[:2]:
        if away == "killed":
            safekeeper.ended()
            safekeeper.start()
        else:
            safekeeper.signal(signal.SIGCONT)
    primary.sql(MESSAGE)  # waits for the quorum, behind all of the backlog
    cluster.wait_all_equal(120)
    figure("proposer's memory at most, MB", cluster.proposer.most_memory_mb())
    assert cluster.proposer.most_memory_mb() < RSS_MB_MAX
    assert_all_equal(cluster)


def assert_all_equal(cluster: Cluster) -> None:
    """Compare every segment of the three safekeepers, below their common end."""
    directories = [cluster.wal_dir(number) for number in (1, 2, 3)]
    common = set.intersection(*(set(segments(directory)) for directory in directories))
    assert len(common) * 16 >= min(WAL_MB, BACKLOG_MB) - 32
    for name in common:
        first, *others = ((directory / name).read_bytes() for directory in directories)
        assert all(other == first for other in others), f"{name} differs"
