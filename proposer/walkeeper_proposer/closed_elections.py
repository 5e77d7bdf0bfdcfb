"""The elections that a change of members needs on a closed log, which no proposer leads. Shell.

A command that changes the members of a closed log (M7) holds them itself. Each election closes the
log again at the same LSN, and brings newcomers to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.history import closed_lsn
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import MembersState
from walkeeper_proposer.settling import close

ELECTION_S = 20.0
LINGER_S = 5.0  # the time for a newcomer to get the end of the log
PAUSE_S = 0.5


def is_closed(answers: Mapping[int, Message]) -> bool:
    """Return True if the safekeeper with the newest log says that it was closed."""
    states = [answer for answer in answers.values() if isinstance(answer, MembersState)]
    known = [state.history for state in states if state.history]
    newest = max(known, key=lambda history: history[-1].ballot, default=None)
    return newest is not None and closed_lsn(newest) is not None


class ClosedElections:
    """Hold elections from the first answer on that shows a closed log, until `end`."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._holding: asyncio.Task[None] | None = None

    def hold_if_closed(self, cluster: str, answers: Mapping[int, Message]) -> None:
        if self._holding is None and is_closed(answers):
            self._holding = asyncio.create_task(self._hold(cluster), name="closed elections")

    async def end(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.wait([self._holding])

    async def _hold(self, cluster: str) -> None:
        while True:
            with suppress(Refused):  # the next one, perhaps of other members, may succeed
                given = {"timeout_s": ELECTION_S, "linger_s": LINGER_S}
                await close(self._addresses, cluster, **given)
            await asyncio.sleep(PAUSE_S)
