"""The primary's own answer to `status --dsn`: the form of the proposer's report, and its door."""

from __future__ import annotations

from typing import Any

from walkeeper_admin.primary.door import STATE_PARAMETER
from walkeeper_admin.primary.standby_names import DEFAULT_NAME
from walkeeper_common.operator_text.times import shown_time

CHANGES = ("connected", "streaming", "sync_state")  # `since` is the time of their last one
GATE = "SELECT nullif(current_setting($1, true), '')"


async def asked_primary(
    dsn: str, proposer: dict[str, Any] | None, reported: dict[str, Any] | None
) -> dict[str, Any]:
    """Ask the primary itself. Return `primary`, in the form of the proposer's report, and `gate`.

    `gate` is the state of the door of `walkeeper gate --exec`, or None after another start. Raise
    Refused without an answer, which tells nothing about the proposer's connection.

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
        gate: str | None = await sql.fetchval(GATE, STATE_PARAMETER)
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
