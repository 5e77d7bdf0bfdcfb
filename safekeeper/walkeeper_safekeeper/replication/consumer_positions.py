"""The slots of a logical log's consumers: known to all safekeepers through the log itself. Pure.

A consumer's slot is made, moved and dropped through one safekeeper. That one tells the proposer,
which writes all slots into the log; each safekeeper takes over what is committed. So a quorum has
a slot when its creation is answered, and its position everywhere may be behind its consumer, never
ahead of it (docs/logical.md). Temporary slots belong to one connection and stay here.

    news()                 what the proposer has not put into the log yet
    on_replicated(slots)   what the log says now
"""

from __future__ import annotations

from collections.abc import Mapping

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.consumer_slots import SlotNews
from walkeeper_safekeeper.replication.slots import Slots


class ConsumerPositions:
    """`slots` are this safekeeper's, which its sessions use."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.replicated: dict[str, Lsn] | None = None  # None: the log was not read yet
        self.wanted: dict[str, Lsn] = {}  # creations that somebody waits for
        self.unwanted: set[str] = set()  # drops likewise

    def news(self) -> tuple[SlotNews, ...]:
        """Said again until the log shows it."""
        known = self.replicated or {}
        created = [SlotNews(name, lsn, is_new=True) for name, lsn in self.wanted.items()]
        dropped = [SlotNews(name, None) for name in self.unwanted]
        moved = [
            SlotNews(slot.name, slot.restart_lsn)
            for slot in self._slots
            if slot.name in known
            and slot.name not in self.unwanted
            and not slot.temporary
            and slot.restart_lsn is not None
            and slot.restart_lsn > known[slot.name]
        ]
        return (*created, *dropped, *moved)

    def on_replicated(self, slots: Mapping[str, Lsn]) -> None:
        """Take over what a quorum has: positions, new slots, and which are gone."""
        self.replicated = dict(slots)
        for name, lsn in slots.items():
            if name not in self.unwanted:
                self._slots.follow(name, lsn)
        for slot in list(self._slots):
            if not slot.temporary and slot.name not in slots and slot.active_pid is None:
                self._slots.forget(slot)
        self.wanted = {name: lsn for name, lsn in self.wanted.items() if name not in slots}
        self.unwanted = {name for name in self.unwanted if name in slots}
