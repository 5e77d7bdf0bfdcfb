"""The slots of a logical log's consumers, which all safekeepers learn from the log itself. Pure.

A consumer makes, moves and drops its slot through one safekeeper. That safekeeper reports it to the
proposer, which writes all slots into the log. Each safekeeper takes over what is committed. So a
quorum has a slot when its creation is answered. Its position anywhere may be less than the
consumer's, never greater (docs/logical.md). Temporary slots belong to one connection and stay here.

    news()                 changes that the proposer has not put into the log yet
    take_late_slot(name)   a slot that came after the answer that it cannot be made
    on_replicated(slots)   take over the slots that the log has now
"""

from __future__ import annotations

from collections.abc import Mapping

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.consumer_slots import SlotNews
from walkeeper_safekeeper.replication.physical_slots import Slots

LATE_MAX = 64


class ConsumerPositions:
    """Compare this safekeeper's `slots`, which its sessions use, with those in the log."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.replicated: dict[str, Lsn] | None = None  # stays None until the log was read
        self.wanted: dict[str, Lsn] = {}  # creations that a session waits for
        self.unwanted: set[str] = set()  # drops that a session waits for
        self.pending: dict[str, Lsn] = {}  # drops for which none waits, by the slot's LSN then
        self._late: dict[str, Lsn | None] = {}  # creations for which none waits; where they began

    @property
    def waits(self) -> bool:
        """True if a session waits until the log has a change of its slot."""
        return bool(self.wanted or self.unwanted)

    def give_up(self, name: str) -> None:
        """Note that no session waits for this slot any more, though the log may get it still."""
        self._late[name] = None
        if len(self._late) > LATE_MAX:
            del self._late[next(iter(self._late))]

    def take_late_slot(self, name: str) -> Lsn | None:
        """Return where a slot begins that came after its session gave up, if nobody has used it.

        It is another session's slot from then on.
        """
        slot, lsn = self._slots.find(name), self._late.get(name)
        if slot is None or slot.active_pid is not None or slot.restart_lsn != lsn:
            return None
        del self._late[name]
        return lsn

    def news(self) -> tuple[SlotNews, ...]:
        """Return every slot that differs from the log. It is repeated until the log has it."""
        known = self.replicated or {}
        created = [SlotNews(name, lsn, is_new=True) for name, lsn in self.wanted.items()]
        gone = self.unwanted | self.pending.keys()
        dropped = [SlotNews(name, None) for name in sorted(gone)]
        moved = [
            SlotNews(slot.name, slot.restart_lsn)
            for slot in self._slots
            if slot.name in known
            and slot.name not in gone
            and not slot.temporary
            and slot.restart_lsn is not None
            and slot.restart_lsn > known[slot.name]
        ]
        return (*created, *dropped, *moved)

    def on_replicated(self, slots: Mapping[str, Lsn]) -> None:
        """Take over what a quorum has: positions and new slots. Forget the slots that are gone.

        A drop that is pending holds for the slot as it was. A slot that has moved since is another
        one of that name, or has a consumer at another safekeeper.
        """
        self.replicated = dict(slots)
        self.pending = {name: lsn for name, lsn in self.pending.items() if slots.get(name) == lsn}
        for name, lsn in slots.items():
            if name not in self.unwanted and name not in self.pending:
                self._slots.follow(name, lsn)
        for slot in list(self._slots):
            if not slot.temporary and slot.name not in slots and slot.active_pid is None:
                self._slots.forget(slot)
        # A late slot that has moved or gone had a consumer.
        self._late = {
            name: slots.get(name)
            for name, lsn in self._late.items()
            if lsn in (None, slots.get(name)) and name not in self.wanted
        }
        self.wanted = {name: lsn for name, lsn in self.wanted.items() if name not in slots}
        self.unwanted = {name for name in self.unwanted if name in slots}
