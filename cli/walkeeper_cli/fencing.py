"""The leader that a command is about to fence, for the question on a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

from walkeeper_common.addresses import Address

ANSWER_S = 3.0


def state_of(safekeepers: tuple[Address, ...], cluster: str) -> dict[str, Any]:
    """Return the part `cluster` of the document of `status`."""
    from walkeeper_admin.status import gather

    found: dict[str, Any] = asyncio.run(gather(safekeepers, cluster, ANSWER_S))["cluster"]
    return found


def leader_of(state: dict[str, Any]) -> str | None:
    """Return the name of the proposer that leads with a quorum, or None."""
    leader = state["proposer"]
    if not state["heard_by_quorum"] or leader is None:
        return None
    return f"{leader['application_name']} at {leader['address']}"
