"""The compiled feed hands received bytes to the fast path first, and to the owner what is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from random import Random

import pytest
import uvloop

from tests.common.test_framed_connection import TakesSome
from tests.common.test_pure_framing import append_of
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.silent_owner import Silent
from tests.support.tls_ends import encrypted, files, pair
from tests.support.waiting import until
from tests.tls_files import TlsFiles
from walkeeper_common.errors import StorageError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.wire.framing import encode
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_fastpath.switch import feed

__all__ = ["files"]

Runner = Callable[[Coroutine[object, object, None]], None]

pytestmark = [NEEDS_FAST_PATH, pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])]
ASK = ReadRequest(NO_BALLOT, Lsn(8), 1)


class Owner(TakesSome):
    """An owner that takes nothing by itself; `take` takes whole appends, some of them."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.take = super().on_frames

    def on_frames(self, memory: bytearray, size: int) -> int:
        return 0


@asynccontextmanager
async def connected(owner: Owner) -> AsyncIterator[tuple[FramedConnection, socket.socket]]:
    here, there = socket.socketpair()
    there.setblocking(False)
    made = await asyncio.get_running_loop().create_connection(
        lambda: FramedConnection(lambda _: owner, make_feed=feed()), sock=here
    )
    try:
        yield made[1], there
    finally:
        there.close()
        made[0].abort()
        await until(lambda: made[1].is_closed)


@pytest.mark.parametrize("seed", range(3))
def test_messages_arrive_once_and_in_order(runner: Runner, seed: int) -> None:
    """They may be cut anywhere. The fast path comes and goes, and reading pauses now and then."""
    random = Random(seed)
    sizes = (0, 1, 300, 9000, 70_000, 131_072, 200_000, 600_000)
    sent = [random.choice((append_of(random.choice(sizes)), ASK)) for _ in range(120)]
    stream = b"".join(bytes(buffer) for message in sent for buffer in encode(message))
    owner = Owner(random)

    async def story() -> None:
        loop, at = asyncio.get_running_loop(), 0
        async with connected(owner) as (connection, peer):
            while at < len(stream):
                match random.randrange(4):
                    case 0:
                        connection.pause_reading("test")
                        connection.receive_first(random.choice((owner.take, None)))
                        connection.resume_reading("test")
                    case 1:
                        connection.receive_first(owner.take)
                piece = stream[at : at + random.choice((7, 90, 5000, 100_000, 700_000))]
                await loop.sock_sendall(peer, piece)
                at += len(piece)
                await asyncio.sleep(0)
            await until(lambda: len(owner.heard) >= len(sent))

    runner(story())
    assert owner.heard == sent and 0 < owner.took < len(sent)


def test_the_owner_meets_the_error_of_the_disk(runner: Runner) -> None:
    """The bytes come again to the owner, whose driver retires the core."""
    owner, offered = Owner(Random(1)), list[int]()

    def fails(memory: bytearray, size: int) -> int:
        offered.append(size)
        raise StorageError("no disk")

    async def story() -> None:
        async with connected(owner) as (connection, peer):
            connection.receive_first(fails)
            frame = b"".join(bytes(buffer) for buffer in encode(append_of(300)))
            await asyncio.get_running_loop().sock_sendall(peer, frame)
            await until(lambda: bool(owner.heard))
            assert offered == [len(frame)]

    runner(story())
    assert owner.heard == [append_of(300)]


@asynccontextmanager
async def over_tls(
    owner: Owner, files: TlsFiles
) -> AsyncIterator[tuple[FramedConnection, FramedConnection]]:
    """Connect over TLS, by sockets that take little at once; the owner has the first end."""
    here, there = socket.socketpair()
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        end.setblocking(False)
    server, client = pair(files.safekeeper(1).server_context(), files.proposer().client_context())
    peer = await encrypted(here, server, Silent())
    link = await encrypted(there, client, owner, make_feed=feed())
    await until(lambda: not link.is_closed and not peer.is_closed)
    try:
        yield link, peer
    finally:
        for one in (link, peer):
            one.abort("done")
        await asyncio.sleep(0)  # the transports let go of their sockets
        await until(lambda: link.is_closed and peer.is_closed)
        for end in (here, there):
            end.close()


@pytest.mark.parametrize("seed", range(3))
def test_messages_over_tls_arrive_once_and_in_order(
    runner: Runner, files: TlsFiles, seed: int
) -> None:
    """The fast path gets what TLS has decrypted, as it gets plain bytes."""
    random = Random(seed)
    sizes = (0, 1, 300, 9000, 70_000, 131_072, 200_000, 600_000)
    sent = [random.choice((append_of(random.choice(sizes)), ASK)) for _ in range(120)]
    owner, offered = Owner(random), list[int]()

    def take(memory: bytearray, size: int) -> int:
        offered.append(size)
        return owner.take(memory, size)

    async def story() -> None:
        async with over_tls(owner, files) as (link, peer):
            link.receive_first(take)
            for number, message in enumerate(sent):
                peer.send(message)
                if random.random() < 0.2:
                    link.receive_first(random.choice((take, take, None)))
                if number % 3 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(owner.heard) >= len(sent))

    runner(story())
    assert owner.heard == sent and offered and 0 < owner.took < len(sent)
