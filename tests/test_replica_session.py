"""Serving PostgreSQL clients: login, commands and streaming, message by message.

What real clients make of it is in test_replica_clients.py.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.fake_served_log import (
    FIRST_LSN,
    MIB,
    FakeCatalog,
    FakeLog,
    FakeProposers,
    run_with_server,
    wait_until,
    wal_bytes,
)
from tests.raw_client import (
    RawClient,
    close_all_clients,
    completed,
    errors,
    row,
    sqlstates,
    tags,
)
from walkeeper_common.errors import Refused, StorageError
from walkeeper_common.lsn import Lsn
from walkeeper_common.pgwire import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    Keepalive,
    XLogData,
    request_packet,
    startup_packet,
)
from walkeeper_safekeeper.server import PREFACE, serve
from walkeeper_safekeeper.wal_stream import CHUNK_BYTES_MAX, StreamLimits

IMPATIENT = StreamLimits(
    keepalive_interval_s=0.1, sender_timeout_s=0.6, authentication_timeout_s=0.5
)


def catalog_of(size: int = 3 * MIB, **fields: object) -> FakeCatalog:
    log = FakeLog(**fields)  # type: ignore[arg-type]
    log.append(wal_bytes(size))
    log.commit()
    return FakeCatalog(log)


def only(catalog: FakeCatalog) -> FakeLog:
    (log,) = catalog.logs.values()
    return log


def two_clusters() -> FakeCatalog:
    return FakeCatalog(FakeLog(cluster="billing"), FakeLog(cluster="main", system_id=2))


# Login.


def test_encryption_is_declined_and_the_login_goes_on():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.open(port)
        for code in (SSL_REQUEST, GSSENC_REQUEST):
            client.writer.write(request_packet(code))
            assert await client.reader.readexactly(1) == b"N"
        for byte in startup_packet({"user": "wk", "replication": "yes"}):
            client.writer.write(bytes([byte]))
        assert tags(await client.until(b"Z")) == "R" + "S" * 13 + "KZ"
        client.send(b"X")
        assert await client.next() is None

    run_with_server(catalog_of, scenario)


def test_a_cancel_request_is_closed_without_an_answer():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.open(port)
        client.writer.write(b"\0\0\0\x10" + CANCEL_REQUEST.to_bytes(4, "big") + bytes(8))
        assert await client.reader.read() == b""

    run_with_server(catalog_of, scenario)


def test_a_newer_minor_protocol_and_unknown_options_are_negotiated_down():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.open(port)
        client.writer.write(startup_packet({"user": "wk", "_pq_.x": "1"}, minor=2))
        first = await client.next()
        assert first is not None and first.tag == b"v" and first.body.endswith(b"_pq_.x\0")
        assert tags(await client.until(b"Z")).endswith("KZ")

    run_with_server(catalog_of, scenario)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"options": "-c walkeeper.cluster=billing"}, "1"),
        ({"options": "-cdatestyle=iso --walkeeper.cluster=main"}, "2"),
        ({"options": r"-c search_path=a\ b -cwalkeeper.cluster=main"}, "2"),
        ({"database": "main"}, "2"),
        ({"database": "billing", "options": "-c walkeeper.cluster=main"}, "2"),
        ({"database": "main", "user": "main"}, "2"),
        ({}, "3D000"),
        ({"database": "wk"}, "3D000"),
        ({"database": "nosuch"}, "3D000"),
        ({"options": "-c walkeeper.cluster=nosuch", "database": "main"}, "3D000"),
        ({"replication": "database"}, "0A000"),
        ({"replication": "maybe"}, "22023"),
        ({"user": ""}, "28000"),
    ],
)
def test_the_cluster_is_chosen_by_options_then_dbname(parameters: dict[str, str], expected: str):
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        catalog.logs["billing"].system_id = 1
        client = await RawClient.open(port)
        defaults = {"user": "wk", "database": "replication", "replication": "true"}
        client.writer.write(startup_packet({**defaults, **parameters}))
        found = await client.until(b"Z")
        if len(expected) < 5:
            assert row(await client.query("IDENTIFY_SYSTEM"))[0] == expected
            return
        assert sqlstates(found) == [expected] and errors(found)[0]["S"] == "FATAL"
        if expected == "3D000":
            assert "options='-c walkeeper.cluster=billing'" in errors(found)[0]["H"]
        assert await client.next() is None

    run_with_server(two_clusters, scenario)


@pytest.mark.parametrize(
    ("catalog", "text"),
    [(FakeCatalog(), "no log yet"), (FakeCatalog(closed=["main"]), "prepared and not configured")],
)
def test_a_log_that_is_not_there_yet_is_57p03(catalog: FakeCatalog, text: str):
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.open(port)
        client.writer.write(startup_packet({"user": "wk", "replication": "true"}))
        (error,) = errors(await client.until(b"Z"))
        assert error["C"] == "57P03" and text in error["M"]

    run_with_server(lambda: catalog, scenario)


def test_garbage_costs_its_connection_only(caplog: pytest.LogCaptureFixture):
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        good = await RawClient.connect(port)
        for garbage in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"WALKEEP\x02",
            b"WALL",
            b"\0\0\0\x04",
            b"\0\xff\xff\xff",
            b"\0\0\0\x08\0\2\0\0",
            b"\xff",
        ):
            bad = await RawClient.open(port)
            bad.writer.write(garbage)
            (error,) = errors(await bad.until(b"Z"))
            assert (error["S"], error["C"]) == ("FATAL", "08P01"), f"{garbage!r} {error=}"
        for silent in (b"\x16\x03\x01\x02", b""):
            bad = await RawClient.open(port)
            bad.writer.write(silent)
            if not silent:
                bad.writer.write_eof()
            assert await bad.reader.read() == b""
        bad = await RawClient.connect(port)
        bad.send(b"Q", b"no terminator")
        assert sqlstates(await bad.until(b"Z")) == ["08P01"]
        assert completed(await good.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    with caplog.at_level(logging.INFO):
        run_with_server(catalog_of, scenario)
    assert "starts TLS at once" in caplog.text and "speaks protocol 2" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_proposer_goes_to_its_handler_with_all_its_bytes():
    proposers = FakeProposers()

    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        for pieces in ([PREFACE + b"rest"], [PREFACE[:3], PREFACE[3:]]):
            client = await RawClient.open(port)
            for piece in pieces:
                client.writer.write(piece)
                await client.writer.drain()
                await asyncio.sleep(0.01)
            assert await client.reader.read() == b"hello proposer"

    run_with_server(catalog_of, scenario, proposers=proposers)
    assert proposers.received == [PREFACE + b"rest", PREFACE]


def test_silent_connections_are_closed_before_and_during_login():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        for first in (b"", b"WAL", b"\0\0"):
            client = await RawClient.open(port)
            client.writer.write(first)
            assert await client.closed()

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_the_number_of_clients_is_limited():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        first = await RawClient.connect(port)
        second = await RawClient.open(port)
        second.writer.write(startup_packet({"user": "wk"}))
        assert sqlstates(await second.until(b"Z")) == ["53300"]
        first.send(b"X")
        assert await first.next() is None
        await RawClient.connect(port)

    run_with_server(catalog_of, scenario, clients_max=1)


def test_a_port_in_use_is_refused_with_what_to_do():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        with pytest.raises(Refused, match=rf"127\.0\.0\.1:{port} is in use"):
            await serve(
                "127.0.0.1",
                port,
                catalog=catalog,
                proposer_handler=FakeProposers(),
                now=lambda: 0.0,
                on_ready=lambda _host, _port: None,
            )

    run_with_server(catalog_of, scenario)


# Commands.


def test_commands_answer_as_a_walsender_does():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port, application_name="a\x01b")
        end = str(only(catalog).commit_lsn)
        system_id = str(only(catalog).system_id)
        assert row(await client.query("identify_system ;")) == [system_id, "1", end, None]
        for setting, value in {
            "data_directory_mode": "0700",
            "wal_segment_size": "1MB",
            "server_version": "15.18 (Debian 15.18-0+deb12u1)",
            "server_version_num": "150018",
            "wal_level": "replica",
            "application_name": "a?b",
            "TimeZone": "UTC",
        }.items():
            found = await client.query(f"SHOW {setting}")
            assert (row(found), completed(found)) == ([value], ["SHOW"])
        assert sqlstates(await client.query("SHOW nonsense")) == ["42704"]
        assert sqlstates(await client.query("TIMELINE_HISTORY 1")) == ["58P01"]
        assert tags(await client.query(" ; ")) == "IZ"
        for text, sqlstate in {
            "BASE_BACKUP (LABEL 'x')": "0A000",
            "CREATE_REPLICATION_SLOT s LOGICAL pgoutput": "0A000",
            "SELECT 1": "0A000",
            "IDENTIFY_SYSTEM x": "42601",
            "START_REPLICATION SLOT nosuch 0/0": "42704",
        }.items():
            (error,) = errors(await client.query(text))
            assert error["C"] == sqlstate
            assert sqlstate != "0A000" or "primary" in error["H"]

    run_with_server(catalog_of, scenario)


@pytest.mark.parametrize(("version", "oid"), [("15.18", 23), ("17.2", 20), ("18beta1", 20)])
def test_the_timelines_type_is_that_of_the_primarys_major(version: str, oid: int):
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port)
        description = (await client.query("IDENTIFY_SYSTEM"))[0].body
        at = description.index(b"timeline\0") + len(b"timeline\0") + 6
        assert int.from_bytes(description[at : at + 4], "big") == oid

    run_with_server(lambda: catalog_of(server_version=version), scenario)


def test_slots_are_durable_when_their_creation_is_answered():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        client, log = await RawClient.connect(port), only(catalog)
        assert row(await client.query("READ_REPLICATION_SLOT a")) == [None, None, None]
        found = await client.query('CREATE_REPLICATION_SLOT "a" PHYSICAL')
        assert row(found) == ["a", "0/0", None, None]
        assert log.slots_file.writes == 1
        await client.query("CREATE_REPLICATION_SLOT b PHYSICAL (RESERVE_WAL)")
        current = str(log.commit_lsn.round_down(MIB))
        assert row(await client.query("READ_REPLICATION_SLOT b")) == ["physical", current, "1"]
        assert row(await client.query("READ_REPLICATION_SLOT a")) == ["physical", None, None]
        assert sqlstates(await client.query("CREATE_REPLICATION_SLOT a PHYSICAL")) == ["42710"]
        log.slots_file.fail = StorageError("cannot write the slots file")
        assert sqlstates(await client.query("CREATE_REPLICATION_SLOT c PHYSICAL")) == ["58030"]
        log.slots_file.fail = None
        assert completed(await client.query("DROP_REPLICATION_SLOT a")) == ["DROP_REPLICATION_SLOT"]
        assert [slot.name for slot in log.slots.slots] == ["b"]
        await client.query("CREATE_REPLICATION_SLOT t TEMPORARY PHYSICAL RESERVE_WAL")
        client.send(b"X")
        await wait_until(lambda: log.slots.slots.find("t") is None)

    run_with_server(catalog_of, scenario)


def test_logins_without_replication_get_the_probe_and_show_and_nothing_else():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port, replication="0")
        assert row(await client.query("SELECT pg_catalog.pg_is_in_recovery();")) == ["f"]
        assert row(await client.query("SHOW transaction_read_only")) == ["off"]
        for text in ("SELECT 1", "IDENTIFY_SYSTEM", "BEGIN", "START_REPLICATION 0/0"):
            (error,) = errors(await client.query(text))
            assert error["C"] == "0A000" and "replication=true" in error["H"]

    run_with_server(catalog_of, scenario)


def test_the_extended_protocol_is_refused_once_up_to_sync():
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port)
        for tag in b"PBDES":
            client.send(bytes([tag]), b"\0")
        assert tags(await client.until(b"Z")) == "EZ"
        client.send(b"F", b"\0")
        assert sqlstates(await client.until(b"Z")) == ["08P01"]
        assert completed(await client.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    run_with_server(catalog_of, scenario)


# Streaming.


def test_only_committed_wal_is_sent_in_chunks_that_cross_no_segment():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        wal = bytes(log.wal)
        committed = log.commit_lsn
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
            assert end - begin <= CHUNK_BYTES_MAX
            assert begin // MIB == (int(end) - 1) // MIB
        assert completed(await client.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    run_with_server(catalog_of, scenario)


@pytest.mark.parametrize(
    ("command", "sqlstate", "text"),
    [
        (f"{FIRST_LSN - 1}", "58P01", "segment 000000010000000000000002 has already been removed"),
        (f"{FIRST_LSN} TIMELINE 9", "XX000", "requested timeline 9 is not in this server's"),
        ("0/9000000", "XX000", "ahead of the WAL flush position of this server 0/600000"),
    ],
)
def test_a_start_that_cannot_be_served_is_refused(command: str, sqlstate: str, text: str):
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port)
        (error,) = errors(await client.query(f"START_REPLICATION {command}"))
        assert error["C"] == sqlstate and text in error["M"]

    run_with_server(catalog_of, scenario)


def test_a_start_in_the_next_segment_waits_with_keepalives():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        start = log.commit_lsn + MIB
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {start}")
        keepalive = await client.keepalive()
        assert keepalive.wal_end_lsn == log.commit_lsn
        client.report(start)
        log.append(wal_bytes(2 * MIB, seed=3))
        log.commit(start + 10)
        assert await client.wal(10) == log.wal[4 * MIB : 4 * MIB + 10]

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_a_historic_timeline_ends_at_the_fork_with_the_next_one():
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


def test_a_timeline_that_ends_while_it_is_streamed_ends_the_stream():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN} TIMELINE 1")
        await client.wal(3 * MIB)
        fork = log.commit_lsn + 50
        log.append(wal_bytes(1000, seed=5))
        log.switch_timeline(fork, 2)
        log.commit()
        assert len(await client.wal(50)) == 50
        assert tags(await client.until(b"c")).strip("d") == "c"
        client.send(b"c")
        assert row(await client.until(b"Z")) == ["2", str(fork)]

    run_with_server(catalog_of, scenario)


def test_a_reader_that_stops_reading_stops_nobody_and_is_dropped():
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
            other.report(log.commit_lsn)
        names = lambda: {reader.application_name for reader in log.readers}  # noqa: E731
        await wait_until(lambda: "stuck" not in names())

    limits = StreamLimits(keepalive_interval_s=1.0, sender_timeout_s=4.0)
    run_with_server(lambda: catalog_of(size), scenario, limits=limits)


def test_a_client_that_asks_and_never_reads_does_not_fill_memory():
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


def test_silent_clients_are_pinged_then_dropped_and_answering_ones_kept():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        silent = await RawClient.connect(port, application_name="silent")
        await silent.start(f"START_REPLICATION {log.commit_lsn}")
        polite = await RawClient.connect(port, application_name="polite")
        await polite.start(f"START_REPLICATION {log.commit_lsn}")
        pinged = 0
        while pinged < 3:
            if (await polite.keepalive()).reply_requested:
                polite.report(log.commit_lsn)
                pinged += 1
        assert [reader.application_name for reader in log.readers] == ["polite"]

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_feedback_moves_the_slot_lazily_and_retention_with_what_is_durable():
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
        client.report(log.commit_lsn + 10 * MIB)  # a lie: it has no more than it was sent
        await wait_until(lambda: slots.get("s").durable_lsn == log.commit_lsn)
        assert reserved is not None and reserved < log.commit_lsn
        assert log.readers.retention_lsn() == log.commit_lsn
        writes = log.slots_file.writes
        log.append(wal_bytes(1000, seed=6))
        log.commit()
        await client.wal(1000)
        client.report(log.commit_lsn)
        await wait_until(lambda: slots.get("s").restart_lsn == log.commit_lsn)
        assert log.slots_file.writes == writes, "a move within a segment costs no fsync"
        client.writer.close()
        await wait_until(lambda: slots.get("s").active_pid is None)

    run_with_server(catalog_of, scenario)


def test_a_truncation_below_what_was_sent_ends_the_connection():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        behind = await RawClient.connect(port, application_name="waits ahead")
        await behind.start(f"START_REPLICATION {log.commit_lsn + MIB}")
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        await client.wal(3 * MIB)
        cut = log.commit_lsn - 100
        log.commit(cut)
        log.readers.end_those_sent_beyond(cut)
        found = await client.until(b"Z")
        assert sqlstates(found) == ["57P01"]
        assert [reader.application_name for reader in log.readers] == ["waits ahead"]

    run_with_server(catalog_of, scenario)


def test_bytes_read_before_a_truncation_are_not_sent_after_it():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        reading, go_on = asyncio.Event(), asyncio.Event()
        read = log.read_committed

        async def slow_read(begin: Lsn, end: Lsn) -> bytes:
            wal = await read(begin, end)
            reading.set()
            await go_on.wait()
            return wal

        log.read_committed = slow_read  # type: ignore[method-assign]
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {FIRST_LSN}")
        await reading.wait()
        log.readers.end_those_sent_beyond(FIRST_LSN)
        go_on.set()
        assert tags(await client.until(b"Z")) == "E"

    run_with_server(catalog_of, scenario)


def test_wal_removed_under_a_reader_is_58p01_and_the_session_goes_on():
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        log = only(catalog)
        client = await RawClient.connect(port)
        await client.start(f"START_REPLICATION {log.commit_lsn}")
        log.append(wal_bytes(10))
        del log.wal[: 4 * MIB]
        log.first_lsn = log.commit_lsn + MIB
        log.commit(log.commit_lsn + 10)
        assert sqlstates(await client.until(b"Z")) == ["58P01"]
        client.report(FIRST_LSN)  # what is still under way is ignored
        client.send(b"c")
        assert completed(await client.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    run_with_server(catalog_of, scenario)


def test_a_stopping_server_says_57p01_to_everyone():
    clients: list[RawClient] = []

    async def run() -> None:
        async def scenario(port: int, _catalog: FakeCatalog) -> None:
            clients.append(await RawClient.connect(port))
            clients.append(await RawClient.connect(port))
            await clients[1].start(f"START_REPLICATION {FIRST_LSN}")
            await clients[1].wal(3 * MIB)

        catalog = catalog_of()
        ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(
                "127.0.0.1",
                0,
                catalog=catalog,
                proposer_handler=FakeProposers(),
                now=lambda: 0.0,
                on_ready=lambda _host, port: ready.set_result(port),
            )
        )
        await scenario(await ready, catalog)
        server.cancel()
        for client in clients:
            (error,) = errors(await client.until(b"Z"))
            assert (error["S"], error["C"]) == ("FATAL", "57P01")
        await asyncio.wait([server], timeout=20)
        assert server.cancelled()
        await close_all_clients()

    asyncio.run(run())
