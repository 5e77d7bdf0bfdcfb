"""Slots of consumers while the log is read meanwhile, and after an answer that came too late."""

from __future__ import annotations

import asyncio

import pytest

from tests.safekeeper.logical_consumer import Made
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.wire.consumer_slots import SlotNews
from walkeeper_safekeeper.replication import logical_log
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.logical_log import LogicalLog

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
