"""Where a new consumer of a logical log begins, and with which tables."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.change_consumer import receive, transactions
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster, inserts
from walkeeper_cli.snapshot.consumer_link import ConsumerLink
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        yield server


@pytest.fixture(scope="module")
def cluster(primary: PostgresServer) -> Iterator[LogicalCluster]:
    with LogicalCluster.create(primary) as made:
        yield made


@pytest.fixture(scope="module")
def subscriber() -> Iterator[PostgresServer]:
    with PostgresServer.create() as server:
        server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE fence (id int)")
        yield server


def create(port: int, number: int) -> Lsn:
    """Return the LSN at which it begins.

    A safekeeper that has just started waits until it knows the log.
    """
    link = ConsumerLink.open([("127.0.0.1", port)], "changes")
    try:
        return link.create_slot(f"after_{number}")
    finally:
        link.close()


def test_a_new_slot_begins_after_every_acknowledged_commit(
    cluster: LogicalCluster, primary: PostgresServer
) -> None:
    """Each safekeeper gets the request right after a commit, and so does one that missed most."""
    primary.sql("CREATE TABLE IF NOT EXISTS t (id int PRIMARY KEY, v text)")
    slots: dict[int, tuple[int, Lsn]] = {}
    for number in range(1, 7):
        member = number % 3
        if number == 5:  # member 2's
            cluster.safekeepers[2].kill()
            for first in (10_000, 20_000, 30_000):
                primary.sql(
                    "INSERT INTO t SELECT i, repeat(md5(i::text), 30) "
                    f"FROM generate_series({first}, {first + 9_999}) i"
                )
            cluster.safekeepers[2].start()
        primary.sql(f"INSERT INTO t VALUES ({number})")
        slots[number] = member, create(cluster.ports[member], number)
    primary.sql("INSERT INTO t VALUES (7)")
    end = cluster.end_lsn()
    for number, (member, lsn) in slots.items():
        assert cluster.slot_lsns(f"after_{number}")[member + 1] == str(lsn)
        found = transactions(receive(cluster.ports[member], f"after_{number}", end))
        ids = [int(row["id"]) for row in inserts(found, "public.t")]
        assert [n for n in ids if n > 7] == ([*range(10_000, 40_000)] if number < 5 else [])
        assert [n for n in ids if n <= 7] == [*range(number + 1, 8)]


def test_a_new_subscription_has_the_tables_that_there_are(
    cluster: LogicalCluster, primary: PostgresServer, subscriber: PostgresServer
) -> None:
    """Some of those that had rows have another name now, or are gone."""
    primary.sql("CREATE TABLE ord (id int PRIMARY KEY)", "INSERT INTO ord VALUES (1)")
    primary.sql("CREATE TABLE ord_new (id int PRIMARY KEY)", "INSERT INTO ord_new VALUES (1)")
    primary.sql(
        "ALTER TABLE ord RENAME TO ord_old",
        "ALTER TABLE ord_new RENAME TO ord",
        "DROP TABLE ord_old",
    )
    subscriber.sql("CREATE TABLE ord (id int PRIMARY KEY)")
    wait_until(lambda: subscribed(subscriber, cluster.ports[0]))
    primary.sql("INSERT INTO ord VALUES (2)")
    wait_until(lambda: subscriber.rows("SELECT * FROM ord") == [(2,)])


def subscribed(subscriber: PostgresServer, port: int) -> bool:
    where = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
    subscribe = f"CREATE SUBSCRIPTION feed CONNECTION '{where}' PUBLICATION p"
    try:
        subscriber.sql(f"{subscribe} WITH (copy_data = false)")
    except psycopg.errors.UndefinedTable:
        return False
    return True
