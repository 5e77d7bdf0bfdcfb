"""The primary's own answer to `status --dsn`: the form of the proposer's report, and its door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkeeper_admin.primary.door import SESSION, STATE_PARAMETER
from walkeeper_admin.primary.hba_rules import MARK
from walkeeper_admin.primary.standby_names import DEFAULT_NAME
from walkeeper_common.operator_text.times import shown_time

if TYPE_CHECKING:  # the commands that ask no primary need no asyncpg
    import asyncpg

CHANGES = ("connected", "streaming", "sync_state")  # `since` is the time of their last one
# A start with --exec sets the parameter. Any other one has a session, while the command waits.
GATE = """
SELECT coalesce(nullif(current_setting($1, true), ''), (
    SELECT 'closed' FROM pg_stat_activity JOIN pg_roles ON pg_roles.oid = usesysid
    WHERE application_name = $2 AND rolsuper LIMIT 1
))
"""
IS_SUPERUSER = "SELECT current_setting('is_superuser') = 'on'"
RULES = """
SELECT pg_read_binary_file(current_setting('hba_file'), 0, length($1::bytea), true) = $1
"""


async def asked_primary(
    dsn: str, proposer: dict[str, Any] | None, reported: dict[str, Any] | None
) -> dict[str, Any]:
    """Ask the primary itself. Return `primary`, in the form of the proposer's report, and `gate`.

    `gate` is `closed` while `walkeeper gate` keeps clients out, as far as the role can see. It is
    None if the server is open and was started without --exec. Raise Refused without an answer,
    which tells nothing about the proposer's connection.

    The time of the last change is the report's if the report agrees. A role without pg_monitor
    sees no state, so there the report says if WAL comes."""
    found, gate = await _primarys_answer(dsn, proposer)
    last = reported or {}
    if found["streaming"] is None:
        found["streaming"] = bool(last.get("streaming"))
    is_same = all(last.get(name) == found[name] for name in CHANGES)
    primary = {**found, "since": last.get("since") if is_same else None}
    return {"primary": primary, "gate": gate}


async def _primarys_answer(
    dsn: str, proposer: dict[str, Any] | None
) -> tuple[dict[str, Any], str | None]:
    from walkeeper_proposer.postgres.primary_sql import connected
    from walkeeper_proposer.postgres.sync_state import ABSENT, commits_of

    name = proposer["application_name"] if proposer else DEFAULT_NAME
    facts: dict[str, Any] = {"connected": False, "streaming": False, "sync_state": None}
    facts |= {"since": None, "waiting": 0, "waiting_since": None, "lowered": [], "error": None}
    async with connected(dsn) as sql:
        commits = await commits_of(sql, name)
        gate = await _gate(sql)
    absent = commits.sync_state == ABSENT
    answer = {
        **facts,
        "connected": not absent,
        "streaming": commits.streaming,
        "sync_state": commits.sync_state,
        "waiting": commits.waiting,
        "waiting_since": shown_time(commits.waiting_since),
        "lowered": list(commits.lowered),
        "error": f"no proposer {name} is connected to it" if absent else None,
    }
    return answer, gate


async def _gate(sql: asyncpg.Connection) -> str | None:
    """Return the state of the gate, from the rules too if the role can read them."""
    gate: str | None = await sql.fetchval(GATE, STATE_PARAMETER, SESSION)
    # A killed command leaves its rules. A superuser alone can read them.
    if (
        gate is None
        and await sql.fetchval(IS_SUPERUSER)
        and await sql.fetchval(RULES, MARK.encode())
    ):
        return "closed"
    return gate
