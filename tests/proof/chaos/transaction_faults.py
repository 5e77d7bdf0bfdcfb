"""Transactions that write for a long time without a commit, while proposer and primary die (R22).

Such WAL holds no commit that tells one server from its copy. Only the proposer's own records do.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from tests.proof.chaos.fault import Fault
from tests.proof.chaos.process_faults import DEPOSED_S
from tests.proof.chaos.verdicts import Violation

CREATE = "CREATE TABLE IF NOT EXISTS long_transactions (id bigint, padding text)"
ROWS = "INSERT INTO long_transactions SELECT {id}, repeat('x', 900) FROM generate_series(1, {rows})"
STREAMS = "SELECT pid FROM pg_stat_replication WHERE application_name = 'walkeeper'"
ROWS_MIN, ROWS_MAX = 4_000, 20_000  # a kilobyte each, so up to twenty segments a write


class OpenTransaction(Fault):
    """Begins a transaction that has no commit yet."""

    connection: psycopg.Connection[Any]

    def begin(self) -> None:
        self.cluster.primary.sql(CREATE)
        self.id = self.chance.randrange(1 << 60)
        self.rows = 0
        self.connection = self.cluster.primary.connect()
        self.connection.execute("BEGIN")
        self.write()

    def write(self) -> None:
        """Write some megabytes of the transaction."""
        rows = self.chance.randrange(ROWS_MIN, ROWS_MAX)
        self.connection.execute(ROWS.format(id=self.id, rows=rows).encode())
        self.rows += rows


class LongTransaction(OpenTransaction):
    """The proposer dies, loses its connection, and checkpoints happen, all in one transaction."""

    name = "long_transaction"
    hold = (0.0, 0.5)

    def inject(self) -> str:
        self.begin()
        events = self.chance.choices(
            (self._kill_proposer, self._reset, self._checkpoint, self._kill_safekeeper), k=4
        )
        for event in events:
            event()
            self.write()
        return f"{self.rows} rows: {' '.join(event.__name__.lstrip('_') for event in events)}"

    def _kill_proposer(self) -> None:
        self.cluster.proposer.kill()
        self.cluster.hold(1.0)

    def _reset(self) -> None:
        """End the walsender, as a network's blip does."""
        for (pid,) in self.cluster.primary.rows(STREAMS):
            self.cluster.primary.sql(f"SELECT pg_terminate_backend({pid})")
        self.cluster.hold(0.5)

    def _checkpoint(self) -> None:
        self.cluster.primary.sql("CHECKPOINT")

    def _kill_safekeeper(self) -> None:
        number = self.some_safekeepers()[0]
        self.cluster.safekeepers[number - 1].kill()
        self.cluster.hold(0.3)
        self.cluster.safekeepers[number - 1].start()

    def heal(self) -> None:
        """Commit, which the quorum must acknowledge; the checker looks for the rows from now on."""
        self.connection.execute("SET statement_timeout = 0")
        pid = self.connection.info.backend_pid
        self.connection.pgconn.send_query(b"COMMIT")
        self.cluster.wait(lambda: self._has_returned(), DEPOSED_S)
        result = self.connection.pgconn.get_result()
        if result is None or result.error_message:
            raise Violation(f"the long commit of {pid} failed: {result and result.error_message!r}")
        self.connection.close()
        self.cluster.long_transactions[self.id] = self.rows

    def _has_returned(self) -> bool:
        self.connection.pgconn.consume_input()
        return not self.connection.pgconn.is_busy()


class PrimaryDiesInLongTransaction(OpenTransaction):
    """The primary dies inside of it, and checkpoints before its proposer is there again."""

    name = "primary_dies_in_long_transaction"
    hold = (0.0, 0.5)

    def inject(self) -> str:
        self.begin()
        self.write()
        self.cluster.primary.kill()
        self.cluster.proposer.kill()
        with contextlib.suppress(psycopg.Error):
            self.connection.close()
        return f"{self.rows} rows"

    def heal(self) -> None:
        self.cluster.primary.start()
        self.cluster.primary.sql("CHECKPOINT")
