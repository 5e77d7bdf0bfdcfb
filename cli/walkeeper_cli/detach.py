"""`walkeeper detach`: commits wait for nobody any more. The way out when the quorum is gone.

It needs nothing but SQL to the primary: no safekeeper, no proposer, and no write that would wait.
What it gives up is said in LSNs, so that somebody can look later whether anything was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from walkeeper_cli.attach import Say, put_back
from walkeeper_cli.primary_settings import (
    POLL_S,
    StandbyNames,
    refuse_recovery,
    refuse_without_rights,
    standby_names,
)
from walkeeper_cli.standby_names import (
    DEFAULT_NAME,
    PARAMETER,
    REPLACED,
    is_proposers,
    listed_names,
)
from walkeeper_cli.standby_slots import dropped_warnings
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.primary_sql import connected

SLOTS = """
SELECT s.slot_name, s.active_pid, s.wal_status = 'lost' AS is_lost,
       coalesce(s.confirmed_flush_lsn, s.restart_lsn)::text AS restart_lsn
FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
WHERE (s.slot_type = 'physical' OR s.plugin = 'pgoutput')
  AND CASE WHEN $2::text IS NULL
      THEN s.slot_name = ANY(SELECT translate(n, '-.', '__') FROM unnest($1::text[]) n)
           OR lower(r.application_name) = ANY($1)
      ELSE s.slot_name = $2 END
ORDER BY s.slot_name
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@dataclass(frozen=True, slots=True)
class DetachSettings:
    """The command's flags."""

    dsn: str
    application_name: str | None = None
    slot: str | None = None
    drop_slot: bool = False
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Slot:
    """The proposer's slot; restart_lsn is the last position that it reported for a quorum."""

    name: str
    restart_lsn: Lsn | None
    is_lost: bool

    def stays(self) -> str:
        """What it does there."""
        if self.is_lost:
            return "is lost (max_slot_wal_keep_size) and keeps no WAL; it stays"
        return f"stays and keeps WAL on the primary from {self.restart_lsn or 'its first use'} on"


async def detach(settings: DetachSettings, say: Say) -> None:
    """Says what it did, line by line, each as soon as it is true. May be run again."""
    async with connected(settings.dsn) as sql:
        await refuse_recovery(sql)
        before = await standby_names(sql)
        names = _proposers(before, settings)
        slots = await _slots(sql, names, settings.slot)
        if before.setting or before.replaced:
            await _clear(sql, before, settings, say)
            await _say_unsafe_range(sql, slots, say)
        else:
            say(f"not attached: {PARAMETER} is empty already")
        for slot in slots:
            if settings.drop_slot:
                await _drop(sql, slot, settings.timeout_s)
                say(f"dropped slot {slot.name}")
                for warning in await dropped_warnings(sql, slot.name):
                    say(f"warning: {warning}")
            else:
                say(f"slot {slot.name} {slot.stays()}; --drop-slot drops it")
        if settings.drop_slot and not slots:
            say(f"there is no slot {settings.slot or 'of ' + ', '.join(names)}")


def _proposers(before: StandbyNames, settings: DetachSettings) -> Sequence[str]:
    """Whom commits wait for, of those that are ours. Refuses to clear what is not ours."""
    if settings.application_name is not None:
        ours = [settings.application_name]
    else:
        ours = [name for name in listed_names(before.setting) if is_proposers(name)]
    listed = [name.lower() for name in listed_names(before.setting)]
    if before.setting and not before.replaced and not any(n.lower() in listed for n in ours):
        raise Refused(
            f"{PARAMETER} is {before.setting!r}, which names no walkeeper proposer: left as it is. "
            "If one of these is the proposer, say so with --application-name"
        )
    return [name.lower() for name in ours] or [DEFAULT_NAME]


async def _slots(sql: asyncpg.Connection, names: Sequence[str], slot: str | None) -> list[Slot]:
    """The one that was named; else those called as the proposers, or used by them just now."""
    found = []
    for row in await sql.fetch(SLOTS, names, slot):
        restart_lsn = Lsn.parse(row["restart_lsn"]) if row["restart_lsn"] else None
        found.append(Slot(row["slot_name"], restart_lsn, bool(row["is_lost"])))
    return found


async def _clear(
    sql: asyncpg.Connection, before: StandbyNames, settings: DetachSettings, say: Say
) -> None:
    """Empty or restore the setting, and see that nobody waits any more."""
    if before.source == "command line":
        raise Refused(
            f"{PARAMETER} = {before.setting!r} was given on the server's command line, which "
            "nothing overrides: restart the server without it"
        )
    parameters = [PARAMETER, REPLACED] if before.replaced else [PARAMETER]
    await refuse_without_rights(sql, parameters, before.replaced)
    await put_back(sql, before.replaced, forget_replaced=bool(before.replaced))
    if before.replaced:
        say(f"detached: {PARAMETER} is {before.replaced!r} again (was {before.setting!r})")
        return
    await _wait_released(sql, settings.timeout_s)
    say(
        f"detached: {PARAMETER} is empty (was {before.setting!r}); commits wait for the "
        "primary's own disk alone"
    )


async def _wait_released(sql: asyncpg.Connection, timeout_s: float) -> None:
    """The checkpointer wakes those who wait; sessions that this role may not see count as awake."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while waiting := await sql.fetchval(WAITING):
        if asyncio.get_running_loop().time() > deadline:
            raise Refused(
                f"{PARAMETER} is empty, but {waiting} sessions still wait after {timeout_s:g} s: "
                "the checkpointer, which wakes them, may hang on its disk"
            )
        await asyncio.sleep(POLL_S)


async def _say_unsafe_range(sql: asyncpg.Connection, slots: Sequence[Slot], say: Say) -> None:
    end_lsn = Lsn.parse(await sql.fetchval("SELECT pg_current_wal_flush_lsn()::text"))
    known = [slot.restart_lsn for slot in slots if slot.restart_lsn is not None]
    if not known:
        say(
            "unsafe range: unknown, because the proposer's slot is gone; on the primary alone may "
            f"be any WAL up to {end_lsn}, and all after it until the next attach"
        )
        return
    begin_lsn = min(known)
    say(
        f"unsafe range: from {begin_lsn}, the last position that a quorum confirmed, to {end_lsn} "
        f"({max(end_lsn - begin_lsn, 0)} bytes), and all WAL after it until the next attach: it "
        "may be on the primary alone"
    )


async def _drop(sql: asyncpg.Connection, slot: Slot, timeout_s: float) -> None:
    """Ends the connection that uses the slot, again if a live proposer was quicker than we."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            await sql.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                "WHERE slot_name = $1 AND active_pid IS NOT NULL",
                slot.name,
            )
            await sql.execute("SELECT pg_drop_replication_slot($1)", slot.name)
            return
        except asyncpg.UndefinedObjectError:
            return
        except asyncpg.InsufficientPrivilegeError as error:
            raise Refused(
                f"slot {slot.name}: {error}; stop the proposer first, or run this as a superuser"
            ) from error
        except asyncpg.ObjectInUseError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise Refused(f"{error}; stop the proposer, then run this again") from error
            await asyncio.sleep(POLL_S)
