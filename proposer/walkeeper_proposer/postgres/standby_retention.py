"""Keep on a standby the WAL that shows its branch when it is promoted (R22). A shell.

    await reserve(dsn, slot)            make the slot once, before a promotion
    await keep_on_standby(dsn, slot)    make it and move it, until cancelled

The slot is NAME_retention, as on a primary. A standby cannot write a nonce, and it needs none. Its
last restartpoint stands for a checkpoint record of the log, which is a telling record. PostgreSQL
keeps the WAL from that checkpoint's redo LSN on in any case. The slot stands there, so a standby
keeps hardly more WAL than without it. The first checkpoints after a promotion would remove that
WAL, but the slot outlives the promotion. The new primary's proposer moves it then
(primary_retention.py).

A checkpoint counts SURE_S after its first look. Safekeepers make commit_lsn durable every 5 s. A
comparison ends at their durable commit_lsn, after a power failure as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

import asyncpg

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import WAL_PAGE_BYTES, ZERO_LSN, Lsn
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_proposer.postgres.primary_retention import ADVANCE, LASTING, RIGHTS, make_slot
from walkeeper_proposer.postgres.primary_sql import SqlFailed, connected

logger = logging.getLogger("walkeeper.retention")

LOOK_S = 2.0
RETRY_S = 5.0
SURE_S = 30.0
AWAITED_MAX = 64  # checkpoints that do not count yet; any more than these never count
CHECKPOINT_RECORD_BYTES = 128  # at most: 114 in 13 to 18
CHECKPOINT = """
SELECT pg_is_in_recovery(), checkpoint_lsn::text, redo_lsn::text FROM pg_control_checkpoint()
"""


class Restartpoints:
    """The restartpoints of a standby, and the last one that counts. Pure."""

    def __init__(self) -> None:
        self.begin_lsn = ZERO_LSN
        self._seen_lsn = ZERO_LSN
        self._awaited: deque[tuple[float, Lsn]] = deque()

    def look(self, checkpoint_lsn: Lsn, redo_lsn: Lsn, now_s: float) -> bool:
        """Take note of the last restartpoint; return True if `begin_lsn` has moved.

        A record that a page's end cuts does not tell: the comparison looks at whole ones."""
        if checkpoint_lsn != self._seen_lsn:
            self._seen_lsn = checkpoint_lsn
            is_whole = checkpoint_lsn % WAL_PAGE_BYTES + CHECKPOINT_RECORD_BYTES <= WAL_PAGE_BYTES
            if is_whole and len(self._awaited) < AWAITED_MAX:
                self._awaited.append((now_s + SURE_S, redo_lsn))
        moves = False
        while self._awaited and self._awaited[0][0] <= now_s:
            self.begin_lsn, moves = self._awaited.popleft()[1], True
        return moves


async def reserve(dsn: str, slot: str) -> None:
    """Make the slot on the standby at `dsn`, if it is missing. Raise Refused with the reason."""
    async with connected(dsn) as sql:
        await make_slot(sql, slot)


async def keep_on_standby(dsn: str, slot: str) -> None:
    """Keep the slot on the server at `dsn` while it is a standby, until cancelled."""
    last_error = LastText()
    while True:
        try:
            async with connected(dsn) as sql:
                await _keep_through(sql, slot)
        except Refused as error:
            if last_error.changes_to(error):
                _tell(error)
        await asyncio.sleep(RETRY_S)


async def _keep_through(sql: asyncpg.Connection, slot: str) -> None:
    """Return when the server is no standby any more."""
    points, loop = Restartpoints(), asyncio.get_running_loop()
    while True:
        in_recovery, checkpoint, redo = await sql.fetchrow(CHECKPOINT) or (False, "", "")
        if not in_recovery:
            return
        await make_slot(sql, slot)
        if points.look(Lsn.parse(checkpoint), Lsn.parse(redo), loop.time()):
            await sql.fetch(ADVANCE, slot, str(points.begin_lsn))
        await asyncio.sleep(LOOK_S)


def _tell(error: Refused) -> None:
    if isinstance(error, SqlFailed) and error.sqlstate in LASTING:
        logger.warning(
            "no retention slot on the standby: %s. Promoted behind a long transaction, the server "
            "may be refused. Give the role of --dsn its rights: %s",
            error,
            RIGHTS,
        )
    else:
        logger.info("no retention slot on the standby yet: %s; retrying", error)
