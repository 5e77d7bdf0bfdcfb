"""PostgreSQL clients at a safekeeper's port: who is let in, and what commands answer.

Streaming is in test_wal_stream.py, what real clients make of it in test_replica_clients.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
import uvloop

from tests.support.fake_served_log import (
    FIRST_LSN,
    MIB,
    FakeCatalog,
    FakeLog,
    FakeProposers,
    catalog_of,
    only,
    run_with_server,
    wait_until,
)
from tests.support.raw_client import (
    RawClient,
    close_all_clients,
    completed,
    errors,
    row,
    sqlstates,
    tags,
)
from tests.support.waiting import LIMIT_S
from walkeeper_common.errors import Refused, StorageError
from walkeeper_common.postgres.pgwire import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    SqlRefused,
    request_packet,
    startup_packet,
)
from walkeeper_common.wire.framing import PREFACE
from walkeeper_safekeeper.replication.login import parse_login
from walkeeper_safekeeper.replication.wal_stream import StreamLimits
from walkeeper_safekeeper.server import serve

IMPATIENT = StreamLimits(
    keepalive_interval_s=0.1, sender_timeout_s=0.6, authentication_timeout_s=0.5
)


def two_clusters() -> FakeCatalog:
    return FakeCatalog(FakeLog(cluster="billing"), FakeLog(cluster="main", system_id=2))


# Login.


def test_encryption_is_declined_and_the_login_goes_on() -> None:
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


def test_a_cancel_request_is_closed_without_an_answer() -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.open(port)
        client.writer.write(b"\0\0\0\x10" + CANCEL_REQUEST.to_bytes(4, "big") + bytes(8))
        assert await client.reader.read() == b""

    run_with_server(catalog_of, scenario)


def test_a_newer_minor_protocol_and_unknown_options_are_negotiated_down() -> None:
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
        ({}, "2"),  # main
        ({"database": "wk"}, "2"),
        ({"database": "nosuch"}, "3D000"),
        ({"options": "-c walkeeper.cluster=nosuch", "database": "main"}, "3D000"),
        ({"replication": "database"}, "0A000"),
        ({"replication": "maybe"}, "22023"),
        ({"user": ""}, "28000"),
    ],
)
def test_the_cluster_is_chosen_by_options_then_dbname(
    parameters: dict[str, str], expected: str
) -> None:
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
    ("clusters", "logs", "options", "expected"),
    [
        (["main", "x1"], {}, "", "main"),
        (["main", "changes"], {"changes": ""}, "", "main"),
        (["wal", "changes"], {"changes": ""}, "", "wal"),
        (["main", "wal"], {"main": ""}, "", "wal"),
        (["main", "changes"], {"changes": ""}, "-c walkeeper.entries=on", "changes"),
        (["x1", "x2"], {}, "", None),
        (["main", "x1"], {}, "-c walkeeper.cluster=x1", "x1"),
    ],
)
def test_a_second_log_does_not_end_the_clients_of_the_first(
    clusters: list[str], logs: dict[str, str], options: str, expected: str | None
) -> None:
    """A standby and pg_receivewal send `replication` as the database, and name no log."""
    startup = {"user": "u", "replication": "on", "database": "replication", "options": options}
    if expected is not None:
        assert parse_login(startup, clusters, logs).cluster == expected
        return
    with pytest.raises(SqlRefused) as caught:
        parse_login(startup, clusters, logs)
    assert caught.value.sqlstate == "3D000"


SHOP, CRM = {"shop": "shop_db"}, {"crm": "crm_db"}


@pytest.mark.parametrize(
    ("logs", "database", "options", "expected"),
    [
        (SHOP, "shop_db", "", "shop"),
        (SHOP, "any", "", "shop"),
        (SHOP | CRM, "crm_db", "", "crm"),
        (SHOP | CRM, "shop", "", "shop"),
        (SHOP | CRM, "crm_db", "-c walkeeper.cluster=shop", "shop"),
        (SHOP | CRM, "any", "", None),
        (SHOP | {"more": "shop_db"}, "shop_db", "", None),
        ({"shop": "", "crm": ""}, "", "", None),
    ],
)
def test_a_consumer_names_its_log_or_the_database_that_one_log_alone_is_of(
    logs: dict[str, str], database: str, options: str, expected: str | None
) -> None:
    startup = {"user": "u", "replication": "database", "database": database, "options": options}
    clusters = ["main", *logs]
    if expected is not None:
        assert parse_login(startup, clusters, logs).cluster == expected
        return
    with pytest.raises(SqlRefused) as caught:
        parse_login(startup, clusters, logs)
    assert caught.value.sqlstate == "3D000"


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (None, "", "UTF8"),
        ("latin-1", "", "LATIN1"),
        (None, "-c client_encoding=sql_ascii", "SQL_ASCII"),
        ("euc_jp", "-c client_encoding=sjis", "EUC_JP"),
    ],
)
def test_a_consumer_names_its_encoding_as_to_a_primary(
    given: str | None, options: str, expected: str
) -> None:
    startup = {"user": "u", "replication": "database", "options": options}
    startup |= {"client_encoding": given} if given else {}
    assert parse_login(startup, ["shop"], SHOP).encoding == expected
    physical = {**startup, "replication": "true", "client_encoding": "klingon"}
    assert parse_login(physical, ["shop"], SHOP).encoding == "UTF8"


def test_an_unknown_encoding_is_refused_as_by_a_primary() -> None:
    startup = {"user": "u", "replication": "database", "client_encoding": "klingon"}
    with pytest.raises(SqlRefused, match='"client_encoding": "klingon"') as caught:
        parse_login(startup, ["shop"], SHOP)
    assert caught.value.sqlstate == "22023"


@pytest.mark.parametrize(
    ("catalog", "text"),
    [(FakeCatalog(), "no log yet"), (FakeCatalog(closed=["main"]), "prepared and not configured")],
)
def test_a_log_that_is_not_there_yet_is_57p03(catalog: FakeCatalog, text: str) -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.open(port)
        client.writer.write(startup_packet({"user": "wk", "replication": "true"}))
        (error,) = errors(await client.until(b"Z"))
        assert error["C"] == "57P03" and text in error["M"]

    run_with_server(lambda: catalog, scenario)


def test_garbage_costs_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_proposer_goes_to_its_handler_with_all_its_bytes() -> None:
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


def test_silent_connections_are_closed_before_and_during_login() -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        for first in (b"", b"WAL", b"\0\0"):
            client = await RawClient.open(port)
            client.writer.write(first)
            assert await client.closed()

    run_with_server(catalog_of, scenario, limits=IMPATIENT)


def test_the_number_of_clients_is_limited() -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        first = await RawClient.connect(port)
        second = await RawClient.open(port)
        second.writer.write(startup_packet({"user": "wk"}))
        assert sqlstates(await second.until(b"Z")) == ["53300"]
        first.send(b"X")
        assert await first.next() is None
        await RawClient.connect(port)

    run_with_server(catalog_of, scenario, clients_max=1)


def test_a_port_in_use_is_refused_with_what_to_do() -> None:
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


def test_a_port_that_another_process_takes_meanwhile_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both have bound it; the first to listen has it."""
    listen = socket.socket.listen

    async def scenario() -> None:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", 0))
            port = other.getsockname()[1]

            def other_first(ours: socket.socket, *backlog: int) -> None:
                listen(other)
                listen(ours, *backlog)

            monkeypatch.setattr(socket.socket, "listen", other_first)
            with pytest.raises(Refused, match=rf"127\.0\.0\.1:{port} is in use"):
                await serve(
                    "127.0.0.1",
                    port,
                    catalog=catalog_of(),
                    proposer_handler=FakeProposers(),
                    now=lambda: 0.0,
                    on_ready=lambda _host, _port: None,
                )

    uvloop.run(scenario())


# Commands.


def test_commands_answer_as_a_walsender_does() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port, application_name="a\x01b")
        end = str(only(catalog).readable_lsn)
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
            "walkeeper.first_lsn": str(only(catalog).oldest_lsn),
            "walkeeper.kind": "physical",
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
def test_the_timelines_type_is_that_of_the_primarys_major(version: str, oid: int) -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port)
        description = (await client.query("IDENTIFY_SYSTEM"))[0].body
        at = description.index(b"timeline\0") + len(b"timeline\0") + 6
        assert int.from_bytes(description[at : at + 4], "big") == oid

    run_with_server(lambda: catalog_of(server_version=version), scenario)


def test_slots_are_durable_when_their_creation_is_answered() -> None:
    async def scenario(port: int, catalog: FakeCatalog) -> None:
        client, log = await RawClient.connect(port), only(catalog)
        assert row(await client.query("READ_REPLICATION_SLOT a")) == [None, None, None]
        found = await client.query('CREATE_REPLICATION_SLOT "a" PHYSICAL')
        assert row(found) == ["a", "0/0", None, None]
        assert log.slots_file.writes == 1
        await client.query("CREATE_REPLICATION_SLOT b PHYSICAL (RESERVE_WAL)")
        current = str(log.readable_lsn.round_down(MIB))
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


def test_logins_without_replication_get_the_probe_and_show_and_nothing_else() -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port, replication="0")
        assert row(await client.query("SELECT pg_catalog.pg_is_in_recovery();")) == ["f"]
        assert row(await client.query("SHOW transaction_read_only")) == ["off"]
        for text in ("SELECT 1", "IDENTIFY_SYSTEM", "BEGIN", "START_REPLICATION 0/0"):
            (error,) = errors(await client.query(text))
            assert error["C"] == "0A000" and "replication=true" in error["H"]

    run_with_server(catalog_of, scenario)


def test_the_extended_protocol_is_refused_once_up_to_sync() -> None:
    async def scenario(port: int, _catalog: FakeCatalog) -> None:
        client = await RawClient.connect(port)
        for tag in b"PBDES":
            client.send(bytes([tag]), b"\0")
        assert tags(await client.until(b"Z")) == "EZ"
        client.send(b"F", b"\0")
        assert sqlstates(await client.until(b"Z")) == ["08P01"]
        assert completed(await client.query("IDENTIFY_SYSTEM")) == ["IDENTIFY_SYSTEM"]

    run_with_server(catalog_of, scenario)


def test_a_stopping_server_says_57p01_to_everyone() -> None:
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
        await asyncio.wait([server], timeout=LIMIT_S)
        assert server.cancelled()
        await close_all_clients()

    asyncio.run(run())
