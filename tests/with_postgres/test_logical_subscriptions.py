"""CREATE and ALTER SUBSCRIPTION get right answers from a safekeeper, or a refusal at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster

pytestmark = pytest.mark.postgres

REFRESH = "ALTER SUBSCRIPTION {} REFRESH PUBLICATION WITH (copy_data = false)"


class SubscribedCluster(LogicalCluster):
    def where(self) -> str:
        return f"host=127.0.0.1 port={self.ports[1]} user=postgres dbname=postgres"


class TwoPublications(SubscribedCluster):
    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary)
        self.proposer = self.new_proposer("two", "--logical", "--publication", "p,q")


class PublicationGoes(SubscribedCluster):
    def __init__(self, primary: PostgresServer) -> None:
        primary.sql("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE t")
        super().__init__(primary)


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            "CREATE SCHEMA s",
            "CREATE PUBLICATION p FOR TABLE t (id, v) WHERE (id < 100)",
            "CREATE PUBLICATION q FOR TABLES IN SCHEMA s",
            "CREATE PUBLICATION r FOR ALL TABLES",
        )
        yield server


@pytest.fixture(scope="module")
def cluster(primary: PostgresServer) -> Iterator[TwoPublications]:
    with TwoPublications.create(primary) as made:
        yield made


@pytest.fixture
def subscriber() -> Iterator[PostgresServer]:
    with PostgresServer.create() as server:
        server.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE SCHEMA s")
        yield server


def subscribe(
    subscriber: PostgresServer, where: str, publications: str = "p, q", options: str = ""
) -> None:
    subscriber.sql(
        f"CREATE SUBSCRIPTION feed CONNECTION '{where}' PUBLICATION {publications} "
        f"WITH (copy_data = false{options})"
    )


def followed(subscriber: PostgresServer) -> set[str]:
    listed = "SELECT srrelid::regclass::text FROM pg_subscription_rel"
    return {row[0] for row in subscriber.rows(listed)}


def has_one(subscriber: PostgresServer, table: str) -> bool:
    return subscriber.rows(f"SELECT * FROM {table}") == [(1,)]


def test_a_table_that_was_just_made_is_seen_and_one_that_is_gone_is_not(
    cluster: TwoPublications, primary: PostgresServer, subscriber: PostgresServer
) -> None:
    subscribe(subscriber, cluster.where())
    assert followed(subscriber) == {"t"}
    for number in range(5):
        table = f"CREATE TABLE s.made_{number} (id int PRIMARY KEY)"
        subscriber.sql(table)
        primary.sql(table)
        subscriber.sql(REFRESH.format("feed"))
        assert followed(subscriber) == {"t", f"s.made_{number}"}
        primary.sql(f"INSERT INTO s.made_{number} VALUES (1)")
        wait_until(partial(has_one, subscriber, f"s.made_{number}"))
        primary.sql(f"ALTER TABLE s.made_{number} RENAME TO other_{number}")
        subscriber.sql(f"ALTER TABLE s.made_{number} RENAME TO other_{number}")
        subscriber.sql(REFRESH.format("feed"))
        assert followed(subscriber) == {"t", f"s.other_{number}"}
        primary.sql(f"DROP TABLE s.other_{number}")
        subscriber.sql(REFRESH.format("feed"))
        assert followed(subscriber) == {"t"}
    primary.sql("INSERT INTO t VALUES (1, 'a'), (100, 'filtered out')")
    wait_until(lambda: subscriber.rows("SELECT * FROM t") == [(1, "a")])
    subscriber.sql("DROP SUBSCRIPTION feed")


def test_without_a_proposer_or_its_primary_the_question_is_refused_in_time(
    cluster: TwoPublications, subscriber: PostgresServer
) -> None:
    subscribe(subscriber, cluster.where())
    wait_until(lambda: list(cluster.slot_lsns("feed")) == [1, 2, 3])
    cluster.proposer.kill()
    with pytest.raises(psycopg.Error, match="no quorum has an answer to which tables"):
        subscriber.sql(REFRESH.format("feed"))
    subscriber.sql("DROP SUBSCRIPTION feed")  # a quorum learns of it when there is a proposer
    assert list(cluster.slot_lsns("feed")) == [1, 3]
    cluster.proposer.start()
    wait_until(lambda: not cluster.slot_lsns("feed"))
    subscribe(subscriber, cluster.where())
    assert followed(subscriber) == {"t"}
    subscriber.sql("DROP SUBSCRIPTION feed")


def test_a_subscription_can_be_dropped_without_its_publication_and_without_its_log(
    subscriber: PostgresServer,
) -> None:
    with (
        PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as primary,
        PublicationGoes.create(primary) as cluster,
    ):
        subscribe(subscriber, cluster.where(), "p")
        subscriber.sql(
            f"CREATE SUBSCRIPTION other CONNECTION '{cluster.where()}' PUBLICATION p "
            "WITH (copy_data = false)"
        )
        primary.sql(
            "SET synchronous_commit = local", "DROP PUBLICATION p", "INSERT INTO t VALUES (1)"
        )
        assert cluster.proposer.ended() == 1
        subscriber.sql("DROP SUBSCRIPTION feed")
        for safekeeper in cluster.safekeepers:
            safekeeper.kill()
        with pytest.raises(psycopg.Error, match="could not connect to publisher"):
            subscriber.sql("DROP SUBSCRIPTION other")
        subscriber.sql(
            "ALTER SUBSCRIPTION other DISABLE",
            "ALTER SUBSCRIPTION other SET (slot_name = NONE)",
            "DROP SUBSCRIPTION other",
        )
        assert subscriber.rows("SELECT 1 FROM pg_subscription") == []


@pytest.mark.parametrize("publications", ["p", "r", "p, q, r", "p, unknown"])
def test_other_publications_are_refused_when_the_subscription_is_made(
    cluster: TwoPublications, subscriber: PostgresServer, publications: str
) -> None:
    with pytest.raises(psycopg.Error, match="this log has publications p, q, not") as refused:
        subscribe(subscriber, cluster.where(), publications)
    assert "For others make a log of their own" in str(refused.value)
    assert subscriber.rows("SELECT 1 FROM pg_subscription") == []


def test_publications_are_added_and_dropped_as_far_as_the_log_has_them(
    cluster: TwoPublications, subscriber: PostgresServer
) -> None:
    subscribe(subscriber, cluster.where(), "p", ", connect = false")
    alter = "ALTER SUBSCRIPTION feed {} PUBLICATION {} WITH (copy_data = false)"
    subscriber.sql("ALTER SUBSCRIPTION feed ENABLE", alter.format("ADD", "q"))
    assert followed(subscriber) == {"t"}
    for how, which in (("ADD", "r"), ("DROP", "q"), ("SET", "p"), ("SET", "r")):
        with pytest.raises(psycopg.Error, match="this log has publications p, q, not") as refused:
            subscriber.sql(alter.format(how, which))
        for remedy in ("Ask for exactly: p, q", "ALTER PUBLICATION", "--cluster", "CONNECTION"):
            assert remedy in str(refused.value)
    subscriber.sql(alter.format("SET", "q, p"))


def test_a_worker_of_other_publications_gets_no_row_until_they_are_those_of_the_log(
    cluster: TwoPublications, primary: PostgresServer, subscriber: PostgresServer
) -> None:
    """With refresh = false the server asks no publisher. Its worker is refused instead."""
    subscribe(subscriber, cluster.where())
    change = "ALTER SUBSCRIPTION feed SET PUBLICATION {} WITH (refresh = false)"
    rows = "SELECT id FROM t WHERE id BETWEEN 71 AND 72 ORDER BY id"
    try:
        primary.sql("INSERT INTO t VALUES (71, 'before')")
        wait_until(lambda: subscriber.rows(rows) == [(71,)])
        subscriber.sql(change.format("p"))
        primary.sql("INSERT INTO t VALUES (72, 'meanwhile')")
        wait_until(lambda: "this log has publications p, q, not p" in subscriber.log_text())
        assert subscriber.rows(rows) == [(71,)]
        subscriber.sql(change.format("q, p"))
        wait_until(lambda: subscriber.rows(rows) == [(71,), (72,)])
    finally:
        subscriber.sql("DROP SUBSCRIPTION feed")
        for server in (primary, subscriber):
            server.sql("DELETE FROM t WHERE id BETWEEN 71 AND 72")


def test_other_columns_in_the_other_publication_are_refused_until_they_are_the_same(
    cluster: TwoPublications, primary: PostgresServer, subscriber: PostgresServer
) -> None:
    primary.sql(
        "CREATE TABLE lists (id int PRIMARY KEY, v text)",
        "ALTER PUBLICATION p ADD TABLE lists (id)",
        "ALTER PUBLICATION q SET TABLE lists (id, v)",
    )
    subscriber.sql("CREATE TABLE lists (id int PRIMARY KEY, v text)")
    try:
        with pytest.raises(psycopg.Error) as refused:
            subscribe(subscriber, cluster.where())
        assert 'cannot use different column lists for table "public.lists"' in str(refused.value)
        assert subscriber.rows("SELECT 1 FROM pg_subscription") == []
        primary.sql("ALTER PUBLICATION q SET TABLE lists (id)")
        subscribe(subscriber, cluster.where())
        assert followed(subscriber) == {"t", "lists"}
        primary.sql("INSERT INTO lists VALUES (1, 'not published')")
        wait_until(lambda: subscriber.rows("SELECT * FROM lists") == [(1, None)])
    finally:
        primary.sql("ALTER PUBLICATION q SET TABLES IN SCHEMA s", "DROP TABLE lists")
        subscriber.sql("DROP SUBSCRIPTION IF EXISTS feed")


def test_two_phase_is_refused_when_the_subscription_is_made(
    cluster: TwoPublications, subscriber: PostgresServer
) -> None:
    with pytest.raises(psycopg.Error, match="two-phase slots are not available"):
        subscribe(subscriber, cluster.where(), options=", two_phase = true")
    assert subscriber.rows("SELECT 1 FROM pg_subscription") == []


def test_a_copy_of_the_tables_is_refused_with_what_to_do(
    cluster: TwoPublications, subscriber: PostgresServer
) -> None:
    """CREATE SUBSCRIPTION sends nothing that says copy_data. The worker that copies is refused."""
    subscriber.sql(f"CREATE SUBSCRIPTION feed CONNECTION '{cluster.where()}' PUBLICATION p, q")
    said = "this safekeeper has no primary that copies tables"
    wait_until(lambda: said in subscriber.log_text())
    wait_until(lambda: "copy its tables from the primary" in subscriber.log_text())
    subscriber.sql("DROP SUBSCRIPTION feed")
