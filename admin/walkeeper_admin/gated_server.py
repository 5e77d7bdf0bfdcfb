"""The background of `walkeeper gate --exec`: it opens a server that started closed. A shell.

    await open_when_durable(guard, ticket, say=…)

gated_start.py closes the door. If the background ends early, the server stays closed. It never ends
because of a refusal.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from walkeeper_admin.closed_start import SAY_EVERY_S, Opened, reload_rules, wait_durable
from walkeeper_admin.primary.door import Door
from walkeeper_admin.primary.running_server import refuse_another
from walkeeper_common.ancestry.ancestry_facts import SameBranch
from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_proposer.postgres.primary_sql import NotConnected, connected
from walkeeper_restore.standby_check.checking import Where, check, explained
from walkeeper_restore.standby_check.data_directory import LocalFiles

POLL_S = 0.2
REPLAYED = "SELECT pg_last_wal_replay_lsn()::text"


@dataclass(frozen=True, slots=True)
class Guard:
    """The background's settings. `log` is None if nobody named safekeepers."""

    dsn: str
    data_directory: Path
    door: Door
    pid: int
    log: Where | None


class _News:
    """Says refusals: each new one at once, and the last one again every SAY_EVERY_S."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last_text = say, LastText()
        self._say_at_s = asyncio.get_running_loop().time() + SAY_EVERY_S

    def say(self, state: str, error: WalkeeperError) -> None:
        now_s = asyncio.get_running_loop().time()
        is_due = now_s >= self._say_at_s
        if is_due:
            self._last_text.clear()
        elif isinstance(error, NotConnected):  # the server may be starting
            return
        if self._last_text.changes_to(text := f"{state}: {error}"):
            self._say_at_s = now_s + SAY_EVERY_S
            self._say(text)


async def open_when_durable(
    guard: Guard, ticket: str, *, say: Callable[[str], None]
) -> Opened | None:
    """Open the door when a quorum has all WAL that the server shows, and reload.

    Return None if the server ends before, or if the door was opened or closed anew meanwhile. Wait
    without a limit. Say a refusal, again every SAY_EVERY_S, and try again.
    """
    loop = asyncio.get_running_loop()
    began_s, news = loop.time(), _News(say)
    while _is_alive(guard.pid) and guard.door.ticket() == ticket:
        try:
            lsn = await wait_durable(guard.dsn, guard.data_directory, say)
            if lsn is None:
                lsn = await _log_has_all(guard)
            if not await asyncio.to_thread(guard.door.open, ticket):
                return None
            await _load_rules(guard, news)
            return Opened(lsn, loop.time() - began_s)
        except WalkeeperError as error:  # also a wrong option: a promotion opens without it
            news.say("closed", error)
        await asyncio.sleep(POLL_S)
    return None


async def _load_rules(guard: Guard, news: _News) -> None:
    """Let the server read the open rules, since no other program would. Try until it ends."""
    while _is_alive(guard.pid):
        try:
            await reload_rules(guard.dsn)
            return
        except Refused as error:
            news.say("open, but not loaded yet", error)
        await asyncio.sleep(POLL_S)


async def _log_has_all(guard: Guard) -> Lsn:
    """Return the LSN that a standby has replayed if the log has all of it; else raise Refused."""
    async with connected(guard.dsn) as sql:
        await refuse_another(sql, guard.data_directory)
        text = await sql.fetchval(REPLAYED)
    if guard.log is None:
        raise Refused(
            "the server is a standby with WAL of its own from before. Without --safekeepers it "
            "stays closed until its promotion"
        )
    if text is None:
        raise Refused("the standby has replayed nothing yet")
    replayed_lsn = Lsn.parse(text)
    files = LocalFiles(str(guard.data_directory))
    checked = await asyncio.to_thread(check, files, guard.log, replayed_lsn=replayed_lsn)
    verdict = checked.verdict
    if not isinstance(verdict, SameBranch) or verdict.ahead_bytes:
        raise Refused(f"the standby stays closed: {explained(verdict, guard.log.cluster)}")
    return replayed_lsn


def _is_alive(pid: int) -> bool:
    """Return False also for a zombie, which a parent that does not reap leaves behind."""
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return True
