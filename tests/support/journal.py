"""A load that records every acknowledgement: all promised rows must be found again.

    with Journal(server, writers=4) as journal:      ids are inserted, one transaction each
        journal.wait_for_more(100)                    a hundred more acknowledgements
    lost = journal.acknowledged - journal.ids_in(restored_server)

An id counts as acknowledged only if its commit returned, and without PostgreSQL's WARNING that it
stopped waiting for the synchronous standby. Writers connect again for as long as it takes.
Another load is another `transact`, with ids in a table of its own.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until

INSERT = "INSERT INTO journal VALUES (%s, repeat('x', 100))"
LARGE_RECORD = "SELECT pg_logical_emit_message(false, 'large', repeat('x', %s))"
LARGE_RECORD_EVERY = 10
IDS_PER_WRITER = 1_000_000_000
RECONNECT_S = 0.05
STOP_S = 20.0


class Acknowledgement(NamedTuple):
    """One commit that returned: at `at_s`, of time.monotonic(), after `latency_s`."""

    at_s: float
    latency_s: float
    id: int


class Journal:
    """The load and its record: writers run from `start` to `stop`.

    `entries` grows in the order in which the commits return.
    """

    table = "journal"
    create = "CREATE TABLE IF NOT EXISTS journal (id bigint PRIMARY KEY, padding text)"
    _generations = 0

    def __init__(
        self,
        server: PostgresServer,
        *,
        writers: int = 4,
        record_bytes: int = 0,
        pause_s: float = 0.0,
        file: Path | None = None,
    ) -> None:
        """Make the table at once: call this before commits wait, or with a quorum.

        `record_bytes` is the size of a WAL record, now and then, so that kills hit inside of one.
        `pause_s` is each writer's pause between two commits. `file` gets every acknowledged id,
        for the reader of a failed run.
        """
        server.sql(self.create)
        Journal._generations += 1  # several journals on one table use ids of their own
        self._first_id = Journal._generations * 1000 * IDS_PER_WRITER
        self._server, self._record_bytes, self._pause_s = server, record_bytes, pause_s
        self._file = file.open("a", buffering=1) if file else None
        self._stopping = threading.Event()
        self._latest: dict[int, int] = {}  # by writer: each counts up from its first
        self._connections: dict[int, psycopg.Connection[Any]] = {}
        self._threads = [
            threading.Thread(target=self._write, args=(number,), daemon=True)
            for number in range(writers)
        ]
        self.entries: list[Acknowledgement] = []
        self.cancelled: list[int] = []  # visible, but nobody promised that they are durable
        self.unknown: list[int] = []  # the connection was lost, or PostgreSQL said no

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the writers; cancel a commit that hangs, which makes it unacknowledged."""
        self._stopping.set()

        def all_ended() -> bool:
            for connection in list(self._connections.values()):
                if time.monotonic() - stop_began_s > STOP_S / 4:
                    connection.cancel()
            return not any(thread.is_alive() for thread in self._threads)

        stop_began_s = time.monotonic()
        wait_until(all_ended)
        if self._file:
            self._file.close()

    def _write(self, number: int) -> None:
        ids = itertools.count(self._first_id + number * IDS_PER_WRITER)
        while not self._stopping.is_set():
            try:
                with self._server.connect(connect_timeout=5) as connection:
                    self._connections[number] = connection
                    self._insert_until_lost(connection, ids)
            except psycopg.Error:
                self._stopping.wait(RECONNECT_S)
            finally:
                self._connections.pop(number, None)

    def _insert_until_lost(self, connection: psycopg.Connection[Any], ids: Iterator[int]) -> None:
        warnings: list[str] = []
        connection.add_notice_handler(lambda n: warnings.append(n.message_primary or ""))
        while not self._stopping.is_set():
            began_s, new_id = time.monotonic(), next(ids)
            self._latest[(new_id - self._first_id) // IDS_PER_WRITER] = new_id
            try:
                self.transact(connection, new_id)
            except psycopg.Error:
                self.unknown.append(new_id)
                raise
            now_s = time.monotonic()
            if any("canceling wait" in text for text in warnings):
                warnings.clear()
                self.cancelled.append(new_id)
            else:
                self.entries.append(Acknowledgement(now_s, now_s - began_s, new_id))
                if self._file:
                    self._file.write(f"{new_id}\n")
            if self._pause_s:
                self._stopping.wait(self._pause_s)

    def transact(self, connection: psycopg.Connection[Any], new_id: int) -> None:
        """Commit one transaction that leaves `new_id` in the table."""
        if self._record_bytes and new_id % LARGE_RECORD_EVERY == 0:
            connection.execute(LARGE_RECORD, (self._record_bytes,))
        connection.execute(INSERT, (new_id,))

    def goes_on_for(self, seconds: float) -> None:
        """Let the load run between two faults of a random schedule, without any expectation."""
        self._stopping.wait(seconds)

    def wait_for_more(self, count: int, timeout_s: float = LIMIT_S) -> None:
        """Wait until so many more commits are acknowledged."""
        enough = len(self.entries) + count
        wait_until(lambda: len(self.entries) >= enough, timeout_s)

    def is_silent_for(self, seconds: float, *, within_s: float = 30.0) -> bool:
        """Wait until no commit has returned for so long; return False if some always do."""
        began_s = time.monotonic()

        def silent() -> bool:
            last_s = self.entries[-1].at_s if self.entries else began_s
            return time.monotonic() - max(last_s, began_s) >= seconds

        try:
            wait_until(silent, within_s)
        except AssertionError:
            return False
        return True

    @property
    def acknowledged(self) -> set[int]:
        return {entry.id for entry in self.entries}

    def was_tried(self, some_id: int) -> bool:
        """Return True if a writer ever sent it; its outcome may still be open."""
        writer = (some_id - self._first_id) // IDS_PER_WRITER
        return self._first_id <= some_id <= self._latest.get(writer, -1)

    def ids_in(self, server: PostgresServer) -> set[int]:
        return {row[0] for row in server.rows(f"SELECT id FROM {self.table}")}

    def lost_in(self, server: PostgresServer) -> set[int]:
        """Return the acknowledged ids that are not on this server."""
        return self.acknowledged - self.ids_in(server)

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time between two successive acknowledgements of all writers."""
        times = [since_s, *self.times_s(since_s, until_s), until_s]
        return max(b - a for a, b in itertools.pairwise(times))

    def times_s(self, since_s: float, until_s: float) -> list[float]:
        """Return the times at which acknowledgements arrived, in order."""
        # Writers may append in another order than they looked at the clock, by a few entries.
        first = bisect.bisect_left(self.entries, since_s - 1, key=lambda entry: entry.at_s)
        last = bisect.bisect_right(self.entries, until_s + 1, key=lambda entry: entry.at_s)
        times = (entry.at_s for entry in self.entries[first:last])
        return sorted(at_s for at_s in times if since_s <= at_s <= until_s)

    def begun_and_returned(self, since_s: float, until_s: float) -> int:
        """Return how many commits both began and returned in this interval."""
        return sum(since_s <= e.at_s - e.latency_s and e.at_s <= until_s for e in self.entries)

    def latency_s(self, fraction: float, since_s: float = 0.0) -> float:
        """Return the latency below which this fraction of the commits stayed, such as 0.999."""
        values = sorted(entry.latency_s for entry in self.entries if entry.at_s >= since_s)
        return values[min(len(values) - 1, int(len(values) * fraction))]
