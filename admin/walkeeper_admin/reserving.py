"""The timeline number of a promotion, reserved on a quorum for one server (R23). A shell.

    reserve(addresses, cluster, owner, after=) -> the number, or None without a quorum that can

Contract: two owners never get one number, even at the same time or while members are down
(wire/timeline_reservation.py). The same owner gets the same number again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, Unreachable
from walkeeper_common.shell.safekeeper_links.safekeeper_client import NoAnswer, ask
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.timeline_reservation import (
    ReserveTimeline,
    TimelineReserved,
    is_quorum,
)

ASK_TIMEOUT_S = 5.0
TRIES_MAX = 256


async def reserve(
    addresses: Sequence[Address], cluster: str, owner: str, *, after: int
) -> int | None:
    """Return the first number greater than `after` that is the owner's.

    Return None if safekeepers of an older version are needed for a quorum. Raise Refused with the
    reasons if a quorum does not answer."""
    for number in range(after + 1, after + 1 + TRIES_MAX):
        answers = await _ask_all(addresses, ReserveTimeline(cluster, number, owner))
        reserved = [answer for answer in answers if isinstance(answer, TimelineReserved)]
        if is_quorum([answer for answer in reserved if answer.owner == owner], reserved):
            return number
        if not is_quorum(reserved, reserved):
            if any(isinstance(answer, NoAnswer) for answer in answers):
                return None
            reasons = "; ".join(_shown(a) for a in answers if not isinstance(a, TimelineReserved))
            raise Refused(
                f"no quorum reserves timeline {number} for this promotion: {reasons}. Do not "
                "promote; run this again"
            )
    raise Refused(
        f"timelines {after + 1} to {after + TRIES_MAX} are reserved for other servers, and none "
        "was promoted: see the file `reserved` of a safekeeper"
    )


async def _ask_all(
    addresses: Sequence[Address], question: ReserveTimeline
) -> list[Message | Unreachable]:
    return await asyncio.gather(*(_ask_one(address, question) for address in addresses))


async def _ask_one(address: Address, question: ReserveTimeline) -> Message | Unreachable:
    try:
        return await ask(address, question, ASK_TIMEOUT_S)
    except Unreachable as error:
        return error


def _shown(answer: Message | Unreachable) -> str:
    return answer.text if isinstance(answer, Reject) else str(answer)
