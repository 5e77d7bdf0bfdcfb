"""A logical log and a primary of another past: one that was set back, or has other publications.

The timeline's number and the LSNs do not show it. The server was not promoted, and its WAL is
beyond the log's end when the proposer looks.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.change_consumer import create_slot, receive, transactions
from tests.support.cluster import lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster, inserts

pytestmark = pytest.mark.postgres


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            "CREATE TABLE journal (id int PRIMARY KEY, v text)",
            "CREATE TABLE other (id int PRIMARY KEY)",
            "CREATE PUBLICATION p FOR TABLE journal",
            "CREATE PUBLICATION q FOR TABLE other",
        )
        yield server


@pytest.fixture
def cluster(primary: PostgresServer) -> Iterator[LogicalCluster]:
    with LogicalCluster.create(primary) as made:
        yield made


def ids(cluster: LogicalCluster, until: str) -> list[int]:
    found = transactions(receive(cluster.ports[0], "feed", until))
    return [int(row["id"]) for row in inserts(found, "public.journal")]


def whole_end_lsn(cluster: LogicalCluster) -> str:
    """Return the end of the log, when every safekeeper has all WAL of the primary."""
    end_lsn: str = cluster.primary.sql("SELECT pg_current_wal_flush_lsn()")

    def ends() -> list[str]:
        return sorted(line["end_lsn"] for line in cluster.status()["safekeepers"])

    wait_until(lambda: all(lsn_of(lsn) >= lsn_of(end_lsn) for lsn in ends()))
    return ends()[0]


def hanging_inserts(primary: PostgresServer, numbers: range) -> list[subprocess.Popen[str]]:
    """Begin each in a session of its own, because they wait for the log's quorum."""
    row = "INSERT INTO journal VALUES ({}, 'instead of it')"
    return [primary.psql("-c", row.format(number)) for number in numbers]


@pytest.mark.parametrize(
    "proposer", ["started later", pytest.param("running", marks=pytest.mark.soak)]
)
def test_a_primary_that_was_set_back_to_a_snapshot_is_refused(
    cluster: LogicalCluster, primary: PostgresServer, proposer: str
) -> None:
    """Its slot is in the snapshot. Its WAL below the log's end would be acknowledged in no log."""
    create_slot(cluster.ports[0], "feed")
    primary.sql("INSERT INTO journal SELECT g, 'before it' FROM generate_series(1, 3) g")
    primary.stop("immediate")
    snapshot = primary.directory / "snapshot"
    subprocess.run(["cp", "-a", str(primary.data), str(snapshot)], check=True)
    primary.start()
    primary.sql("INSERT INTO journal SELECT g, 'behind it' FROM generate_series(11, 13) g")
    end = whole_end_lsn(cluster)
    if proposer != "running":
        cluster.proposer.kill()
    primary.kill()
    shutil.rmtree(primary.data)
    snapshot.rename(primary.data)
    if proposer == "running":
        cluster.proposer.signal(signal.SIGSTOP)
    primary.start()
    hanging = hanging_inserts(primary, range(21, 27))
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: primary.sql(waiting) == len(hanging))
    primary.sql(
        "SET synchronous_commit = local", "INSERT INTO other SELECT generate_series(1, 3000)"
    )
    assert primary.sql(f"SELECT pg_current_wal_flush_lsn() > '{end}'")
    if proposer == "running":
        cluster.proposer.signal(signal.SIGCONT)
    else:
        cluster.proposer.start(wait=False)
    assert cluster.proposer.ended() == 1
    assert "was set back to an older state" in cluster.proposer.output()
    assert "make a new log" in cluster.proposer.output()
    assert all(session.poll() is None for session in hanging), "a commit that is in no log"
    assert ids(cluster, end) == [1, 2, 3, 11, 12, 13]
    for session in hanging:
        session.kill()
        session.communicate()


def test_a_proposer_of_other_publications_is_refused(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    """Consumers ask for those of the log: they would be given rows of others, and lack theirs."""
    create_slot(cluster.ports[0], "feed")
    primary.sql("INSERT INTO journal VALUES (1, 'v')")
    cluster.proposer.terminate()
    other = cluster.new_proposer("other", "--logical", "--publication", "q")
    other.start(wait=False)
    assert other.ended() == 1
    assert "the log keeps publication p, and not publication q" in other.output()
    assert "start the proposer with --publication p" in other.output()
    cluster.proposer.start()
    primary.sql("INSERT INTO journal VALUES (2, 'v')")
    assert ids(cluster, whole_end_lsn(cluster)) == [1, 2]
