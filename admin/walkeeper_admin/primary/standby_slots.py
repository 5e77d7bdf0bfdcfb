"""synchronized_standby_slots (PostgreSQL 17): the slots that decoded changes wait for.

A logical walsender sends changes once they are flushed on the primary, without regard to standbys.
So consumers of a logical log may see a commit that no quorum of the physical log has. A primary
restored from the physical log would lack it. With the physical proposer's slot in this list, the
walsender sends such a commit later.
"""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from walkeeper_admin.primary.primary_settings import Standby
from walkeeper_admin.primary.standby_names import string_literal

PARAMETER = "synchronized_standby_slots"


async def ahead_warnings(sql: asyncpg.Connection, proposers: Sequence[Standby]) -> list[str]:
    """Return a warning if a logical proposer may be ahead of the physical one, with the remedy.

    Return no warning before PostgreSQL 17, since there is no remedy.
    """
    kinds = {proposer.slot_type: proposer for proposer in proposers}
    listed = await _listed(sql)
    if listed is None or not {"physical", "logical"} <= kinds.keys():
        return []
    physical, logical = kinds["physical"], kinds["logical"]
    if physical.slot_name in listed:
        return []
    value = ", ".join([*listed, str(physical.slot_name)])
    return [
        f"consumers of {logical.application_name} may receive a commit that no quorum of "
        f"{physical.application_name} has, and that a primary restored from there lacks; to hold "
        f"it back until then: ALTER SYSTEM SET {PARAMETER} = {string_literal(value)} and reload"
    ]


async def dropped_warnings(sql: asyncpg.Connection, slot: str) -> list[str]:
    """Return a warning if the list still names a slot that is gone."""
    if slot not in (await _listed(sql) or ()):
        return []
    return [f"{PARAMETER} lists {slot}: logical replication waits for it; take it out and reload"]


async def _listed(sql: asyncpg.Connection) -> list[str] | None:
    """Return the listed slots without quotes, or None before PostgreSQL 17."""
    value = await sql.fetchval("SELECT current_setting($1, true)", PARAMETER)
    if value is None:
        return None
    return [name for each in value.split(",") if (name := each.strip().strip('"'))]
