"""The slot that keeps telling records (docs/protocol.md R22), for `attach` and `detach`. Shell.

The proposer makes it over SQL when it streams. Without it, a physical proposer may have to refuse
the primary when it starts again after a long transaction. So `attach` looks for the slot, and names
the missing grant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncpg

from walkeeper_admin.primary.primary_settings import POLL_S
from walkeeper_proposer.postgres.primary_retention import retention_slot

MADE_WITHIN_S = 3.0
EXISTING = "SELECT slot_name FROM pg_replication_slots WHERE slot_name = ANY($1)"
ROLE = "SELECT usename::text FROM pg_stat_replication WHERE pid = $1"
MISSING_GRANTS = """
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I;', f.signature, $1::text)
FROM unnest($2::text[]) AS f(signature)
WHERE NOT has_function_privilege($1::name, f.signature, 'EXECUTE')
UNION ALL
SELECT format('GRANT CONNECT ON DATABASE %I TO %I;', current_database(), $1::text)
WHERE NOT has_database_privilege($1::name, current_database(), 'CONNECT')
"""
FLUSH_SINCE = 170000  # the fourth argument of pg_logical_emit_message


def retention_functions(version: int) -> tuple[str, ...]:
    """Return the functions that the proposer calls for its slot, by `server_version_num`.

    GRANT and has_function_privilege want all arguments, also those with defaults.
    """
    flush = ", boolean" if version >= FLUSH_SINCE else ""
    return (
        f"pg_logical_emit_message(boolean, text, bytea{flush})",
        "pg_create_physical_replication_slot(name, boolean, boolean)",
        "pg_replication_slot_advance(name, pg_lsn)",
    )


async def existing(sql: asyncpg.Connection, slots: Sequence[str]) -> list[str]:
    """Return the retention slots that exist for these streaming slots."""
    wanted = [retention_slot(slot) for slot in slots]
    return sorted(row["slot_name"] for row in await sql.fetch(EXISTING, wanted))


async def retention_warnings(sql: asyncpg.Connection, slot: str, pid: int) -> list[str]:
    """Return a warning, with the remedy, if the proposer has no retention slot.

    `slot` and `pid` are the proposer's slot and walsender. Wait a little first, because a proposer
    that has just begun to stream is about to make its retention slot.
    """
    deadline = asyncio.get_running_loop().time() + MADE_WITHIN_S
    while not await existing(sql, [slot]):
        if asyncio.get_running_loop().time() > deadline:
            return [await _lacking(sql, slot, pid)]
        await asyncio.sleep(POLL_S)
    return []


async def _lacking(sql: asyncpg.Connection, slot: str, pid: int) -> str:
    role = await sql.fetchval(ROLE, pid)
    functions = retention_functions(sql.get_server_version().major * 10000)
    grants = [row[0] for row in await sql.fetch(MISSING_GRANTS, role, functions)] if role else []
    remedy = (
        f"as a superuser: {' '.join(grants)}"
        if grants
        else f"let role {role} log in to database {await sql.fetchval('SELECT current_database()')}"
        " (pg_hba.conf) and leave it a replication slot (max_replication_slots); its log says more"
    )
    return (
        f"there is no slot {retention_slot(slot)}: the proposer could not make it over SQL. After "
        "a long transaction the primary may be refused when the proposer starts again (58P01); "
        f"{remedy}"
    )
