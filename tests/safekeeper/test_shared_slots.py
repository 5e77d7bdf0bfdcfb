"""The slots that members share: a reader may go on at another one, and a drop lasts."""

from __future__ import annotations

import asyncio
import random
from itertools import count

import pytest

from tests.support.fake_served_log import SlotsFile
from walkeeper_common.errors import CorruptWal, RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.shared_slots import (
    DROPPED_MAX,
    SLOTS_MAX,
    SharedSlot,
    SharedSlots,
    merged,
)
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.physical_slots import FILE_MAGIC, Slots, id_of_name
from walkeeper_safekeeper.storage.sealed_file import seal

A, B, C = Lsn(1000), Lsn(2000), Lsn(3000)
ids = count(1 << 40)  # as with a time in front


def new_id() -> bytes:
    return next(ids).to_bytes(8, "big")


def member() -> Slots:
    return Slots(None, new_id=new_id)


def share(*members: Slots) -> None:
    """Let a proposer make two rounds, as after each slot that came or went."""
    told = SharedSlots("main")
    for _ in range(2):
        answers = []
        for each in members:
            each.follow_shared(told)
            answers.append(each.shared("main"))
        told = merged("main", answers)
    for each in members:
        each.follow_shared(told)


def names(*members: Slots) -> list[list[str]]:
    return [[slot.name for slot in each] for each in members]


def test_a_slot_of_one_member_is_a_slot_of_all() -> None:
    one, two, three = member(), member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    one.create("own", temporary=True, restart_lsn=A, pid=1)
    share(one, two, three)
    assert names(two, three) == [["s"], ["s"]], "a temporary slot is its connection's alone"
    assert two.get("s").restart_lsn == A == two.retention_lsn()
    assert two.get("s").slot_id == one.get("s").slot_id
    one.acquire("s", pid=1)
    one.confirm("s", B, pid=1)
    share(one, two, three)
    assert two.get("s").restart_lsn == three.get("s").restart_lsn == B


def test_a_member_with_a_new_disk_gets_the_slots_of_the_others() -> None:
    one, two = member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    share(one, two)
    wiped = member()
    share(wiped, two)
    assert wiped.get("s").restart_lsn == A and two.get("s").restart_lsn == A


def test_a_reader_has_the_last_word_on_its_slot() -> None:
    """An idle copy that is ahead moves nothing back, and no slot that a reader moves here."""
    one, two = member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    share(one, two)
    one.acquire("s", pid=1)
    two.follow("s", C)
    share(one, two)
    assert (one.get("s").restart_lsn, two.get("s").restart_lsn) == (A, C)
    one.release("s", pid=1)
    share(one, two)
    assert one.get("s").restart_lsn == C


def test_of_two_readers_with_one_name_the_slower_one_counts() -> None:
    states = [
        SharedSlots("main", (SharedSlot("s", new_id(), lsn, active),))
        for lsn, active in ((A, True), (B, True), (C, False))
    ]
    assert merged("main", states).slots[0].restart_lsn == A


def test_a_drop_lasts_although_a_member_was_away() -> None:
    one, two, away = member(), member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    share(one, two, away)
    two.drop("s", pid=1)
    share(one, two)
    assert names(one, two, away) == [[], [], ["s"]]
    share(one, two, away)
    assert names(one, two, away) == [[], [], []]


def test_a_new_slot_of_a_dropped_name_stays() -> None:
    """A member that knew the old slot learns of both, the drop and the new one."""
    one, two = member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    share(one, two)
    one.drop("s", pid=1)
    one.create("s", temporary=False, restart_lsn=B, pid=1)
    share(one, two)
    assert one.get("s").restart_lsn == two.get("s").restart_lsn == B
    assert one.get("s").slot_id == two.get("s").slot_id


def test_a_slot_that_a_reader_uses_outlives_its_drop_elsewhere() -> None:
    one, two = member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    share(one, two)
    one.acquire("s", pid=7)
    two.drop("s", pid=1)
    share(one, two)
    assert one.get("s").active_pid == 7
    assert names(one, two) == [["s"], ["s"]]


def test_two_members_that_make_one_name_share_one_slot() -> None:
    one, two = member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    two.create("s", temporary=False, restart_lsn=B, pid=1)
    share(one, two)
    assert one.get("s").slot_id == two.get("s").slot_id
    assert one.get("s").restart_lsn == B


def test_slots_and_drops_are_bounded() -> None:
    one, two = member(), member()
    for number in range(SLOTS_MAX):
        one.create(f"a{number}", temporary=False, restart_lsn=A, pid=1)
        two.create(f"b{number}", temporary=False, restart_lsn=A, pid=1)
    share(one, two)
    assert len(one) == len(two) == SLOTS_MAX
    for number in range(SLOTS_MAX):
        one.drop(f"a{number}", pid=1)
        one.create(f"c{number}", temporary=False, restart_lsn=A, pid=1)
        one.drop(f"c{number}", pid=1)
    assert len(one.shared("main").dropped) == DROPPED_MAX
    share(one, two)
    assert one.shared("main").dropped == two.shared("main").dropped


def test_members_agree_in_each_order() -> None:
    """Random makes, drops, uses and moves, and members that are away: in the end all agree."""
    draw = random.Random(7)
    for _ in range(60):
        members = [member() for _ in range(3)]
        for _ in range(40):
            each, name, lsn = draw.choice(members), draw.choice("abc"), Lsn(draw.randrange(1, 99))
            slot = each.find(name)
            match draw.choice(("make", "drop", "use", "share")):
                case "make" if slot is None:
                    each.create(name, temporary=False, restart_lsn=lsn, pid=1)
                case "drop" if slot is not None:
                    each.drop(name, pid=1)
                case "use" if slot is not None:
                    each.acquire(name, pid=1)
                    each.confirm(name, lsn, pid=1)
                    each.release(name, pid=1)
                case "share":
                    share(*draw.sample(members, draw.choice((2, 3))))
        share(*members)
        assert len({each.shared("main") for each in members}) == 1
        alive = {slot.slot_id for each in members for slot in each}
        assert not alive & set(members[0].shared("main").dropped)


def test_slots_of_an_older_version_get_the_same_id_on_each_member() -> None:
    body = b"\x00\x01" + b"\x01\x01" + A.to_bytes(8, "big") + b"s"
    one, two = (Slots(seal(FILE_MAGIC, 1, body), new_id=new_id) for _ in range(2))
    assert one.get("s").restart_lsn == A
    assert one.get("s").slot_id == two.get("s").slot_id == id_of_name("s") < new_id()
    assert Slots(one.image().data).get("s").slot_id == id_of_name("s")
    twice = b"\x00\x02" + body[2:] * 2
    with pytest.raises(CorruptWal, match="each of them once"):
        Slots(seal(FILE_MAGIC, 1, twice))


def test_a_copy_keeps_no_wal_on_the_disk_if_the_archive_has_it() -> None:
    """Until its reader comes to this member, also after a restart."""
    one, two = member(), member()
    one.create("s", temporary=False, restart_lsn=A, pid=1)
    share(one, two)
    two = Slots(two.image().data)
    assert [len(each.holding(has_archive=True)) for each in (one, two)] == [1, 0]
    assert [len(each.holding(has_archive=False)) for each in (one, two)] == [1, 1]
    two.acquire("s", pid=1)
    assert len(two.holding(has_archive=True)) == 1


def test_a_drop_is_saved() -> None:
    slots = member()
    slots.create("s", temporary=False, restart_lsn=A, pid=1)
    copy = Slots(slots.image().data)
    slots.drop("s", pid=1)
    share(Slots(slots.image().data), copy)
    assert names(copy) == [[]]


def test_a_name_that_no_slot_can_have_is_refused() -> None:
    told = SharedSlots("main", (SharedSlot("../x", new_id(), A),))
    with pytest.raises(SqlRefused):
        member().follow_shared(told)


def test_a_message_with_too_many_slots_is_refused() -> None:
    for kind in ("slots", "dropped"):
        slots = tuple(SharedSlot(f"s{i}", new_id(), None) for i in range(SLOTS_MAX + 1))
        dropped = tuple(new_id() for _ in range(DROPPED_MAX + 1))
        one = SharedSlots("main", slots) if kind == "slots" else SharedSlots("main", (), dropped)
        writer = Writer()
        one.pack(writer)
        with pytest.raises(RemoteProtocolError, match=kind):
            SharedSlots.unpack(Reader(memoryview(writer.finish())))


def test_a_slot_that_came_is_durable_and_a_move_costs_no_write() -> None:
    async def run() -> None:
        file = SlotsFile()
        slots = DurableSlots(None, file.write, new_id)
        told = SharedSlots("main", (SharedSlot("s", new_id(), A),))
        assert (await slots.share(told)).slots == told.slots
        assert Slots(file.data).get("s").restart_lsn == A and file.writes == 1
        moved = SharedSlots("main", (SharedSlot("s", told.slots[0].slot_id, B),))
        await slots.share(moved)
        assert slots.slots.get("s").restart_lsn == B and file.writes == 1
        assert slots.slots.retention_lsn() == A, "a power cut would bring this position back"

    asyncio.run(run())
