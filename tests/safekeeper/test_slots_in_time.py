"""Slots of consumers while the log is read meanwhile, and after an answer that came too late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from tests.safekeeper.logical_consumer import Made
from tests.support.waiting import until
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.shell.process.worker_thread import LoopShare
from walkeeper_common.wire.consumer_slots import SlotNews
from walkeeper_safekeeper.hosting import hosted_log
from walkeeper_safekeeper.hosting.hosted_log import HostedLog
from walkeeper_safekeeper.hosting.log_retention import LogRetention
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.replication import logical_log
from walkeeper_safekeeper.replication.consumer_positions import LATE_MAX, ConsumerPositions
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.physical_slots import Slots
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.storage.log_folder import LogFolder

A, B = Lsn(0x100), Lsn(0x200)


@pytest.fixture(autouse=True)
def _is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical_log, "REPLICATE_S", 0.05)


def test_a_slot_that_is_being_dropped_does_not_come_back_from_the_log() -> None:
    """Another slot's move came from the log while the drop was written: the slot was back."""
    made = Made(1, 5)
    writes = 0

    async def write(data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == 2:
            logical.positions.on_replicated({"s": A, "other": B})

    made.slots = DurableSlots(None, write)
    logical = LogicalLog(made.served())

    async def drop() -> None:
        logical.positions.on_replicated({"s": A, "other": A})
        await made.slots.save()
        assert not await logical.drop_slot("s", pid=1, wait=False)

    asyncio.run(drop())
    assert writes == 2 and made.slots.slots.find("s") is None
    assert logical.positions.news() == (SlotNews("s", None),)


def test_a_temporary_slot_is_dropped_here_alone() -> None:
    made = Made(1, 5)
    logical = LogicalLog(made.served())

    async def drop() -> None:
        await made.slots.create("s", temporary=True, restart_lsn=A, pid=1)
        logical.positions.on_replicated({"s": B})  # a consumer of another safekeeper has it
        assert await logical.drop_slot("s", pid=1, wait=False)

    asyncio.run(drop())
    assert logical.positions.news() == ()


def test_a_slot_in_use_is_not_reported_as_dropped() -> None:
    made = Made(1, 5)
    logical = LogicalLog(made.served())

    async def drop() -> None:
        logical.positions.on_replicated({"s": A})
        made.slots.slots.acquire("s", pid=1)
        with pytest.raises(SqlRefused) as caught:
            await logical.drop_slot("s", pid=2, wait=False)
        assert caught.value.sqlstate == "55006"

    asyncio.run(drop())
    assert logical.positions.news() == () and made.slots.slots.find("s") is not None


async def refused(logical: LogicalLog, name: str) -> str:
    with pytest.raises(SqlRefused) as caught:
        await logical.make_slot(name)
    return caught.value.sqlstate


def test_a_slot_that_comes_too_late_is_the_next_clients() -> None:
    """The next client got 42710, and nobody read from the slot, for which the log keeps entries."""
    made = Made(1, 5)
    logical = LogicalLog(made.served())

    async def ask() -> None:
        assert await refused(logical, "s") == "57P03"
        logical.positions.on_replicated({"s": A})
        assert await logical.make_slot("s") == A
        assert await refused(logical, "s") == "42710", "it has a client now"

    asyncio.run(ask())


def test_a_session_that_ends_early_leaves_its_slot_to_the_next_one() -> None:
    made = Made(1, 5)
    logical = LogicalLog(made.served())

    async def ask() -> None:
        asking = asyncio.create_task(logical.make_slot("s"))
        await until(lambda: logical.positions.wanted)
        asking.cancel()
        await asyncio.wait([asking])
        logical.positions.on_replicated({"s": A})
        assert await logical.make_slot("s") == A

    asyncio.run(ask())


@pytest.mark.parametrize("then", [{"s": B}, {}], ids=("moved", "dropped"))
def test_a_late_slot_with_a_client_is_nobody_elses(then: dict[str, Lsn]) -> None:
    slots = Slots(None)
    positions = ConsumerPositions(slots)
    positions.give_up("s")
    positions.on_replicated({"s": A})
    positions.on_replicated(then)
    positions.on_replicated({"s": B})
    assert positions.take_late_slot("s") is None
    positions.give_up("t")
    positions.on_replicated({"t": A})
    slots.acquire("t", pid=1)
    assert positions.take_late_slot("t") is None


def test_the_number_of_late_slots_is_bounded() -> None:
    positions = ConsumerPositions(Slots(None))
    for number in range(LATE_MAX + 1):
        positions.give_up(f"s{number}")
    positions.on_replicated({f"s{number}": A for number in range(LATE_MAX + 1)})
    assert positions.take_late_slot("s0") is None and positions.take_late_slot("s1") == A


def test_slots_are_saved_before_wal_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot moves in memory. Its position on the disk decides what may be removed."""
    monkeypatch.setattr(hosted_log, "HEARTBEAT_S", 0)
    done: list[str] = []

    async def save() -> None:
        done.append("save")

    async def remove() -> None:
        done.append("remove")

    async def run() -> None:
        log = HostedLog("main", cast(LogFolder, None), cast(SafekeeperSettings, None), LoopShare())
        log.driver = cast(Driver, SimpleNamespace(post=lambda _: None))
        log.readable = cast(ReadableLog, SimpleNamespace(slots=SimpleNamespace(save=save)))
        log._retention = cast(LogRetention, SimpleNamespace(remove=remove))
        running = asyncio.create_task(log.run())
        await until(lambda: done.count("remove") > 1)
        running.cancel()

    asyncio.run(run())
    assert done[:4] == ["save", "remove"] * 2
