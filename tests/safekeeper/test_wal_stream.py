"""START_REPLICATION, message by message: what is sent, when, and to whom no more."""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right

import pytest

from tests.support.fake_served_log import (
    FIRST_LSN,
    MIB,
    FakeCatalog,
    catalog_of,
    only,
    run_with_server,
    wait_until,
    wal_bytes,
)
from tests.support.raw_client import (
    RawClient,
    completed,
    errors,
    row,
    sqlstates,
    tags,
)
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.pgwire import (
    HotStandbyFeedback,
    Keepalive,
    XLogData,
)
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.wal_stream import (
    CHUNK_BYTES_MAX,
    PIECE_BYTES_MAX,
    StreamLimits,
    message_end,
)

IMPATIENT = StreamLimits(
    keepalive_interval_s=0.1, sender_timeout_s=0.6, authentication_timeout_s=0.5
)


def test_only_committed_wal_is_sent_in_chunks_that_cross_no_segment() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        wal = bytes(log.wal)
        committed = log.readable_lsn
        log.append(wal_bytes(MIB, seed=2))
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        assert await client.wal(len(wal)) == wal
        await wait_until(lambda: [r.state.value for r in log.readers] == ["streaming"])
        client.report(committed, reply_requested=True)
        keepalive = await client.replicated()
        assert isinstance(keepalive, Keepalive) and keepalive.wal_end_lsn == committed
        log.commit(committed + 100)
        got = await client.replicated()
        assert isinstance(got, XLogData) and got.payload == log.wal[len(wal) : len(wal) + 100]
        (reader,) = log.readers
        assert (reader.sent_lsn, reader.flush_lsn) == (committed + 100, committed)
        client.send(b"c")
        found = await client.until(b"Z")
        assert (tags(found), completed(found)) == ("cCCZ", ["START_STREAMING", "START_REPLICATION"])
        for begin, end in log.reads:
            assert end - begin <= PIECE_BYTES_MAX
            assert begin // MIB == (int(end) - 1) // MIB
        assert completed(await client.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    run_with_server(catalog_of, scenario)


def test_no_part_of_a_record_that_goes_on_is_sent_though_it_is_committed() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        sent = len(log.wal)
        log.half_record_bytes = 1000
        log.append(wal_bytes(3000, seed=2))
        log.commit()
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        assert await client.wal(sent + 2000) == log.wal[: sent + 2000]
        await wait_until(lambda: [r.state.value for r in log.readers] == ["streaming"])
        log.append(wal_bytes(500, seed=3))
        log.half_record_bytes = 1500
        log.commit()
        client.report(log.readable_lsn, reply_requested=True)
        assert (await client.keepalive()).wal_end_lsn == log.whole_lsn
        other = await RawClient.connect(port)
        assert row(await other.query("IDENTIFY_SYSTEM"))[2] == str(log.whole_lsn)
        log.half_record_bytes = 0
        log.append(wal_bytes(1, seed=4))
        log.commit()
        assert await client.wal(1501) == log.wal[sent + 2000 :]

    run_with_server(catalog_of, scenario)


@pytest.mark.parametrize("seed", range(200))
def test_a_message_ends_where_a_record_or_a_page_does(seed: int) -> None:
    """Records of every size, from a few bytes to many messages; a log that grows as it likes."""
    lots = random.Random(seed)
    begin = Lsn(lots.randrange(3 * MIB, 4 * MIB))
    record_ends = [begin]
    for _ in range(60):
        size_max = lots.choice((64, 2000, 20_000, CHUNK_BYTES_MAX, 3 * CHUNK_BYTES_MAX))
        record_ends.append(record_ends[-1] + lots.randrange(1, size_max))
    sent, whole, messages = begin, begin, 0
    while sent < record_ends[-1]:
        at_most = whole + lots.choice((1, 500, CHUNK_BYTES_MAX, 4 * CHUNK_BYTES_MAX))
        whole = record_ends[max(bisect_right(record_ends, at_most) - 1, 0)]
        if lots.random() < 0.1:
            whole = record_ends[-1]
        while sent < whole:
            end = message_end(sent, whole, segment_bytes=MIB)
            assert sent < end <= min(whole, sent + CHUNK_BYTES_MAX), f"{sent=} {end=} {whole=}"
            assert sent // MIB == (int(end) - 1) // MIB, f"{sent=} {end=}"
            assert end == whole or end % WAL_PAGE_BYTES == 0, f"{sent=} {end=} {whole=}"
            # Not shorter than it must be: one page less than the most, or all that is whole.
            is_long = end - sent > CHUNK_BYTES_MAX - WAL_PAGE_BYTES
            assert end == whole or is_long or end % MIB == 0, f"{sent=} {end=} {whole=}"
            sent, messages = end, messages + 1
    assert messages >= (sent - begin) // CHUNK_BYTES_MAX


def test_wal_sent_from_within_a_page_is_rounded_down_to_a_page() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log, start = only(catalog), FIRST_LSN + 700
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {start}")
        assert await client.wal(log.readable_lsn - start) == log.wal[700:]
        ends = [end for _, end in log.reads]
        assert ends[-1] == log.readable_lsn and log.readable_lsn % WAL_PAGE_BYTES == 333
        assert not [end for end in ends[:-1] if end % WAL_PAGE_BYTES]

    run_with_server(lambda: catalog_of(3 * MIB + 333), scenario)


@pytest.mark.parametrize(
    ("command", "sqlstate", "text"),
    [
        (f"{FIRST_LSN - 1}", "58P01", "segment 000000010000000000000002 has already been removed"),
        (f"{FIRST_LSN} TIMELINE 9", "XX000", "requested timeline 9 is not in this server's"),
        ("0/9000000", "XX000", "ahead of the WAL flush position of this server 0/600000"),
    ],
)
def test_a_start_that_cannot_be_served_is_refused(command: str, sqlstate: str, text: str) -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port)
        (error,) = errors(await client.query(f"START_REPLICATION {command}"))
        assert error["C"] == sqlstate and text in error["M"]

    run_with_server(catalog_of, scenario)


def test_wal_that_another_member_holds_is_streamed() -> None:
    """M8: it goes on with this member's own WAL, in the same stream."""
    older = wal_bytes(MIB, seed=2)

    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log, start = only(catalog), FIRST_LSN - MIB + 700
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {start}")
        assert await client.wal(log.readable_lsn - start) == older[700:] + log.wal

    run_with_server(lambda: catalog_of(3 * MIB, elsewhere=older), scenario)


def test_a_start_in_the_next_segment_waits_with_keepalives() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        start = log.readable_lsn + MIB
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {start}")
        keepalive = await client.keepalive()
        assert keepalive.wal_end_lsn == log.readable_lsn
        client.report(start)
        log.append(wal_bytes(2 * MIB, seed=3))
        log.commit(start + 10)
        assert await client.wal(10) == log.wal[4 * MIB : 4 * MIB + 10]

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_a_historic_timeline_ends_at_the_fork_with_the_next_one() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        fork = FIRST_LSN + MIB + 77
        log.switch_timeline(fork, 2)
        log.switch_timeline(fork + MIB, 3)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN} TIMELINE 1")
        assert await client.wal(MIB + 77) == log.wal[: MIB + 77]
        assert tags(await client.until(b"c")).endswith("c")
        client.send(b"c")
        found = await client.until(b"Z")
        assert (tags(found), row(found)) == ("TDCCZ", ["2", str(fork)])
        # At the fork there is nothing to stream: no CopyBoth at all.
        found = await client.query(f"START_REPLICATION {fork} TIMELINE 1")
        assert (tags(found), row(found)) == ("TDCCZ", ["2", str(fork)])
        (error,) = errors(await client.query(f"START_REPLICATION {fork + 1} TIMELINE 1"))
        assert f"forked from timeline 1 at {fork}" in error["D"]
        assert row(await client.query("TIMELINE_HISTORY 2"))[0] == "00000002.history"
        assert row(await client.query("IDENTIFY_SYSTEM"))[1] == "3"

    run_with_server(catalog_of, scenario)


def test_a_timeline_that_ends_while_it_is_streamed_ends_the_stream() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN} TIMELINE 1")
        await client.wal(3 * MIB)
        fork = log.readable_lsn + 50
        log.append(wal_bytes(1000, seed=5))
        log.switch_timeline(fork, 2)
        log.commit()
        assert len(await client.wal(50)) == 50
        assert tags(await client.until(b"c")).strip("d") == "c"
        client.send(b"c")
        assert row(await client.until(b"Z")) == ["2", str(fork)]

    run_with_server(catalog_of, scenario)


def test_a_reader_that_stops_reading_stops_nobody_and_is_dropped() -> None:
    size = 24 * MIB

    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        stuck = await RawClient.connect(port, application_name="stuck")
        await stuck.start(f"START_REPLICATION {FIRST_LSN}")
        others = [await RawClient.connect(port, application_name=f"r{i}") for i in range(3)]
        for other in others:
            await other.start(f"START_REPLICATION {FIRST_LSN}")
        received = await asyncio.gather(*(other.wal(size) for other in others))
        assert all(wal == log.wal for wal in received)
        sent = {reader.application_name: reader.sent_lsn - FIRST_LSN for reader in log.readers}
        assert sent.pop("stuck", 0) < size
        for other in others:
            other.report(log.readable_lsn)
        await wait_until(lambda: "stuck" not in {reader.application_name for reader in log.readers})

    limits = StreamLimits(keepalive_interval_s=1.0, sender_timeout_s=4.0)
    run_with_server(lambda: catalog_of(size), scenario, limits=limits)


def test_a_client_that_asks_and_never_reads_does_not_fill_memory() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        # It sends until the server does not read any more, or drops it.
        with pytest.raises((ConnectionError, TimeoutError)):
            async with asyncio.timeout(8):
                while True:
                    for _ in range(2000):
                        client.report(FIRST_LSN, reply_requested=True)
                    await client.writer.drain()
        await wait_until(lambda: len(log.readers) == 0)

    limits = StreamLimits(keepalive_interval_s=0.5, sender_timeout_s=2.0)
    run_with_server(lambda: catalog_of(24 * MIB), scenario, limits=limits)


def test_silent_clients_are_pinged_then_dropped_and_answering_ones_kept() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        silent = await RawClient.connect(port, application_name="silent")
        await silent.start(f"START_REPLICATION {log.readable_lsn}")
        polite = await RawClient.connect(port, application_name="polite")
        await polite.start(f"START_REPLICATION {log.readable_lsn}")
        pinged = 0
        while pinged < 3:
            if (await polite.keepalive()).reply_requested:
                polite.report(log.readable_lsn)
                pinged += 1
        assert [reader.application_name for reader in log.readers] == ["polite"]

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_feedback_moves_the_slot_lazily_and_retention_with_what_is_durable() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.query("CREATE_REPLICATION_SLOT s PHYSICAL RESERVE_WAL")
        slots = log.slots.slots
        reserved = slots.get("s").restart_lsn
        log.append(wal_bytes(2 * MIB, seed=4))
        log.commit()
        await client.start(f"START_REPLICATION SLOT s {FIRST_LSN}")
        await client.wal(5 * MIB)
        other = await RawClient.connect(port)
        for text in ("START_REPLICATION SLOT s 0/0", "DROP_REPLICATION_SLOT s"):
            assert sqlstates(await other.query(text)) == ["55006"]
        assert log.readers.retention_lsn() == FIRST_LSN
        client.send(b"d", HotStandbyFeedback(0, 700, 0, 600, 0).pack())
        client.report(log.readable_lsn + 10 * MIB)  # a lie: it has no more than it was sent
        await wait_until(lambda: slots.get("s").restart_lsn == log.readable_lsn)
        assert reserved is not None and reserved < log.readable_lsn
        assert slots.get("s").durable_lsn == reserved, "whoever removes WAL saves the slots first"
        assert log.readers.retention_lsn() == log.readable_lsn
        assert [(r.xmin, r.catalog_xmin, r.slot) for r in log.readers] == [(700, 600, "s")]
        writes = log.slots_file.writes
        log.append(wal_bytes(1000, seed=6))
        log.commit()
        await client.wal(1000)
        client.report(log.readable_lsn)
        await wait_until(lambda: slots.get("s").restart_lsn == log.readable_lsn)
        assert log.slots_file.writes == writes, "a move costs no fsync"
        client.writer.close()
        await wait_until(lambda: slots.get("s").active_pid is None)

    run_with_server(catalog_of, scenario)


def test_a_truncation_below_what_was_sent_ends_the_connection() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        behind = await RawClient.connect(port, application_name="waits ahead")
        await behind.start(f"START_REPLICATION {log.readable_lsn + MIB}")
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        await client.wal(3 * MIB)
        cut = log.readable_lsn - 100
        log.commit(cut)
        log.readers.end_those_sent_beyond(cut)
        found = await client.until(b"Z")
        assert sqlstates(found) == ["57P01"]
        assert [reader.application_name for reader in log.readers] == ["waits ahead"]

    run_with_server(catalog_of, scenario)


def test_bytes_read_before_a_truncation_are_not_sent_after_it() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        reading, go_on = asyncio.Event(), asyncio.Event()
        read = log.read_committed

        async def slow_read(begin: Lsn, end: Lsn) -> bytes:
            wal = await read(begin, end)
            reading.set()
            await go_on.wait()
            return wal

        log.read_committed = slow_read  # type: ignore[method-assign]  # a spy
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        await reading.wait()
        log.readers.end_those_sent_beyond(FIRST_LSN)
        go_on.set()
        assert tags(await client.until(b"Z")) == "E"

    run_with_server(catalog_of, scenario)


def test_a_client_that_lags_costs_one_read_for_many_messages() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        rest = MIB - 2 * PIECE_BYTES_MAX
        assert 0 < rest < CHUNK_BYTES_MAX
        for size in 3 * [*(2 * PIECE_BYTES_MAX // CHUNK_BYTES_MAX) * [CHUNK_BYTES_MAX], rest]:
            got = await client.replicated()
            assert isinstance(got, XLogData) and len(got.payload) == size
        reads = [end - begin for begin, end in log.reads]
        assert reads == 3 * [PIECE_BYTES_MAX, PIECE_BYTES_MAX, rest]

    run_with_server(catalog_of, scenario)


@pytest.mark.parametrize("in_memory", [True, False])
def test_bytes_read_ahead_are_not_sent_after_a_truncation(in_memory: bool) -> None:
    """The whole read is promised: a truncation below its end ends the connection."""

    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        log.in_memory = in_memory
        client = await RawClient.connect(port)
        drain = ClientConnection.drain

        async def cut_first(client: ClientConnection, timeout_s: float) -> None:
            for reader in log.readers:
                if reader.sent_lsn == FIRST_LSN + PIECE_BYTES_MAX:
                    log.readers.end_those_sent_beyond(reader.sent_lsn)
            await drain(client, timeout_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClientConnection, "drain", cut_first)
            await client.start(f"START_REPLICATION {FIRST_LSN}")
            found = await client.until(b"Z")
        messages = PIECE_BYTES_MAX // CHUNK_BYTES_MAX
        assert tags(found) == "d" * messages + "E" and sqlstates(found) == ["57P01"]

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_wal_in_memory_is_streamed_without_a_wait_for_a_read() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        log.in_memory = True
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        assert await client.wal(len(log.wal)) == log.wal and not log.reads
        log.in_memory = False
        more = wal_bytes(MIB, seed=3)
        log.append(more)
        log.commit()
        assert await client.wal(len(more)) == more and log.reads

    run_with_server(catalog_of, scenario)


def test_one_piece_is_read_while_the_client_takes_the_one_before() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        drain, go_on = ClientConnection.drain, asyncio.Event()

        async def slow_drain(client: ClientConnection, timeout_s: float) -> None:
            if log.reads:
                await go_on.wait()
            await drain(client, timeout_s)

        ends = [FIRST_LSN + PIECE_BYTES_MAX, FIRST_LSN + 2 * PIECE_BYTES_MAX]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ClientConnection, "drain", slow_drain)
            await client.start(f"START_REPLICATION {FIRST_LSN}")
            assert await client.wal(PIECE_BYTES_MAX) == log.wal[:PIECE_BYTES_MAX]
            await wait_until(lambda: len(log.reads) > 1)
            assert [end for _, end in log.reads] == ends
            (reader,) = log.readers
            assert [reader.sent_lsn, reader.promised_lsn] == ends
            go_on.set()
            rest = len(log.wal) - PIECE_BYTES_MAX
            assert await client.wal(rest) == log.wal[PIECE_BYTES_MAX:]

    run_with_server(catalog_of, scenario)


def test_a_stream_that_ends_ends_the_read_of_the_next_piece() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        read, cancelled = log.read_committed, asyncio.Event()

        async def read_once(begin: Lsn, end: Lsn) -> bytes:
            if begin > FIRST_LSN:
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
            return await read(begin, end)

        log.read_committed = read_once  # type: ignore[method-assign]  # a spy
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        assert await client.wal(PIECE_BYTES_MAX) == log.wal[:PIECE_BYTES_MAX]
        client.send(b"c")
        found = await client.until(b"Z")
        assert (tags(found), completed(found)) == ("cCCZ", ["START_STREAMING", "START_REPLICATION"])
        assert cancelled.is_set()

    run_with_server(catalog_of, scenario)


def test_wal_removed_under_a_reader_is_58p01_and_the_session_goes_on() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {log.readable_lsn}")
        log.append(wal_bytes(10))
        del log.wal[: 4 * MIB]
        log.oldest_lsn = log.readable_lsn + MIB
        log.commit(log.readable_lsn + 10)
        assert sqlstates(await client.until(b"Z")) == ["58P01"]
        client.report(FIRST_LSN)  # reports under way are ignored
        client.send(b"c")
        assert completed(await client.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    run_with_server(catalog_of, scenario)
