"""The settings that a primary needs before a proposer can stream, as lines for postgresql.conf.

`create` and the proposer would each stop at the first wrong setting. This module shows all of them
at once, before a command starts or makes anything on the server. Shell.
"""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from walkeeper_admin.primary.primary_settings import refuse_recovery
from walkeeper_common.errors import Refused

# One connection streams, one compares; a base backup for a standby takes two more.
WALSENDERS = 2
GENEROUS = 10
FACTS = """
SELECT current_setting('wal_level') AS wal_level,
       current_setting('max_wal_senders')::int AS max_wal_senders,
       current_setting('max_replication_slots')::int AS max_replication_slots,
       (SELECT count(*)::int FROM pg_stat_replication
        WHERE lower(application_name) <> $1) AS walsenders,
       (SELECT count(*)::int FROM pg_replication_slots WHERE slot_name <> $1) AS slots,
       (SELECT setting FROM pg_settings WHERE name = 'config_file') AS config_file
"""


@dataclass(frozen=True, slots=True)
class PrimaryFacts:
    """Settings, and other standbys' use of them; most roles may not see config_file."""

    wal_level: str
    max_wal_senders: int
    max_replication_slots: int
    walsenders: int
    slots: int
    config_file: str | None


async def refuse_unsuitable(sql: asyncpg.Connection, slot: str) -> None:
    """Raise Refused, with all lines to set, if the primary's settings do not suffice."""
    await refuse_recovery(sql)
    row = await sql.fetchrow(FACTS, slot)
    assert row is not None
    facts = PrimaryFacts(**dict(row))
    if lines := lines_to_set(facts):
        raise Refused(
            f"the primary cannot be attached with its settings. In "
            f"{facts.config_file or 'its postgresql.conf'} set:  {'  '.join(lines)}  "
            "and restart the server"
        )


def lines_to_set(facts: PrimaryFacts) -> list[str]:
    """Return the lines for postgresql.conf, each with the present value and the reason."""
    lines = []
    if facts.wal_level not in ("replica", "logical"):
        lines.append(f"wal_level = replica  # is {facts.wal_level}")
    needed = facts.walsenders + WALSENDERS
    if facts.max_wal_senders < needed:
        lines.append(
            f"max_wal_senders = {max(GENEROUS, needed)}  # is {facts.max_wal_senders}, "
            f"{facts.walsenders} used by others; walkeeper needs {WALSENDERS}"
        )
    if facts.max_replication_slots < facts.slots + 1:
        lines.append(
            f"max_replication_slots = {max(GENEROUS, facts.slots + 1)}  "
            f"# is {facts.max_replication_slots}, {facts.slots} used by others"
        )
    return lines
