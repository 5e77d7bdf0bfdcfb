"""`walkeeper detach`: lets commits return without a proposer. Shell.

An operator needs it when the quorum is gone, and commits hang.
The command needs only SQL on the primary: no safekeeper, no proposer, and no write that would wait.
It prints the unsafe range in LSNs, so that an operator can later look for lost WAL.

A proposer that is named leaves the setting, and the others stay in it. So an operator who gives up
one log gives up no other. `detach` clears the setting when no other name is left, or when no
proposer is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from walkeeper_admin.primary.attach import Say, put_back
from walkeeper_admin.primary.primary_settings import (
    POLL_S,
    StandbyNames,
    refuse_recovery,
    refuse_without_rights,
    standby_names,
    standbys,
)
from walkeeper_admin.primary.retention_slots import existing
from walkeeper_admin.primary.standby_names import (
    DEFAULT_NAME,
    PARAMETER,
    REPLACED,
    described,
    includes,
    is_proposers,
    listed_names,
    requires,
    without,
)
from walkeeper_admin.primary.standby_slots import dropped_warnings
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_proposer.postgres.primary_sql import connected

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
MADE_ANEW = "; its proposer runs and makes it anew: stop the proposer, then run this again"
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
    """The proposer's slot. A quorum had all WAL up to restart_lsn when the proposer reported it."""

    name: str
    restart_lsn: Lsn | None
    is_lost: bool
    is_in_use: bool

    def stays(self) -> str:
        """Return the words for a slot that stays: the WAL that it keeps, or that it is lost."""
        if self.is_lost:
            return "is lost (max_slot_wal_keep_size) and keeps no WAL; it stays"
        return f"stays and keeps WAL on the primary from {self.restart_lsn or 'its first use'} on"


async def detach(settings: DetachSettings, say: Say) -> None:
    """Detach, and say each change in a line as soon as it is true. It may be run again."""
    async with connected(settings.dsn) as sql:
        await refuse_recovery(sql)
        before = await standby_names(sql)
        names = _proposers(before, settings)
        slots = await _slots(sql, names, settings.slot)
        left = _left(before.setting, settings.application_name)
        if left == before.setting != "":
            _say_not_listed(left, settings, slots, say)
        elif left:
            await _take_out(sql, before, left, say)
            await _say_unsafe_range(sql, slots, say, of=settings.application_name)
        elif before.setting or before.replaced:
            await _clear(sql, before, settings, say)
            await _say_unsafe_range(sql, slots, say)
        else:
            say(f"not attached: {PARAMETER} is empty already")
        for slot in slots:
            if settings.drop_slot:
                await _drop(sql, slot.name, settings.timeout_s)
                say(f"dropped slot {slot.name}{MADE_ANEW if slot.is_in_use else ''}")
                for warning in await dropped_warnings(sql, slot.name):
                    say(f"warning: {warning}")
            else:
                say(f"slot {slot.name} {slot.stays()}; --drop-slot drops it")
        retaining = await _retention_slots(sql, names, slots, settings)
        for name in retaining:
            if settings.drop_slot:
                await _drop(sql, name, settings.timeout_s)
                say(f"dropped slot {name}")
            else:
                say(f"slot {name} stays and keeps WAL on the primary; --drop-slot drops it")
        if settings.drop_slot and not slots and not retaining:
            say(f"there is no slot {settings.slot or 'of ' + ', '.join(names)}")


def _proposers(before: StandbyNames, settings: DetachSettings) -> Sequence[str]:
    """Return the named proposer, or the walkeeper proposers that commits wait for.

    Raise Refused if the setting names other standbys alone, since `detach` must not clear it.
    """
    if settings.application_name is not None:
        return [settings.application_name.lower()]
    ours = [name.lower() for name in listed_names(before.setting) if is_proposers(name)]
    if before.setting and not before.replaced and not ours:
        raise Refused(
            f"{PARAMETER} is {before.setting!r}, which names no walkeeper proposer: left as it is. "
            "If one of these is the proposer, name it with --application-name"
        )
    return ours or [DEFAULT_NAME]


def _left(setting: str, application_name: str | None) -> str:
    """Return the new setting: the present one without the named proposer, or "" without a name.

    A setting that does not list the proposer stays the same. A setting that lists * also means the
    proposer, so it becomes "". Raise Refused if such a setting lists another proposer too.
    """
    if application_name is None:
        return ""
    if not includes(setting, application_name):
        return setting
    left = without(setting, application_name)
    if "*" not in listed_names(left):
        return left
    if any(map(is_proposers, listed_names(left))):
        raise Refused(
            f"{PARAMETER} is {setting!r}, which lists *, any standby: {application_name} cannot be "
            "taken out of it. Left as it is; without --application-name it is cleared"
        )
    return ""


def _say_not_listed(
    setting: str, settings: DetachSettings, slots: Sequence[Slot], say: Say
) -> None:
    """Say that the proposer is not in the setting, because it was taken out before.

    Raise Refused if it has no slot either, since then it was never there.
    """
    what = f"{PARAMETER} = {setting!r}"
    if not slots:
        raise Refused(
            f"{what} does not list {settings.application_name}, and it has no slot: left as it is"
        )
    say(f"not attached: {settings.application_name} is not in {what}, which stays")


async def _slots(sql: asyncpg.Connection, names: Sequence[str], slot: str | None) -> list[Slot]:
    """Return the named slot, or else the slots with the proposers' names or in their use now."""
    found = []
    for row in await sql.fetch(SLOTS, names, slot):
        restart_lsn = Lsn.parse(row["restart_lsn"]) if row["restart_lsn"] else None
        is_in_use = row["active_pid"] is not None
        found.append(Slot(row["slot_name"], restart_lsn, bool(row["is_lost"]), is_in_use))
    return found


async def _clear(
    sql: asyncpg.Connection, before: StandbyNames, settings: DetachSettings, say: Say
) -> None:
    """Empty the setting and wait until no session waits any more, or restore the old setting."""
    _refuse_command_line(before)
    await refuse_without_rights(sql, [PARAMETER], before.replaced)
    forgets = bool(before.replaced) and await _may_forget(sql)
    await put_back(sql, before.replaced, forget_replaced=forgets)
    if before.replaced:
        say(f"detached: {PARAMETER} is {before.replaced!r} again (was {before.setting!r})")
        if not forgets:
            say(
                f"warning: this role may not reset {REPLACED}, which stays. As a superuser: "
                f"ALTER SYSTEM RESET {REPLACED}; SELECT pg_reload_conf();"
            )
        await _warn_of_absent(sql, before.replaced, say)
        return
    await _wait_released(sql, settings.timeout_s)
    say(
        f"detached: {PARAMETER} is empty (was {before.setting!r}); commits wait for the "
        "primary's own disk alone"
    )


async def _may_forget(sql: asyncpg.Connection) -> bool:
    """Return True if this role may reset the setting that `attach --replace` has kept.

    A superuser may have made it, and the role of docs/attach.md need not have rights on it.
    """
    try:
        await refuse_without_rights(sql, [REPLACED], "")
    except Refused:
        return False
    return True


async def _warn_of_absent(sql: asyncpg.Connection, setting: str, say: Say) -> None:
    """Tell the operator of each standby that commits wait for and that is not connected."""
    connected_names = {row.application_name.lower() for row in await standbys(sql)}
    for name in listed_names(setting):
        if requires(setting, name) and name.lower() not in connected_names:
            say(
                f"warning: commits wait for {name}, which is not connected. To release them: "
                f"ALTER SYSTEM SET {PARAMETER} = ''; SELECT pg_reload_conf();"
            )


def _refuse_command_line(before: StandbyNames) -> None:
    if before.source == "command line":
        raise Refused(
            f"cannot change {PARAMETER} = {before.setting!r}: it is on the server's command line, "
            "which overrides the configuration; restart the server without it"
        )


async def _take_out(sql: asyncpg.Connection, before: StandbyNames, left: str, say: Say) -> None:
    """Set the names that are left.

    The setting that `attach --replace` replaced comes back only when the last proposer leaves.
    """
    _refuse_command_line(before)
    await refuse_without_rights(sql, [PARAMETER], left)
    await put_back(sql, left, forget_replaced=False)
    say(
        f"detached: {PARAMETER} is {left!r} (was {before.setting!r}); commits still wait for "
        f"{described(left)}"
    )
    await _warn_of_absent(sql, left, say)


async def _wait_released(sql: asyncpg.Connection, timeout_s: float) -> None:
    """Wait until the checkpointer has woken all waiting sessions; raise Refused if it does not.

    Sessions that this role may not see count as awake.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while waiting := await sql.fetchval(WAITING):
        if asyncio.get_running_loop().time() > deadline:
            still = counted(waiting, "session still waits", "sessions still wait")
            raise Refused(
                f"{PARAMETER} is empty, but {still} after {timeout_s:g} s: "
                "the checkpointer, which wakes them, may hang on its disk; see the server's log"
            )
        await asyncio.sleep(POLL_S)


async def _say_unsafe_range(
    sql: asyncpg.Connection, slots: Sequence[Slot], say: Say, *, of: str | None = None
) -> None:
    """Say which WAL may be on the primary alone.

    With `of`, say which WAL the safekeepers of this one log may lack, while commits still wait for
    other logs.
    """
    end_lsn = Lsn.parse(await sql.fetchval("SELECT pg_current_wal_flush_lsn()::text"))
    known = [slot.restart_lsn for slot in slots if slot.restart_lsn is not None]
    title = "unsafe range" if of is None else f"unsafe range of {of}"
    if not known:
        where = "on the primary alone may be" if of is None else "its safekeepers may lack"
        say(
            f"{title}: unknown, because the proposer's slot is gone; {where} any WAL up to "
            f"{end_lsn}, and all after it until the next attach"
        )
        return
    begin_lsn = min(known)
    where = "it may be on the primary alone" if of is None else "its safekeepers may lack it"
    say(
        f"{title}: from {begin_lsn}, the last position that a quorum confirmed, to {end_lsn} "
        f"({max(end_lsn - begin_lsn, 0)} bytes), and all WAL after it until the next attach: "
        f"{where}"
    )


async def _retention_slots(
    sql: asyncpg.Connection, names: Sequence[str], slots: Sequence[Slot], settings: DetachSettings
) -> list[str]:
    """Return the retention slots (R22) of the proposers' slots, even if these are gone."""
    streaming = {slot.name for slot in slots}
    if settings.slot is not None:
        streaming.add(settings.slot)
    else:
        streaming |= {name.replace("-", "_").replace(".", "_") for name in names}
    return await existing(sql, sorted(streaming))


async def _drop(sql: asyncpg.Connection, name: str, timeout_s: float) -> None:
    """End the connection that uses the slot, and drop the slot.

    Try again if a live proposer reconnects first. Raise Refused if that takes too long, or if this
    role may not do it.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            await sql.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                "WHERE slot_name = $1 AND active_pid IS NOT NULL",
                name,
            )
            await sql.execute("SELECT pg_drop_replication_slot($1)", name)
            return
        except asyncpg.UndefinedObjectError:
            return
        except asyncpg.InsufficientPrivilegeError as error:
            raise Refused(
                f"slot {name}: {error}; stop the proposer first, or run this as a superuser"
            ) from error
        except asyncpg.ObjectInUseError as error:
            if asyncio.get_running_loop().time() > deadline:
                raise Refused(f"{error}; stop the proposer, then run this again") from error
            await asyncio.sleep(POLL_S)
