"""A worker that copies a subscription's table, through a transaction on the primary.

    copying = await CopySession.begin(logical, client, timeout_s)
    lsn = await copying.snapshot(token)     the copy has all up to here; the log has the rest
    await copying.perform(sql)              answers the worker
    await copying.close()

The rows come from the primary, as the log has no tables. They are those of a snapshot at an LSN,
and a quorum has the log up to that LSN before the worker gets a row. So a failover loses no row
that a subscriber has copied.
"""

from __future__ import annotations

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    Column,
    SqlRefused,
    command_complete,
    copy_data,
    copy_done,
    copy_out_response,
    result,
)
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.primary_snapshot import PrimarySnapshot
from walkeeper_safekeeper.replication.replication_answers import major_version
from walkeeper_safekeeper.replication.table_copy import Asked, TableCopy


class CopySession:
    """One worker between its BEGIN and its COMMIT."""

    def __init__(
        self,
        logical: LogicalLog,
        client: ClientConnection,
        snapshot: PrimarySnapshot,
        timeout_s: float,
    ) -> None:
        self._logical, self._client, self._snapshot = logical, client, snapshot
        self._timeout_s = timeout_s
        self._copy: TableCopy | None = None

    @classmethod
    async def begin(
        cls, logical: LogicalLog, client: ClientConnection, timeout_s: float
    ) -> CopySession:
        """Connect to the primary. Raise SqlRefused 57P03 without one."""
        database = (await logical.known_settings()).database
        snapshot = await logical.copies.open(logical.log.system_id, database)
        return cls(logical, client, snapshot, timeout_s)

    async def snapshot(self, token: str) -> Lsn:
        """Take the snapshot, and return its LSN once a quorum has the log up to there.

        Raise SqlRefused 57P03 if the log does not get there, or if the server is not the primary
        that it follows.
        """
        lsn = await self._snapshot.take()
        logical = self._logical
        settings = await logical.published_now(token)
        if self._snapshot.timeline != logical.timeline:
            raise SqlRefused(
                "57P03",
                f"the server of --copy-dsn is on timeline {self._snapshot.timeline}, and the log "
                f"on {logical.timeline}",
                hint="Name the primary that the proposer follows.",
            )
        await logical.wait_for_end(lsn)
        self._copy = TableCopy(settings, major_version(logical.log.server_version))
        return lsn

    async def perform(self, sql: str) -> None:
        """Answer one statement. Raise SqlRefused for what is no part of a copy."""
        if self._copy is None:
            raise SqlRefused("25001", "the slot is made before the first statement")
        asked = self._copy.check(sql)
        if asked in (Asked.ROWS, Asked.ROWS_IN_BINARY):
            await self._send_rows(sql, asked)
            return
        found = await self._snapshot.rows(sql)
        if asked is Asked.RELATION:
            self._copy.learn_table(found.rows)
            for question, text in self._copy.questions():
                self._copy.learn(question, (await self._snapshot.rows(text)).rows)
        columns = [Column(name) for name in found.names]
        self._client.answer(result(columns, found.rows, f"SELECT {len(found.rows)}"))

    async def _send_rows(self, sql: str, asked: Asked) -> None:
        """Pass the rows on as fast as the worker takes them. Raise SilentClient or ClientGone."""
        client, count = self._client, 0
        client.send(copy_out_response(binary=asked is Asked.ROWS_IN_BINARY))
        async for row in self._snapshot.copy(sql.strip(), client.encoding):
            client.send(copy_data(row))
            count += 1
            if not client.has_room:
                await client.drain(self._timeout_s)
        client.send(copy_done() + command_complete(f"COPY {count}"))

    async def close(self) -> None:
        """End the transaction on the primary."""
        await self._snapshot.close()
