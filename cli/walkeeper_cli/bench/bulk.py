"""`bench bulk`: MB/s of WAL in transactions that write much, from their start to their commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from walkeeper_cli.bench.bench_server import BenchServer
from walkeeper_cli.bench.pairs import Series
from walkeeper_cli.bench.rounds import Bench, Say
from walkeeper_cli.bench.sides import Side
from walkeeper_common.lsn import Lsn

MB = 1_000_000
ROW_BYTES = 200
ROWS_PER_CHUNK = 5000
MESSAGE_BYTES = 1 << 20
TABLE = "CREATE TABLE IF NOT EXISTS bulk (id bigint, padding text)"
MESSAGES = (
    "SELECT count(pg_logical_emit_message(true, 'bench', repeat('w', $1)))"
    " FROM generate_series(1, $2)"
)


class Bulk(Bench):
    """The benchmark of COPY and of pg_logical_emit_message, which writes only WAL."""

    title = "one client writes in bulk"

    def __init__(self, server: BenchServer, megabytes: int) -> None:
        self._server, self._megabytes = server, megabytes
        self._copy = Series("COPY", "MB/s of WAL", more=True)
        self._messages = Series("pg_logical_emit_message", "MB/s of WAL", more=True)

    @property
    def series(self) -> list[Series]:
        return [self._copy, self._messages]

    async def measure(self, side: Side, say: Say) -> None:
        connection = await self._server.server.connect()
        try:
            await connection.execute("SET synchronous_commit = local")
            await connection.execute(TABLE)
            await connection.execute("TRUNCATE bulk")
            await connection.execute("RESET synchronous_commit")
            rows = self._megabytes * MB // ROW_BYTES
            rate = await self._rate(
                lambda: connection.copy_to_table("bulk", source=_text(rows), timeout=600)
            )
            self._copy.add(side.name, rate)
            say(f"{side.name}: COPY, {rate:.0f} MB/s")
            count = self._megabytes * MB // MESSAGE_BYTES
            rate = await self._rate(
                lambda: connection.fetchval(MESSAGES, MESSAGE_BYTES, count, timeout=600)
            )
            self._messages.add(side.name, rate)
            say(f"{side.name}: messages, {rate:.0f} MB/s")
        finally:
            await connection.close()

    async def _rate(self, work: Callable[[], Awaitable[object]]) -> float:
        """Return the MB/s of WAL during `work`, its commit included."""
        server = self._server.server
        await server.value("CHECKPOINT")
        clock = asyncio.get_running_loop().time
        begin_lsn = await self._insert_lsn()
        began_s = clock()
        await work()
        spent_s = clock() - began_s
        return (await self._insert_lsn() - begin_lsn) / MB / spent_s

    async def _insert_lsn(self) -> Lsn:
        shown = await self._server.server.value("SELECT pg_current_wal_insert_lsn()::text")
        return Lsn.parse(str(shown))


async def _text(rows: int) -> AsyncIterator[bytes]:
    """Yield rows in COPY's text format; they are all the same, to spare the client's CPU."""
    row = b"1\t" + b"w" * (ROW_BYTES - 20) + b"\n"
    chunk = row * ROWS_PER_CHUNK
    for first in range(0, rows, ROWS_PER_CHUNK):
        yield chunk[: (rows - first) * len(row)]
