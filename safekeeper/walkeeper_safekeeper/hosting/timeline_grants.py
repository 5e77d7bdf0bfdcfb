"""Timeline numbers that this safekeeper grants, each durable before its answer (R23)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from walkeeper_common.wire.timeline_reservation import ReserveTimeline, TimelineReserved
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.storage.reserved_timelines import Reserved


class TimelineGrants:
    """The grants of one log; `save` returns when they are durable."""

    def __init__(
        self, acceptor: Acceptor, reserved: Reserved, save: Callable[[Reserved], Awaitable[None]]
    ) -> None:
        self._acceptor, self._reserved, self._save = acceptor, reserved, save
        self._saving = asyncio.Lock()

    async def reserve(self, ask: ReserveTimeline) -> TimelineReserved:
        """Return the owner of a timeline number when that is durable here. Raise Refused."""
        acceptor = self._acceptor
        configuration = acceptor.durable.configuration
        assert configuration is not None, f"{ask=}"
        async with self._saving:
            last_timeline = acceptor.timelines.before(acceptor.commit_lsn)
            following = self._reserved.grant(ask.timeline, ask.owner, last_timeline=last_timeline)
            if following is not self._reserved:
                await self._save(following)
                self._reserved = following
            owner = self._reserved.owners[ask.timeline]
        return TimelineReserved(acceptor.member, configuration, ask.timeline, owner)
