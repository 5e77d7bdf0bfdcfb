"""The proposer's connections to PostgreSQL, on a real server: receiving and reporting.

Over-reporting is the one mistake that nothing repairs: the clamp has a test of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, until, wait_until
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.wire.messages import NO_FEEDBACK, Feedback
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_proposer.consensus.proposer_events import (
    Event,
    PrimaryIdentified,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    WalArrived,
)
from walkeeper_proposer.postgres import primary as primary_module
from walkeeper_proposer.postgres.primary import Primary
from walkeeper_proposer.postgres.primary_identity import identify, parse_size
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection, Unavailable

pytestmark = pytest.mark.postgres
MIB = 1 << 20
FAR = Lsn(2**60)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as made:
        made.sql(
            "CREATE TABLE t (i int, filler text)",
            "SELECT pg_create_physical_replication_slot('walkeeper', true)",
        )
        yield made


class Shell:
    """A Primary, and the events that a core would have got."""

    def __init__(self, dsn: str, name: str = "walkeeper") -> None:
        self.events: list[Event] = []
        self.wal, self.begin_lsn, self.end_lsn = bytearray(), Lsn(0), Lsn(0)
        self.streams = asyncio.Event()
        self.primary = Primary(
            dsn,
            name,
            "walkeeper",
            apply_quorum=True,
            on_streaming=lambda _: self.streams.set(),
        )

    def post(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, WalArrived):
            assert event.begin_lsn == self.end_lsn, f"{event.begin_lsn=} {self.end_lsn=}"
            self.wal += event.wal
            self.end_lsn = event.begin_lsn + len(event.wal)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def stream(self, start_lsn: Lsn, timeline: int = 1) -> None:
        self.begin_lsn = self.end_lsn = start_lsn
        self.wal.clear()
        self.streams.clear()
        self.primary.stream(start_lsn, timeline)
        await asyncio.wait_for(self.streams.wait(), LIMIT_S)


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Shell]:
    """Connect and identify, without streaming."""
    shell = Shell(dsn)
    task = asyncio.create_task(shell.primary.run(shell.post))
    try:
        await until(lambda: task.done() or shell.of(PrimaryIdentified))
        yield shell
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is not None:
            raise task.exception() or AssertionError


async def sql(server: PostgresServer, *statements: str) -> object:
    return await asyncio.to_thread(server.sql, *statements)


async def flush_lsn(server: PostgresServer) -> Lsn:
    return Lsn.parse(str(await sql(server, "SELECT pg_current_wal_flush_lsn()::text")))


def attach(server: PostgresServer) -> None:
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'walkeeper'")
    server.reload()
    wait_until(lambda: server.sql("SHOW synchronous_standby_names") == "walkeeper")


def on_server(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await body()

    asyncio.run(bounded())


def test_identify_says_what_the_gate_asks(server: PostgresServer) -> None:
    async def body() -> None:
        connection = await ReplicationConnection.open(server.dsn(), "walkeeper")
        found = await identify(connection)
        connection.close()
        assert found.system_id == server.sql("SELECT system_identifier FROM pg_control_system()")
        assert (found.timeline, found.segment_bytes) == (1, MIB)
        assert found.flush_lsn <= await flush_lsn(server)
        assert found.server_version == server.sql("SHOW server_version")
        assert found.server_version_num == int(server.sql("SHOW server_version_num"))
        assert (found.in_recovery, found.fsync, found.full_page_writes) == (False, True, True)

    on_server(body)


def test_a_standby_says_that_it_is_in_recovery(server: PostgresServer) -> None:
    standby = server.base_backup(options=["-R"])

    async def body() -> None:
        connection = await ReplicationConnection.open(standby.dsn(), "walkeeper")
        assert (await identify(connection)).in_recovery
        connection.close()

    try:
        standby.start()
        on_server(body)
    finally:
        standby.delete()


def test_sizes_as_postgresql_shows_them() -> None:
    assert [parse_size(t) for t in ("16MB", "1GB", "512kB", "0")] == [16 * MIB, 1 << 30, 1 << 19, 0]


def test_the_bytes_received_from_mid_segment_are_those_of_pg_wal(server: PostgresServer) -> None:
    async def body() -> None:
        start = await flush_lsn(server)
        assert start % MIB != 0
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            await sql(
                server, "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 8000) i"
            )
            end = await flush_lsn(server)
            await until(lambda: shell.end_lsn >= end)
            expected = b""
            for segment in range(start // MIB, end // MIB + 1):
                expected += server.wal_file(segment_name(1, Lsn(segment * MIB), MIB))
            offset = start % MIB
            assert shell.wal[: end - start] == expected[offset : offset + (end - start)]
            assert end - start > 3 * MIB

    on_server(body)


def test_a_commit_returns_only_when_the_report_says_so(server: PostgresServer) -> None:
    async def body() -> None:
        server.freeze_background_writer()  # the commit is the last record
        start = await flush_lsn(server)
        attach(server)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.report(start, [])
            state = "SELECT sync_state FROM pg_stat_replication"
            await until(lambda: server.sql(state) == "sync")
            commit = asyncio.create_task(sql(server, "INSERT INTO t VALUES (1)"))
            await until(lambda: shell.end_lsn > start)
            await until(lambda: server.sql(WAITING) == 1)
            shell.primary.report(shell.end_lsn - 1, [])
            await asyncio.wait([commit], timeout=1.5)  # longer than the periodic status
            assert not commit.done(), "released below its LSN"
            shell.primary.report(shell.end_lsn, [])
            await asyncio.wait_for(commit, LIMIT_S)
            for level in ("remote_write", "on", "remote_apply"):
                write = sql(server, f"SET synchronous_commit = {level}", "INSERT INTO t VALUES (1)")
                commit = asyncio.create_task(write)
                while not commit.done():
                    shell.primary.report(shell.end_lsn, [])
                    await asyncio.sleep(0.02)

    on_server(body)


WAITING = "SELECT count(*)::int FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


def test_a_report_past_what_was_received_releases_nothing(server: PostgresServer) -> None:
    async def body() -> None:
        start = await flush_lsn(server)
        attach(server)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.pause()
            shell.primary.report(FAR, [])
            await until(lambda: server.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
            commit = asyncio.create_task(sql(server, "INSERT INTO t VALUES (1)"))
            await until(lambda: server.sql(WAITING) == 1)
            await asyncio.wait([commit], timeout=2.5)
            assert not commit.done(), "released WAL that was never received"
            seen = "SELECT max(flush_lsn)::text FROM pg_stat_replication"
            # The server writes WAL of its own now and then, before the pause as well.
            assert Lsn.parse(server.sql(seen)) == shell.end_lsn
            shell.primary.resume()
            await asyncio.wait_for(commit, LIMIT_S)

    on_server(body)


def test_a_report_without_a_connection_counts_on_the_next_one(
    server: PostgresServer,
) -> None:
    """A commit with remote_apply waits for it, and no other WAL may come."""

    async def body() -> None:
        start = await flush_lsn(server)
        attach(server)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.report(start, [])
            await until(lambda: server.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
            write = sql(server, "SET synchronous_commit = remote_apply", "INSERT INTO t VALUES (1)")
            commit = asyncio.create_task(write)
            await until(lambda: server.sql(WAITING) == 1)
            end = await flush_lsn(server)
            await until(lambda: shell.end_lsn >= end)
            await sql(server, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            await until(lambda: len(shell.of(PrimaryIdentified)) == 2)
            shell.primary.stream(shell.end_lsn, 1)
            shell.primary.report(shell.end_lsn, [])  # as the core does, in one step
            await asyncio.wait_for(commit, LIMIT_S)

    on_server(body)


def test_an_older_proposers_xmin_does_not_stay_in_the_slot(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold up vacuum for ever. It is kept while standbys may be connecting again."""
    xmin = "SELECT xmin::text::int FROM pg_replication_slots"

    async def body() -> None:
        start = await flush_lsn(server)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.report(start, [Feedback(start, 700, 0), Feedback(start, 690, 0)])
            await until(lambda: server.sql(xmin) == 690)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.report(start, [NO_FEEDBACK])
            await asyncio.sleep(2.5)
            assert server.sql(xmin) == 690
        monkeypatch.setattr(primary_module, "XMIN_GRACE_STATUSES", 1)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.report(start, [NO_FEEDBACK])
            await until(lambda: server.sql(xmin) is None)

    on_server(body)


def test_a_paused_stream_outlives_wal_sender_timeout(server: PostgresServer) -> None:
    server.configure({"wal_sender_timeout": "5s"})  # half of it is for an answer
    server.reload()

    async def body() -> None:
        start = await flush_lsn(server)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            shell.primary.pause()
            await sql(
                server, "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 40000) i"
            )
            await asyncio.sleep(8)
            assert not shell.of(PrimaryLost), shell.of(PrimaryLost)
            end = await flush_lsn(server)
            assert shell.end_lsn < end, "the pause did not hold anything back"
            shell.primary.resume()
            await until(lambda: shell.end_lsn >= end)

    on_server(body)
    assert "due to replication timeout" not in server.log_text()


def test_a_stream_that_is_paused_before_it_has_started_brings_nothing(
    server: PostgresServer,
) -> None:
    """When a primary connects again, the window may still be full of WAL that no quorum has. Once
    its proposer took in all WAL that came, without a bound."""

    async def body() -> None:
        start = await flush_lsn(server)
        await sql(
            server, "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 4000) i"
        )
        async with connected(server.dsn()) as shell:
            streaming = asyncio.create_task(shell.stream(start))
            await asyncio.sleep(0)
            shell.primary.pause()
            await streaming
            await asyncio.sleep(0.5)
            assert not shell.wal and not shell.of(PrimaryLost)
            shell.primary.resume()
            end = await flush_lsn(server)
            await until(lambda: shell.end_lsn >= end)

    on_server(body)


def test_a_fast_shutdown_does_not_wait_for_a_stream_that_is_served(server: PostgresServer) -> None:
    server.configure({"wal_sender_timeout": "0"})  # it would wait for ever
    server.reload()

    async def body() -> None:
        start = await flush_lsn(server)
        async with connected(server.dsn()) as shell:
            await shell.stream(start)
            serving = asyncio.create_task(_acknowledge_all(shell))
            await asyncio.to_thread(server.stop, "fast")
            serving.cancel()
            await until(lambda: shell.of(PrimaryLost))
            await asyncio.to_thread(server.start)
            await until(lambda: len(shell.of(PrimaryIdentified)) == 2)

    on_server(body)


async def _acknowledge_all(shell: Shell) -> None:
    while True:
        shell.primary.report(shell.end_lsn, [])
        await asyncio.sleep(0.02)


def test_a_crash_of_the_primary_is_reported_and_retried(server: PostgresServer) -> None:
    async def body() -> None:
        async with connected(server.dsn()) as shell:
            await shell.stream(await flush_lsn(server))
            await asyncio.to_thread(server.kill)
            await until(lambda: shell.of(PrimaryLost))
            await asyncio.to_thread(server.start)
            await until(lambda: len(shell.of(PrimaryIdentified)) == 2)

    on_server(body)


def test_a_slot_in_use_is_taken_over(server: PostgresServer) -> None:
    async def body() -> None:
        start = await flush_lsn(server)
        async with connected(server.dsn()) as old, connected(server.dsn()) as new:
            await old.stream(start)
            await new.stream(start)
            await until(lambda: old.of(PrimaryLost))
            assert "terminating connection" in str(old.of(PrimaryLost)[0])

    on_server(body)


def test_a_slot_in_use_that_cannot_be_freed_is_waited_for(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A role with REPLICATION alone may not end a superuser's connection."""
    server.sql("CREATE ROLE wk LOGIN REPLICATION")

    async def body() -> None:
        start = await flush_lsn(server)
        holder = await ReplicationConnection.open(server.dsn(), "holder")
        await holder.start_copy(f'START_REPLICATION SLOT "walkeeper" PHYSICAL {start}')
        async with connected(server.dsn(user="wk")) as shell:
            starting = asyncio.create_task(shell.stream(start))
            await until(lambda: "is active for PID" in caplog.text)
            await asyncio.sleep(0.5)
            assert not shell.of(PrimaryLost)
            holder.close()
            await starting

    with caplog.at_level(logging.WARNING):
        on_server(body)


def test_a_missing_slot_is_made_as_on_a_server_that_was_promoted(server: PostgresServer) -> None:
    server.sql("SELECT pg_drop_replication_slot('walkeeper')")

    async def body() -> None:
        async with connected(server.dsn()) as shell:
            await shell.stream(await flush_lsn(server))
            kept = "SELECT restart_lsn IS NOT NULL FROM pg_replication_slots"
            assert await sql(server, kept), "it keeps WAL from now on"

    on_server(body)


def test_a_start_ahead_of_the_primary_is_an_error_after_the_stream_began(
    server: PostgresServer,
) -> None:
    async def body() -> None:
        with pytest.raises(BaseExceptionGroup) as caught:
            async with connected(server.dsn()) as shell:
                shell.primary.stream(await flush_lsn(server) + 64 * MIB, 1)
                await until(lambda: shell.of(PrimaryLost))
        assert caught.group_contains(Refused, match="ahead of the WAL flush position")

    on_server(body)


def test_no_server_and_a_server_that_starts_are_worth_another_try(
    server: PostgresServer,
) -> None:
    async def body() -> None:
        with pytest.raises(Unavailable):
            await ReplicationConnection.open(f"host=127.0.0.1 port={free_port()}", "walkeeper")
        with pytest.raises(Refused, match="nosuchrole"):
            await ReplicationConnection.open(server.dsn(user="nosuchrole"), "walkeeper")
        with pytest.raises(Refused, match="connection string"):
            await ReplicationConnection.open("bogus", "walkeeper")

    on_server(body)


def test_a_password_is_in_no_error_and_no_log(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        dsn = f"host=127.0.0.1 port={free_port()} user=u password=hunter2"
        with pytest.raises(Unavailable) as caught:
            await ReplicationConnection.open(dsn, "walkeeper")
        assert "hunter2" not in str(caught.value)

    with caplog.at_level(logging.DEBUG):
        on_server(body)
    assert "hunter2" not in caplog.text


def test_a_range_is_read_byte_for_byte_beside_the_stream(server: PostgresServer) -> None:
    async def body() -> None:
        await sql(
            server, "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i"
        )
        end = await flush_lsn(server)
        begin = (end - 2 * MIB).round_down(MIB) + 24
        async with connected(server.dsn()) as shell:
            await shell.stream(end)
            shell.primary.read(begin, end, 1)
            pieces: list[PrimaryRead] = []
            while not pieces or pieces[-1].begin_lsn + len(pieces[-1].wal) < end:
                await asyncio.sleep(0.01)
                pieces = [e for e in shell.events if isinstance(e, PrimaryRead)]
            got = b"".join(bytes(p.wal) for p in pieces)
            files = b"".join(
                server.wal_file(segment_name(1, Lsn(s * MIB), MIB))
                for s in range(begin // MIB, end // MIB + 1)
            )
            assert got == files[24 : 24 + (end - begin)]

    on_server(body)


def test_wal_that_the_primary_has_removed_is_reported_as_removed(server: PostgresServer) -> None:
    server.sql("SELECT pg_drop_replication_slot('walkeeper')")
    old = Lsn.parse(server.sql("SELECT pg_current_wal_lsn()::text")).round_down(MIB)
    server.configure({"max_wal_size": "2MB", "min_wal_size": "2MB", "wal_keep_size": "0"})
    server.reload()
    for _ in range(4):
        server.sql("SELECT pg_switch_wal()", "INSERT INTO t VALUES (1)", "CHECKPOINT")
    wait_until(lambda: not (server.data / "pg_wal" / segment_name(1, old, MIB)).exists())

    async def body() -> None:
        async with connected(server.dsn()) as shell:
            shell.primary.read(old, old + 8192, 1)
            await until(lambda: shell.of(PrimaryReadFailed))
            failed = shell.of(PrimaryReadFailed)[0]
            assert isinstance(failed, PrimaryReadFailed)
            assert failed.removed and "already been removed" in failed.text, failed

    on_server(body)
