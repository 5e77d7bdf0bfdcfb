"""A healthy primary is accepted inside one transaction that outruns the safekeepers (R22)."""

from __future__ import annotations

import signal
import threading

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.postgres

KEPT = ("--wal-keep-size", "1MB")
MEGABYTE = "INSERT INTO big SELECT i, repeat('x', 900) FROM generate_series(1, {}000) i"
WINDOW_MB = 48  # MB of WAL that the proposer holds at most, so that it lags the primary


def _flushed(primary: PostgresServer) -> int:
    return lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))


@pytest.mark.parametrize(
    "trouble", ["proposer killed", pytest.param("connection reset", marks=pytest.mark.soak)]
)
def test_a_transaction_of_many_segments_outlives_a_new_connection(trouble: str) -> None:
    """The log has WAL of the transaction without any commit or checkpoint in it. The primary has
    recycled all WAL that the proposer's own slot does not hold."""
    settings = {"wal_keep_size": "0", "min_wal_size": "2MB"}
    options = ["--wal-segsize=1"]
    with PostgresServer.create(settings, initdb_options=options) as primary:
        cluster, load = Cluster(primary), primary.connect()
        try:
            for safekeeper in cluster.safekeepers:
                safekeeper.arguments += KEPT
            cluster.start_safekeepers()
            cluster.make_log()
            cluster.proposer.start()
            cluster.attach()
            primary.sql("CREATE TABLE big (i int, t text)", "CREATE TABLE small (i int)")
            load.execute(b"BEGIN")
            load.execute(MEGABYTE.format(12).encode())
            reached = _flushed(primary)
            kept = "SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 'walkeeper'"
            wait_until(lambda: lsn_of(primary.sql(kept)) >= reached - 8192)
            for safekeeper in cluster.safekeepers[:2]:
                safekeeper.signal(signal.SIGSTOP)
            load.execute(MEGABYTE.format(WINDOW_MB + 12).encode())
            primary.sql("CHECKPOINT")
            if trouble == "proposer killed":
                cluster.proposer.kill()
            else:
                primary.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            for safekeeper in cluster.safekeepers[:2]:
                safekeeper.signal(signal.SIGCONT)
            if trouble == "proposer killed":
                cluster.proposer.start("--take-over")
            committing = threading.Thread(target=load.execute, args=(b"COMMIT",), daemon=True)
            committing.start()
            committing.join(LIMIT_S)
            assert not committing.is_alive(), cluster.proposer.output()
            primary.sql("INSERT INTO small VALUES (1)")
            assert cluster.proposer.is_running
        finally:
            cluster.close()
            primary.stop()
            load.close()
