"""WAL that the primary keeps to be distinguished from a clone (docs/protocol.md R22). A shell.

While the proposer streams, one SQL connection looks once a second. It writes a nonce into a segment
that has none. It moves a physical slot of its own, NAME_retention, to the last nonce that a quorum
has. The streaming slot follows commit_lsn. Below that, a primary may recycle all WAL that shows
which branch it is.

This code delays no commit: a nonce has no transaction id, so it waits for no standby. A connection
that fails is opened again; until then both sides keep more WAL, not less.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from zlib import crc32

import asyncpg

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_common.postgres.nonce_message import (
    NONCE_BYTES,
    PREFIX,
    lacks_nonce,
    nonce_page,
)
from walkeeper_proposer.consensus.proposer_events import Event, NonceWritten
from walkeeper_proposer.postgres.primary_sql import SqlFailed, connected

logger = logging.getLogger("walkeeper.retention")

LOOK_S = 1.0
RETRY_S = 5.0
WRITES_MAX = 3  # attempts at a nonce that lies in one page
SUFFIX = "_retention"
SLOT_NAME_MAX = 63
# No pg_hba.conf entry or no right to log in, a wrong password, no such database, no privilege.
LASTING = ("28000", "28P01", "3D000", "42501")
HELD_BY = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1"
IS_LOST = (
    "SELECT wal_status IS NOT DISTINCT FROM 'lost' FROM pg_replication_slots WHERE slot_name = $1"
)
MAKE = "SELECT pg_create_physical_replication_slot($1, true)"
DROP = "SELECT pg_drop_replication_slot($1)"
SEGMENT_BYTES = "SELECT pg_size_bytes(current_setting('wal_segment_size'))"
INSERT_LSN = "SELECT pg_current_wal_insert_lsn()::text"
WRITE = "SELECT pg_logical_emit_message(false, $1::text, $2::bytea)::text"
ADVANCE = """
SELECT pg_replication_slot_advance(slot_name, $2::text::pg_lsn) FROM pg_replication_slots
WHERE slot_name = $1 AND restart_lsn < $2::text::pg_lsn
"""
RIGHTS = (
    "it needs LOGIN and REPLICATION, CONNECT on the database of --dsn, a pg_hba.conf entry for "
    "that database, and EXECUTE on pg_logical_emit_message, "
    "pg_create_physical_replication_slot and pg_replication_slot_advance"
)


def retention_slot(slot: str) -> str:
    """Return the name of the slot that retains for the streaming slot `slot`."""
    if len(slot) + len(SUFFIX) <= SLOT_NAME_MAX:
        return slot + SUFFIX
    digest = f"_{crc32(slot.encode()):08x}"
    return slot[: SLOT_NAME_MAX - len(digest) - len(SUFFIX)] + digest + SUFFIX


class Retention:
    """The retention slot of one streaming slot."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn, self._streaming_slot, self.slot = dsn, slot, retention_slot(slot)
        self._begin_lsn = ZERO_LSN
        self._moved_lsn = ZERO_LSN
        self._last_error = LastText()
        self._task: asyncio.Task[None] | None = None

    def start(
        self, group: asyncio.TaskGroup, walsender_pid: int, post: Callable[[Event], None]
    ) -> None:
        """Retain on the server of that walsender, until `stop`."""
        self.stop()
        self._task = group.create_task(self.keep(walsender_pid, post), name="retention slot")

    def retain(self, begin_lsn: Lsn) -> None:
        """Keep the primary's WAL from `begin_lsn` on, and no more."""
        self._begin_lsn = begin_lsn

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def keep(self, walsender_pid: int, post: Callable[[Event], None]) -> None:
        """Write nonces and move the slot on the server of that walsender, until cancelled."""
        while True:
            try:
                async with connected(self._dsn) as sql:
                    await self._keep_through(sql, walsender_pid, post)
            except Refused as error:
                is_lasting = isinstance(error, SqlFailed) and error.sqlstate in LASTING
                self._tell(error, is_lasting=is_lasting)
                if is_lasting:
                    post(NonceWritten(None))
            await asyncio.sleep(RETRY_S)

    def _tell(self, error: Refused, *, is_lasting: bool) -> None:
        if not self._last_error.changes_to(error):
            return
        if is_lasting:
            logger.warning(
                "no nonces in the primary's WAL: %s. After a long transaction the primary may be "
                "refused when the proposer starts again. Give the role of --dsn its rights: %s",
                error,
                RIGHTS,
            )
        else:
            logger.warning("the primary keeps its WAL from the last nonce on: %s; retrying", error)

    async def _keep_through(
        self, sql: asyncpg.Connection, walsender_pid: int, post: Callable[[Event], None]
    ) -> None:
        if await sql.fetchval(HELD_BY, self._streaming_slot) != walsender_pid:
            raise Refused(
                "SQL reaches another server of --dsn than the one that streams: name one server in "
                "--dsn, or add target_session_attrs=primary"
            )
        segment_bytes: int = await sql.fetchval(SEGMENT_BYTES)
        last_lsn: Lsn | None = None
        self._moved_lsn = ZERO_LSN
        while True:
            await make_slot(sql, self.slot)  # another program may have dropped it
            insert_lsn = Lsn.parse(await sql.fetchval(INSERT_LSN))
            if lacks_nonce(insert_lsn, last_lsn, segment_bytes=segment_bytes):
                last_lsn = await _write_nonce(sql)
                post(NonceWritten(last_lsn))
            if self._begin_lsn > self._moved_lsn:
                begin_lsn = self._begin_lsn
                await sql.fetch(ADVANCE, self.slot, str(begin_lsn))
                self._moved_lsn = begin_lsn
            self._last_error.clear()
            await asyncio.sleep(LOOK_S)


async def make_slot(sql: asyncpg.Connection, slot: str) -> None:
    """Make the slot if it is missing, and make a lost one anew (max_slot_wal_keep_size)."""
    is_lost = await sql.fetchval(IS_LOST, slot)
    if is_lost:
        await sql.execute(DROP, slot)
        logger.warning("dropped the replication slot %s, which was lost", slot)
    if is_lost is not False:
        await sql.execute(MAKE, slot)
        logger.info("made the replication slot %s on this server", slot)


async def _write_nonce(sql: asyncpg.Connection) -> Lsn:
    """Write a nonce into the WAL, and return where it ends."""
    for _ in range(WRITES_MAX):
        written = await sql.fetchval(WRITE, PREFIX, os.urandom(NONCE_BYTES))
        end_lsn = Lsn.parse(written)
        if nonce_page(end_lsn) is not None:
            break
    return end_lsn
