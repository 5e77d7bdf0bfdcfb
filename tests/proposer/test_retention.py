"""Nonces and the slot that keeps them, on a real PostgreSQL (docs/protocol.md R22)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from tests.support.cluster import lsn_of
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, until, until_awaited
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus.proposer_events import Event, NonceWritten
from walkeeper_proposer.postgres import primary_retention
from walkeeper_proposer.postgres.primary_retention import SLOT_NAME_MAX, Retention, retention_slot
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection

FLUSHED = "SELECT pg_current_wal_flush_lsn()"
START = "SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 's'"
SLOT = "SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = 's_retention'"
LOAD = (
    "SELECT pg_logical_emit_message(false, 'load', repeat('x', 1000)) FROM generate_series(1, {})"
)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as made:
        made.sql("SELECT pg_create_physical_replication_slot('s', true)")
        yield made


@contextlib.asynccontextmanager
async def _retaining(
    server: PostgresServer, dsn: str, *, pid: int | None = None
) -> AsyncIterator[tuple[Retention, list[Event]]]:
    """Open a proposer's walsender and its Retention; `pid` is that of another walsender."""
    events: list[Event] = []
    stream = await ReplicationConnection.open(server.dsn(), "walkeeper")
    try:
        await stream.start_copy(f'START_REPLICATION SLOT "s" PHYSICAL {server.sql(START)}')
        kept = Retention(dsn, "s")
        async with asyncio.TaskGroup() as group:
            kept.start(group, pid or stream.backend_pid, events.append)
            try:
                yield kept, events
            finally:
                kept.stop()
    finally:
        stream.close()


def _run(body: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_retention, "LOOK_S", 0.05)
    monkeypatch.setattr(primary_retention, "RETRY_S", 0.05)

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body()  # type: ignore[misc]

    asyncio.run(limited())


@pytest.mark.postgres
def test_each_segment_gets_a_nonce_and_the_slot_follows_the_core(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while commits hang: a nonce waits for no standby."""
    server.configure({"synchronous_standby_names": "nobody"})
    server.sql("SELECT pg_reload_conf()")

    async def body() -> None:
        async with _retaining(server, server.dsn()) as (kept, events):
            await until(lambda: events)
            for _ in range(2):
                known = len(events)
                await asyncio.to_thread(server.sql, LOAD.format(1100))
                await until(lambda known=known: len(events) > known)  # type: ignore[misc]
            ends = [e.end_lsn for e in events if isinstance(e, NonceWritten) and e.end_lsn]
            assert len(ends) == len(events)
            first_lsn = lsn_of(await asyncio.to_thread(server.sql, SLOT))
            assert first_lsn < ends[-1] - (1 << 20)

            async def flushed() -> bool:
                return lsn_of(await asyncio.to_thread(server.sql, FLUSHED)) >= ends[-1]

            async def moved() -> bool:
                return lsn_of(await asyncio.to_thread(server.sql, SLOT)) == ends[-1]

            await until_awaited(flushed)  # as what a quorum has is
            kept.retain(Lsn(ends[-1]))
            await until_awaited(moved)
            kept.retain(Lsn(first_lsn))  # never back
            await asyncio.sleep(0.2)
            assert await moved()

    _run(body, monkeypatch)


@pytest.mark.postgres
def test_a_role_without_a_right_learns_which_and_retention_goes_on_without(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.sql(
        "CREATE ROLE weak LOGIN REPLICATION",
        "REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, bytea) FROM PUBLIC",
    )

    async def body() -> None:
        async with _retaining(server, server.dsn(user="weak")) as (_, events):
            await until(lambda: events)
            assert events[0] == NonceWritten(None)
            grant = (
                "GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, bytea) TO weak"
            )
            await asyncio.to_thread(server.sql, grant)
            await until(lambda: events[-1] != NonceWritten(None))

    _run(body, monkeypatch)
    assert "permission denied for function pg_logical_emit_message" in caplog.text
    assert "pg_hba.conf" in caplog.text


@pytest.mark.postgres
def test_a_server_that_does_not_stream_gets_no_nonce(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SQL may reach another server than the replication connection, if --dsn names several."""

    async def body() -> None:
        async with _retaining(server, server.dsn(), pid=1) as (_, events):
            await until(lambda: "another server of --dsn" in caplog.text)
            assert not events
        assert await asyncio.to_thread(server.sql, SLOT) is None

    _run(body, monkeypatch)


@pytest.mark.postgres
def test_a_slot_that_was_lost_is_made_anew(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.sql("SELECT pg_create_physical_replication_slot('s_retention', true)")
    server.configure(
        {"max_slot_wal_keep_size": "1MB", "min_wal_size": "2MB", "max_wal_size": "2MB"}
    )
    server.sql("SELECT pg_reload_conf()", "SELECT pg_drop_replication_slot('s')")
    server.sql(LOAD.format(5000), "CHECKPOINT", "CHECKPOINT")
    lost = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 's_retention'"
    assert server.sql(lost) == "lost"
    server.sql("SELECT pg_create_physical_replication_slot('s', true)")

    async def body() -> None:
        async with _retaining(server, server.dsn()) as (_, events):
            await until(lambda: events)
        assert await asyncio.to_thread(server.sql, lost) == "reserved"

    _run(body, monkeypatch)


def test_two_long_names_of_slots_do_not_share_one_that_retains() -> None:
    names = ["walkeeper", "w" * 53, "w" * 54, "w" * 62 + "a", "w" * 62 + "b"]
    made = [retention_slot(name) for name in names]
    assert len(set(made)) == len(names)
    assert max(map(len, made)) <= SLOT_NAME_MAX
    assert made[0] == "walkeeper_retention"
