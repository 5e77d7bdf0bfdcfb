"""The logical log with PostgreSQL 17 and 18: each part is killed once, and no change is lost.

A standby with a synchronised failover slot is promoted, and the log goes on there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.change_consumer import create_slot, receive, transactions
from tests.support.cluster import Cluster, walkeeper
from tests.support.installations import binaries_or_skip, versions
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, installation
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.logical_cluster import (  # noqa: F401
    SETTINGS,
    ChangingSchema,
    LogicalCluster,
    check_stream,
    cluster,
    inserts,
    pgbench,
)
from walkeeper_proposer.postgres.publication_tables import published_query

pytestmark = pytest.mark.postgres


@pytest.fixture(params=versions([17, 18]), ids=lambda major: f"PostgreSQL {major}")
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    programs = binaries_or_skip(request.param)
    with (
        installation(programs),
        PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server,
    ):
        assert server.sql("SHOW server_version_num").startswith(str(request.param))
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        yield server


@pytest.mark.soak
def test_a_consumers_tables_are_the_primarys_after_each_part_was_killed(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    slot = "SELECT failover FROM pg_replication_slots WHERE slot_name = 'walkeeper_changes'"
    assert primary.sql(slot) is True
    create_slot(cluster.ports[0], "feed")
    pgbench(primary, "-i", "-q", "-s", "1")
    load = threading.Thread(target=pgbench, args=(primary, "-n", "-c", "2", "-T", "5"))
    with Journal(primary) as journal, ChangingSchema(primary) as schema:
        load.start()
        for kill in (cluster.safekeepers[0], cluster.proposer, cluster.safekeepers[1]):
            journal.wait_for_more(50)
            kill.kill()
            kill.start()
        load.join()
        journal.wait_for_more(50)
        primary.kill()
        primary.start()
        journal.wait_for_more(50)
    assert schema.changes > 3 and not journal.cancelled
    stream = receive(cluster.ports[2], "feed", cluster.end_lsn())
    replica = check_stream(stream, primary, journal)
    assert len(replica.keyed["public.pgbench_accounts"]) == 100_000


def test_a_stock_subscription_of_this_version_follows_the_log(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, v text)"
    primary.sql(table, "INSERT INTO t VALUES (0, 'before')")
    with PostgresServer.create() as subscriber:
        subscriber.sql(table)
        where = f"host=127.0.0.1 port={cluster.ports[0]} user=postgres dbname=postgres"
        subscribe = f"CREATE SUBSCRIPTION feed CONNECTION '{where}' PUBLICATION p"
        subscriber.sql(f"{subscribe} WITH (copy_data = false)")
        primary.sql("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b' WHERE id = 1")
        wait_until(lambda: subscriber.rows("SELECT * FROM t") == [(1, "b")])


@pytest.mark.parametrize("primary", [18], indirect=True)
def test_a_spilled_transaction_that_is_rolled_back_is_no_end_of_the_log(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    """18 says a Stream Abort of it, though nothing is streamed."""
    create_slot(cluster.ports[0], "feed")
    primary.sql("CREATE TABLE t (id int, v text)")
    cluster.proposer.terminate()
    primary.configure({"logical_decoding_work_mem": "64kB"})
    primary.reload()
    end = primary.sql(
        "SET synchronous_commit = local",
        "BEGIN",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (11, 'x')",
        "RELEASE s",
        "INSERT INTO t SELECT i, repeat(md5(i::text), 20) FROM generate_series(12, 6000) i",
        "ROLLBACK",
        "INSERT INTO t VALUES (9, 'after')",
        "SELECT pg_current_wal_flush_lsn()",
    )
    cluster.proposer.start("--spool-size-max", "0")
    confirmed = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots"
    wait_until(lambda: primary.sql(confirmed))
    found = transactions(receive(cluster.ports[0], "feed", end))
    assert [row["id"] for row in inserts(found, "public.t")] == ["9"]
    assert "lost the primary" not in cluster.proposer.output()


@contextlib.contextmanager
def failover_standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    """Make a standby as PostgreSQL's manual has it (Logical Replication Failover).

    The walsender of the logical slot waits for the standby, which keeps the slot in step.
    """
    primary.sql("SELECT pg_create_physical_replication_slot('standby', true)")
    primary.configure({"synchronized_standby_slots": "standby"})
    standby = primary.base_backup()
    try:
        feed = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
        standby.configure(
            {
                "wal_level": "logical",
                "primary_conninfo": feed,
                "primary_slot_name": "standby",
                "hot_standby_feedback": "on",
                "sync_replication_slots": "on",
                "synchronized_standby_slots": "",  # or its own walsender would wait, promoted
                "wal_receiver_status_interval": "1s",
            }
        )
        (standby.data / "standby.signal").touch()
        standby.start()
        primary.reload()
        yield standby
    finally:
        standby.delete()


def test_the_log_goes_on_at_a_promoted_standby_that_has_the_failover_slot(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    create_slot(cluster.ports[0], "feed")
    with failover_standby(primary) as standby:
        dsn = standby.dsn()
        waiting = cluster.new_proposer(
            "waiting", "--logical", "--publication", "p", "--follow", dsn=dsn
        )
        waiting.start()
        seals = primary.sql("SHOW server_version").startswith("18")
        synced = (
            "SELECT synced AND NOT temporary AND invalidation_reason IS NULL "
            "FROM pg_replication_slots WHERE slot_name = 'walkeeper_changes'"
        )
        with Journal(primary) as journal:
            wait_until(lambda: standby.sql(synced))
            journal.wait_for_more(100)
            primary.kill()
        old = cluster.proposer
        if seals:
            cluster.settle("--seal")  # its proposer is alive elsewhere
        else:
            old.kill()
        standby.promote()
        with Journal(standby) as later:
            later.wait_for_more(100)
        assert cluster.status()["cluster"]["proposer"]["application_name"] == "walkeeper_changes"
        standby.sql("CREATE TABLE fence (id int)", "INSERT INTO fence VALUES (1)")
        end_lsn = standby.sql("SELECT pg_current_wal_flush_lsn()")
        found = transactions(receive(cluster.ports[2], "feed", end_lsn))
        ids = [int(row["id"]) for row in inserts(found, "public.journal")]
        assert len(ids) == len(set(ids)), "a transaction is there twice"
        acknowledged = {entry.id for entry in (*journal.entries, *later.entries)}
        assert not acknowledged - set(ids)
        assert sorted(ids) == [row[0] for row in standby.rows("SELECT id FROM journal ORDER BY 1")]
        assert [one.end_lsn for one in found] == sorted({one.end_lsn for one in found})
        for proposer in (waiting, old):
            proposer.kill()
        primary.start()
        old.start(wait=False)
        assert old.ended() == 1
        assert "behind a promotion" in old.output()


def test_a_proposer_starts_while_a_session_holds_the_lock_of_a_table_that_it_altered(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    primary.sql("CREATE TABLE altered (id int)")
    cluster.proposer.kill()
    with primary.psql("-c", "ALTER TABLE altered ADD COLUMN v text") as altering:
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        wait_until(lambda: primary.sql(waits) == 1)
        cluster.proposer.start()  # the commit waits for it, and the lock for the commit
        assert altering.wait(LIMIT_S) == 0


def test_published_tables_are_those_of_postgresqls_view(
    primary: PostgresServer,
) -> None:
    primary.sql(
        "CREATE SCHEMA s",
        "CREATE TABLE plain (id int)",
        "CREATE TABLE s.inner_one (id int)",
        "CREATE UNLOGGED TABLE s.unlogged (id int)",
        "CREATE TABLE heir () INHERITS (plain)",
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE s.low PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (99) PARTITION BY RANGE (id)",
        "CREATE TABLE leaf PARTITION OF high FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION roots FOR ALL TABLES WITH (publish_via_partition_root = true)",
        "CREATE PUBLICATION schemas FOR TABLES IN SCHEMA s",
        "CREATE PUBLICATION one FOR TABLE plain, root",
        "CREATE PUBLICATION via FOR TABLE high WITH (publish_via_partition_root = true)",
        "CREATE PUBLICATION alone FOR TABLE ONLY plain",
    )
    version = int(primary.sql("SHOW server_version_num"))
    for names in (["p"], ["roots"], ["schemas"], ["one"], ["via"], ["alone"], ["one", "schemas"]):
        listed = ", ".join(f"'{name}'" for name in names)
        view = primary.rows(
            "SELECT DISTINCT schemaname, tablename FROM pg_publication_tables "
            f"WHERE pubname IN ({listed})"
        )
        found = primary.rows(published_query(names, version))
        assert sorted(row[:2] for row in found) == sorted(view), names


@pytest.mark.soak
@pytest.mark.parametrize("primary", [13], indirect=True)
def test_before_14_a_truncate_waits_for_what_waits_for_it_and_attach_says_so(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    """The fault is the server's, as with any synchronous subscriber; attach warns of it."""
    said = "a TRUNCATE of a published table that has a primary key hangs"
    assert said in walkeeper("attach", "--dsn", primary.dsn()).stderr
    primary.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    truncating = threading.Thread(target=primary.sql, args=("TRUNCATE t",))
    truncating.start()
    locked = "SELECT count(*) FROM pg_locks JOIN pg_stat_replication USING (pid) WHERE NOT granted"
    wait_until(lambda: primary.sql(locked))
    assert truncating.is_alive()
    assert walkeeper("detach", "--dsn", primary.dsn()).returncode == 0
    truncating.join(20)
    assert not truncating.is_alive()
    primary.sql("INSERT INTO t VALUES (2)")
    assert walkeeper("attach", "--dsn", primary.dsn()).returncode == 0
    primary.sql("INSERT INTO t VALUES (3)")
    assert primary.rows("SELECT id FROM t ORDER BY id") == [(2,), (3,)]


@pytest.mark.parametrize("primary", [17], indirect=True)
def test_consumers_get_no_change_that_no_quorum_of_the_wal_has(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    """Attach's advice is taken: else a consumer sees rows that a restored primary may lack."""
    physical = Cluster(primary)
    try:
        physical.start_safekeepers()
        physical.make_log()
        physical.proposer.start()
        advice = "ALTER SYSTEM SET synchronized_standby_slots = 'walkeeper'"
        assert advice in walkeeper("attach", "--dsn", primary.dsn()).stderr
        primary.sql("CREATE TABLE t (v text)", advice)
        primary.reload()
        assert advice not in walkeeper("attach", "--dsn", primary.dsn()).stderr
        create_slot(cluster.ports[0], "feed")
        for safekeeper in physical.safekeepers[1:]:
            safekeeper.kill()
        with primary.psql("-c", "INSERT INTO t VALUES ('held back')") as commit:
            state = "SELECT wait_event FROM pg_stat_activity WHERE wait_event = '{}'"
            for waiting in ("SyncRep", "WaitForStandbyConfirmation"):
                wait_until(partial(primary.sql, state.format(waiting)))
            assert not any(
                b"held back" in file.read_bytes() for file in cluster.wal_dir(1).iterdir()
            )
            physical.safekeepers[1].start()
            assert commit.wait(LIMIT_S) == 0
        found = transactions(receive(cluster.ports[0], "feed", cluster.end_lsn()))
        assert [row["v"] for row in inserts(found, "public.t")] == ["held back"]
        physical.proposer.terminate()
        dropped = walkeeper("detach", "--dsn", primary.dsn(), "--drop-slot")
        assert "synchronized_standby_slots lists walkeeper: " in dropped.stdout + dropped.stderr
    finally:
        physical.close()
