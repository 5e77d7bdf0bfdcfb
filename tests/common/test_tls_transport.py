"""TLS below a framed connection, over real sockets: messages, one write a frame, and failures."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from tests.common.test_framed_connection import Silent
from tests.common.test_pure_framing import append_of
from tests.common.test_tls_layer import files, pair
from tests.support.waiting import until
from tests.tls_files import TlsFiles
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.framed_connection import FramedConnection, MakeFeed, Owner
from walkeeper_common.shell.tls_layer import TlsLayer
from walkeeper_common.shell.tls_transport import TlsOpening
from walkeeper_common.wire.framing import PREFACE, Message, encode
from walkeeper_common.wire.requests import ReadRequest

__all__ = ["files"]


class Hears(Silent):
    def __init__(self) -> None:
        self.heard, self.reasons = list[Message](), list[str]()

    def on_message(self, message: Message) -> None:
        self.heard.append(message)

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)


async def encrypted(
    end: socket.socket,
    layer: TlsLayer,
    owner: Owner,
    received: bytes = b"",
    make_feed: MakeFeed | None = None,
) -> FramedConnection:
    loop = asyncio.get_running_loop()
    connection = FramedConnection(lambda _: owner, make_feed=make_feed)
    await loop.create_connection(lambda: TlsOpening(layer, connection, received), sock=end)
    return connection


Runner = Callable[[Coroutine[object, object, None]], None]


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_messages_arrive_over_tls_in_order(files: TlsFiles, runner: Runner) -> None:
    """The sockets are small, the reader pauses, and the first bytes came before the layer."""
    sizes = (1, 300, 9000, 70_000, 131_072, 200_000)
    sent: list[Message] = [
        append_of(sizes[n // 2 % 6]) if n % 2 else ReadRequest(NO_BALLOT, Lsn(n), 1)
        for n in range(100)
    ]

    async def story() -> None:
        server_layer, client_layer = pair(
            files.safekeeper(1).server_context(), files.proposer().client_context()
        )
        here, there = socket.socketpair()
        for end in (here, there):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            end.setblocking(False)
        heard, said = Hears(), Hears()
        client = await encrypted(there, client_layer, said)
        first = here.recv(100)  # sent at once
        server = await encrypted(here, server_layer, heard, first)
        await until(lambda: not client.is_closed and not server.is_closed, 20)
        for number, message in enumerate(sent):
            client.send(message)
            if number % 20 == 10:
                server.pause_reading()
                await asyncio.sleep(0.01)
                before = len(heard.heard)
                await asyncio.sleep(0.01)
                assert len(heard.heard) == before, "a paused connection hands over nothing"
                server.resume_reading()
        await until(lambda: len(heard.heard) == len(sent), 60)
        assert [b"".join(encode(each)) for each in heard.heard] == [
            b"".join(encode(each)) for each in sent
        ]
        server.close("done")
        await until(lambda: bool(said.reasons and heard.reasons), 20)
        assert said.reasons == ["the peer closed the connection"]
        await asyncio.sleep(0.01)  # the transports let go of their sockets
        for end in (here, there):
            end.close()

    runner(story())


@pytest.mark.parametrize("wal_bytes", [300, 70_000])
def test_a_frame_is_one_system_call(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, wal_bytes: int
) -> None:
    """The safekeeper wakes up once for it, and not for its head before."""

    async def story() -> None:
        here, there, heard = *socket.socketpair(), Hears()
        for end in (here, there):
            end.setblocking(False)
        server_layer, client_layer = pair(
            files.safekeeper(1).server_context(), files.proposer().client_context()
        )
        server = await encrypted(here, server_layer, heard)
        client = await encrypted(there, client_layer, Hears())
        await until(lambda: not client.is_closed and not server.is_closed, 20)
        wrote, write = list[int](), os.write

        def counted(descriptor: int, data: bytes) -> int:
            wrote.append(descriptor)
            return write(descriptor, data)

        try:
            monkeypatch.setattr(os, "write", counted)
            client.send(append_of(wal_bytes))
            monkeypatch.undo()
            assert wrote == [there.fileno()]
            await until(lambda: len(heard.heard) == 1, 20)
        finally:
            client.abort("done")
            server.abort("done")
            await asyncio.sleep(0.01)  # the transports let go of their sockets
            for end in (here, there):
                end.close()

    uvloop.run(story())


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
def test_a_failed_handshake_closes_with_the_reason(files: TlsFiles, runner: Runner) -> None:
    async def story() -> None:
        here, there = socket.socketpair()
        lost = asyncio.get_running_loop().create_future()

        class Listening(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                lost.set_result(exc)

        layer = TlsLayer(files.safekeeper(1).server_context(), server_side=True)
        opening = TlsOpening(layer, Listening())
        await asyncio.get_running_loop().create_connection(lambda: opening, sock=here)
        there.send(PREFACE)
        assert "TLS" in str(await asyncio.wait_for(lost, 10))
        await asyncio.sleep(0.01)  # the transport lets go of its socket
        for end in (here, there):
            end.close()

    runner(story())


@pytest.mark.parametrize("runner", [uvloop.run, asyncio.run])
@pytest.mark.parametrize("is_full", [False, True], ids=["idle", "full"])
def test_a_write_on_a_broken_connection_neither_raises_nor_waits(
    files: TlsFiles, runner: Runner, is_full: bool
) -> None:
    """Garbage from the peer breaks TLS, while a full socket takes no alert any more.

    The writer of WAL learns of it from on_closed alone, as when a socket is lost.
    """

    async def story() -> None:
        server_layer, client_layer = pair(
            files.safekeeper(1).server_context(), files.proposer().client_context()
        )
        here, there = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        for end in (here, there):
            end.setblocking(False)
        heard, said = Hears(), Hears()
        server = await encrypted(here, server_layer, heard)
        client = await encrypted(there, client_layer, said)
        await until(lambda: not client.is_closed and not server.is_closed, 20)
        client.pause_reading()
        if is_full:
            server.send(append_of(1 << 20))
            assert server.unsent_bytes
        os.write(there.fileno(), b"garbage in place of a TLS record")
        try:
            for _ in range(1000):
                server.send(append_of(100))
                if heard.reasons:
                    break
                await asyncio.sleep(0.01)
            server.send(append_of(100))
            assert heard.reasons == ["TLS: wrong version number"] and server.is_closed
        finally:
            server.abort("done")
            client.abort("done")
            await asyncio.sleep(0.01)  # the transports let go of their sockets
            for end in (here, there):
                end.close()

    runner(story())


def test_a_write_that_tls_refuses_ends_the_connection(files: TlsFiles) -> None:
    async def story() -> None:
        server_layer, client_layer = pair(
            files.safekeeper(1).server_context(), files.proposer().client_context()
        )
        here, there = socket.socketpair()
        for end in (here, there):
            end.setblocking(False)
        heard, said = Hears(), Hears()
        server = await encrypted(here, server_layer, heard)
        client = await encrypted(there, client_layer, said)
        await until(lambda: not client.is_closed and not server.is_closed, 20)
        server_layer.shut_down()  # OpenSSL takes no bytes after that
        try:
            for _ in range(3):
                server.send(append_of(100))
            await until(lambda: bool(heard.reasons and said.reasons), 20)
            assert heard.reasons == ["TLS: protocol is shutdown"]
        finally:
            server.abort("done")
            client.abort("done")
            await asyncio.sleep(0.01)  # the transports let go of their sockets
            for end in (here, there):
                end.close()

    uvloop.run(story())
