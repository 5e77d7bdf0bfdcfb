"""Large and prepared transactions in a logical log: whole, at their commit, in bounded memory.

The proposer keeps a stream until the commit and drops a part that is rolled back. So the log has
neither parts of transactions nor aborts. A consumer that asks for streaming gets what it may always
get: whole transactions (docs/logical.md).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.change_consumer import (
    consumer_arguments,
    create_slot,
    receive,
    transactions,
)
from tests.support.cluster import lsn_of
from tests.support.postgres_server import PostgresServer, run_program, server_environment
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.logical_cluster import (  # noqa: F401
    SETTINGS,
    LogicalCluster,
    cluster,
    inserts,
    received_ids,
)

pytestmark = pytest.mark.postgres

ROWS, ROW_BYTES = 20_000, 10_240  # 200 MB
MEMORY_MB_MAX = 100  # more than before the transaction
FILL = (
    f"INSERT INTO large SELECT i, repeat(md5(i::text), {ROW_BYTES // 32}) "
    f"FROM generate_series({{}}, {{}}) i"
)


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    settings = {"logical_decoding_work_mem": "64kB", "max_prepared_transactions": "5"}
    with PostgresServer.create({**SETTINGS, **settings}) as server:
        server.sql(
            "CREATE PUBLICATION p FOR ALL TABLES",
            "CREATE TABLE large (id int PRIMARY KEY, v text)",
            "ALTER TABLE large ALTER v SET STORAGE EXTERNAL",
            "CREATE TABLE t (id int PRIMARY KEY)",
        )
        yield server


def streamed(port: int, slot: str, endpos: str, file: Path) -> None:
    """Start pg_recvlogical, which asks for transactions as they grow."""
    arguments = consumer_arguments(port, slot, "--start", "-n", "-f", str(file))
    arguments[arguments.index("proto_version=1")] = "proto_version=2"
    run_program([*arguments, "-o", "streaming=on", "--endpos", endpos])


def test_a_large_transaction_passes_in_bounded_memory_and_an_aborted_one_leaves_nothing(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
    tmp_path: Path,
    figure: Figure,
) -> None:
    create_slot(cluster.ports[0], "feed")
    daemons = [cluster.proposer, *cluster.safekeepers]
    before = [daemon.most_memory_mb() for daemon in daemons]
    kept = lsn_of(cluster.status()["cluster"]["commit_lsn"])
    primary.sql("BEGIN", FILL.format(1, ROWS), "ROLLBACK")
    primary.sql("BEGIN", "SAVEPOINT s", FILL.format(1, ROWS // 4), "ROLLBACK TO s",
                "INSERT INTO t VALUES (1)", "COMMIT")  # fmt: skip
    reached = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
    wait_until(lambda: lsn_of(cluster.status()["safekeepers"][0]["end_lsn"]) >= reached)
    grown = lsn_of(cluster.status()["cluster"]["commit_lsn"]) - kept
    assert grown < 64 << 10, f"{grown} bytes of the log for what was rolled back"
    primary.sql(FILL.format(1, ROWS))
    end_lsn = cluster.end_lsn()
    streamed(cluster.ports[0], "feed", end_lsn, tmp_path / "received")
    found = transactions((tmp_path / "received").read_bytes())
    assert received_ids((tmp_path / "received").read_bytes()) == [1]
    rows = list(inserts(found, "public.large"))
    assert [int(row["id"]) for row in rows] == list(range(1, ROWS + 1))
    assert all(len(row["v"]) == ROW_BYTES for row in rows)
    more = [daemon.most_memory_mb() - old for daemon, old in zip(daemons, before, strict=True)]
    figure("MB more than before 200 MB: the proposer", more[0])
    figure("MB more than before 200 MB: a safekeeper", max(more[1:]))
    assert max(more) < MEMORY_MB_MAX


def test_a_prepared_transaction_comes_whole_when_it_is_committed(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    create_slot(cluster.ports[0], "feed")
    for number in (1, 2):
        primary.sql("BEGIN", f"INSERT INTO t VALUES ({number})", f"PREPARE TRANSACTION 'g{number}'")
    primary.sql("INSERT INTO t VALUES (3)")
    cluster.proposer.kill()
    cluster.proposer.start()  # in between: it goes on behind what was prepared
    assert received_ids(receive(cluster.ports[0], "feed", cluster.end_lsn())) == [3]
    primary.sql("ROLLBACK PREPARED 'g1'")
    primary.kill()
    primary.start()
    primary.sql("COMMIT PREPARED 'g2'")
    assert received_ids(receive(cluster.ports[0], "feed", cluster.end_lsn())) == [2]


def test_a_subscription_may_ask_for_streaming_and_learns_that_two_phase_is_not_here(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    where = f"host=127.0.0.1 port={cluster.ports[0]} user=postgres dbname=postgres"
    with PostgresServer.create({"max_prepared_transactions": "5"}) as subscriber:
        subscriber.sql(
            "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE large (id int PRIMARY KEY, v text)"
        )
        subscribe = f"CREATE SUBSCRIPTION feed CONNECTION '{where}' PUBLICATION p WITH "
        subscriber.sql(f"{subscribe} (copy_data = false, streaming = on)")
        primary.sql("BEGIN", "INSERT INTO t SELECT generate_series(1, 5000)", "ROLLBACK")
        primary.sql("INSERT INTO t SELECT generate_series(1, 5000)")
        wait_until(lambda: subscriber.sql("SELECT count(*) FROM t") == 5000)
        # As 18 says ALTER SUBSCRIPTION … SET (failover = …, two_phase = …).
        with psycopg.connect(where, replication="database", autocommit=True) as altering:
            altering.execute("ALTER_REPLICATION_SLOT feed ( FAILOVER true, TWO_PHASE false )")
            for wish in ("feed ( TWO_PHASE true )", "unknown ( FAILOVER false )"):
                with pytest.raises(psycopg.Error, match=r"two-phase slots are not|does not exist"):
                    altering.execute(f"ALTER_REPLICATION_SLOT {wish}".encode())
        subscriber.sql("DROP SUBSCRIPTION feed")
        create = f"{subscribe} (copy_data = false, two_phase = on, slot_name = other)"
        with pytest.raises(psycopg.Error, match="two-phase slots are not available"):
            subscriber.sql(create)
    done = subprocess.run(
        [*consumer_arguments(cluster.ports[0], "new", "--create-slot", "-P", "pgoutput"), "-t"],
        env=server_environment(), capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert "two-phase slots are not available from a safekeeper" in done.stderr
