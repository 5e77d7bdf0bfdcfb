"""Large transactions, which PostgreSQL streams to the proposer before they end (docs/logical.md).

The log must be what it would be without: whole transactions, in commit order, as pgoutput sends
them to somebody who asks for no streaming.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.change_consumer import (
    Replica,
    create_slot,
    receive,
    transactions,
)
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.seeds import drawn_seed
from tests.support.waiting import wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.logical_cluster import (
    SETTINGS,
    LogicalCluster,
    check_stream,
    inserts,
    kill_all_in_turn,
    pgbench,
    table_rows,
)

pytestmark = pytest.mark.postgres

SESSIONS = 4
STEPS = 250
FILL = "INSERT INTO {} SELECT i, repeat(md5(i::text), 20) FROM generate_series({}, {}) i"
STREAMED = "SELECT sum(stream_txns)::int FROM pg_stat_replication_slots"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    settings = {**SETTINGS, "logical_decoding_work_mem": "64kB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        if server.sql("SHOW server_version_num") < "140000":
            pytest.skip("PostgreSQL 13 streams nothing")
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        yield server


class Session:
    """One client, that changes tables of its own and one of all, in large transactions."""

    def __init__(self, number: int, connection: psycopg.Connection, draw: random.Random) -> None:
        self._table, self._draw = f"own_{number}", draw
        self._connection = connection
        self._ids = number * 1_000_000
        self._columns = 0
        self._savepoints: list[str] = []
        self._is_inside = False
        self.run(f"CREATE TABLE {self._table} (id int PRIMARY KEY, v text)")
        self.run(f"ALTER TABLE {self._table} ALTER v SET STORAGE EXTERNAL")
        if number % 2:
            self.run(f"ALTER TABLE {self._table} REPLICA IDENTITY FULL")

    def run(self, *commands: str) -> None:
        for command in commands:
            self._connection.execute(command.encode())

    def step(self) -> None:
        if not self._is_inside:
            self.run("BEGIN")
            self._is_inside, self._savepoints = True, []
        what = self._draw.choice(
            (self._fill, self._fill, self._fill, self._update, self._mark, self._go_back)
            + (self._alter, self._make, self._end)
        )
        what()

    def _fill(self) -> None:
        first, self._ids = self._ids + 1, self._ids + 150
        self.run(FILL.format(self._draw.choice((self._table, "shared")), first, self._ids))

    def _update(self) -> None:
        """Update large values that are stored out of line and do not change, too."""
        self.run(f"UPDATE {self._table} SET id = -id WHERE id % 7 = 0 AND id > 0")
        self.run(f"UPDATE {self._table} SET v = 'short' WHERE id % 5 = 0")
        self.run(f"DELETE FROM {self._table} WHERE id % 11 = 0")

    def _mark(self) -> None:
        self._savepoints.append(f"s{len(self._savepoints)}")
        self.run(f"SAVEPOINT {self._savepoints[-1]}")
        self._fill()

    def _go_back(self) -> None:
        if not self._savepoints:
            return
        if self._draw.random() < 0.3:
            self.run(f"RELEASE SAVEPOINT {self._savepoints.pop()}")
            return
        at = self._draw.randrange(len(self._savepoints))
        self.run(f"ROLLBACK TO SAVEPOINT {self._savepoints[at]}")
        del self._savepoints[at + 1 :]

    def _alter(self) -> None:
        self._columns += 1
        name = f"c{self._columns}"
        self.run(f"ALTER TABLE {self._table} ADD COLUMN {name} text DEFAULT '{name}'")
        self._fill()

    def _make(self) -> None:
        if self._savepoints:
            return  # rolled back, it often makes PostgreSQL fail to stream: XX000
        self._columns += 1
        name = f"{self._table}_{self._columns}"
        self.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", FILL.format(name, 1, 100))
        self.run(f"TRUNCATE {self._draw.choice((name, self._table))}")

    def _end(self) -> None:
        if self._draw.random() < 0.5:
            self.end()

    def end(self) -> None:
        if self._is_inside:
            self.run("COMMIT" if self._draw.random() < 0.7 else "ROLLBACK")
        self._is_inside = False


def test_the_log_has_what_the_primary_sends_to_who_asks_for_no_streaming(
    primary: PostgresServer,
) -> None:
    """Four sessions' transactions beside each other, with subtransactions and DDL."""
    draw = random.Random(drawn_seed())
    with LogicalCluster.create(primary) as cluster, ExitStack() as stack:
        create_slot(cluster.ports[0], "feed")
        primary.sql(
            "SELECT pg_create_logical_replication_slot('direct', 'pgoutput')",
            "CREATE TABLE shared (id int, v text)",
        )
        sessions = []
        for number in range(1, SESSIONS + 1):
            connection = stack.enter_context(primary.connect())
            sessions.append(Session(number, connection, draw))
        for number in range(STEPS):
            draw.choice(sessions).step()
            if number % 10 == 0:
                primary.sql(f"INSERT INTO shared VALUES ({-number})")
        for session in sessions:
            session.end()
        end_lsn = cluster.end_lsn()
        wanted, found = (
            # A transaction that has undone all its changes is not sent at all if no part was
            # streamed.
            [one for one in transactions(receive(port, slot, end_lsn)) if one.changes]
            for port, slot in ((primary.port, "direct"), (cluster.ports[0], "feed"))
        )
        assert primary.sql(STREAMED) > 2
        kept = [one.end_lsn for one in wanted if one.end_lsn >= found[0].end_lsn]
        assert [one.end_lsn for one in found] == kept
        for one, other in zip(found, wanted[-len(kept) :], strict=True):
            assert one.commit_lsn == other.commit_lsn and one.xid == other.xid
            differing = [
                f"{n}: {mine}, wanted {theirs}"[:300]
                for n, (mine, theirs) in enumerate(zip_longest(one.changes, other.changes))
                if mine != theirs
            ]
            assert not differing, f"{one.xid}, {len(other.changes)} changes, {differing[:2]}"


class LargeTransactions(Journal):
    """Each of 2,000 rows, and of savepoints that it goes back to."""

    table = "large"
    create = "CREATE TABLE IF NOT EXISTS large (id bigint, n int, v text, PRIMARY KEY (id, n))"

    def transact(self, connection: psycopg.Connection[Any], new_id: int) -> None:
        fill = FILL.format("large", "{}", "{}").replace("SELECT i", f"SELECT {new_id}, i")
        connection.execute(b"BEGIN")
        for n in range(0, 2000, 200):
            connection.execute(fill.format(n, n + 199).encode())
            connection.execute(b"SAVEPOINT s")
            connection.execute(fill.format(-n - 50, -n - 1).encode())
            connection.execute(b"ROLLBACK TO s")
        connection.execute(b"COMMIT")


@pytest.mark.soak
def test_large_transactions_are_in_the_stream_once_while_parts_are_killed(
    primary: PostgresServer, figure: Figure
) -> None:
    with LogicalCluster.create(primary) as cluster:
        create_slot(cluster.ports[1], "audit")
        pgbench(primary, "-i", "-q", "-s", "1")
        one, two = LargeTransactions(primary, writers=1), LargeTransactions(primary, writers=1)
        with Journal(primary) as journal, one, two:
            kill_all_in_turn(cluster, journal)
        stream = receive(cluster.ports[1], "audit", cluster.end_lsn())
        replica: Replica = check_stream(stream, primary, journal)
        assert replica.rows("public.large") == table_rows(primary, "large")
        ids = {int(row["id"]) for row in inserts(transactions(stream), "public.large")}
        assert len(one.acknowledged) > 2 < len(two.acknowledged)
        assert ids >= one.acknowledged | two.acknowledged
        assert primary.sql(STREAMED) > 5
        figure("large transactions beside kills", len(one.acknowledged) + len(two.acknowledged))


def test_a_transaction_too_large_for_the_spool_stays_at_the_primary_until_it_commits(
    primary: PostgresServer, tmp_path: Path
) -> None:
    tmp_path.chmod(0o777)
    with LogicalCluster.create(primary) as cluster:
        cluster.proposer.terminate()
        cluster.proposer = cluster.new_proposer(
            "bounded", "--logical", "--publication", "p",
            "--spool-size-max", "3MB", "--spool-dir", str(tmp_path),
        )  # fmt: skip
        cluster.proposer.start()
        create_slot(cluster.ports[0], "feed")
        primary.sql("CREATE TABLE t (id int, v text)")
        with primary.connect() as open_one:
            open_one.execute(b"BEGIN")
            open_one.execute(FILL.format("t", 1, 3000).encode())  # 2 MB
            wait_until(lambda: primary.sql(STREAMED) > 0)
            assert not list(tmp_path.iterdir())  # it has no name
            primary.sql(FILL.format("t", 3001, 6000))
            wait_until(lambda: "larger than --spool-size-max, 3145728" in cluster.proposer.output())
            open_one.execute(b"COMMIT")
        spilled = "SELECT sum(spill_txns)::int FROM pg_stat_replication_slots"
        end_lsn = cluster.end_lsn()
        found = transactions(receive(cluster.ports[0], "feed", end_lsn))
        wait_until(lambda: primary.sql(spilled) > 0)
        ids = [[int(row["id"]) for row in inserts([one], "public.t")] for one in found]
        assert [ids_of for ids_of in ids if ids_of] == [
            [*range(3001, 6001)],
            [*range(1, 3001)],
        ]


def test_an_origin_is_with_its_transaction_also_if_it_begins_with_ddl(
    primary: PostgresServer,
) -> None:
    """PostgreSQL does not send the origin of such a transaction if it streams it. So it must not
    stream, from the first origin on that anybody sees."""
    with LogicalCluster.create(primary) as cluster:
        create_slot(cluster.ports[0], "feed")
        large = FILL.format("t", 1, 1000)
        primary.sql(
            "CREATE TABLE t (id int, v text)",
            large,
            "SELECT pg_replication_origin_create('elsewhere')",
            "SELECT pg_replication_origin_session_setup('elsewhere')",
            "INSERT INTO t VALUES (0, 'small')",
            "BEGIN",
            "CREATE TABLE made (id int)",
            large,
            "COMMIT",
            "SELECT pg_replication_origin_session_reset()",
        )
        said = "origins are in use at the primary; PostgreSQL is"
        wait_until(lambda: said in cluster.proposer.output())
        cluster.proposer.kill()
        cluster.proposer.start()  # it knows the origins from its start on
        primary.sql(large)
        found = transactions(receive(cluster.ports[0], "feed", cluster.end_lsn()))
        inserted = [one for one in found if any(change[0] == "I" for change in one.changes)]
        shapes = [(one.changes[0][0] == "O", len(one.changes)) for one in inserted[:4]]
        assert shapes == [(False, 1000), (True, 2), (True, 1001), (False, 1000)]
        assert primary.sql(STREAMED) == 1
