"""The compiled fast path over TLS: the bytes of the plain one, in few records, or a closed link."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

import pytest
import uvloop

from tests.common.test_tls_layer import records_of
from tests.proposer.test_fast_stream import Leading
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import frames_of
from tests.support.scenario_words import CREATION_LSN
from tests.support.tls_ends import SMALL_BUFFER_BYTES, Hears, connected, files
from tests.support.waiting import until
from tests.tls_files import TlsFiles
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links.framed_connection import FramedConnection
from walkeeper_common.shell.tls.tls_layer import RECORD_BYTES_MAX
from walkeeper_common.wire.framing import encode
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_fastpath.ports import FastStream
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.consensus.expected_stream import expected_stream

pytestmark = NEEDS_FAST_PATH


__all__ = ["files"]


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


def frames(owner: Hears) -> Sequence[bytes]:
    return [b"".join(encode(message)) for message in owner.heard]


def test_wal_arrives_whole_and_in_order_however_little_the_socket_takes(files: TlsFiles) -> None:
    async def story() -> None:
        random = Random(7)
        async with connected(files, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
            streaming = Streaming(ends.client)
            for number in range(60):
                if number % 20 == 10:
                    ends.server.pause_reading()
                if number % 20 == 15:
                    assert ends.client.unsent_bytes, "the socket is full"
                    ends.server.resume_reading()
                size = random.choice((1, 500, RECORD_BYTES_MAX - 73, RECORD_BYTES_MAX, 100_000))
                streaming.send(random.randbytes(size))
                if number % 4 == 0:
                    await asyncio.sleep(0)
            await until(lambda: len(ends.heard.heard) == 60)
            assert frames(ends.heard) == streaming.sent

    uvloop.run(story())


@pytest.mark.parametrize(
    ("wal_bytes", "records"), [(500, 1), (RECORD_BYTES_MAX - 73, 1), (RECORD_BYTES_MAX - 72, 2)]
)
def test_an_append_is_one_record_if_it_fits(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch, wal_bytes: int, records: int
) -> None:
    async def story() -> None:
        async with connected(files, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
            taken, sealed = list[bytes](), ends.client.sealed()
            assert sealed is not None

            def take() -> bytes:
                taken.append(ends.client_layer.take())
                return taken[-1]

            monkeypatch.setattr(sealed, "take", take)
            streaming = Streaming(ends.client)
            streaming.send(bytes(wal_bytes))
            assert [len(records_of(data)) for data in taken] == [records]
            await until(lambda: len(ends.heard.heard) == 1)
            assert frames(ends.heard) == streaming.sent

    uvloop.run(story())


def test_an_append_that_tls_refuses_closes_the_link_and_raises_nothing(files: TlsFiles) -> None:
    async def story() -> None:
        async with connected(files, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
            streaming = Streaming(ends.client)
            ends.client_layer.shut_down()  # OpenSSL takes no bytes after that
            for _ in range(3):
                streaming.send(b"wal" * 100)
            await until(lambda: bool(ends.said.reasons))
            assert ends.said.reasons == ["TLS: protocol is shutdown"] and not ends.heard.heard

    uvloop.run(story())


def test_nothing_is_written_to_a_link_that_is_closing(files: TlsFiles) -> None:
    async def story() -> None:
        async with connected(files, buffer_bytes=SMALL_BUFFER_BYTES) as ends:
            streaming = Streaming(ends.client)
            ends.client.close("done")
            streaming.send(b"wal" * 100)
            assert not ends.client_layer.take()
            await until(lambda: bool(ends.said.reasons and ends.heard.reasons))
            assert not ends.heard.heard

    uvloop.run(story())
