"""What is written on a connection arrives once and in order, however little the socket takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from walkeeper_common.framed_connection import FramedConnection
from walkeeper_common.framing import Message


class Silent:
    """An owner that only listens."""

    def on_frames(self, memory: bytearray, size: int) -> bool:
        return False

    def on_message(self, message: Message) -> None: ...
    def on_closed(self, reason: str) -> None: ...


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[FramedConnection, socket.socket]]:
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    made = await asyncio.get_running_loop().create_connection(
        lambda: FramedConnection(lambda _: Silent()), sock=here
    )
    there.setblocking(False)
    try:
        yield made[1], there
    finally:
        there.close()
        made[0].abort()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_a_slow_reader_gets_every_byte_in_order(runner: object) -> None:
    pieces = [[bytes([n % 251]) * (n % 977 + 1), bytes([n % 13]) * (n % 5000)] for n in range(600)]
    expected = b"".join(b"".join(piece) for piece in pieces)

    async def story() -> bytes:
        loop, received = asyncio.get_running_loop(), bytearray()
        async with connected() as (connection, peer):
            for number, piece in enumerate(pieces):
                connection.write([buffer for buffer in piece if buffer])
                if number % 50 == 49:  # sometimes it is empty again, mostly it is not
                    received += await loop.sock_recv(peer, 1 << 20)
            assert connection.unsent_bytes > 0, "the transport had to keep some of it"
            while len(received) < len(expected):
                received += await loop.sock_recv(peer, 1 << 20)
        return bytes(received)

    assert runner(story()) == expected  # type: ignore[operator]


def test_what_a_socket_takes_is_sent_before_the_loop_goes_on() -> None:
    async def story() -> bytes:
        async with connected() as (connection, peer):
            connection.write([b"head", b"payload"])
            return peer.recv(100)  # would raise BlockingIOError

    assert uvloop.run(story()) == b"headpayload"


def test_a_lost_peer_is_no_error_of_the_writer() -> None:
    async def story() -> bool:
        async with connected() as (connection, peer):
            peer.close()
            for _ in range(3):
                connection.write([b"nobody reads this"])
                await asyncio.sleep(0)
        return True

    assert uvloop.run(story())
