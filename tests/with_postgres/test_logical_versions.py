"""The logical log with PostgreSQL 17 and 18: each part is killed once, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.installations import Unavailable, binaries
from tests.postgres_server import PostgresServer, installation
from tests.waiting import wait_until
from tests.with_postgres.change_consumer import create_slot, receive, transactions
from tests.with_postgres.journal import Journal
from tests.with_postgres.test_logical import (  # noqa: F401
    SETTINGS,
    LogicalCluster,
    cluster,
    inserts,
)

pytestmark = pytest.mark.postgres


@pytest.fixture(params=[17, 18], ids=lambda major: f"PostgreSQL {major}")
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    try:
        programs = binaries(request.param)
    except Unavailable as error:
        pytest.skip(f"PostgreSQL {request.param}: {error}")
    with (
        installation(programs),
        PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server,
    ):
        assert server.sql("SHOW server_version_num").startswith(str(request.param))
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        yield server


def test_nothing_acknowledged_is_missing_on_this_version(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,
) -> None:
    slot = "SELECT failover FROM pg_replication_slots WHERE slot_name = 'walkeeper_changes'"
    assert primary.sql(slot) is True
    create_slot(cluster.ports[0], "feed")
    with Journal(primary) as journal:
        for kill in (cluster.safekeepers[0], cluster.proposer, cluster.safekeepers[1]):
            journal.wait_for_more(50)
            kill.kill()
            kill.start()
        journal.wait_for_more(50)
        primary.kill()
        primary.start()
        journal.wait_for_more(50)
    found = transactions(receive(cluster.ports[2], "feed", cluster.end_lsn()))
    ends = [one.end_lsn for one in found]
    assert ends == sorted(set(ends))
    ids = [int(row["id"]) for row in inserts(found, "public.journal")]
    assert len(ids) == len(set(ids)) and not {entry.id for entry in journal.entries} - set(ids)


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
