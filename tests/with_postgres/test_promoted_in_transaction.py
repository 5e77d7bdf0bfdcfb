"""R22 at a failover: a primary dies inside a long transaction, and its standby takes over.

All with PostgreSQL's defaults (wal_keep_size 0). The log's end has neither a commit nor a
checkpoint near it, and a checkpoint runs between the promotion and the proposer's first look.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.standbys import feed_from, wait_replayed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

MEGABYTE = "INSERT INTO big SELECT i, repeat('x', 900) FROM generate_series(1, {}000) i"
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walkeeper_retention'"
OLDEST = "SELECT min(name) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'"


@pytest.mark.parametrize("looked_by", ["follow", pytest.param("settle", marks=pytest.mark.soak)])
def test_a_standby_promoted_inside_a_transaction_is_taken(looked_by: str) -> None:
    settings = {"wal_keep_size": "0", "min_wal_size": "2MB"}
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(
            PostgresServer.create(settings, initdb_options=["--wal-segsize=1"])
        )
        cluster = stack.enter_context(Cluster.create(primary))
        primary.sql("CREATE TABLE big (i int, t text)", "CREATE TABLE small (i int)")
        standby = primary.base_backup()
        stack.callback(standby.delete)
        feed_from(standby, cluster.ports[0])
        (standby.data / "standby.signal").touch()
        standby.start()
        follower = cluster.new_proposer("follower", "--follow", dsn=standby.dsn())
        if looked_by == "follow":
            follower.start()
            wait_until(lambda: standby.sql(SLOTS) == 1)
        load = primary.connect()
        stack.callback(load.close)
        load.execute(b"BEGIN")
        load.execute(MEGABYTE.format(12).encode())
        cluster.wait_all_equal()
        cluster.proposer.kill()
        primary.kill()
        options = ["--seal"]
        if looked_by == "settle":
            options += ["--replayed-by", standby.dsn()]
        end = cluster.settle(*options)
        wait_replayed(standby, lsn_of(end["consensus_lsn"]))
        if looked_by == "follow":
            follower.kill()
        standby.promote()
        with standby.connect() as connection:
            connection.execute("SET synchronous_commit = local")
            for _ in range(3):
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CHECKPOINT")
        cluster.proposers[-1].start()
        standby.sql("INSERT INTO small VALUES (1)")
        assert standby.sql("SELECT count(*) FROM big") == 0, "the transaction was open"
        assert cluster.proposers[-1].is_running
