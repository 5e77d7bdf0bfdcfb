"""`settle --replayed-by`: is the WAL that this standby has replayed the log's? (R23) A shell.

Contract: it raises Refused for another branch, and also if the answer cannot be known. So an exit
code of 0, after which a promotion goes on, means that the standby's WAL was compared with the log.
The comparison runs in a worker thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from walkeeper_common.ancestry.ancestry_facts import AnotherBranch, SameBranch, Unknown, Verdict
from walkeeper_common.errors import Refused
from walkeeper_restore.standby_check.checking import Where, check, explained
from walkeeper_restore.standby_check.sql_files import NotAllowed, SqlFiles

PAUSE_S = 0.5
ELSEWHERE = (
    "or run `walkeeper standby-check -D PGDATA` at that server, see that pg_last_wal_replay_lsn() "
    "there has reached the log's end, and leave out --replayed-by"
)


async def refuse_another_branch(dsn: str, where: Where) -> None:
    """Raise Refused if the standby is on another branch, since a wait for it would be in vain."""
    verdict = await asyncio.to_thread(_verdict_of, dsn, where)
    if isinstance(verdict, AnotherBranch):
        raise Refused(explained(verdict, where.cluster))


async def vouch(dsn: str, where: Where, *, timeout_s: float, say: Callable[[str], None]) -> None:
    """Return if the standby's WAL is the log's up to the LSN that it has replayed.

    Raise Refused if it is not, or if that is not known in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        verdict = await asyncio.to_thread(_verdict_of, dsn, where)
        text = explained(verdict, where.cluster)
        match verdict:
            case SameBranch(_, ahead_bytes):
                if ahead_bytes:
                    say(text)
                return
            case AnotherBranch():
                raise Refused(text)
            case Unknown(_, out_of_reach):
                if out_of_reach or time.monotonic() > deadline_s:
                    raise Refused(f"{text}; {ELSEWHERE}")
        await asyncio.sleep(PAUSE_S)


def _verdict_of(dsn: str, where: Where) -> Verdict:
    try:
        with SqlFiles(dsn) as files:
            replayed_lsn = files.replayed_lsn()
            if replayed_lsn is None:
                raise Refused(f"the server at {dsn!r} is no standby; --replayed-by waits for one")
            return check(files, where, replayed_lsn=replayed_lsn).verdict
    except NotAllowed as error:
        raise Refused(f"the standby's WAL cannot be compared: {error}; {ELSEWHERE}") from error
