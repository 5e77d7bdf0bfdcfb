"""A PostgreSQL that is lost while it answers: at every byte, the proposer has to hear a
WalkeeperError, since any other error ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from walkeeper_common.errors import WalkeeperError
from walkeeper_common.pgwire import (
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
from walkeeper_proposer.replication_connection import ReplicationConnection, Unavailable

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


@asynccontextmanager
async def connected(answer: bytes) -> AsyncIterator[ReplicationConnection]:
    """To a server that answers the first command with these bytes and is gone."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size - 4)
        writer.write(GREETING)
        await reader.read(1)
        await reader.read(1 << 16)  # a socket with bytes unread would be reset, not closed
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    dsn = f"host=127.0.0.1 port={port} user=u sslmode=disable gssencmode=disable"
    connection = await ReplicationConnection.open(dsn, "walkeeper")
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
            async with asyncio.timeout(5), connected(ANSWERS[answer][:size]) as connection:
                with pytest.raises(WalkeeperError):
                    await command(connection)

    asyncio.run(body())


def test_what_the_server_said_at_its_end_is_in_the_error() -> None:
    async def body() -> None:
        async with connected(ANSWERS["an error, then the end"]) as connection:
            with pytest.raises(Unavailable, match="unexpected postmaster exit"):
                await connection.start_copy("START_REPLICATION PHYSICAL 0/0")

    asyncio.run(body())
