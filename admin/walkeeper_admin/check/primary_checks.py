"""The checks of the primary: settings, the slot, and the names that commits wait for. A shell."""

from __future__ import annotations

from typing import Any

import asyncpg

from walkeeper_admin.check.finding import Finding, Grade, ok
from walkeeper_admin.closed_logs import RELEASE
from walkeeper_admin.primary.primary_settings import standby_names, warnings
from walkeeper_admin.primary.requirements import FACTS, PrimaryFacts, lines_to_set
from walkeeper_admin.primary.standby_names import requires
from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres.primary_sql import connected

SLOT = """
SELECT active, wal_status, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS kept
FROM pg_replication_slots WHERE slot_name = $1
"""
SLOT_BYTES_MAX = 1 << 30


async def from_primary(dsn: str, name: str, slot: str) -> list[Finding]:
    """Return the findings of the server itself; a server that does not answer is one."""
    try:
        async with connected(dsn) as sql:
            return [
                await _settings(sql, slot),
                await _slot(sql, slot),
                await _names(sql, name),
            ]
    except Refused as error:
        why = "commits go through this server"
        return [Finding("primary", Grade.FAILED, str(error), why, "start it, or mend --dsn")]


async def from_primary_of_closed_log(dsn: str, name: str, slot: str) -> list[Finding]:
    """Return the findings of a server whose log was closed; it may write another one since."""
    try:
        async with connected(dsn) as sql:
            row: Any = await sql.fetchrow(SLOT, slot)
            setting = (await standby_names(sql)).setting
    except Refused as error:
        return [ok("primary", f"a closed log needs none; {error}")]
    if row is not None and row["active"]:
        return [ok("primary", f"the proposer of another log reads slot {slot}")]
    if requires(setting, name):
        text = f"synchronous_standby_names = {setting!r} requires the proposer of a closed log"
        why = "commits hang"
        return [Finding("attached", Grade.FAILED, text, why, RELEASE)]
    if row is not None:
        text = f"slot {slot} stays and keeps {row['kept']:,} bytes for a log that was closed"
        why = "the primary's disk fills, since no proposer reads this slot again"
        return [Finding("primary slot", Grade.WARNING, text, why, "walkeeper detach --drop-slot")]
    return [ok("primary", "it neither waits for the closed log nor keeps WAL for it")]


async def _settings(sql: asyncpg.Connection, slot: str) -> Finding:
    row = await sql.fetchrow(FACTS, slot)
    assert row is not None
    if lines := lines_to_set(PrimaryFacts(**dict(row))):
        why = "the proposer cannot stream, or not again after a restart"
        remedy = f"in postgresql.conf set {'  '.join(lines)}, and restart the server"
        return Finding("primary", Grade.FAILED, "settings do not suffice", why, remedy)
    if found := await warnings(sql):
        why = "the quorum's durability is worth less than it looks"
        return Finding("primary", Grade.WARNING, "; ".join(found), why, "reset these settings")
    return ok("primary", "its settings suffice")


async def _slot(sql: asyncpg.Connection, slot: str) -> Finding:
    row: Any = await sql.fetchrow(SLOT, slot)
    if row is None:
        why = "the primary may remove WAL that the proposer has not read"
        remedy = "start the proposer, which makes it"
        return Finding("primary slot", Grade.FAILED, f"there is no slot {slot}", why, remedy)
    if row["wal_status"] in ("lost", "unreserved") or not row["active"]:
        text = f"slot {slot}: active {row['active']}, wal_status {row['wal_status']}"
        why = "the primary keeps WAL for a proposer that does not read, or has removed it"
        return Finding("primary slot", Grade.FAILED, text, why, "start the proposer; read its log")
    if row["kept"] > SLOT_BYTES_MAX:
        text = f"slot {slot} keeps {row['kept'] >> 20:,} MB"
        why = "the primary's disk fills while no quorum takes WAL"
        remedy = "see which member is slow: walkeeper status"
        return Finding("primary slot", Grade.WARNING, text, why, remedy)
    return ok("primary slot", f"slot {slot} is active and keeps {row['kept']:,} bytes")


async def _names(sql: asyncpg.Connection, name: str) -> Finding:
    setting = (await standby_names(sql)).setting
    if requires(setting, name):
        return ok("attached", f"synchronous_standby_names = {setting}")
    text = f"synchronous_standby_names = {setting!r} does not require {name}"
    why = "commits return without the quorum, and a failover can lose them"
    return Finding("attached", Grade.WARNING, text, why, "walkeeper attach --dsn …")
