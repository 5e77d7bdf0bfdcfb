"""Options of pgoutput that consumers may use with a log: the answers are the primary's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.change_consumer import (
    Change,
    consumer_arguments,
    create_slot,
    transactions,
)
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster

pytestmark = pytest.mark.postgres

WITH_MESSAGES = ("-o", "messages=true")


class ClusterWithMessages(LogicalCluster):
    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        options = ("--logical", "--publication", "p", "--messages")
        self.proposer = self.new_proposer("with_messages", *options)


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    settings = {**SETTINGS, "logical_decoding_work_mem": "64kB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        yield server


@pytest.fixture(scope="module")
def cluster(primary: PostgresServer) -> Iterator[ClusterWithMessages]:
    with ClusterWithMessages.create(primary) as made:
        yield made


def ask(port: int, slot: str, endpos: str, *options: str) -> subprocess.CompletedProcess[bytes]:
    arguments = consumer_arguments(port, slot, *options, "--start", "-n", "-f", "-")
    return subprocess.run(
        [*arguments, "--endpos", endpos],
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )


def received(port: int, slot: str, endpos: str, *options: str) -> bytes:
    done = ask(port, slot, endpos, *options)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_messages_origins_and_streaming_are_as_the_primary_itself_would_have_them(
    cluster: ClusterWithMessages,
    primary: PostgresServer,
) -> None:
    for slot in ("all", "plain", "large", "local", "binary", "whole"):
        create_slot(cluster.ports[0], slot)
    primary.sql(
        "SELECT pg_create_logical_replication_slot('all', 'pgoutput')",
        "SELECT pg_create_logical_replication_slot('plain', 'pgoutput')",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "SELECT pg_logical_emit_message(false, 'outbox', 'between transactions')",
        "BEGIN",
        "INSERT INTO t VALUES (1, 'here')",
        "SELECT pg_logical_emit_message(true, 'outbox', 'inside of one')",
        "SELECT pg_logical_emit_message(false, 'outbox', 'before its commit')",
        "COMMIT",
        "BEGIN",
        "SELECT pg_logical_emit_message(true, 'outbox', 'never')",
        "ROLLBACK",
        "SELECT pg_replication_origin_create('elsewhere')",
        "SELECT pg_replication_origin_session_setup('elsewhere')",
        "INSERT INTO t VALUES (2, 'elsewhere')",
        "SELECT pg_replication_origin_session_reset()",
        "BEGIN",
        "INSERT INTO t SELECT i, repeat('large', 400) FROM generate_series(3, 1000) i",
        "SAVEPOINT s",  # a stream does not say that its message is of a subtransaction
        "SELECT pg_logical_emit_message(true, 'outbox', 'never in a large one')",
        "INSERT INTO t SELECT i, repeat('large', 400) FROM generate_series(1001, 2000) i",
        "ROLLBACK TO s",
        "INSERT INTO t SELECT i, repeat('large', 400) FROM generate_series(2001, 3000) i",
        "COMMIT",
    )
    for proposer in cluster.proposers:
        proposer.kill()
    again = cluster.new_proposer("again", "--logical", "--publication", "p")
    again.start()  # it goes on with messages, without the option
    primary.sql("SELECT pg_logical_emit_message(true, 'outbox', 'after another start')")
    end = cluster.end_lsn()
    direct = received(primary.port, "all", end, *WITH_MESSAGES)
    kept = received(cluster.ports[1], "all", end, *WITH_MESSAGES)
    assert transactions(kept) == transactions(direct)
    texts = (b"between transactions", b"inside of one", b"before its commit", b"another start")
    assert all(text in kept for text in texts) and b"never" not in kept
    plain = received(cluster.ports[1], "plain", end)
    assert contents(plain) == contents(received(primary.port, "plain", end))
    assert b"outbox" not in plain
    large = received(cluster.ports[1], "large", end, "-o", "proto_version=2", "-o", "streaming=on")
    assert contents(large) == contents(plain)
    local = received(cluster.ports[2], "local", end, "-o", "origin=none")
    assert [one for one in contents(plain) if one not in contents(local)] == [
        one for one in contents(plain) if any(change[0] == "O" for change in one)
    ]
    binary = received(cluster.ports[2], "binary", end, "-o", "binary=true")
    assert contents(binary) == contents(plain), "in text, as of types that have no binary form"
    whole = ask(cluster.ports[0], "whole", end, "-o", "two_phase=on", "-o", "proto_version=3")
    assert contents(whole.stdout) == contents(plain)
    assert b"two_phase has no effect" in whole.stderr and b"HINT" in whole.stderr


def contents(stream: bytes) -> list[list[Change]]:
    """Return the changes of each transaction that has some: PostgreSQL 14 sends empty ones, too."""
    return [list(one.changes) for one in transactions(stream) if one.changes]


def test_a_subscription_that_asks_for_all_it_can_follows_the_log(
    cluster: ClusterWithMessages,
    primary: PostgresServer,
) -> None:
    table = "CREATE TABLE followed (id int PRIMARY KEY, v text)"
    primary.sql(table, "INSERT INTO followed VALUES (0, 'before')")
    version = int(primary.sql("SHOW server_version_num")) // 10000
    asked = {"copy_data": "false", "streaming": "parallel" if version >= 16 else "on"}
    if version >= 16:
        asked["origin"] = "none"
    if version >= 17:
        asked["failover"] = "true"
    listed = ", ".join(f"{name} = {value}" for name, value in asked.items())
    with PostgresServer.create() as subscriber:
        others = "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE fence (id int)"
        # these are of the other test; the publication has them as well
        subscriber.sql(table, *others)
        where = f"host=127.0.0.1 port={cluster.ports[0]} user=postgres dbname=postgres"
        subscribe = f"CREATE SUBSCRIPTION feed CONNECTION '{where}' PUBLICATION p"
        subscriber.sql(f"{subscribe} WITH ({listed})")
        primary.sql(
            "SELECT pg_logical_emit_message(false, 'outbox', 'x')",
            "INSERT INTO followed SELECT i, repeat('large', 400) FROM generate_series(1, 3000) i",
            "UPDATE followed SET v = 'b' WHERE id = 1",
        )
        first = "SELECT v FROM followed WHERE id = 1"
        wait_until(lambda: subscriber.rows(first) == [("b",)])
        assert subscriber.sql("SELECT count(*) FROM followed") == 3000
