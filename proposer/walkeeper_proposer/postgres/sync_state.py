"""Do commits wait for this proposer? Only the primary knows, and --http shows its answer. A shell.

After a `detach`, or an edit of synchronous_standby_names, WAL comes and is acknowledged as before,
but no commit waits for it any more. The answer needs SQL, and the rights of a pg_monitor member.
"""

from __future__ import annotations

import asyncio
from typing import NoReturn

from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres.primary_sql import connected

ASK_S, ASK_AGAIN_S = 30.0, 3.0
ABSENT = "absent"
WAITED_FOR = ("sync", "quorum")
QUERY = "SELECT sync_state FROM pg_stat_replication WHERE application_name = $1"


class SyncState:
    """The answer is in `value`: pg_stat_replication's sync_state, "absent", or None if unknown.

    It is "absent" without a connection, as right after a start. That tells nothing about the
    commits that wait.
    """

    def __init__(self, dsn: str, application_name: str) -> None:
        self._dsn, self._application_name = dsn, application_name
        self.value: str | None = None

    @property
    def is_waited_for(self) -> bool | None:
        return None if self.value in (None, ABSENT) else self.value in WAITED_FOR

    async def watch(self) -> NoReturn:
        while True:
            self.value = await self._asked()
            await asyncio.sleep(ASK_AGAIN_S if self.value == ABSENT else ASK_S)

    async def _asked(self) -> str | None:
        try:
            async with connected(self._dsn) as sql:
                states: list[str | None] = [
                    row["sync_state"] for row in await sql.fetch(QUERY, self._application_name)
                ]
        except Refused:
            return None
        if not states:
            return ABSENT
        return next((state for state in states if state in WAITED_FOR), states[0])
