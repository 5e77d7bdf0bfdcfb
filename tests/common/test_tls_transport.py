"""TLS below a framed connection, over real sockets: messages, one write a frame, and failures."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from tests.common.test_pure_framing import append_of
from tests.support.tls_ends import SMALL_BUFFER_BYTES, connected, files, released
from tests.support.waiting import LIMIT_S, until
from tests.tls_files import TlsFiles
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.tls.tls_layer import TlsLayer
from walkeeper_common.shell.tls.tls_transport import TlsOpening
from walkeeper_common.wire.framing import PREFACE, Message, encode
from walkeeper_common.wire.requests import ReadRequest

__all__ = ["files"]


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
        async with connected(files, buffer_bytes=SMALL_BUFFER_BYTES, first_bytes=100) as ends:
            for number, message in enumerate(sent):
                ends.client.send(message)
                if number % 20 == 10:
                    ends.server.pause_reading()
                    await asyncio.sleep(0.01)
                    before = len(ends.heard.heard)
                    await asyncio.sleep(0.01)
                    assert len(ends.heard.heard) == before, "a paused connection hands over nothing"
                    ends.server.resume_reading()
            await until(lambda: len(ends.heard.heard) == len(sent))
            assert [b"".join(encode(each)) for each in ends.heard.heard] == [
                b"".join(encode(each)) for each in sent
            ]
            ends.server.close("done")
            await until(lambda: bool(ends.said.reasons and ends.heard.reasons))
            assert ends.said.reasons == ["the peer closed the connection"]

    runner(story())


@pytest.mark.parametrize("wal_bytes", [300, 70_000])
def test_a_frame_is_one_system_call(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, wal_bytes: int
) -> None:
    """The safekeeper wakes up once for it, and not for its head before."""

    async def story() -> None:
        async with connected(files) as ends:
            wrote, write = list[int](), os.write

            def counted(descriptor: int, data: bytes) -> int:
                wrote.append(descriptor)
                return write(descriptor, data)

            monkeypatch.setattr(os, "write", counted)
            ends.client.send(append_of(wal_bytes))
            monkeypatch.undo()
            assert wrote == [ends.there.fileno()]
            await until(lambda: len(ends.heard.heard) == 1)

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
        assert "TLS" in str(await asyncio.wait_for(lost, LIMIT_S))
        there.close()
        await released(here)

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
        async with connected(files, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
            ends.client.pause_reading()
            if is_full:
                ends.server.send(append_of(1 << 20))
                assert ends.server.unsent_bytes
            os.write(ends.there.fileno(), b"garbage in place of a TLS record")
            for _ in range(1000):
                ends.server.send(append_of(100))
                if ends.heard.reasons:
                    break
                await asyncio.sleep(0.01)
            ends.server.send(append_of(100))
            assert ends.heard.reasons == ["TLS: wrong version number"] and ends.server.is_closed

    runner(story())


def test_a_write_that_tls_refuses_ends_the_connection(files: TlsFiles) -> None:
    async def story() -> None:
        async with connected(files) as ends:
            ends.server_layer.shut_down()  # OpenSSL takes no bytes after that
            for _ in range(3):
                ends.server.send(append_of(100))
            await until(lambda: bool(ends.heard.reasons and ends.said.reasons))
            assert ends.heard.reasons == ["TLS: protocol is shutdown"]

    uvloop.run(story())
