"""New keys of TLS cost the server more than the client: a peer without data gets few of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from random import Random

import pytest

from tests.safekeeper.test_opening import LOGIN
from tests.support.key_updates import KeyUpdater
from tests.support.served_port import Served, with_port
from tests.support.waiting import LIMIT_S, until
from tests.tls_files import TlsFiles
from walkeeper_common.access.identity import Role
from walkeeper_common.postgres.pgwire import startup_packet
from walkeeper_common.shell.tls.credentials import ALPN, ALPN_POSTGRESQL
from walkeeper_common.shell.tls.tls_transport import OVERHEAD_BYTES_MAX
from walkeeper_common.wire.framing import PREFACE
from walkeeper_safekeeper.server import PlainPeers

UPDATE_BYTES = 27
HANDSHAKE_BYTES = 1 << 18


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@contextlib.asynccontextmanager
async def established(
    served: Served, alpn: str = ALPN_POSTGRESQL
) -> AsyncIterator[tuple[KeyUpdater, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a client behind its handshake, which has not said who it is."""
    client = KeyUpdater(alpn)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        while not client.is_established:
            writer.write(client.take())
            client.hear(await reader.read(1 << 16))
        writer.write(client.take())
        yield client, reader, writer
    finally:
        writer.close()
        client.close()


def test_a_peer_that_only_changes_keys_is_closed(files: TlsFiles) -> None:
    """An update costs 16 microseconds here, and its answer waits for a peer that reads nothing."""

    async def story(served: Served) -> None:
        async with established(served) as (client, _, writer):
            client.update_keys(2 * OVERHEAD_BYTES_MAX // UPDATE_BYTES)
            writer.write(client.take())
            await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
            assert "20 KiB without data" in served.lines[-1]

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def test_a_byte_of_data_buys_few_new_keys(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        async with established(served, ALPN) as (client, _, writer):
            for byte in PREFACE[:-1]:
                client.write(bytes([byte]))
                client.update_keys(OVERHEAD_BYTES_MAX // UPDATE_BYTES // 4)
            writer.write(client.take())
            await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def test_a_client_may_change_its_keys(files: TlsFiles) -> None:
    async def story(served: Served) -> None:
        async with established(served) as (client, reader, writer):
            client.update_keys(100)
            client.write(startup_packet(LOGIN))
            client.update_keys(100)
            writer.write(client.take())
            answered_bytes = 0
            while answered_bytes < 200 * UPDATE_BYTES:
                answered_bytes += len(await reader.read(1 << 16))
            assert not served.audit.refusals

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def test_a_handshake_that_never_ends_is_closed(files: TlsFiles) -> None:
    """OpenSSL skips changes of cipher, which middleboxes once wanted to see."""

    async def story(served: Served) -> None:
        client = KeyUpdater(ALPN_POSTGRESQL)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(client.take())
        await reader.read(1 << 16)
        skipped = bytes.fromhex("140303000101")
        with contextlib.suppress(ConnectionError):
            for _ in range(HANDSHAKE_BYTES // len(skipped) // 100):
                writer.write(skipped * 100)
                await writer.drain()
        await until(lambda: served.audit.refusals["tls"] == 1, LIMIT_S)
        writer.close()
        client.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def test_random_bytes_never_hold_a_handshake_open(files: TlsFiles) -> None:
    random = Random(33)

    async def story(served: Served) -> None:
        for number in range(1, 20):
            _, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(b"\x16\x03\x01\x3f\xff" + random.randbytes(1 << 14))
            await until(partial(_are_refused, served, number), LIMIT_S)
            writer.close()

    with_port(story, files.path(Role.SAFEKEEPER, "1"), plain=PlainPeers())


def _are_refused(served: Served, times: int) -> bool:
    return served.audit.refusals["tls"] == times
