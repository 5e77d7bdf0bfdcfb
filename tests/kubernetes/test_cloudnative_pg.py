"""The setting that CloudNativePG makes of docs/kubernetes, and its failover, on real servers.

The operator itself needs a Kubernetes cluster. The test does its steps: a standby that streams from
the primary and has both slots, and a promotion without a hook of ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.kubernetes.test_manifests import standby_names
from tests.support.cluster import Cluster
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

STANDBY = "shop-2"
SLOTS = (
    "SELECT pg_create_physical_replication_slot('walkeeper', true)",
    "SELECT pg_create_physical_replication_slot('walkeeper_retention', true)",
)
SYNCHRONOUS = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
RECEIVED = "SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
FLUSHED = "SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn"
SILENT_S = 1.0


@contextlib.contextmanager
def standby_by_name(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Give a standby that streams from the primary under the name of its pod, with both slots."""
    standby = primary.base_backup()
    try:
        standby.configure({"primary_conninfo": primary.dsn(application_name=STANDBY)})
        (standby.data / "standby.signal").touch()
        standby.start()
        standby.sql(*SLOTS)
        yield standby
    finally:
        standby.delete()


def read_write_service(*servers: PostgresServer) -> str:
    """Return a DSN that reaches the primary among them, as the service shop-rw does."""
    hosts = ",".join("127.0.0.1" for _ in servers)
    ports = ",".join(str(server.port) for server in servers)
    where = f"host={hosts} port={ports} target_session_attrs=primary"
    return f"{where} user=postgres dbname=postgres"


def set_names(server: PostgresServer, names: str) -> None:
    server.configure({"synchronous_standby_names": names})
    server.reload()


def test_commits_wait_for_the_quorum_and_for_one_standby_and_a_promotion_keeps_them() -> None:
    with (
        PostgresServer.create() as primary,
        standby_by_name(primary) as standby,
        contextlib.closing(Cluster(primary)) as cluster,
    ):
        cluster.start_safekeepers()
        cluster.make_log()
        proposer = cluster.new_proposer(
            "read_write", "--follow", dsn=read_write_service(primary, standby)
        )
        proposer.start()
        with Journal(primary) as journal:
            set_names(primary, 'FIRST 1 ("walkeeper","shop-2")')
            proposer.kill()
            journal.wait_for_more(20)  # a second name: commits go on without walkeeper
            proposer.start()
            set_names(primary, standby_names([STANDBY, "shop-3"]))
            journal.wait_for_more(20)
            proposer.kill()
            assert journal.is_silent_for(SILENT_S), "a commit returned without walkeeper"
            proposer.start()
            journal.wait_for_more(20)
            standby.stop()
            assert journal.is_silent_for(SILENT_S), "a commit returned without a standby"
            standby.start()
            journal.wait_for_more(100)
            assert primary.sql(SYNCHRONOUS) == 2
        # A promotion is accepted if the standby has all that the quorum has: nobody writes now.
        cluster.wait_all_equal()
        wait_until(lambda: standby.sql(RECEIVED) >= primary.sql(FLUSHED))
        primary.kill()
        standby.promote()
        set_names(standby, 'FIRST 1 ("walkeeper")')
        with Journal(standby) as later:
            later.wait_for_more(20)
        assert not journal.lost_in(standby)
        assert cluster.status()["cluster"]["timeline"] == 2
