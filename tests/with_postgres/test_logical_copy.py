"""CREATE SUBSCRIPTION with its defaults: the primary copies the tables, the log has the rest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.cluster import Daemon
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster

pytestmark = pytest.mark.postgres

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    'CREATE TABLE "odd Name" (id int PRIMARY KEY, "select" text, secret text)',
    "CREATE TABLE part (a int PRIMARY KEY, b text) PARTITION BY RANGE (a)",
    "CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE kept (id int PRIMARY KEY, v numeric)",
    "CREATE TABLE later (id int PRIMARY KEY)",
)
FILTERED = "SELECT id, v FROM t WHERE id < 100 ORDER BY id"


class CopyingCluster(LogicalCluster):
    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        daemon = super().new_safekeeper(number, port, data_dir)
        daemon.arguments = (*daemon.arguments, "--copy-dsn", self.primary.dsn())
        return daemon

    def where(self, number: int) -> str:
        return f"host=127.0.0.1 port={self.ports[number - 1]} user=postgres dbname=postgres"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    settings = {**SETTINGS, "max_prepared_transactions": "2"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            *TABLES,
            "CREATE TABLE hidden (id int PRIMARY KEY)",
            'CREATE PUBLICATION p FOR TABLE t WHERE (id < 100), TABLE "odd Name" (id, "select"), '
            "kept, part WITH (publish_via_partition_root)",
            "INSERT INTO t SELECT n, E'\\t\\\\' || n FROM generate_series(1, 200) n",
            """INSERT INTO "odd Name" SELECT n, NULL, 'secret' FROM generate_series(1, 9) n""",
            "INSERT INTO part VALUES (1, 'ünï')",
            "INSERT INTO kept VALUES (0, 0)",
        )
        yield server


@pytest.fixture(scope="module")
def cluster(primary: PostgresServer) -> Iterator[CopyingCluster]:
    with CopyingCluster.create(primary) as made:
        yield made


@pytest.fixture
def subscriber() -> Iterator[PostgresServer]:
    with PostgresServer.create(initdb_options=["--encoding=LATIN1", "--locale=C"]) as server:
        server.sql(*TABLES)
        yield server


def is_copied(subscriber: PostgresServer) -> bool:
    states = "SELECT srsubstate FROM pg_subscription_rel"
    return {state for (state,) in subscriber.rows(states)} == {"r"}


def test_a_subscription_with_its_defaults_gets_all_rows(
    cluster: CopyingCluster, primary: PostgresServer, subscriber: PostgresServer
) -> None:
    """Rows come and go on the primary while its tables are copied: none is lost, none is there
    twice."""
    stopping = threading.Event()

    def write() -> None:
        with primary.connect() as session:
            for n in range(1, 1 << 30):
                if stopping.is_set():
                    return
                session.execute("INSERT INTO kept VALUES (%s, 1.50)", (n,))
                session.execute("UPDATE kept SET v = v + 1 WHERE id = %s", (n // 2,))
                session.execute("DELETE FROM t WHERE id = %s", (n % 300,))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        subscriber.sql(f"CREATE SUBSCRIPTION feed CONNECTION '{cluster.where(1)}' PUBLICATION p")
        wait_until(lambda: is_copied(subscriber))
    finally:
        stopping.set()
        writer.join()
    primary.sql("INSERT INTO part VALUES (2, 'after')")
    wait_until(lambda: subscriber.rows("SELECT 1 FROM part WHERE a = 2") != [])
    for query in (
        FILTERED, "SELECT * FROM kept ORDER BY id", "SELECT * FROM part ORDER BY a",
        'SELECT id, "select" FROM "odd Name" ORDER BY id',
    ):  # fmt: skip
        assert subscriber.rows(query) == primary.rows(query), query
    assert subscriber.rows("SELECT count(*) FROM t WHERE id >= 100") == [(0,)]
    assert subscriber.rows('SELECT DISTINCT secret FROM "odd Name"') == [(None,)]
    slots = "SELECT slot_name FROM pg_replication_slots WHERE temporary"
    wait_until(lambda: primary.rows(slots) == [])  # those of the copies go with their connections

    primary.sql("ALTER PUBLICATION p ADD TABLE later", "INSERT INTO later VALUES (7)")
    subscriber.sql("ALTER SUBSCRIPTION feed REFRESH PUBLICATION")
    wait_until(lambda: is_copied(subscriber))
    assert subscriber.rows("SELECT id FROM later") == [(7,)]
    subscriber.sql("DROP SUBSCRIPTION feed")


def test_a_subscription_with_two_phase_and_a_copy_is_no_half(
    cluster: CopyingCluster, primary: PostgresServer, subscriber: PostgresServer
) -> None:
    """CREATE SUBSCRIPTION asks for two phases when all is copied, as PostgreSQL has it."""
    subscriber.sql(
        f"CREATE SUBSCRIPTION phases CONNECTION '{cluster.where(3)}' PUBLICATION p "
        "WITH (two_phase = true)"
    )
    enabled = "SELECT 1 FROM pg_subscription WHERE subtwophasestate = 'e'"
    wait_until(lambda: is_copied(subscriber) and subscriber.rows(enabled) != [])
    insert = "INSERT INTO part VALUES (50, 'prepared')"
    primary.sql("BEGIN", insert, "PREPARE TRANSACTION 'one'")
    primary.sql("INSERT INTO part VALUES (51, 'after')")
    found = "SELECT a FROM part WHERE a >= 50 ORDER BY a"
    wait_until(lambda: subscriber.rows(found) == [(51,)])
    primary.sql("COMMIT PREPARED 'one'")
    wait_until(lambda: subscriber.rows(found) == [(50,), (51,)])
    assert "prepared transactions come whole, at COMMIT PREPARED" in subscriber.log_text()
    subscriber.sql("DROP SUBSCRIPTION phases")


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("COPY public.hidden TO STDOUT", "hidden"),
        ("SELECT pg_read_file('/etc/passwd')", "no part of it"),
        ("COPY (SELECT 1) TO PROGRAM 'id'", "no part of it"),
    ],
)
def test_nothing_else_gets_to_the_primary(
    cluster: CopyingCluster, statement: str, why: str
) -> None:
    with psycopg.connect(cluster.where(2), autocommit=True, replication="database") as session:
        session.execute("BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ")
        session.execute('CREATE_REPLICATION_SLOT "w" TEMPORARY LOGICAL pgoutput USE_SNAPSHOT')
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=why):
            session.execute(statement.encode())
