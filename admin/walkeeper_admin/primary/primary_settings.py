"""The primary's configuration and standbys, as `attach` and `detach` see and change them. Shell.

Every function runs one or two short statements on a connection of `primary_sql.connected`, which
limits their time. ALTER SYSTEM writes a file and no WAL, so it works while commits hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from walkeeper_admin.primary.standby_names import (
    PARAMETER,
    REPLACED,
    configuration_line,
    string_literal,
)
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.postgres.sync_state import OVERRIDES

POLL_S = 0.1
RELOAD_TIMEOUT_S = 10.0
GRANTABLE_SINCE = 150000
IDENTIFIER_QUOTED = "SELECT quote_ident(current_user)"
STANDBYS = """
SELECT r.pid, r.application_name, r.state, r.sync_state, r.flush_lsn::text AS flush_lsn,
       s.slot_name, s.slot_type, pg_current_wal_flush_lsn()::text AS wal_flush_lsn
FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid
ORDER BY r.application_name, r.pid
"""


@dataclass(frozen=True, slots=True)
class Standby:
    """A row of pg_stat_replication; state is None if the role may not see it."""

    pid: int
    application_name: str
    state: str | None
    sync_state: str | None
    flush_lsn: Lsn | None
    slot_name: str | None
    behind_bytes: int | None
    slot_type: str | None = None


@dataclass(frozen=True, slots=True)
class StandbyNames:
    """The parameter in force, and the setting that `attach --replace` has put aside."""

    setting: str
    source: str
    replaced: str


async def refuse_recovery(sql: asyncpg.Connection) -> None:
    """Raise Refused if the server is a standby."""
    if await sql.fetchval("SELECT pg_is_in_recovery()"):
        raise Refused("the server is in recovery, a standby; point --dsn at the primary")


async def standby_names(sql: asyncpg.Connection) -> StandbyNames:
    """Return the present synchronous_standby_names, its source, and the setting put aside."""
    row = await sql.fetchrow(
        "SELECT setting, source, coalesce(current_setting($2, true), '') AS replaced "
        "FROM pg_settings WHERE name = $1",
        PARAMETER,
        REPLACED,
    )
    assert row is not None, PARAMETER
    return StandbyNames(row["setting"], row["source"], row["replaced"])


async def standbys(sql: asyncpg.Connection) -> list[Standby]:
    """Return the connected standbys and proposers, by name and pid."""
    found = []
    for row in await sql.fetch(STANDBYS):
        flush_lsn = Lsn.parse(row["flush_lsn"]) if row["flush_lsn"] else None
        behind = None
        if flush_lsn is not None:
            behind = max(Lsn.parse(row["wal_flush_lsn"]) - flush_lsn, 0)
        found.append(
            Standby(
                row["pid"],
                row["application_name"],
                row["state"],
                row["sync_state"],
                flush_lsn,
                row["slot_name"],
                behind,
                row["slot_type"],
            )
        )
    return found


async def refuse_without_rights(
    sql: asyncpg.Connection, parameters: Sequence[str], setting: str
) -> None:
    """Raise Refused, with all grants that the role lacks, if it may not change the parameters."""
    version: int = sql.get_server_version().major * 10000
    role: str = await sql.fetchval(IDENTIFIER_QUOTED)
    by_hand = f"or set it by hand and reload: {configuration_line(setting)}"
    if await sql.fetchval("SELECT current_setting('allow_alter_system', true)") == "off":
        raise Refused(
            "allow_alter_system is off: another program manages this configuration. "
            f"Set it there and reload: {configuration_line(setting)}"
        )
    if version < GRANTABLE_SINCE:
        if not await sql.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user"):
            raise Refused(
                f"before PostgreSQL 15 only a superuser may change {PARAMETER}; {by_hand}"
            )
        return
    lacking = []
    for parameter in parameters:
        allowed = "SELECT has_parameter_privilege($1, 'ALTER SYSTEM')"
        if not await sql.fetchval(allowed, parameter):
            lacking.append(f"GRANT ALTER SYSTEM ON PARAMETER {parameter} TO {role};")
    if not await sql.fetchval("SELECT has_function_privilege('pg_reload_conf()', 'EXECUTE')"):
        lacking.append(f"GRANT EXECUTE ON FUNCTION pg_reload_conf() TO {role};")
    if lacking:
        raise Refused(f"role {role} lacks rights; as a superuser: {' '.join(lacking)} {by_hand}")


async def alter_system(sql: asyncpg.Connection, parameter: str, value: str | None) -> None:
    """Set the parameter, or reset it if the value is None; `reload` puts it in force."""
    if value is None:
        await sql.execute(f"ALTER SYSTEM RESET {parameter}")
        return
    if parameter == REPLACED:
        # PostgreSQL 15 and older know a custom parameter only once this session has set it.
        await sql.execute("SELECT set_config($1, '', false)", REPLACED)
    await sql.execute(f"ALTER SYSTEM SET {parameter} = {string_literal(value)}")


async def reload(sql: asyncpg.Connection) -> None:
    """Reload the configuration, and return when this session, and so the server, has read it.

    Raise Refused if that takes too long.
    """
    loaded = "SELECT pg_conf_load_time()"
    before = await sql.fetchval(loaded)
    await sql.execute("SELECT pg_reload_conf()")
    try:
        async with asyncio.timeout(RELOAD_TIMEOUT_S):
            while await sql.fetchval(loaded) == before:  # noqa: ASYNC110  (has no event)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise Refused(
            f"the server did not reload its configuration within {RELOAD_TIMEOUT_S:g} s. With a "
            "mistake in postgresql.conf it ignores every change. See its log, or SELECT * FROM "
            "pg_file_settings WHERE error IS NOT NULL; mend the mistake, then run this again"
        ) from None


async def warnings(sql: asyncpg.Connection) -> list[str]:
    """Return warnings of settings that make a quorum's durability worth less than it looks."""
    wanted = ["fsync", "full_page_writes", "synchronous_commit"]
    rows = await sql.fetch("SELECT name, reset_val FROM pg_settings WHERE name = ANY($1)", wanted)
    value = {row["name"]: row["reset_val"] for row in rows}
    found = [
        f"{name} is off: a crash can corrupt the primary"
        for name in ("fsync", "full_page_writes")
        if value[name] == "off"
    ]
    if value["synchronous_commit"] in ("off", "local"):
        found.append(
            f"synchronous_commit is {value['synchronous_commit']}: commits do not wait for anybody"
        )
    for row in await sql.fetch(OVERRIDES):
        found.append(f"{row['item']} for {row['whom']}: its commits do not wait for anybody")
    return found
