"""Writers that remember each acknowledgement, so that a step can look for every promised row.

An id counts as acknowledged only if its COMMIT returned without PostgreSQL's WARNING that it has
stopped waiting for the quorum. No id is used twice, even if its COMMIT fails.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from dataclasses import dataclass

import asyncpg

from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_proposer.postgres.primary_sql import LOST

WRITERS = 8
TABLE = "CREATE TABLE demo (id bigint PRIMARY KEY, written timestamptz, padding text)"
INSERT = "INSERT INTO demo VALUES ($1, clock_timestamp(), repeat('x', 100))"
IDS = "SELECT id FROM demo"
RECONNECT_S = 0.1
RATE_WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """One acknowledged row; its times are those of the event loop's clock."""

    id: int
    begun_s: float
    returned_s: float


class Load:
    """The writers: `run` writes until it is cancelled, and the rest looks at acknowledgements."""

    def __init__(self, server: PostgreSQL) -> None:
        self._server, self._ids = server, itertools.count(1)
        self._clock = asyncio.get_running_loop().time
        self.acknowledged: list[Acknowledgement] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(1, WRITERS + 1):
                group.create_task(self._write(), name=f"writer {number}")

    async def _write(self) -> None:
        """Write as one writer, and connect again after each lost connection."""
        while True:
            try:
                connection = await self._server.connect()
                try:
                    await self._insert_until_lost(connection)
                finally:
                    connection.terminate()
            except (asyncpg.PostgresError, *LOST):
                await asyncio.sleep(RECONNECT_S)

    async def _insert_until_lost(self, connection: asyncpg.Connection) -> None:
        warnings: list[object] = []
        connection.add_log_listener(lambda _, message: warnings.append(message))
        insert = await connection.prepare(INSERT)
        while True:
            new_id, begun_s = next(self._ids), self._clock()
            await insert.fetch(new_id)
            returned_s = self._clock()
            await asyncio.sleep(0)  # the listener has got a warning of this commit by now
            if not warnings:
                self.acknowledged.append(Acknowledgement(new_id, begun_s, returned_s))
            warnings.clear()

    def now_s(self) -> float:
        return self._clock()

    def since(self, since_s: float) -> list[Acknowledgement]:
        """Return the acknowledgements whose commits began and returned after that time."""
        found = itertools.takewhile(
            lambda entry: entry.returned_s >= since_s, reversed(self.acknowledged)
        )
        return [entry for entry in found if entry.begun_s >= since_s][::-1]

    def rate(self) -> float:
        """Return the commits per second in the last second."""
        since_s = self._clock() - RATE_WINDOW_S
        return len(self.since(since_s)) / RATE_WINDOW_S

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Return the longest time between two acknowledgements of any writers in this time."""
        times = (e.returned_s for e in self.acknowledged if since_s <= e.returned_s <= until_s)
        ordered = [since_s, *sorted(times), until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(ordered))

    async def ids_in(self, server: PostgreSQL) -> set[int]:
        """Return the ids of all rows on a server."""
        connection = await server.connect()
        try:
            return {row["id"] for row in await connection.fetch(IDS)}
        finally:
            await connection.close()

    async def lost_in(self, server: PostgreSQL) -> tuple[int, int]:
        """Return (number of acknowledged ids that are missing, number of rows) on a server."""
        promised, found = {entry.id for entry in self.acknowledged}, await self.ids_in(server)
        return len(promised - found), len(found)


def median_ms(entries: list[Acknowledgement]) -> float:
    """Return the median time from sending a commit to its return."""
    return 1000 * statistics.median(entry.returned_s - entry.begun_s for entry in entries)
