"""The physical replication slots of one log: the WAL that its absent readers still need. Pure.

A slot keeps WAL from its `restart_lsn` on. It moves with the flush position that its reader
reports, never back and never past the WAL that this log has sent. To write each move to disk would
be an fsync per reply, so moves are saved lazily. **Retention uses the durable value.** The slot
comes back with it after a power cut, and the WAL from there on must still be here then.

Names, checks, texts and SQLSTATEs are PostgreSQL's (slot.c), because Barman and others act on
42710, 42704, 55006 and 53400. A temporary slot is not saved and goes with its connection.

The other slots are those of all members of the log (wire/shared_slots). So a reader goes on at
another member with its slot, and each member keeps the WAL for it.

    create / drop / acquire / release / confirm     change memory
    shared() / follow_shared()                      the slots as members share them
    image() -> bytes to save; on_saved(image)       what is durable from then on
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from struct import Struct
from struct import error as StructError

from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.wire.shared_slots import (
    SLOT_ID_BYTES,
    SLOTS_MAX,
    SharedSlot,
    SharedSlots,
    newest_dropped,
)
from walkeeper_safekeeper.storage.sealed_file import seal, unseal

NAME_BYTES_MAX = 63
FILE_MAGIC = b"WKSLOTS\x00"
FILE_VERSION = 2
NAMES_ONLY = 1  # the version whose slots have no ids
_COUNT = Struct("!H")
_SLOT_ID = Struct(f"{SLOT_ID_BYTES}s")
_ENTRY = Struct("!B?Q")  # length of the name, is a position reserved, restart_lsn
_TAIL = Struct(f"!{SLOT_ID_BYTES}s?")  # after the name: slot_id, is_copy


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot. A restart sets it to `durable_lsn`, which is None if no position is reserved."""

    serial: int  # tells a slot from an earlier one of the same name
    name: str
    temporary: bool
    restart_lsn: Lsn | None
    durable_lsn: Lsn | None = None
    active_pid: int | None = None
    slot_id: bytes = bytes(SLOT_ID_BYTES)  # the same on all members
    is_copy: bool = False  # it came from another member, and no reader has used it here

    @property
    def retention_lsn(self) -> Lsn | None:
        """WAL from here on is kept. A first position counts before it is durable."""
        if self.temporary or self.durable_lsn is None:
            return self.restart_lsn
        return self.durable_lsn


@dataclass(frozen=True, slots=True)
class SlotImage:
    """The file's bytes, and which slots and positions become durable with them."""

    data: bytes
    restart_lsns: Mapping[int, Lsn | None]


class Slots:
    """Every slot of one log, by name."""

    def __init__(
        self,
        saved: bytes | None,
        file_name: str = "slots",
        new_id: Callable[[], bytes] | None = None,
    ) -> None:
        """Load the saved slots. `new_id` makes ids of new ones; without it they count from 1."""
        self._slots: dict[str, Slot] = {}
        self._dropped: tuple[bytes, ...] = ()
        self._serial = 0
        counted = (number.to_bytes(SLOT_ID_BYTES, "big") for number in count(1))
        self._new_id = new_id or (lambda: next(counted))
        if saved is not None:
            self._load(saved, file_name)

    def _load(self, saved: bytes, file_name: str) -> None:
        version, slots, dropped = _decode(saved, file_name)
        self._dropped = dropped
        for name, restart_lsn, slot_id, is_copy in slots:
            self._put(name, slot_id, restart_lsn=restart_lsn, is_copy=is_copy)
            self._slots[name] = replace(self._slots[name], durable_lsn=restart_lsn)
        is_once = len(self._slots) == len(slots)
        if not is_once or (version == FILE_VERSION and self.image().data != saved):
            raise CorruptWal(f"{file_name}: this is not how slots are saved, each of them once")

    def __iter__(self) -> Iterator[Slot]:
        return iter(sorted(self._slots.values(), key=lambda slot: slot.name))

    def __len__(self) -> int:
        return len(self._slots)

    def find(self, name: str) -> Slot | None:
        """Return the slot, or None if there is none."""
        return self._slots.get(name)

    def get(self, name: str) -> Slot:
        """Return the slot; raise 42704 if there is none."""
        check_name(name)
        if name not in self._slots:
            raise SqlRefused("42704", f'replication slot "{name}" does not exist')
        return self._slots[name]

    def create(self, name: str, *, temporary: bool, restart_lsn: Lsn | None, pid: int) -> Slot:
        """Create a slot. A temporary one belongs to the connection `pid` from the start."""
        self.check_new(name)
        self._put(name, self._new_id(), temporary=temporary, restart_lsn=restart_lsn)
        if temporary:
            self._slots[name] = replace(self._slots[name], active_pid=pid)
        return self._slots[name]

    def check_new(self, name: str) -> None:
        """Raise 42710, 53400 or a name's error if no slot of this name can be made."""
        check_name(name)
        if name in self._slots:
            raise SqlRefused("42710", f'replication slot "{name}" already exists')
        if len(self._slots) >= SLOTS_MAX:
            raise SqlRefused(
                "53400",
                "all replication slots are in use",
                hint=f"A log has at most {SLOTS_MAX}. Drop one that nobody needs any more, with "
                "DROP_REPLICATION_SLOT or pg_receivewal --drop-slot.",
            )

    def _put(
        self,
        name: str,
        slot_id: bytes,
        *,
        restart_lsn: Lsn | None,
        temporary: bool = False,
        is_copy: bool = False,
    ) -> None:
        self._serial += 1
        self._slots[name] = Slot(
            self._serial, name, temporary, restart_lsn, slot_id=slot_id, is_copy=is_copy
        )

    def drop(self, name: str, *, pid: int) -> Slot:
        """Remove and return the slot; raise 55006 while another connection uses it."""
        slot = self.get(name)
        _check_free(slot, pid)
        if not slot.temporary:
            self._dropped = newest_dropped((*self._dropped, slot.slot_id))
        return self._slots.pop(name)

    def forget(self, slot: Slot) -> None:
        """Undo a `create` that could not be made durable."""
        if self._slots.get(slot.name, slot).serial == slot.serial:
            self._slots.pop(slot.name, None)

    def acquire(self, name: str, *, pid: int) -> Slot:
        """Give the slot to the connection `pid`, which moves it; raise 55006 if another has it."""
        slot = self.get(name)
        _check_free(slot, pid)
        self._slots[name] = replace(slot, active_pid=pid, is_copy=False)
        return self._slots[name]

    def release(self, name: str, *, pid: int) -> None:
        """Free the slot of a connection that stops streaming; a temporary slot stays its own."""
        slot = self._slots.get(name)
        if slot is not None and slot.active_pid == pid and not slot.temporary:
            self._slots[name] = replace(slot, active_pid=None)

    def release_all(self, *, pid: int) -> None:
        """Free the slots of a connection that has ended, and remove its temporary ones."""
        for slot in self:
            if slot.active_pid == pid:
                if slot.temporary:
                    del self._slots[slot.name]
                else:
                    self.release(slot.name, pid=pid)

    def confirm(self, name: str, flush_lsn: Lsn, *, pid: int) -> Slot:
        """Move the slot to `flush_lsn`, below which the reader has everything, but never back."""
        slot = self._slots[name]
        assert slot.active_pid == pid, f"{slot=} {pid=}"
        if flush_lsn > (slot.restart_lsn or 0):
            self._slots[name] = replace(slot, restart_lsn=flush_lsn)
        return self._slots[name]

    def follow(self, name: str, lsn: Lsn) -> None:
        """Take over a slot from the log: make it if it is missing, else move it to `lsn`.

        It never moves back, nor while a connection moves it here.
        """
        slot = self._slots.get(name)
        if slot is None:
            self._put(name, self._new_id(), restart_lsn=lsn)
        elif slot.active_pid is None and not slot.temporary and lsn > (slot.restart_lsn or 0):
            self._slots[name] = replace(slot, restart_lsn=lsn)

    def shared(self, cluster: str) -> SharedSlots:
        """Return the slots that last, as the other members may have them."""
        slots = tuple(
            SharedSlot(slot.name, slot.slot_id, slot.restart_lsn, slot.active_pid is not None)
            for slot in self
            if not slot.temporary
        )
        return SharedSlots(cluster, slots, self._dropped)

    def follow_shared(self, others: SharedSlots) -> None:
        """Take over what other members know; raise SqlRefused for a name that no slot can have.

        A slot that a reader uses here outlives its drop elsewhere, under a new id. A slot never
        moves back, nor while a reader moves it here."""
        for one in others.slots:
            check_name(one.name)
        self._dropped = newest_dropped((*self._dropped, *others.dropped))
        for slot in self:
            if slot.slot_id in self._dropped and not slot.temporary:
                if slot.active_pid is None:
                    del self._slots[slot.name]
                else:
                    self._slots[slot.name] = replace(slot, slot_id=self._new_id())
        for one in others.slots:
            if one.slot_id not in self._dropped:
                self._follow_one(one)

    def _follow_one(self, one: SharedSlot) -> None:
        slot = self._slots.get(one.name)
        if slot is None and len(self._slots) < SLOTS_MAX:
            self._put(one.name, one.slot_id, restart_lsn=one.restart_lsn, is_copy=True)
        elif slot is not None and not slot.temporary:
            self._slots[one.name] = replace(slot, slot_id=min(slot.slot_id, one.slot_id))
            if one.restart_lsn is not None:
                self.follow(one.name, one.restart_lsn)

    def retention_lsn(self) -> Lsn | None:
        """Return the LSN from which slots keep WAL, or None if no slot needs any."""
        wanted = [slot.retention_lsn for slot in self._slots.values()]
        return min((lsn for lsn in wanted if lsn is not None), default=None)

    def holding(self, *, has_archive: bool) -> list[Slot]:
        """Return the slots that keep WAL on this disk. A copy needs none if there is an archive."""
        return [slot for slot in self if not (has_archive and slot.is_copy)]

    def image(self) -> SlotImage:
        """Return the file's content that makes the present memory durable."""
        lasting = [slot for slot in self if not slot.temporary]
        body = [_COUNT.pack(len(lasting))]
        for slot in lasting:
            name, lsn = slot.name.encode(), slot.restart_lsn
            front = _ENTRY.pack(len(name), lsn is not None, lsn or 0)
            body.append(front + name + _TAIL.pack(slot.slot_id, slot.is_copy))
        body += [_COUNT.pack(len(self._dropped)), *self._dropped]
        data = seal(FILE_MAGIC, FILE_VERSION, b"".join(body))
        return SlotImage(data, {slot.serial: slot.restart_lsn for slot in lasting})

    def on_saved(self, image: SlotImage) -> None:
        """Set the durable positions, as `image` is saved now; memory may have moved on since."""
        for slot in self._slots.values():
            saved_lsn = image.restart_lsns.get(slot.serial)
            if saved_lsn is None:
                continue
            assert slot.restart_lsn is not None, f"{slot=} {saved_lsn=}"
            assert saved_lsn <= slot.restart_lsn, f"{slot=} {saved_lsn=}"
            self._slots[slot.name] = replace(slot, durable_lsn=saved_lsn)


def check_name(name: str) -> None:
    """Raise for a name that PostgreSQL's ReplicationSlotValidateName refuses."""
    if not name:
        raise SqlRefused("42602", f'replication slot name "{name}" is too short')
    if len(name.encode()) > NAME_BYTES_MAX:
        raise SqlRefused("42622", f'replication slot name "{name}" is too long')
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise SqlRefused(
            "42602",
            f'replication slot name "{name}" contains invalid character',
            hint="Replication slot names may only contain lower case letters, numbers, and the "
            "underscore character.",
        )


def _check_free(slot: Slot, pid: int) -> None:
    if slot.active_pid not in (None, pid):
        raise SqlRefused(
            "55006", f'replication slot "{slot.name}" is active for PID {slot.active_pid}'
        )


def id_of_name(name: str) -> bytes:
    """Return the id of a slot that an older version made, the same on each member. It sorts before
    the ids that have a time."""
    return bytes(4) + hashlib.sha256(name.encode()).digest()[:4]


_Entry = tuple[str, Lsn | None, bytes, bool]


def _decode(saved: bytes, file_name: str) -> tuple[int, list[_Entry], tuple[bytes, ...]]:
    version, body = unseal(FILE_MAGIC, (NAMES_ONLY, FILE_VERSION), saved, file_name)
    entries: list[_Entry] = []
    dropped: list[bytes] = []
    has_ids = version != NAMES_ONLY
    try:
        known, at = _COUNT.unpack_from(body)[0], _COUNT.size
        for _ in range(known):
            name_bytes, has_lsn, lsn = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size + name_bytes
            name = body[at - name_bytes : at].decode("ascii")
            check_name(name)
            slot_id, is_copy = _TAIL.unpack_from(body, at) if has_ids else (id_of_name(name), False)
            at += _TAIL.size * has_ids
            entries.append((name, Lsn(lsn) if has_lsn else None, slot_id, is_copy))
        if has_ids:
            gone, at = _COUNT.unpack_from(body, at)[0], at + _COUNT.size
            dropped = [_slot_id(body, at + SLOT_ID_BYTES * number) for number in range(gone)]
            at += SLOT_ID_BYTES * gone
    except (StructError, UnicodeDecodeError, SqlRefused) as error:
        raise CorruptWal(f"{file_name}: not a list of slots: {error}") from error
    if at != len(body) or newest_dropped(dropped) != tuple(dropped):
        raise CorruptWal(f"{file_name}: {len(body) - at} bytes follow the last slot")
    return version, entries, tuple(dropped)


def _slot_id(body: bytes, at: int) -> bytes:
    (slot_id,) = _SLOT_ID.unpack_from(body, at)
    return bytes(slot_id)
