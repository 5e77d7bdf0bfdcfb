"""The physical slots of one log, as its safekeepers share them through the proposer. Pure.

    merged(cluster, states)     what the members know together, the same in each order

WAL has no place for them, unlike a logical log (consumer_slots). So the proposer asks each member
for its slots and tells it those of the others. A reader may then go on at another member.

A slot has an id besides its name, so that a dropped slot stays dropped, and a new one of its name
is another slot. Ids begin with the time of creation. If too many slots were dropped, members forget
the oldest ids. A slot that comes back keeps too much WAL, and no reader loses any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.fields import Reader, Writer

SLOTS_MAX = 64
DROPPED_MAX = 64
SLOT_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class SharedSlot:
    """A slot that lasts. `is_active` says that a reader moves it at this member now."""

    name: str
    slot_id: bytes
    restart_lsn: Lsn | None
    is_active: bool = False

    def pack(self, w: Writer) -> None:
        w.text(self.name)
        w.raw(self.slot_id, SLOT_ID_BYTES)
        w.optional_lsn(self.restart_lsn)
        w.boolean(self.is_active)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.raw(SLOT_ID_BYTES), r.optional_lsn(), r.boolean())


@dataclass(frozen=True, slots=True)
class SharedSlots:
    """The slots of all members, from the proposer; the answer has those of this member.

    `dropped` has the ids of slots that somebody has dropped."""

    TAG: ClassVar[int] = ord("f")
    cluster: str
    slots: tuple[SharedSlot, ...] = ()
    dropped: tuple[bytes, ...] = ()

    @property
    def names(self) -> object:
        """Everything but the positions: it changes when a slot comes or goes."""
        return [(slot.name, slot.slot_id) for slot in self.slots], self.dropped

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.u16(len(self.slots))
        for slot in self.slots:
            slot.pack(w)
        w.u16(len(self.dropped))
        for slot_id in self.dropped:
            w.raw(slot_id, SLOT_ID_BYTES)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        cluster, count = r.text(), r.u16()
        if count > SLOTS_MAX:
            raise RemoteProtocolError(f"{count} shared slots")
        slots = tuple(SharedSlot.unpack(r) for _ in range(count))
        gone = r.u16()
        if gone > DROPPED_MAX:
            raise RemoteProtocolError(f"{gone} dropped slots")
        return cls(cluster, slots, tuple(r.raw(SLOT_ID_BYTES) for _ in range(gone)))


def newest_dropped(ids: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the ids in order, without the oldest of too many."""
    return tuple(sorted(set(ids))[-DROPPED_MAX:])


def merged(cluster: str, states: Iterable[SharedSlots]) -> SharedSlots:
    """Return what the members know together."""
    known = list(states)
    dropped = newest_dropped(slot_id for state in known for slot_id in state.dropped)
    by_name: dict[str, list[SharedSlot]] = {}
    for state in known:
        for slot in state.slots:
            if slot.slot_id not in dropped:
                by_name.setdefault(slot.name, []).append(slot)
    slots = tuple(_one(name, by_name[name]) for name in sorted(by_name)[:SLOTS_MAX])
    return SharedSlots(cluster, slots, dropped)


def _one(name: str, copies: list[SharedSlot]) -> SharedSlot:
    """Return one slot for its copies, of which a reader that uses it now decides the position.

    The slower one decides of two readers that share a name. Without a reader the furthest copy is
    the newest.
    """
    active = [slot.restart_lsn for slot in copies if slot.is_active and slot.restart_lsn]
    idle = [slot.restart_lsn for slot in copies if slot.restart_lsn]
    restart_lsn = min(active) if active else max(idle, default=None)
    slot_id = min(slot.slot_id for slot in copies)
    return SharedSlot(name, slot_id, restart_lsn, any(slot.is_active for slot in copies))
