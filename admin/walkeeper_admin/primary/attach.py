"""`walkeeper attach`: makes each commit of the primary wait until a quorum has it. Shell.

The order of the steps makes it safe on a live server:

1. Wait until the proposer streams and has caught up. PostgreSQL counts no standby that still
   catches up, so every commit would wait until then.
2. Change the setting.
3. Wait until the setting is in force. If that takes too long, put the old setting back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import asyncpg

from walkeeper_admin.primary.primary_settings import (
    POLL_S,
    Standby,
    StandbyNames,
    alter_system,
    refuse_recovery,
    refuse_without_rights,
    reload,
    standby_names,
    standbys,
    warnings,
)
from walkeeper_admin.primary.retention_slots import retention_warnings
from walkeeper_admin.primary.standby_names import (
    DEFAULT_NAME,
    PARAMETER,
    REPLACED,
    configuration_line,
    exceeds_its_names,
    includes,
    is_proposers,
    listed_names,
    requires,
    setting_for,
)
from walkeeper_admin.primary.standby_slots import ahead_warnings
from walkeeper_common.errors import Refused
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_proposer.postgres.primary_sql import connected

CAUGHT_UP_BYTES = 1 << 20
ROLLBACK_TIMEOUT_S = 10.0
# Since this major version a walsender decodes a TRUNCATE without the lock that the TRUNCATE holds.
TRUNCATE_IS_DECODED = 14
TRUNCATE_HANGS = (
    "before PostgreSQL 14 a TRUNCATE of a published table that has a primary key hangs, with all "
    "commits behind it, while commits wait for a logical log; `walkeeper detach` lets them go"
)
EXCEEDS = "waits for more standbys than it names: no commit returns"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AttachSettings:
    """The command's flags. Without an application_name, `attach` takes the connected proposer.

    `timeout_s` limits each of the two waits: for the proposer, and for the setting.
    """

    dsn: str
    application_name: str | None = None
    timeout_s: float = 60.0
    replace: bool = False


async def printed_line(settings: AttachSettings) -> str:
    """Return the line of `--print`, for a tool that writes the primary's configuration.

    Raise Refused if no name is given and no proposer is connected.
    """
    if settings.application_name is not None:
        return configuration_line(setting_for(settings.application_name))
    async with connected(settings.dsn) as sql:
        proposers = _meant(await standbys(sql), None)
    if not proposers:
        raise Refused("no walkeeper proposer is connected: start one, or add --application-name")
    return configuration_line(setting_for(*(p.application_name for p in proposers)))


async def attach(settings: AttachSettings, say: Say) -> str:
    """Attach the proposer and return one line for the operator.

    `say` gets the warnings, and what the command waits for. Raise Refused, with the remedy, if the
    command fails. The setting is then as it was.
    """
    async with connected(settings.dsn) as sql:
        await refuse_recovery(sql)
        for warning in await warnings(sql):
            say(f"warning: {warning}")
        before = await refuse_unsettable(sql, settings)  # at once, not after a wait
        proposers = await _caught_up_proposers(sql, settings, say)
        for warning in await _proposers_warnings(sql, proposers):
            say(f"warning: {warning}")
        names = tuple(proposer.application_name for proposer in proposers)
        if all(requires(before.setting, name) for name in names):
            for warning in await _others_warnings(sql, before.setting, names):
                say(f"warning: {warning}")
            await _wait_in_force(sql, names, settings.timeout_s)
            return f"already attached: {configuration_line(before.setting)}"
        await _refuse_unchangeable(sql, before, settings, names)
        await _set(sql, names, before, settings.timeout_s)
    replaced = ""
    if before.setting and not _is_part_of(before.setting, names):
        replaced = f" (replaced {before.setting!r}; detach restores it)"
    elif exceeds_its_names(before.setting):
        replaced = f" (replaced {before.setting!r}, which {EXCEEDS})"
    return f"attached: {configuration_line(setting_for(*names))}{replaced}"


async def _proposers_warnings(sql: asyncpg.Connection, proposers: Sequence[Standby]) -> list[str]:
    found = await ahead_warnings(sql, proposers)
    kinds = {proposer.slot_type for proposer in proposers}
    if "logical" in kinds and sql.get_server_version().major < TRUNCATE_IS_DECODED:
        found.append(TRUNCATE_HANGS)
    for proposer in proposers:
        if proposer.slot_type != "logical" and proposer.slot_name is not None:
            found += await retention_warnings(sql, proposer.slot_name, proposer.pid)
    return found


async def _others_warnings(
    sql: asyncpg.Connection, setting: str, names: Sequence[str]
) -> list[str]:
    """Return warnings about other standbys in a setting that requires all of its names."""
    found = []
    connected_names = {row.application_name.lower() for row in await standbys(sql)}
    for other in _others(setting, names):
        if not is_proposers(other):
            found.append(
                f"if two standbys are both called {other}, a commit does not wait for {names[0]}: "
                "give each standby its own application_name"
            )
        if other.lower() not in connected_names:
            found.append(
                f"commits wait for {other}, too, which is not connected; `walkeeper detach "
                "--application-name` takes it out"
            )
    return found


async def refuse_unsettable(sql: asyncpg.Connection, settings: AttachSettings) -> StandbyNames:
    """Return the present setting; raise Refused if `attach` could not change it.

    The proposers' names are those that can be known while no proposer is connected.
    """
    before = await standby_names(sql)
    expected = _expected_names(settings, before)
    if not all(requires(before.setting, name) for name in expected):
        await _refuse_unchangeable(sql, before, settings, expected)
    return before


def _is_part_of(setting: str, names: Sequence[str]) -> bool:
    """Return True if a setting lists only these names, so that `attach` may extend it."""
    return not _others(setting, names)


def _others(setting: str, names: Sequence[str]) -> list[str]:
    """Return the other names that a setting lists."""
    wanted = {name.lower() for name in names}
    return [listed for listed in listed_names(setting) if listed.lower() not in wanted]


def _expected_names(settings: AttachSettings, before: StandbyNames) -> tuple[str, ...]:
    """Return the proposers' names as far as they can be known while none is connected."""
    if settings.application_name is not None:
        return (settings.application_name,)
    return tuple(filter(is_proposers, listed_names(before.setting))) or (DEFAULT_NAME,)


async def _refuse_unchangeable(
    sql: asyncpg.Connection, before: StandbyNames, settings: AttachSettings, names: Sequence[str]
) -> None:
    """Raise Refused if `attach` may not replace the setting, or if this role cannot change it."""
    if before.source == "command line":
        raise Refused(
            f"cannot change {PARAMETER}: it is on the server's command line, which overrides the "
            f"configuration; restart without it, or with {configuration_line(setting_for(*names))}"
        )
    if before.setting and not settings.replace and not _is_part_of(before.setting, names):
        why = f": it {EXCEEDS}" if exceeds_its_names(before.setting) else ""
        for name in names:
            if not why and includes(before.setting, name) and not requires(before.setting, name):
                why = f": another standby may acknowledge instead of {name}"
        raise Refused(
            f"{PARAMETER} is {before.setting!r} already{why}; --replace puts "
            f"{setting_for(*names)!r} in its place until `walkeeper detach` restores it"
        )
    parameters = [PARAMETER, REPLACED] if before.setting or before.replaced else [PARAMETER]
    await refuse_without_rights(sql, parameters, setting_for(*names))


async def _caught_up_proposers(
    sql: asyncpg.Connection, settings: AttachSettings, say: Say
) -> list[Standby]:
    """Wait until the proposers stream within CAUGHT_UP_BYTES of the primary's end; return them.

    Raise Refused if that takes too long.
    """
    last_text = LastText()

    async def look() -> list[Standby] | str:
        rows = await standbys(sql)
        proposers = _meant(rows, settings.application_name)
        if not proposers:
            lacking = what_lacks(rows, settings.application_name)
        else:
            for proposer in proposers:
                await _refuse_hidden(sql, proposer)
            lacking = next(filter(None, map(_not_ready, proposers)), "")
        if lacking and last_text.changes_to(lacking):
            say(f"waiting: {lacking}")
        return lacking or proposers

    return await _wait(look, settings.timeout_s)


def what_lacks(rows: Sequence[Standby], application_name: str | None) -> str:
    """Return why none of these connections is a proposer that streams."""
    if application_name is None and any(is_proposers(row.application_name) for row in rows):
        return (
            "a proposer is connected to this primary and does not stream yet: a quorum of "
            "safekeepers has to elect it; its log says what it waits for"
        )
    others = ", ".join(repr(row.application_name) for row in rows)
    missing = application_name or "walkeeper or walkeeper_…"
    return (
        f"no proposer ({missing}) is connected to this primary; connected are: "
        f"{others or 'no standbys'}. Start `walkeeper proposer`, or read its log"
    )


def _meant(rows: Sequence[Standby], application_name: str | None) -> list[Standby]:
    """Return the connected proposer of that name, or the only one if no name is given.

    Return both if one is physical and the other logical, in this order. Return no proposer if none
    is connected. Without a name only connections with a slot count, because a connection that reads
    old WAL has none. Raise Refused if the choice is not clear.
    """
    if application_name is not None:
        found = [r for r in rows if r.application_name.lower() == application_name.lower()]
    else:
        found = [r for r in rows if is_proposers(r.application_name) and r.slot_name]
        found.sort(key=lambda row: row.slot_type == "logical")
    if [row.slot_type for row in found] == ["physical", "logical"]:
        return found
    if len(found) > 1:
        names = ", ".join(sorted(r.application_name for r in found))
        choice = "choose with --application-name"
        if len({r.application_name.lower() for r in found}) == 1:
            choice = "commits would wait for either of them; give each its own --application-name"
        raise Refused(f"several proposers are connected: {names}; {choice}")
    return found


async def _refuse_hidden(sql: asyncpg.Connection, proposer: Standby) -> None:
    if proposer.state is None:
        role = await sql.fetchval("SELECT quote_ident(current_user)")
        raise Refused(
            f"role {role} may not see pg_stat_replication; as a superuser: "
            f"GRANT pg_monitor TO {role};"
        )


def _not_ready(proposer: Standby) -> str:
    name = proposer.application_name
    if proposer.state != "streaming":
        return f"{name} is in state {proposer.state}, not streaming"
    if proposer.behind_bytes is None:
        return f"{name} has not reported a position yet: no quorum of safekeepers, see its log"
    if proposer.behind_bytes > CAUGHT_UP_BYTES:
        return f"{name} is {proposer.behind_bytes >> 20} MB behind the primary"
    return ""


async def _set(
    sql: asyncpg.Connection, names: Sequence[str], before: StandbyNames, timeout_s: float
) -> None:
    """Change the setting and wait until it is in force; put the old one back if that fails."""
    is_others = bool(before.setting) and not _is_part_of(before.setting, names)
    try:
        if is_others:
            await alter_system(sql, REPLACED, before.setting)
        elif before.replaced and not before.setting:
            # Since then an operator has emptied the setting by hand. `detach` must not restore it.
            await alter_system(sql, REPLACED, None)
        await alter_system(sql, PARAMETER, setting_for(*names))
        await reload(sql)
        await _wait_in_force(sql, names, timeout_s)
    except BaseException:
        # This holds for an interruption, too: commits must not wait for a missing standby.
        async with asyncio.timeout(ROLLBACK_TIMEOUT_S):
            await put_back(sql, before.setting, forget_replaced=is_others)
        raise


async def put_back(sql: asyncpg.Connection, setting: str, *, forget_replaced: bool) -> None:
    """Make `setting` the one in force, and leave no setting of walkeeper's in the configuration.

    If postgresql.conf itself has this value, use ALTER SYSTEM RESET, so that postgresql.conf rules
    again. Otherwise use ALTER SYSTEM SET.
    """
    await alter_system(sql, PARAMETER, None if not setting else await _unless_in_file(sql, setting))
    if forget_replaced:
        await alter_system(sql, REPLACED, None)
    await reload(sql)
    if (await standby_names(sql)).setting != setting:
        await alter_system(sql, PARAMETER, setting)
        await reload(sql)


async def _unless_in_file(sql: asyncpg.Connection, setting: str) -> str | None:
    """Return None if postgresql.conf itself has this setting, or else the setting.

    A role that may not look there also gets the setting, which is the safe answer.
    """
    if not await sql.fetchval("SELECT has_table_privilege('pg_file_settings', 'SELECT')"):
        return setting
    try:
        in_file = await sql.fetchval(
            "SELECT setting FROM pg_file_settings WHERE name = $1 AND error IS NULL "
            "AND sourcefile !~ 'postgresql\\.auto\\.conf$' ORDER BY seqno DESC LIMIT 1",
            PARAMETER,
        )
    except asyncpg.InsufficientPrivilegeError:
        return setting
    return None if in_file == setting else setting


async def _wait_in_force(sql: asyncpg.Connection, names: Sequence[str], timeout_s: float) -> None:
    async def look() -> list[Standby] | str:
        found: list[Standby] = []
        for name in names:
            proposers = _meant(await standbys(sql), name)
            if not proposers:
                return f"the proposer {name} is gone; commits hang until it is back or you detach"
            if proposers[0].sync_state not in ("sync", "quorum"):
                return f"{name} is {proposers[0].sync_state}, not yet a synchronous standby"
            found += proposers
        return found

    await _wait(look, timeout_s)


async def _wait(
    look: Callable[[], Awaitable[list[Standby] | str]], timeout_s: float
) -> list[Standby]:
    """Wait until `look` returns standbys, and return them.

    Raise Refused with its last text if that takes too long.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while isinstance(seen := await look(), str):
        if loop.time() > deadline:
            raise Refused(f"gave up after {timeout_s:g} s: {seen}")
        await asyncio.sleep(POLL_S)
    return seen
