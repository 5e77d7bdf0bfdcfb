"""The connections that hold this proposer's slot: ended, and counted. A shell.

This proposer is elected. So a holder is a deposed one of the same log, which stays away, or a
connection of our own that the server still keeps. Another log's proposer comes back each time.
Two of them would end each other's connection for ever. Each acknowledges commits that the other
lacks.
"""

from __future__ import annotations

import asyncio
import logging

from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_proposer.postgres.primary_sql import terminate_slot_user

logger = logging.getLogger("walkeeper.primary")

RIVALS_MAX, RIVALS_S = 5, 60.0
OWN_MAX = 100


class SlotRivals:
    """The holders that were ended in the last RIVALS_S."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn, self._slot = dsn, slot
        self._own: list[int] = []
        self._ended: dict[int, float] = {}  # by PID: when

    def own(self, backend_pid: int) -> None:
        """Remember a connection of this proposer."""
        self._own = [*self._own[-OWN_MAX:], backend_pid]

    async def free_slot(self) -> None:
        """End the slot's connection if this role may; else wal_sender_timeout frees the slot.

        Raise Refused if other connections come back again and again."""
        try:
            pid = await terminate_slot_user(self._dsn, self._slot)
        except WalkeeperError as error:
            logger.warning("slot %s stays in use until it times out: %s", self._slot, error)
            return
        if pid is not None:
            self.on_ended(pid, asyncio.get_running_loop().time())

    def on_ended(self, pid: int, now_s: float) -> None:
        """Count a holder that was ended; raise Refused for the last one that is too many."""
        if pid in self._own:
            return
        recent = {each: at_s for each, at_s in self._ended.items() if now_s - at_s < RIVALS_S}
        self._ended = {pid: now_s} | recent
        if len(self._ended) >= RIVALS_MAX:
            raise Refused(
                f"slot {self._slot} was taken {len(self._ended)} times within {RIVALS_S:.0f} s: "
                "another log's proposer uses it on this primary, and commits of both are not safe. "
                "Stop one of the two for good; a log beside another one needs a --slot and an "
                "--application-name of its own"
            )
