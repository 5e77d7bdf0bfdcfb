"""A PostgreSQL that is lost while it answers, or is none, raises a WalkeeperError.

Any other error ends the proposer. The tests run on uvloop, as the daemons do: it ends a process
that watches a descriptor which libpq has closed.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest
import uvloop

from tests.support.quiet_clock import run_quietly
from tests.support.waiting import LIMIT_S, until
from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.postgres.pgwire import (
    Column,
    SqlRefused,
    authentication_ok,
    copy_both_response,
    copy_data,
    error_response,
    parameter_status,
    ready_for_query,
    result,
)
from walkeeper_proposer.consensus.proposer_events import Event, PrimaryIdentified
from walkeeper_proposer.postgres.primary import Primary
from walkeeper_proposer.postgres.primary_identity import identify
from walkeeper_proposer.postgres.replication_connection import (
    ReplicationConnection,
    SlotExists,
    Unavailable,
)

GREETING = authentication_ok() + parameter_status("server_version", "15.18") + ready_for_query()
SLOT_IN_USE = error_response(SqlRefused("55006", "replication slot is active for PID 1"))
POSTMASTER_DIED = error_response(
    SqlRefused("57P01", "terminating connection due to unexpected postmaster exit"), "FATAL"
)
ANSWERS = {
    "an error, then the end": SLOT_IN_USE + POSTMASTER_DIED,
    "an error": SLOT_IN_USE + ready_for_query(),
    "a row": result([Column("timeline")], [("1",)], "IDENTIFY_SYSTEM") + ready_for_query(),
    "a stream": copy_both_response() + copy_data(b"w" + bytes(24) + b"wal") + POSTMASTER_DIED,
}


def dsn_of(server: asyncio.Server) -> str:
    port = server.sockets[0].getsockname()[1]
    return f"host=127.0.0.1 port={port} user=u sslmode=disable gssencmode=disable"


@asynccontextmanager
async def connected(answer: bytes) -> AsyncIterator[ReplicationConnection]:
    """Connect to a server that answers the first command with these bytes and is gone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size - 4)
        writer.write(GREETING)
        await reader.read(1)
        await reader.read(1 << 16)  # a socket with bytes unread would be reset, not closed
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connection = await ReplicationConnection.open(dsn_of(server), "walkeeper")
    try:
        yield connection
    finally:
        connection.close()
        server.close()
        await server.wait_closed()


async def ask(connection: ReplicationConnection) -> None:
    await connection.query("IDENTIFY_SYSTEM")


async def stream(connection: ReplicationConnection) -> None:
    await connection.start_copy("START_REPLICATION PHYSICAL 0/0")
    while True:
        if connection.receive() is None:
            await connection.wait_readable()


@pytest.mark.parametrize("command", [ask, stream])
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_lost_at_any_byte_of_its_answer_is_unavailable(
    answer: str, command: Callable[[ReplicationConnection], Awaitable[None]]
) -> None:
    async def body() -> None:
        for size in range(len(ANSWERS[answer])):
            async with asyncio.timeout(LIMIT_S), connected(ANSWERS[answer][:size]) as connection:
                with pytest.raises(WalkeeperError):
                    await command(connection)

    uvloop.run(body())


def test_the_servers_last_message_is_in_the_error() -> None:
    async def body() -> None:
        async with connected(ANSWERS["an error, then the end"]) as connection:
            with pytest.raises(Unavailable, match="unexpected postmaster exit"):
                await connection.start_copy("START_REPLICATION PHYSICAL 0/0")

    uvloop.run(body())


@pytest.mark.parametrize(
    ("sqlstate", "goes_away"),
    [
        ("53100", True),  # disk_full
        ("53200", True),  # out_of_memory
        ("53300", True),  # too_many_connections
        ("53400", False),  # configuration_limit_exceeded: no slot or walsender is free
        ("55006", True),  # object_in_use: the slot
        ("57014", True),  # query_canceled
        ("57P01", True),  # admin_shutdown
        ("57P03", True),  # cannot_connect_now
        ("28000", False),  # invalid_authorization_specification
        ("42704", False),  # undefined_object: the slot
        ("58P01", False),  # undefined_file: the WAL was removed
    ],
)
def test_an_error_that_passes_by_itself_is_tried_again(sqlstate: str, goes_away: bool) -> None:
    """An error that somebody has to mend first is not tried again."""

    async def body() -> None:
        said = error_response(SqlRefused(sqlstate, "sorry")) + ready_for_query()
        for command in (ask, stream):
            async with asyncio.timeout(LIMIT_S), connected(said) as connection:
                with pytest.raises(Unavailable if goes_away else Refused, match="sorry") as caught:
                    await command(connection)
                if goes_away:
                    assert isinstance(caught.value, Unavailable)
                    assert caught.value.sqlstate == sqlstate

    uvloop.run(body())


def test_a_slot_that_exists_is_known_by_its_sqlstate() -> None:
    """The text is in the server's language."""

    async def body() -> None:
        said = error_response(SqlRefused("42710", "Replikations-Slot »w« existiert bereits"))
        async with asyncio.timeout(LIMIT_S), connected(said + ready_for_query()) as connection:
            with pytest.raises(SlotExists, match="existiert bereits"):
                await ask(connection)

    uvloop.run(body())


class Peer:
    """A server whose newest connection is in the test's hands."""

    def __init__(self, greeting: bytes, *, speaks_sql: bool) -> None:
        self.greeting, self.speaks_sql = greeting, speaks_sql
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        startup = await reader.readexactly(size - 4)
        if not self.speaks_sql and b"\0replication\0" not in startup:
            writer.close()
            return
        writer.write(self.greeting)
        self.reader, self.writer = reader, writer
        self.writers.append(writer)

    async def command(self) -> str:
        """Return the next query."""
        head = await self.reader.readexactly(5)
        body = await self.reader.readexactly(int.from_bytes(head[1:], "big") - 4)
        return body.rstrip(b"\0").decode()

    def reset(self) -> None:
        """Reset the connection as a host does that has forgotten it."""
        lingering = struct.pack("ii", 1, 0)
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingering)
        self.writer.transport.abort()


@asynccontextmanager
async def served(
    greeting: bytes = GREETING, *, speaks_sql: bool = False
) -> AsyncIterator[tuple[Peer, str]]:
    peer = Peer(greeting, speaks_sql=speaks_sql)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0, limit=1 << 16)
    try:
        yield peer, dsn_of(server)
    finally:
        for writer in peer.writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        server.close()
        await server.wait_closed()


def test_a_server_that_says_nothing_does_not_keep_us_from_the_next() -> None:
    """As one that was switched off: libpq would wait for it until our own time is over."""

    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
                both = f"{silent.getsockname()[1]},{re.findall('port=([0-9]+)', dsn)[0]}"
                several = f"{dsn} host=127.0.0.1,localhost port={both} connect_timeout=2"
                connection = await ReplicationConnection.open(several, "walkeeper")
                assert len(peer.writers) == 1
                connection.close()
                with pytest.raises(Unavailable, match=r"at 127\.0\.0\.1 within 2 s; .*refused"):
                    alone = several.replace(both, f"{silent.getsockname()[1]},1")
                    await ReplicationConnection.open(alone, "walkeeper")

    run_quietly(body())


def test_a_name_is_looked_up_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """libpq would hold up the loop until a name server answers; here it could find nothing."""
    asked = []

    async def look_up(_: object, host: str, port: str, **__: object) -> list[tuple[object, ...]]:
        asked.append(host)
        if host == "gone.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]

    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), served() as (_, dsn):
            named = dsn.replace("127.0.0.1", "gone.invalid,primary.invalid")
            connection = await ReplicationConnection.open(named, "walkeeper")
            connection.close()
            with pytest.raises(Unavailable, match=r"gone\.invalid.*not known"):
                await ReplicationConnection.open("host=gone.invalid", "walkeeper")

    monkeypatch.setattr(uvloop.Loop, "getaddrinfo", look_up)
    uvloop.run(body())
    assert asked == ["gone.invalid", "primary.invalid", "gone.invalid"]


def test_a_caller_that_waits_learns_at_once_that_the_connection_was_closed() -> None:
    """It takes no byte from the next connection, whose descriptor has the same number."""

    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            connection = await ReplicationConnection.open(dsn, "walkeeper")
            asking = asyncio.create_task(ask(connection))
            await peer.command()
            connection.close()
            other = await ReplicationConnection.open(dsn, "walkeeper")
            with pytest.raises(Unavailable, match="was closed"):
                await asking
            reading = asyncio.Event()
            other.start_reading(reading.set)
            peer.writer.write(ready_for_query())
            await reading.wait()
            other.close()

    uvloop.run(body())


def test_a_connection_that_is_reset_while_statuses_wait_to_be_sent_is_lost() -> None:
    """The loop must not watch its descriptor any more, or it ends the process by SIGABRT."""

    async def body() -> None:
        lost = asyncio.Event()

        def on_readable() -> None:
            try:
                connection.consume()
            except Unavailable:
                connection.stop_reading()
                lost.set()

        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            connection = await ReplicationConnection.open(dsn, "walkeeper")
            starting = asyncio.create_task(connection.start_copy("START_REPLICATION"))
            await peer.command()
            peer.writer.write(copy_both_response())
            await starting
            cast(asyncio.Transport, peer.writer.transport).pause_reading()  # a socket's
            connection.start_reading(on_readable)
            connection.on_lost = lambda _: lost.set()
            while connection.send(bytes(1 << 20)):
                pass
            peer.reset()
            await lost.wait()
            pair = socket.socketpair()  # one of them has the number that libpq gave back
            wrote = [asyncio.Event() for _ in pair]
            loop = asyncio.get_running_loop()
            for each, event in zip(pair, wrote, strict=True):
                loop.add_writer(each, event.set)
            connection.close()
            for each, event in zip(pair, wrote, strict=True):
                await event.wait()
                loop.remove_writer(each)
                each.close()

    uvloop.run(body())


IDENTITY = [Column(name) for name in ("systemid", "timeline", "xlogpos", "dbname")]
STRANGE_ANSWERS = {
    "no row": result(IDENTITY, [], "IDENTIFY_SYSTEM"),
    "too few columns": result(IDENTITY[:1], [("7",)], "IDENTIFY_SYSTEM"),
    "no values": result(IDENTITY, [(None, None, None, None)], "IDENTIFY_SYSTEM"),
    "no number": result(IDENTITY, [("7", "one", "0/1", None)], "IDENTIFY_SYSTEM"),
    "no LSN": result(IDENTITY, [("7", "1", "zero", None)], "IDENTIFY_SYSTEM"),
}


@pytest.mark.parametrize("answer", STRANGE_ANSWERS)
def test_a_server_that_answers_in_another_form_is_unavailable(answer: str) -> None:
    """A pooler, or a port of something else: asked again, as one that is down."""

    async def answer_all(peer: Peer) -> None:
        while sent := await peer.command():
            told = result([Column("setting")], [("16MB",)], "SHOW")
            if sent == "IDENTIFY_SYSTEM":
                told = STRANGE_ANSWERS[answer]
            peer.writer.write(told + ready_for_query())

    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            connection = await ReplicationConnection.open(dsn, "walkeeper")
            answering = asyncio.create_task(answer_all(peer))
            with pytest.raises(Unavailable):
                await identify(connection)
            answering.cancel()
            connection.close()

    uvloop.run(body())


def test_bytes_of_another_encoding_are_an_answer() -> None:
    """As a history file has them, whose reasons name restore points in the server's encoding."""

    async def body() -> None:
        said = b"at restore point caf\xe9"
        row = result([Column("content")], [(said,)], "TIMELINE_HISTORY")
        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            connection = await ReplicationConnection.open(dsn, "walkeeper")
            asking = asyncio.create_task(connection.query("TIMELINE_HISTORY 2"))
            await peer.command()
            peer.writer.write(row + ready_for_query())
            [[content]] = await asking
            connection.close()
        assert content is not None
        assert content.encode(errors="surrogateescape") == said

    uvloop.run(body())


ANSWERED = {
    "IDENTIFY_SYSTEM": "7\t1\t0/16B3748\t",
    "SHOW wal_segment_size": "16MB",
    "SHOW fsync": "on",
    "SHOW full_page_writes": "on",
    "SHOW in_hot_standby": "off",
}


def test_a_primary_that_is_asked_again_while_it_answers_slowly_is_not_lost() -> None:
    """The answer to the first question is older than the second: one identity, the last."""
    events: list[Event] = []

    async def answer(peer: Peer, upto: str) -> None:
        sent = ""
        while sent != upto:
            sent = await peer.command()
            values = ANSWERED[sent].split("\t")
            columns = [Column(f"c{number}") for number in range(len(values))]
            peer.writer.write(result(columns, [tuple(values)], "SHOW") + ready_for_query())

    async def body() -> None:
        async with asyncio.timeout(LIMIT_S), served() as (peer, dsn):
            primary = Primary(dsn, "w", "w", apply_quorum=True, on_streaming=lambda _: None)
            running = asyncio.create_task(primary.run(events.append))
            await until(lambda: peer.writers)
            last = "SHOW in_hot_standby"
            await answer(peer, last)
            await until(lambda: len(events) == 1)
            primary.identify()
            await answer(peer, "SHOW wal_segment_size")
            primary.identify()  # the first one is half answered
            await answer(peer, last)
            await answer(peer, last)
            await until(lambda: len(events) == 2)
            running.cancel()
            await asyncio.wait([running])
            assert len(peer.writers) == 1
        assert [type(event) for event in events] == [PrimaryIdentified] * 2

    uvloop.run(body())
