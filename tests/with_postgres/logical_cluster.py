"""A logical log of a real PostgreSQL with parts that can be killed, and a reader of its stream."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Sequence

import psycopg
import pytest

from tests.support.change_consumer import (
    Replica,
    Transaction,
    transactions,
)
from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.waiting import LIMIT_S, wait_until

PGBENCH = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
KEYS = {  # pgbench makes them after the rows
    "public.pgbench_accounts": ("aid",),
    "public.pgbench_branches": ("bid",),
    "public.pgbench_tellers": ("tid",),
}
SETTINGS = {"wal_level": "logical", "wal_sender_timeout": "5s"}


class LogicalCluster(Cluster):
    """Keeps the changes of publication `p`."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(primary, name="changes")
        self.proposer = self.new_proposer("logical", "--logical", "--publication", "p")

    def make_log(self) -> None:
        self.command("create", "--dsn", self.primary.dsn(), "--logical")

    def segments_kept(self) -> int:
        """Return how many segments the log has on the first safekeeper."""
        return sum(1 for file in self.wal_dir(1).iterdir() if len(file.name) == 24)

    def slot_lsns(self, slot: str) -> dict[int, str]:
        """Return a consumer's position as each safekeeper knows it, by id."""
        return {
            safekeeper["id"]: found["restart_lsn"]
            for safekeeper in self.status()["safekeepers"]
            for found in safekeeper["slots"] or ()
            if found["slot_name"] == slot
        }

    def wait_confirmed(self, slot: str, received: bytes, members: Sequence[int]) -> None:
        """Wait until these know that the slot's consumer, which has left, has all of this."""
        last_lsn = transactions(received)[-1].end_lsn

        def is_known() -> bool:
            lsns = self.slot_lsns(slot)
            known = {lsn_of(lsns.get(member, "0/0")) for member in members}
            return len(known) == 1 and known.pop() >= last_lsn

        wait_until(is_known)

    def end_lsn(self) -> str:
        """Return the end of the primary's WAL, after one more commit that every safekeeper gets."""
        self.primary.sql(
            "CREATE TABLE IF NOT EXISTS fence (id int)", "INSERT INTO fence VALUES (1)"
        )
        end: str = self.primary.sql("SELECT pg_current_wal_flush_lsn()")
        return end


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        yield server


@pytest.fixture
def cluster(primary: PostgresServer) -> Iterator[LogicalCluster]:
    with LogicalCluster.create(primary) as made:
        yield made


class ChangingSchema:
    """DDL beside the load: a column more, a column less, a table that comes and goes."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._stopping = server, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.changes = 0

    def __enter__(self) -> ChangingSchema:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.05):
            number += 1
            try:
                self._server.sql(
                    f"ALTER TABLE journal ADD COLUMN c{number} text",
                    f"ALTER TABLE journal ALTER COLUMN c{number} SET DEFAULT 'd{number}'",
                    f"CREATE TABLE made_{number} (id int PRIMARY KEY, v text)",
                    f"INSERT INTO made_{number} VALUES (1, 'one'), (2, 'two')",
                    f"UPDATE made_{number} SET id = 3 WHERE id = 1",
                    f"DROP TABLE made_{number}",
                )
                self.changes += 1
            except psycopg.Error:
                continue  # a part was killed; the next round goes on


def pgbench(server: PostgresServer, *options: str) -> None:
    """Run it once; a run that a restart of the server has ended is no failure."""
    subprocess.run(
        [program("pgbench"), *options, server.dsn()],
        env=server_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
    )


def table_rows(server: PostgresServer, table: str) -> list[tuple[tuple[str, str | None], ...]]:
    """Return the rows as Replica.rows gives them."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0".encode())
        names = [column.name for column in cursor.description or ()]
        with cursor.copy(f"COPY {table} TO STDOUT".encode()) as copy:
            rows = [
                tuple(sorted((n, v) for n, v in zip(names, row, strict=True) if v is not None))
                for row in copy.rows()
            ]
    return sorted(rows, key=repr)


def check_stream(stream: bytes, server: PostgresServer, journal: Journal) -> Replica:
    """Check each acknowledged transaction once, in commit order; the state is the tables'."""
    found = transactions(stream)
    ends = [one.end_lsn for one in found]
    assert ends == sorted(set(ends)), "not in commit order, or twice"
    inserted = [int(new["id"]) for new in inserts(found, "public.journal")]
    assert len(inserted) == len(set(inserted))
    acknowledged = {entry.id for entry in journal.entries}
    assert not acknowledged - set(inserted), "acknowledged, and not in the stream"
    replica = Replica(KEYS)
    for one in found:
        replica.apply(one)
    for table in ("journal", *PGBENCH):
        assert replica.rows(f"public.{table}") == table_rows(server, table), table
    return replica


def inserts(found: list[Transaction], table: str) -> Iterator[dict[str, str]]:
    for one in found:
        for kind, relation, _, new in one.changes:
            if kind == "I" and relation.name == table and new is not None:
                yield {name: value for name, value in new.items() if value is not None}


def received_ids(stream: bytes) -> list[int]:
    return [int(row["id"]) for row in inserts(transactions(stream), "public.t")]


def kill_all_in_turn(cluster: LogicalCluster, journal: Journal) -> None:
    """Kill parts in turn, under pgbench too. Commits go on after each."""
    first, second, third = cluster.safekeepers
    primary = cluster.primary
    load = threading.Thread(target=pgbench, args=(primary, "-n", "-c", "2", "-T", "6"))
    load.start()
    journal.wait_for_more(50)
    first.kill()
    journal.wait_for_more(50)
    first.start()
    cluster.proposer.kill()
    cluster.proposer.start()
    journal.wait_for_more(50)
    third.kill()
    third.start()
    journal.wait_for_more(50)
    load.join()
    primary.stop("immediate")
    primary.start()
    journal.wait_for_more(50)
    second.kill()
    cluster.proposer.kill()
    cluster.proposer.start()
    second.start()
    journal.wait_for_more(50)
