"""Replication slots: names, limits, and that retention trusts only what is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.fake_served_log import SlotsFile, wait_until
from walkeeper_common.errors import CorruptWal, StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.wire.shared_slots import SLOTS_MAX
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.physical_slots import Slots

Use = Callable[[], object]
A, B, C = Lsn(1000), Lsn(2000), Lsn(3000)


def sqlstate(caught: pytest.ExceptionInfo[SqlRefused]) -> str:
    return caught.value.sqlstate


def make(name: str = "s", lsn: Lsn | None = A, *, temporary: bool = False) -> Slots:
    slots = Slots(None)
    slots.create(name, temporary=temporary, restart_lsn=lsn, pid=1)
    return slots


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "42602"),
        ("Upper", "42602"),
        ("with-dash", "42602"),
        ("a\n", "42602"),
        ("é", "42602"),
        ("x" * 64, "42622"),
    ],
)
def test_names_follow_postgresqls_rules(name: str, expected: str) -> None:
    with pytest.raises(SqlRefused) as caught:
        Slots(None).create(name, temporary=False, restart_lsn=None, pid=1)
    assert sqlstate(caught) == expected
    assert Slots(None).create("a_9" + "x" * 60, temporary=False, restart_lsn=None, pid=1)


def test_the_same_name_twice_is_42710_and_an_unknown_one_42704() -> None:
    slots = make()
    with pytest.raises(SqlRefused) as caught:
        slots.create("s", temporary=True, restart_lsn=None, pid=2)
    assert sqlstate(caught) == "42710"
    uses: list[Use] = [lambda: slots.drop("t", pid=1), lambda: slots.acquire("t", pid=1)]
    for use in uses:
        with pytest.raises(SqlRefused) as caught:
            use()
        assert sqlstate(caught) == "42704"


def test_the_number_of_slots_is_limited() -> None:
    slots = Slots(None)
    for i in range(SLOTS_MAX):
        slots.create(f"s{i}", temporary=i % 2 == 0, restart_lsn=None, pid=1)
    with pytest.raises(SqlRefused) as caught:
        slots.create("one_more", temporary=False, restart_lsn=None, pid=1)
    assert sqlstate(caught) == "53400"


def test_an_active_slot_is_neither_dropped_nor_taken_by_others() -> None:
    slots = make()
    slots.acquire("s", pid=7)
    uses: list[Use] = [lambda: slots.drop("s", pid=8), lambda: slots.acquire("s", pid=8)]
    for use in uses:
        with pytest.raises(SqlRefused, match="is active for PID 7") as caught:
            use()
        assert sqlstate(caught) == "55006"
    slots.release("s", pid=7)
    slots.drop("s", pid=8)
    assert len(slots) == 0


def test_a_slot_never_moves_back() -> None:
    slots = make(lsn=B)
    slots.acquire("s", pid=1)
    assert slots.confirm("s", A, pid=1).restart_lsn == B
    assert slots.confirm("s", C, pid=1).restart_lsn == C


def test_retention_moves_only_when_the_position_is_durable() -> None:
    slots = make(lsn=A)
    slots.on_saved(slots.image())
    slots.acquire("s", pid=1)
    slots.confirm("s", B, pid=1)
    image = slots.image()
    slots.confirm("s", C, pid=1)
    assert slots.retention_lsn() == A
    slots.on_saved(image)
    assert slots.retention_lsn() == B, "the image was made before the slot moved to C"


def test_the_first_position_counts_before_it_is_durable() -> None:
    slots = make(lsn=None)
    assert slots.retention_lsn() is None
    slots.acquire("s", pid=1)
    slots.confirm("s", B, pid=1)
    assert slots.retention_lsn() == B


def test_an_image_of_a_dropped_slot_says_nothing_about_its_successor() -> None:
    slots = make(lsn=C)
    image = slots.image()
    slots.drop("s", pid=1)
    slots.create("s", temporary=False, restart_lsn=A, pid=1)
    slots.on_saved(image)
    assert slots.get("s").durable_lsn is None


def test_slots_come_back_as_they_were_saved() -> None:
    slots = make("reserved", A)
    slots.create("fresh", temporary=False, restart_lsn=None, pid=1)
    slots.create("gone", temporary=True, restart_lsn=B, pid=1)
    again = Slots(slots.image().data)
    assert [(slot.name, slot.restart_lsn, slot.durable_lsn) for slot in again] == [
        ("fresh", None, None),
        ("reserved", A, A),
    ]


def test_a_damaged_file_is_reported_as_damaged() -> None:
    data = make().image().data
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        with pytest.raises(CorruptWal):
            Slots(bytes(damaged))


def test_temporary_slots_go_with_their_connection() -> None:
    slots = make(temporary=True)
    slots.create("kept", temporary=False, restart_lsn=None, pid=1)
    slots.acquire("kept", pid=1)
    with pytest.raises(SqlRefused):
        slots.acquire("s", pid=2)
    slots.release("s", pid=1)
    assert slots.get("s").active_pid == 1, "still its connection's own"
    slots.release_all(pid=1)
    assert [(slot.name, slot.active_pid) for slot in slots] == [("kept", None)]


def test_a_slot_that_could_not_be_saved_does_not_exist() -> None:
    async def run() -> None:
        file = SlotsFile()
        slots = DurableSlots(None, file.write)
        file.fail = StorageError("the disk is gone")
        with pytest.raises(StorageError):
            await slots.create("s", temporary=False, restart_lsn=A, pid=1)
        assert slots.slots.find("s") is None
        file.fail = None
        await slots.create("s", temporary=False, restart_lsn=A, pid=1)
        assert Slots(file.data).get("s").restart_lsn == A

    asyncio.run(run())


def test_a_cancelled_save_is_finished_before_the_next_one_begins() -> None:
    async def run() -> None:
        order: list[str] = []
        gate = asyncio.Event()

        async def write(_data: bytes) -> None:
            order.append("begin")
            await gate.wait()
            order.append("end")

        slots = DurableSlots(None, write)
        first = asyncio.create_task(slots.create("a", temporary=False, restart_lsn=A, pid=1))
        await wait_until(lambda: order)
        first.cancel()
        second = asyncio.create_task(slots.create("b", temporary=False, restart_lsn=A, pid=1))
        await asyncio.wait([first])
        gate.set()
        await second
        assert order == ["begin", "end", "begin", "end"]

    asyncio.run(run())


def test_drop_with_wait_waits_for_the_reader() -> None:
    async def run() -> None:
        file = SlotsFile()
        slots = DurableSlots(None, file.write)
        await slots.create("s", temporary=False, restart_lsn=A, pid=1)
        slots.slots.acquire("s", pid=1)
        drop = asyncio.create_task(slots.drop("s", pid=2, wait=True))
        await asyncio.sleep(0)
        assert not drop.done()
        slots.release("s", pid=1)
        await drop
        assert len(Slots(file.data)) == 0

    asyncio.run(run())


def test_temporary_slots_cost_no_write() -> None:
    async def run() -> None:
        file = SlotsFile()
        slots = DurableSlots(None, file.write)
        await slots.create("s", temporary=True, restart_lsn=A, pid=1)
        assert file.writes == 0

    asyncio.run(run())
