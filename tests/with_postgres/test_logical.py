"""A logical log with a real PostgreSQL: a quorum keeps what was committed, once, in order."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.support.change_consumer import (
    LiveConsumer,
    create_slot,
    drop_slot,
    receive,
    transactions,
)
from tests.support.cluster import Cluster, lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.logical_cluster import (
    ChangingSchema,
    LogicalCluster,
    check_stream,
    cluster,
    inserts,
    kill_all_in_turn,
    pgbench,
    primary,
    received_ids,
)

__all__ = ["cluster", "primary"]
pytestmark = pytest.mark.postgres


def test_every_acknowledged_transaction_is_in_the_stream_once_while_parts_are_killed(
    cluster: LogicalCluster, primary: PostgresServer, tmp_path: Path, figure: Figure
) -> None:
    for number, port in enumerate(cluster.ports):
        create_slot(port, f"audit{number}")
    create_slot(cluster.ports[2], "live")
    pgbench(primary, "-i", "-q", "-s", "1")
    begin_lsn = lsn_of(cluster.end_lsn())
    with LiveConsumer(cluster.ports[2], "live", tmp_path / "live") as live:
        # A kill within the large transaction would leave its beginning in the file.
        wait_until(lambda: lsn_of(cluster.slot_lsns("live")[3]) >= begin_lsn)
        with Journal(primary) as journal, ChangingSchema(primary) as schema:
            kill_all_in_turn(cluster, journal)
            wait_until(lambda: schema.changes > 3)
        assert not journal.cancelled
        end_lsn = cluster.end_lsn()
        streams = [
            receive(port, f"audit{2 - number}", end_lsn)  # each through another safekeeper's slot
            for number, port in enumerate(cluster.ports)
        ]
        figure("bytes of changes", len(streams[0]))
        assert streams[0] == streams[1] == streams[2]
        check_stream(streams[0], primary, journal)
        wait_until(lambda: live.received().endswith(streams[0][-100:]))
        # pg_recvlogical connects again at what it last reported, and writes what followed twice.
        seen = {one.end_lsn: one for one in transactions(live.received())}
        assert list(seen.values()) == transactions(streams[0])


def test_a_consumer_goes_on_at_another_safekeeper_when_its_own_is_lost(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    first, second, _ = cluster.safekeepers
    create_slot(cluster.ports[0], "feed")
    primary.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    received = receive(cluster.ports[0], "feed", cluster.end_lsn())
    cluster.wait_confirmed("feed", received, (1, 2, 3))
    first.kill()
    primary.sql("INSERT INTO t VALUES (2)")
    more = receive(cluster.ports[1], "feed", cluster.end_lsn())
    cluster.wait_confirmed("feed", more, (2, 3))
    second.kill()
    first.start()
    primary.sql("INSERT INTO t VALUES (3)")
    received += more + receive(cluster.ports[2], "feed", cluster.end_lsn())
    assert received_ids(received) == [1, 2, 3]
    drop_slot(cluster.ports[2], "feed")
    wait_until(lambda: not cluster.slot_lsns("feed"))
    second.start()
    wait_until(lambda: len(cluster.flush_lsns()) == 3 and not cluster.slot_lsns("feed"))
    with pytest.raises(AssertionError, match='replication slot "feed" does not exist'):
        receive(cluster.ports[0], "feed", "F/0")


def test_commits_that_publish_nothing_wait_for_the_quorum_and_no_longer(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    primary.sql("CREATE UNLOGGED TABLE unpublished (id int)", "CREATE TEMP TABLE t (id int)")
    for value in ("on", "remote_write", "remote_apply"):
        primary.sql(f"SET synchronous_commit = {value}", "COMMENT ON TABLE unpublished IS 'x'")
    primary.freeze_background_writer()  # no WAL comes of itself
    flushed = "SELECT confirmed_flush_lsn FROM pg_replication_slots"
    ended = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
    wait_until(lambda: lsn_of(primary.sql(flushed)) >= ended)
    first, second, _ = cluster.safekeepers
    first.kill()
    second.kill()
    before = primary.sql(flushed)
    with primary.psql("-c", "COMMENT ON TABLE unpublished IS 'y'") as commenting:
        with pytest.raises(subprocess.TimeoutExpired):
            commenting.wait(1.5)
        assert primary.sql(flushed) == before  # not even for what publishes nothing
        first.start()
        assert commenting.wait(LIMIT_S) == 0
    # PostgreSQL wakes the commit before it moves the slot.
    wait_until(lambda: lsn_of(primary.sql(flushed)) > lsn_of(before))
    wait_until(lambda: cluster.status()["safekeepers"][0]["end_lsn"] == primary.sql(flushed))
    assert cluster.status()["safekeepers"][0]["kind"] == "logical"
    assert "end_lsn" in cluster.command("status")


def test_a_slot_that_was_moved_or_made_anew_is_refused(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    slot = "walkeeper_changes"
    cluster.proposer.terminate()
    walkeeper("detach", "--dsn", primary.dsn())
    primary.sql("CREATE TABLE late (id int)", "INSERT INTO late VALUES (1)")
    primary.wait_unused(slot)
    primary.sql(f"SELECT pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    cluster.proposer.start(wait=False)
    assert cluster.proposer.ended() == 1
    assert "was moved or made anew" in cluster.proposer.output()
    primary.wait_unused(slot)
    primary.sql(f"SELECT pg_drop_replication_slot('{slot}')")
    cluster.proposer.start(wait=False)
    assert cluster.proposer.ended() == 1
    assert f"slot {slot} is gone from the primary" in cluster.proposer.output()


def test_a_physical_and_a_logical_proposer_are_attached_at_once(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    physical = Cluster(primary)
    try:
        physical.start_safekeepers()
        physical.make_log()
        physical.proposer.start()
        physical.attach()  # no --replace: what is there is the other proposer's
        both = "FIRST 2 (walkeeper, walkeeper_changes)"
        assert primary.sql("SHOW synchronous_standby_names") == both
        states = primary.rows("SELECT application_name, sync_state FROM pg_stat_replication")
        assert sorted(states) == [("walkeeper", "sync"), ("walkeeper_changes", "sync")]
        with Journal(primary) as journal:
            journal.wait_for_more(50)
            for one in (cluster, physical):
                one.proposer.kill()
                assert journal.is_silent_for(0.5)
                one.proposer.start()
                journal.wait_for_more(50)
        assert walkeeper("attach", "--dsn", primary.dsn()).stdout.startswith("already attached")
        assert walkeeper("detach", "--dsn", primary.dsn()).returncode == 0
        assert primary.sql("SHOW synchronous_standby_names") == ""
    finally:
        physical.close()


def test_a_stock_subscription_follows_the_log_and_survives_its_safekeeper(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, v text)"
    primary.sql(table, "INSERT INTO t VALUES (0, 'before')")
    with PostgresServer.create() as subscriber:
        subscriber.sql(table)
        where = f"host=127.0.0.1 port={cluster.ports[0]} user=postgres dbname=postgres"
        subscribe = f"CREATE SUBSCRIPTION feed CONNECTION '{where}' PUBLICATION p"
        subscriber.sql(f"{subscribe} WITH (copy_data = false)")
        primary.sql("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET v = 'c' WHERE id = 2")
        wait_until(lambda: subscriber.rows("SELECT * FROM t ORDER BY id") == [(1, "a"), (2, "c")])
        cluster.safekeepers[0].kill()
        primary.sql("DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3, 'd')")
        other = where.replace(str(cluster.ports[0]), str(cluster.ports[1]))
        subscriber.sql(f"ALTER SUBSCRIPTION feed CONNECTION '{other}'")
        wait_until(lambda: subscriber.rows("SELECT * FROM t ORDER BY id") == [(2, "c"), (3, "d")])
        subscriber.sql("CREATE TABLE later (id int PRIMARY KEY)")
        primary.sql("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
        primary.sql("INSERT INTO t VALUES (4, 'e')")
        wait_until(lambda: len(subscriber.rows("SELECT * FROM t")) == 3)
        subscriber.sql("ALTER SUBSCRIPTION feed REFRESH PUBLICATION WITH (copy_data = false)")
        primary.sql("INSERT INTO later VALUES (2)")
        wait_until(lambda: subscriber.rows("SELECT * FROM later") == [(2,)])
        subscriber.sql("DROP SUBSCRIPTION feed")
        wait_until(lambda: not cluster.slot_lsns("feed"))  # the other one learns of it later


@pytest.mark.soak
def test_a_large_transaction_that_is_cut_off_is_in_the_stream_once(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    walkeeper("detach", "--dsn", primary.dsn())  # the load must not wait for what is cut off
    create_slot(cluster.ports[0], "feed")
    primary.sql("CREATE TABLE t (id int PRIMARY KEY, v text)")
    rows = 150_000
    fill = "INSERT INTO t SELECT i, repeat(md5(i::text), 8) FROM generate_series({}, {}) i"
    primary.sql(fill.format(1, rows))
    for cut in range(3):
        seen = cluster.segments_kept()

        def has_more(seen: int = seen) -> bool:
            return cluster.segments_kept() > seen + 2

        wait_until(has_more)
        if cut == 1:
            primary.kill()
            primary.start()
        else:
            primary.sql(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                "WHERE active_pid IS NOT NULL"
            )
    wait_until(lambda: "was cut off; it comes again" in cluster.proposer.output())
    primary.sql(fill.format(rows + 1, rows + 10))
    stream = receive(cluster.ports[2], "feed", cluster.end_lsn())
    assert received_ids(stream) == list(range(1, rows + 11))
    assert cluster.proposer.most_memory_mb() < 400


def test_ten_consumers_cost_the_primary_one_walsender(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    for number in range(10):
        create_slot(cluster.ports[number % 3], f"consumer{number}")
    with Journal(primary) as journal:
        journal.wait_for_more(100)
    end_lsn = cluster.end_lsn()
    with ThreadPoolExecutor(10) as pool:
        ports = [cluster.ports[(number + 1) % 3] for number in range(10)]
        names = [f"consumer{number}" for number in range(10)]
        streams = list(pool.map(receive, ports, names, [end_lsn] * 10))
        senders = primary.sql("SELECT count(*) FROM pg_stat_replication")
    for stream in streams:
        found = [int(row["id"]) for row in inserts(transactions(stream), "public.journal")]
        assert not {entry.id for entry in journal.entries} - set(found)
        assert len(found) == len(set(found))
    assert senders == 1
    assert primary.sql("SELECT count(*) FROM pg_replication_slots") == 1


def test_a_consumer_gets_what_the_primary_itself_would_send(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    primary.sql("SELECT pg_create_logical_replication_slot('direct', 'pgoutput')")
    create_slot(cluster.ports[0], "feed")
    primary.sql(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE toasted (id int PRIMARY KEY, n int, long text, feeling mood)",
        "ALTER TABLE toasted ALTER long SET STORAGE EXTERNAL",
        "CREATE TABLE whole (id int, v text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE nameless (v text)",
        "ALTER TABLE nameless REPLICA IDENTITY NOTHING",
        "INSERT INTO toasted SELECT i, i, repeat('long', 5000), 'ok' FROM generate_series(1, 20) i",
        "UPDATE toasted SET n = n + 1",  # the long column is not sent again
        "BEGIN",
        "INSERT INTO whole VALUES (1, 'a'), (1, NULL)",
        "SAVEPOINT s",
        "INSERT INTO whole VALUES (2, 'rolled back')",
        "ROLLBACK TO s",
        "UPDATE whole SET v = 'b' WHERE v IS NULL",
        "COMMIT",
        "DELETE FROM whole WHERE v = 'a'",
        "INSERT INTO nameless VALUES ('x')",
        "TRUNCATE whole, toasted",
        "BEGIN",
        "INSERT INTO whole VALUES (3, 'never')",
        "ROLLBACK",
        "ALTER TABLE toasted DROP COLUMN n",
        "INSERT INTO toasted VALUES (1, 'short', 'sad')",
    )
    with pytest.raises(psycopg.Error, match="does not have a replica identity"):
        primary.sql("DELETE FROM nameless")
    end_lsn = cluster.end_lsn()
    direct = receive(primary.port, "direct", end_lsn)
    kept = receive(cluster.ports[1], "feed", end_lsn)
    assert transactions(kept) == transactions(direct)
    assert set(kept.split(b"\n")) == set(direct.split(b"\n"))


def test_values_are_kept_in_one_text_form_whatever_the_server_prints(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    primary.configure(
        {
            "datestyle": "German",
            "intervalstyle": "sql_standard",
            "timezone": "Asia/Kolkata",
            "extra_float_digits": "-10",
            "bytea_output": "escape",
            "client_encoding": "LATIN1",
        }
    )
    primary.reload()
    wait_until(lambda: "German" in primary.sql("SHOW datestyle"))
    cluster.proposer.kill()
    cluster.proposer.start()
    create_slot(cluster.ports[0], "feed")
    primary.sql(
        "SET client_encoding = 'UTF8'",
        "CREATE TABLE forms (d date, t timestamptz, i interval, f float8, b bytea, v text, "
        "c regclass, p regprocedure)",
        "CREATE FUNCTION own(forms) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SET datestyle = 'ISO'",
        "INSERT INTO forms VALUES ('2024-05-31', '2024-05-31 12:00:00+02', '1 day 02:03:04', "
        "0.1::float8 + 0.2, '\\x00ff', 'größer', 'forms', 'own(forms)')",
    )
    found = transactions(receive(cluster.ports[0], "feed", cluster.end_lsn()))
    assert list(inserts(found, "public.forms")) == [
        {
            "d": "2024-05-31",
            "t": "2024-05-31 10:00:00+00",
            "i": "1 day 02:03:04",
            "f": "0.30000000000000004",
            "b": "\\x00ff",
            "v": "größer",
            "c": "public.forms",  # as a subscription's session needs it, without a search_path
            "p": "public.own(public.forms)",
        }
    ]
