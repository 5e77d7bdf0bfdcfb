"""Do commits wait for this proposer? Only the primary knows; `status` shows its answer. A shell.

After a `detach`, or an edit of synchronous_standby_names, WAL comes and is acknowledged as before,
but no commit waits for it any more. The answer needs SQL, and the rights of a pg_monitor member.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import NoReturn

import asyncpg

from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres.primary_sql import connected

ASK_S, ASK_AGAIN_S = 10.0, 1.0  # an `attach` is known a second later
WAITING_S = 5
ABSENT = "absent"
WAITED_FOR = ("sync", "quorum")
QUERY = """
SELECT sync_state, state, flush_lsn IS NULL AS is_new FROM pg_stat_replication
WHERE application_name = $1
"""
WAITING = f"""
SELECT count(*) AS waiting, coalesce(extract(epoch FROM min(state_change)), 0)::bigint AS since
FROM pg_stat_activity
WHERE wait_event = 'SyncRep' AND state_change < clock_timestamp() - interval '{WAITING_S} s'
"""
OVERRIDES = """
SELECT coalesce('database ' || d.datname, 'role ' || r.rolname, 'all') AS whom, c.item
FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS c(item)
LEFT JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole
WHERE c.item ~* '^synchronous_commit=(off|local|false|no|0)$'
ORDER BY 1, 2
"""
LOWERED = "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"


@dataclass(frozen=True, slots=True)
class Commits:
    """The primary's answer: commits that wait for WAITING_S or longer, and settings without a wait.

    `waiting_since` is Unix time, or 0. It is the start of the oldest one's statement. `streaming`
    is None if this role may not see it. `error` says why there is no answer."""

    sync_state: str | None = None
    waiting: int = 0
    waiting_since: int = 0
    lowered: tuple[str, ...] = ()
    streaming: bool | None = False
    error: str = ""


UNKNOWN = Commits()


class SyncState:
    """The answer is in `value`: pg_stat_replication's sync_state, "absent", or None if unknown.

    It is "absent" without a connection, as right after a start. That tells nothing about the
    commits that wait. `commits` has the rest of the answer.
    """

    def __init__(self, dsn: str, application_name: str) -> None:
        self._dsn, self._application_name = dsn, application_name
        self.commits = UNKNOWN
        self._wanted = asyncio.Event()

    @property
    def value(self) -> str | None:
        return self.commits.sync_state

    @property
    def is_waited_for(self) -> bool | None:
        return None if self.value in (None, ABSENT) else self.value in WAITED_FOR

    def ask_soon(self) -> None:
        """Ask within ASK_AGAIN_S: WAL waits for a quorum, so commits may wait."""
        self._wanted.set()

    async def watch(self) -> NoReturn:
        """Ask until cancelled, more often while commits hang or wait for nobody."""
        while True:
            self.commits = await self._asked()
            await asyncio.sleep(ASK_AGAIN_S)
            if self.is_waited_for and not self.commits.waiting:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), ASK_S - ASK_AGAIN_S)
            self._wanted.clear()

    async def _asked(self) -> Commits:
        try:
            async with connected(self._dsn) as sql:
                return await commits_of(sql, self._application_name)
        except Refused as error:
            return Commits(error=str(error))


async def commits_of(sql: asyncpg.Connection, application_name: str) -> Commits:
    """Return the primary's view of this proposer and of the commits that wait."""
    rows = await sql.fetch(QUERY, application_name)
    states = [None if _is_settling(row) else row["sync_state"] for row in rows]
    found = next((state for state in states if state in WAITED_FOR), states[0] if rows else ABSENT)
    waiting = await sql.fetchrow(WAITING)
    assert waiting is not None, WAITING
    lowered = [f"{row['item']} for {row['whom']}" for row in await sql.fetch(OVERRIDES)]
    if (of_all := await sql.fetchval(LOWERED)) in ("off", "local"):
        lowered.insert(0, f"synchronous_commit={of_all}")
    seen = [row["state"] for row in rows]
    streaming = None if rows and not any(seen) else "streaming" in seen
    return Commits(found, waiting["waiting"], waiting["since"], tuple(lowered), streaming)


def _is_settling(row: asyncpg.Record) -> bool:
    """Return True if the walsender's state is that of its first moments, and tells nothing.

    PostgreSQL shows a standby as async before its first reply. A synchronous standby is potential
    while it catches up (pg_stat_get_wal_senders).
    """
    catches_up = row["sync_state"] == "potential" and row["state"] != "streaming"
    return catches_up or (row["sync_state"] == "async" and bool(row["is_new"]))
