"""The compiled fast path over TLS: the bytes of the plain one, in few records, or a closed link."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import uvloop

from tests.common.test_tls_layer import pair, records_of
from tests.common.test_tls_transport import Hears, encrypted
from tests.proposer.test_fast_stream import Leading
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import frames_of
from tests.support.scenario_words import CREATION_LSN
from tests.support.waiting import until
from tests.tls_files import TlsFiles
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.framed_connection import FramedConnection
from walkeeper_common.shell.tls_layer import RECORD_BYTES_MAX, TlsLayer
from walkeeper_common.wire.framing import encode
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_fastpath.ports import FastStream
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.consensus.expected_stream import expected_stream

pytestmark = NEEDS_FAST_PATH


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


class Streaming:
    """A leader's fast path, of which the first link is a connection over TLS."""

    def __init__(self, link: FramedConnection) -> None:
        leading, make = Leading(), stream_path()
        expected = expected_stream(leading.core)
        assert expected is not None and make is not None
        self._around = leading.around
        self.path: FastStream = make(expected, [link, *map(leading.around.answer, (1, 2))])
        self.sent = list[bytes]()
        self._end_lsn = CREATION_LSN

    def send(self, wal: bytes) -> None:
        """Send WAL; another link has the same frame in plain."""
        assert self.path.send(self._end_lsn, memoryview(wal))
        self._end_lsn = Lsn(self._end_lsn + len(wal))
        said = self._around.said[-1]
        assert isinstance(said, tuple) and isinstance(said[1], AppendRequest)
        self.sent.append(bytes(frames_of(said[1])))


@asynccontextmanager
async def linked(
    files: TlsFiles,
) -> AsyncIterator[tuple[FramedConnection, Hears, FramedConnection, Hears, TlsLayer]]:
    """Connect a proposer and a safekeeper over TLS, by sockets that take little at once."""
    here, there = socket.socketpair()
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        end.setblocking(False)
    server_layer, client_layer = pair(
        files.safekeeper(1).server_context(), files.proposer().client_context()
    )
    heard, said = Hears(), Hears()
    safekeeper = await encrypted(here, server_layer, heard)
    link = await encrypted(there, client_layer, said)
    await until(lambda: not link.is_closed and not safekeeper.is_closed, 20)
    try:
        yield link, said, safekeeper, heard, client_layer
    finally:
        link.abort("done")
        safekeeper.abort("done")
        await asyncio.sleep(0.01)  # the transports let go of their sockets
        for end in (here, there):
            end.close()


def frames(heard: Hears) -> Sequence[bytes]:
    return [b"".join(encode(message)) for message in heard.heard]


def test_wal_arrives_whole_and_in_order_however_little_the_socket_takes(files: TlsFiles) -> None:
    async def story() -> None:
        random = Random(7)
        async with linked(files) as (link, _said, safekeeper, heard, _layer):
            streaming = Streaming(link)
            for number in range(60):
                if number % 20 == 10:
                    safekeeper.pause_reading()
                if number % 20 == 15:
                    assert link.unsent_bytes, "the socket is full"
                    safekeeper.resume_reading()
                size = random.choice((1, 500, RECORD_BYTES_MAX - 73, RECORD_BYTES_MAX, 100_000))
                streaming.send(random.randbytes(size))
                if number % 4 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(heard.heard) == 60, 30)
            assert frames(heard) == streaming.sent

    uvloop.run(story())


@pytest.mark.parametrize(
    ("wal_bytes", "records"), [(500, 1), (RECORD_BYTES_MAX - 73, 1), (RECORD_BYTES_MAX - 72, 2)]
)
def test_an_append_is_one_record_if_it_fits(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, wal_bytes: int, records: int
) -> None:
    async def story() -> None:
        async with linked(files) as (link, _said, _safekeeper, heard, layer):
            taken, sealed = list[bytes](), link.sealed()
            assert sealed is not None

            def take() -> bytes:
                taken.append(layer.take())
                return taken[-1]

            monkeypatch.setattr(sealed, "take", take)
            streaming = Streaming(link)
            streaming.send(bytes(wal_bytes))
            assert [len(records_of(data)) for data in taken] == [records]
            await until(lambda: len(heard.heard) == 1, 20)
            assert frames(heard) == streaming.sent

    uvloop.run(story())


def test_an_append_that_tls_refuses_closes_the_link_and_raises_nothing(files: TlsFiles) -> None:
    async def story() -> None:
        async with linked(files) as (link, said, _safekeeper, heard, layer):
            streaming = Streaming(link)
            layer.shut_down()  # OpenSSL takes no bytes after that
            for _ in range(3):
                streaming.send(b"wal" * 100)
            await until(lambda: bool(said.reasons), 20)
            assert said.reasons == ["TLS: protocol is shutdown"] and not heard.heard

    uvloop.run(story())


def test_nothing_is_written_to_a_link_that_is_closing(files: TlsFiles) -> None:
    async def story() -> None:
        async with linked(files) as (link, said, _safekeeper, heard, layer):
            streaming = Streaming(link)
            link.close("done")
            streaming.send(b"wal" * 100)
            assert not layer.take()
            await until(lambda: bool(said.reasons and heard.reasons), 20)
            assert not heard.heard

    uvloop.run(story())
