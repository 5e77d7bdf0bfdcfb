"""One transaction of gigabytes, with default settings, while everything around it fails (R22).

    python -m tests.failover.large_transaction --gigabytes 10 --seed 3

While it writes, the proposer is killed or loses its connection, the primary checkpoints, and
safekeepers die or stay behind for a while. Its commit must be acknowledged. Then the primary dies
inside of a second transaction and checkpoints before its proposer is back: it must be taken. A copy
restored from a backup that ran the same statements must never be. Each row counts at the end, and
the safekeepers' segments are equal.

Exit codes: 0 all held, 1 something did not.
"""

from __future__ import annotations

import random
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.program_parser import program_parser
from tests.support.segment_files import assert_each_pair_same
from tests.support.waiting import wait_until

SETTINGS = {"max_wal_size": "2GB"}  # all else is PostgreSQL's default: no wal_keep_size
SEGMENT_BYTES = 16 << 20
ROW_BYTES = 900
CHUNK_ROWS = 100_000
GIGABYTE_ROWS = 1_000_000
RETURNS_S = 600.0
REFUSED_S = 120.0
ROWS = "INSERT INTO large SELECT {id}, repeat('x', {size}) FROM generate_series(1, {rows})"
STREAMS = "SELECT pg_terminate_backend(pid) FROM pg_stat_replication"


class Play:
    """The steps, on one cluster. Each raises AssertionError for what does not hold."""

    def __init__(self, primary: PostgresServer, cluster: Cluster, seed: int) -> None:
        self._primary, self._cluster = primary, cluster
        self._chance = random.Random(seed)
        self._began_s = time.monotonic()
        self._small = 0
        self._asleep: int | None = None  # the safekeeper that is behind

    def prepare(self) -> PostgresServer:
        """Make the tables, and return a backup for the copy that must be refused."""
        self._primary.sql(
            "CREATE TABLE large (id int, padding text)", "CREATE TABLE small (id int)"
        )
        self._commit_a_row()
        return self._primary.base_backup()

    def write_one_large(self, rows: int) -> None:
        """Write a transaction of so many rows while things fail, and commit it."""
        with self._begun() as connection:
            written = 0
            while written < rows:
                chunk = min(CHUNK_ROWS, rows - written)
                connection.execute(ROWS.format(id=1, size=ROW_BYTES, rows=chunk).encode())
                written += chunk
                event = self._chance.choice(self._events())
                event()
                self._say(f"{written:,} of {rows:,} rows, {event.__name__.lstrip('_')}")
            self._wake()
            self._supervise()
            connection.execute("COMMIT")
        self._commit_a_row()
        self._say("committed and acknowledged")

    def _events(self) -> Sequence[Callable[[], None]]:
        return (self._nothing, self._kill_proposer, self._reset, self._checkpoint,
                self._kill_safekeeper, self._leave_behind, self._wake)  # fmt: skip

    def _nothing(self) -> None:
        self._supervise()

    def _kill_proposer(self) -> None:
        self._cluster.proposer.kill()
        self._supervise()

    def _reset(self) -> None:
        self._primary.sql(STREAMS)
        self._supervise()

    def _checkpoint(self) -> None:
        self._primary.sql("CHECKPOINT")
        self._supervise()

    def _kill_safekeeper(self) -> None:
        number = self._chance.randrange(3)
        if self._asleep is None:
            self._cluster.safekeepers[number].kill()
            self._cluster.safekeepers[number].start()
        self._supervise()

    def _leave_behind(self) -> None:
        """Stop one safekeeper for as long as chance says."""
        if self._asleep is None:
            self._asleep = self._chance.randrange(3)
            self._cluster.safekeepers[self._asleep].kill()
        self._supervise()

    def _wake(self) -> None:
        if self._asleep is not None:
            self._cluster.safekeepers[self._asleep].start()
            self._asleep = None

    def _supervise(self) -> None:
        """Start a proposer that has ended, as systemd does; raise for one that is refused."""
        proposer = self._cluster.proposer
        if proposer.is_running:
            return
        said = proposer.output()
        proposer.start(wait=False)
        wait_until(lambda: "ready: " in proposer.output() or not proposer.is_running, REFUSED_S)
        assert proposer.is_running, f"refused: {proposer.output()}\nbefore: {said[-1000:]}"

    def die_inside_another(self, rows: int) -> None:
        """Kill the primary inside a transaction; it checkpoints before the proposer is back."""
        connection = self._begun()
        connection.execute(ROWS.format(id=2, size=ROW_BYTES, rows=rows).encode())
        self._primary.kill()
        self._cluster.proposer.kill()
        connection.close()
        self._primary.start()
        self._primary.sql("CHECKPOINT")
        self._supervise()
        self._commit_a_row()
        self._say(f"the primary died inside a transaction of {rows:,} rows, and was taken again")

    def refuse_the_copy(self, copy: PostgresServer, rows: int) -> None:
        """Run the same statements on a copy; raise if a proposer streams from it."""
        (copy.data / "postgresql.auto.conf").write_text("")  # it waits for no standby
        copy.start()
        with copy.connect(options="-c statement_timeout=0") as connection:
            connection.execute(ROWS.format(id=1, size=ROW_BYTES, rows=rows).encode())
        copy.sql("CHECKPOINT")
        self._cluster.proposer.kill()
        other = self._cluster.new_proposer("copy", "--take-over", dsn=copy.dsn())
        other.start(wait=False)
        wait_until(lambda: not other.is_running or "ready: " in other.output(), REFUSED_S)
        assert not other.is_running, f"a copy was taken for the primary: {other.output()}"
        self._say(f"the copy is refused: {other.output().strip().splitlines()[-1][:160]}")
        self._supervise()
        self._commit_a_row()

    def check(self, rows: int) -> None:
        """Count the rows, and compare the safekeepers' segments."""
        assert self._primary.sql("SELECT count(*) FROM large WHERE id = 1") == rows
        assert self._primary.sql("SELECT count(*) FROM large WHERE id = 2") == 0
        assert self._primary.sql("SELECT count(*) FROM small") == self._small
        end = lsn_of(self._cluster.wait_all_equal(RETURNS_S))
        folders = [self._cluster.wal_dir(number) for number in (1, 2, 3)]
        same = assert_each_pair_same(folders, end, SEGMENT_BYTES)
        self._say(f"{rows:,} rows are there; {same} pairs of segments are equal")

    def _begun(self) -> psycopg.Connection[Any]:
        connection = self._primary.connect(options="-c statement_timeout=0")
        connection.execute("BEGIN")
        return connection

    def _commit_a_row(self) -> None:
        """Commit by the quorum, within the limit of a statement."""
        self._small += 1
        self._primary.sql(f"INSERT INTO small VALUES ({self._small})")

    def _say(self, text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._began_s:7.1f} s  {text}\n")
        sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = program_parser("tests.failover.large_transaction", __doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of WAL (default: 1)")
    parser.add_argument("--seed", type=int, help="of the choice of events (default: fresh)")
    asked = parser.parse_args(arguments)
    seed = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    rows = max(1, int(asked.gigabytes * GIGABYTE_ROWS))
    again = f"python -m tests.failover.large_transaction --gigabytes {asked.gigabytes:g}"
    sys.stdout.write(f"{again} --seed {seed}\n")
    with PostgresServer.create(SETTINGS) as primary, Cluster.create(primary) as cluster:
        play = Play(primary, cluster, seed)
        copy = play.prepare()
        try:
            play.write_one_large(rows)
            play.die_inside_another(rows // 10)
            play.refuse_the_copy(copy, rows // 10)
            play.check(rows)
        finally:
            copy.delete()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
