"""A standby keeps the WAL that shows its branch, before it is promoted (docs/protocol.md R22)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.cluster import lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.standbys import feed_from, wait_replayed
from tests.support.waiting import LIMIT_S, until, until_awaited
from walkeeper_common.lsn import WAL_PAGE_BYTES, ZERO_LSN, Lsn
from walkeeper_proposer.postgres import standby_retention
from walkeeper_proposer.postgres.standby_retention import (
    AWAITED_MAX,
    CHECKPOINT_RECORD_BYTES,
    SURE_S,
    Restartpoints,
    keep_on_standby,
)

PAGE = Lsn(0x1000000)
SLOT = "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = 's_retention'"
REDO = "SELECT redo_lsn::text FROM pg_control_checkpoint()"


def test_a_checkpoint_counts_when_safekeepers_know_it_as_committed() -> None:
    points = Restartpoints()
    assert not points.look(PAGE + 200, PAGE + 100, 0.0)
    assert not points.look(PAGE + 200, PAGE + 100, SURE_S - 1)
    assert points.begin_lsn == ZERO_LSN
    assert points.look(PAGE + 200, PAGE + 100, SURE_S)
    assert points.begin_lsn == PAGE + 100


def test_a_later_checkpoint_does_not_put_off_an_earlier_one() -> None:
    points = Restartpoints()
    points.look(PAGE + 200, PAGE + 100, 0.0)
    points.look(PAGE + 900, PAGE + 800, SURE_S / 2)
    assert points.look(PAGE + 900, PAGE + 800, SURE_S) and points.begin_lsn == PAGE + 100
    assert points.look(PAGE + 900, PAGE + 800, SURE_S * 2) and points.begin_lsn == PAGE + 800
    assert not points.look(PAGE + 900, PAGE + 800, SURE_S * 3)


def test_a_checkpoint_that_a_page_cuts_never_counts() -> None:
    points, last = Restartpoints(), WAL_PAGE_BYTES - CHECKPOINT_RECORD_BYTES
    points.look(PAGE + last + 8, PAGE, 0.0)
    assert not points.look(PAGE + last + 8, PAGE, SURE_S * 2)
    points.look(PAGE + last, PAGE + 8, SURE_S * 2)
    assert points.look(PAGE + last, PAGE + 8, SURE_S * 3) and points.begin_lsn == PAGE + 8


def test_the_first_of_very_many_checkpoints_count() -> None:
    points = Restartpoints()
    for number in range(AWAITED_MAX + 5):
        points.look(PAGE + number * WAL_PAGE_BYTES, PAGE + number, 0.0)
    assert points.look(PAGE + (AWAITED_MAX + 4) * WAL_PAGE_BYTES, PAGE, SURE_S)
    assert points.begin_lsn == PAGE + AWAITED_MAX - 1


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its standby, with roles that may replicate and that may log in only."""
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary:
        primary.sql("CREATE ROLE keeper LOGIN REPLICATION", "CREATE ROLE guest LOGIN")
        standby = primary.base_backup({"min_wal_size": "2MB", "wal_keep_size": "0"})
        try:
            feed_from(standby, primary.port)
            (standby.data / "standby.signal").touch()
            standby.start()
            yield primary, standby
        finally:
            standby.delete()


@contextlib.asynccontextmanager
async def _keeping(dsn: str) -> AsyncIterator[asyncio.Task[None]]:
    keeping = asyncio.create_task(keep_on_standby(dsn, "s_retention"))
    try:
        async with asyncio.timeout(LIMIT_S):
            yield keeping
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


def _checkpoint(primary: PostgresServer, standby: PostgresServer) -> None:
    """Restart the redo on both, some segments later."""
    for _ in range(3):
        primary.sql("SELECT pg_logical_emit_message(false, 'a', 'b')", "SELECT pg_switch_wal()")
    primary.sql("CHECKPOINT")
    wait_replayed(standby, lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()::text")))
    standby.sql("CHECKPOINT")


@pytest.mark.postgres
def test_the_slot_stands_at_the_last_restartpoint(
    pair: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A role with REPLICATION alone may do that, and the slot outlives the promotion."""
    primary, standby = pair
    monkeypatch.setattr(standby_retention, "LOOK_S", 0.05)
    monkeypatch.setattr(standby_retention, "RETRY_S", 0.05)
    monkeypatch.setattr(standby_retention, "SURE_S", 0.2)

    async def body() -> None:
        async def reached() -> bool:
            slot, redo = await asyncio.to_thread(lambda: (standby.sql(SLOT), standby.sql(REDO)))
            return slot is not None and slot == redo

        async with _keeping(standby.dsn(user="keeper")) as keeping:
            await until_awaited(reached)
            before = standby.sql(SLOT)
            await asyncio.to_thread(_checkpoint, primary, standby)
            assert standby.sql(REDO) != before
            await until_awaited(reached)
            await asyncio.to_thread(standby.sql, "SELECT pg_drop_replication_slot('s_retention')")
            await until_awaited(reached)
            kept = standby.sql(SLOT)
            await asyncio.to_thread(standby.promote)
            await asyncio.to_thread(standby.sql, "CHECKPOINT")
            await asyncio.sleep(0.3)
            assert standby.sql(SLOT) == kept, "it is the proposer's to move now"
            assert not keeping.done()

    asyncio.run(body())


@pytest.mark.postgres
def test_a_role_without_rights_is_named_once(
    pair: tuple[PostgresServer, PostgresServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, standby = pair
    monkeypatch.setattr(standby_retention, "RETRY_S", 0.05)

    async def body() -> None:
        async with _keeping(standby.dsn(user="guest")):
            await until(lambda: "REPLICATION" in caplog.text)
            await asyncio.sleep(0.3)

    with caplog.at_level(logging.WARNING):
        asyncio.run(body())
    assert caplog.text.count("no retention slot on the standby") == 1, caplog.text
