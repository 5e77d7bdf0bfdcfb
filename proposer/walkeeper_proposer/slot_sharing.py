"""Tells each safekeeper of a physical log the slots of the others. An asyncio shell.

    SlotSharing(…).run()     until cancelled

Only a proposer that leads does so. A reader whose safekeeper dies goes on at another one with its
slot. Each round asks all members on connections of their own, and the next round tells what they
know together. No commit waits for it. A member that was away learns the ids of dropped slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NoReturn

from walkeeper_common.addresses import Address
from walkeeper_common.errors import Unreachable
from walkeeper_common.shell.safekeeper_links.safekeeper_client import NoAnswer, ask
from walkeeper_common.wire.shared_slots import SharedSlots, merged
from walkeeper_proposer.consensus.proposer import Proposer

SHARE_S = 2.0
OLD_VERSION_S = 20.0  # the pause for a safekeeper that does not know the message, or dies over it
ASK_TIMEOUT_S = 5.0


class SlotSharing:
    """Share one log's slots. Members learn at once that a slot came or went, and moves later."""

    def __init__(
        self,
        cluster: str,
        core: Callable[[], Proposer],
        addresses: Callable[[], Sequence[Address]],
    ) -> None:
        self._cluster, self._core, self._addresses = cluster, core, addresses
        self._merged = SharedSlots(cluster)
        self._resting: dict[Address, float] = {}

    async def run(self) -> NoReturn:
        """Share slots until cancelled."""
        while True:
            await asyncio.sleep(SHARE_S)
            if self._core().leader is not None and await self.one_round():
                await self.one_round()

    async def one_round(self) -> bool:
        """Tell and ask each member once; return True if a slot came or went."""
        answers = await asyncio.gather(*(self._exchange(each) for each in self._addresses()))
        before = self._merged
        self._merged = merged(self._cluster, [each for each in answers if each is not None])
        return self._merged.names != before.names

    async def _exchange(self, address: Address) -> SharedSlots | None:
        """Return the member's slots, or None without an answer."""
        now_s = asyncio.get_running_loop().time()
        if self._resting.get(address, 0.0) > now_s:
            return None
        try:
            answer = await ask(address, self._merged, ASK_TIMEOUT_S)
        except NoAnswer:
            self._resting[address] = now_s + OLD_VERSION_S
            return None
        except Unreachable:
            return None
        return answer if isinstance(answer, SharedSlots) else None
