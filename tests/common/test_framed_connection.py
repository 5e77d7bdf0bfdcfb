"""Bytes written on a connection arrive once and in order, however little the socket takes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import uvloop

from tests.common.test_pure_framing import append_of
from tests.support.silent_owner import Silent
from tests.support.waiting import until
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links import framed_connection
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection, Owner
from walkeeper_common.wire.framing import FRAME_HEAD, PREFACE, Message, decode, encode
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_common.wire.requests import ReadRequest


class TakesSome(Silent):
    """It takes whole appends from the front, some of them; the rest come as messages."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.heard, self.took = list[Message](), 0

    def on_frames(self, memory: bytearray, size: int) -> int:
        taken = 0
        while size - taken >= FRAME_HEAD.size and self._random.random() < 0.7:
            length, tag = FRAME_HEAD.unpack_from(memory, taken)
            end = taken + 4 + length
            if tag != AppendRequest.TAG or end > size:
                break
            self.heard.append(decode(tag, memoryview(bytes(memory[taken + FRAME_HEAD.size : end]))))
            taken, self.took = end, self.took + 1
        return taken

    def on_message(self, message: Message) -> None:
        self.heard.append(message)


@asynccontextmanager
async def connected(
    owner: Owner | None = None,
) -> AsyncIterator[tuple[FramedConnection, socket.socket]]:
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    made = await asyncio.get_running_loop().create_connection(
        lambda: FramedConnection(lambda _: owner or Silent()), sock=here
    )
    there.setblocking(False)
    try:
        yield made[1], there
    finally:
        there.close()
        made[0].abort()
        await asyncio.sleep(0.01)


Runner = Callable[[Coroutine[object, object, bytes]], bytes]


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_a_slow_reader_gets_every_byte_in_order(runner: Runner) -> None:
    pieces = [[bytes([n % 251]) * (n % 977 + 1), bytes([n % 13]) * (n % 5000)] for n in range(600)]
    expected = b"".join(b"".join(piece) for piece in pieces)

    async def story() -> bytes:
        loop, received = asyncio.get_running_loop(), bytearray()
        async with connected() as (connection, peer):
            for number, piece in enumerate(pieces):
                connection.write([buffer for buffer in piece if buffer], sum(map(len, piece)))
                if number % 50 == 49:  # sometimes it is empty again, mostly it is not
                    received += await loop.sock_recv(peer, 1 << 20)
            assert connection.unsent_bytes > 0, "the transport had to keep some of it"
            while len(received) < len(expected):
                received += await loop.sock_recv(peer, 1 << 20)
        return bytes(received)

    assert runner(story()) == expected


@pytest.mark.parametrize("seed", range(8))
def test_messages_arrive_once_and_in_order_for_every_taker(seed: int) -> None:
    """They may be cut anywhere. A small message after frames that were taken goes out at once."""
    random = Random(seed)
    sizes = (0, 1, 300, 9000, 70_000, 131_072, 200_000)
    sent: list[Message] = [
        random.choice((append_of(random.choice(sizes)), ReadRequest(NO_BALLOT, Lsn(n), 1)))
        for n in range(200)
    ]
    stream = b"".join(bytes(buffer) for message in sent for buffer in encode(message))
    owner = TakesSome(random)

    async def story() -> None:
        loop, at = asyncio.get_running_loop(), 0
        async with connected(owner) as (_, peer):
            while at < len(stream):
                piece = stream[at : at + random.choice((7, 90, 5000, 100_000, 600_000))]
                await loop.sock_sendall(peer, piece)
                at += len(piece)
                await asyncio.sleep(0)
            await until(lambda: len(owner.heard) >= len(sent))

    uvloop.run(story())
    assert owner.heard == sent and 5 < owner.took < len(sent)


def test_bytes_that_a_socket_takes_are_sent_before_the_loop_goes_on() -> None:
    async def story() -> bytes:
        async with connected() as (connection, peer):
            connection.write([b"head", b"payload"], 11)
            return peer.recv(100)  # would raise BlockingIOError

    assert uvloop.run(story()) == b"headpayload"


class Told(Silent):
    def __init__(self) -> None:
        self.reasons = list[str]()

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_peer_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_connection, "UNSENT_BYTES_MAX", 300_000)
    owner = Told()

    async def story() -> int:
        async with connected(owner) as (connection, _):
            written = 0
            while not connection.is_closed and written < 100:
                assert connection.unsent_bytes <= 300_000
                connection.write([bytes(10_000)], 10_000)
                written += 1
            await until(lambda: owner.reasons)
        return written

    assert 30 <= uvloop.run(story()) < 60
    assert owner.reasons == ["it does not read what it is sent"]


def test_a_lost_peer_is_no_error_of_the_writer() -> None:
    async def story() -> bool:
        async with connected() as (connection, peer):
            peer.close()
            for _ in range(3):
                connection.write([b"nobody reads this"], 17)
                await asyncio.sleep(0)
        return True

    assert uvloop.run(story())


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
@pytest.mark.parametrize("size", [5_000, 100_000, 1 << 20])
def test_a_part_of_a_frame_is_seen_until_the_frame_is_whole(runner: object, size: int) -> None:
    """Each part once: what came before the last look is no news."""
    frame = b"".join(encode(append_of(size)))

    async def story() -> list[bool]:
        loop, owner = asyncio.get_running_loop(), TakesSome(Random(0))
        seen: list[bool] = []
        async with connected(owner) as (connection, peer):
            for begin, end in ((0, 2_000), (2_000, 2_000), (2_000, 3_000), (3_000, len(frame))):
                await loop.sock_sendall(peer, frame[begin:end])
                await until(partial(holds, connection, end))
                seen.append(connection.receives_more())
            await until(lambda: bool(owner.heard))
            seen.append(connection.receives_more())
        return seen

    def holds(connection: FramedConnection, end: int) -> bool:
        """Count the length or not: a long frame does not keep it."""
        held_bytes = connection._reader.held_bytes
        return held_bytes in ((end, end - 4) if end < len(frame) else (0,))

    assert runner(story()) == [True, False, True, False, False]  # type: ignore[operator]


class Answers(Silent):
    """It answers each message with 100 KB."""

    def __init__(self) -> None:
        self.connection: FramedConnection | None = None
        self.asked = 0

    def on_message(self, message: Message) -> None:
        assert self.connection is not None
        self.asked += 1
        self.connection.write([b"x" * 100_000], 100_000)


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_a_peer_that_reads_no_answers_is_not_read(runner: Runner) -> None:
    """A peer had up to 64 MiB unsent before it was cut off; now it has 1 MiB and one answer."""
    ask = b"".join(bytes(buffer) for buffer in encode(ReadRequest(NO_BALLOT, Lsn(8), 1)))
    owner = Answers()

    async def story() -> bytes:
        here, there = socket.socketpair()
        here.setblocking(False)
        there.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=here)
        connection = FramedConnection(lambda _: owner)
        owner.connection = connection
        connection.take_over(transport, PREFACE)
        for _ in range(40):
            await loop.sock_sendall(there, ask)
            await asyncio.sleep(0.002)
        assert connection.is_full and not connection.is_closed
        assert connection.unsent_bytes <= framed_connection.UNREAD_BYTES_MAX + 100_000
        assert owner.asked < 40
        received = 0
        while received < 40 * 100_000:
            received += len(await loop.sock_recv(there, 1 << 20))
        assert not connection.is_full and owner.asked == 40
        there.close()
        transport.abort()
        await asyncio.sleep(0.01)
        return b""

    runner(story())
