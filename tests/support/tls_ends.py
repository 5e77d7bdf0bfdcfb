"""Two framed connections over TLS and a socket pair: a proposer's end and a safekeeper's.

async with connected(files) as ends:
    ends.client.send(message)
    await until(lambda: ends.heard.heard)
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from tests.support.silent_owner import Silent
from tests.support.waiting import until
from tests.tls_files import TlsFiles
from walkeeper_common.shell.safekeeper_links.framed_connection import (
    FramedConnection,
    MakeFeed,
    Owner,
)
from walkeeper_common.shell.tls.tls_layer import TlsLayer
from walkeeper_common.shell.tls.tls_transport import TlsOpening
from walkeeper_common.wire.framing import Message

SMALL_BUFFER_BYTES = 8192


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


def pair(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1"
) -> tuple[TlsLayer, TlsLayer]:
    """Return the server's and the client's side, before the handshake."""
    return (
        TlsLayer(server, server_side=True),
        TlsLayer(client, server_side=False, server_hostname=host),
    )


class Hears(Silent):
    """The owner of a connection; it keeps what arrived, and why the connection ended."""

    def __init__(self) -> None:
        self.heard, self.reasons = list[Message](), list[str]()

    def on_message(self, message: Message) -> None:
        self.heard.append(message)

    def on_closed(self, reason: str) -> None:
        self.reasons.append(reason)


@dataclass(frozen=True)
class Ends:
    """Both ends, open: `heard` is what the server received, `said` what the client did."""

    server: FramedConnection
    client: FramedConnection
    server_layer: TlsLayer
    client_layer: TlsLayer
    there: socket.socket
    """The client's socket."""
    heard: Hears
    said: Hears


@asynccontextmanager
async def connected(
    files: TlsFiles, *, buffer_bytes: int | None = None, first_bytes: int = 0
) -> AsyncIterator[Ends]:
    """Connect a safekeeper, the server, and a proposer, the client, by a pair of sockets.

    With `buffer_bytes` a socket takes little at once. The server gets `first_bytes` of the
    client's handshake before it has a layer.
    """
    here, there = socket.socketpair()
    for end in (here, there):
        end.setblocking(False)
        if buffer_bytes is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    server_layer, client_layer = pair(
        files.safekeeper(1).server_context(), files.proposer().client_context()
    )
    heard, said = Hears(), Hears()
    client = await encrypted(there, client_layer, said)
    first = here.recv(first_bytes) if first_bytes else b""  # sent at once
    server = await encrypted(here, server_layer, heard, first)
    await until(lambda: not client.is_closed and not server.is_closed)
    try:
        yield Ends(server, client, server_layer, client_layer, there, heard, said)
    finally:
        client.abort("done")
        server.abort("done")
        await released(here, there)


async def released(*ends: socket.socket) -> None:
    """Wait until the transports of these sockets have closed them."""
    await until(lambda: all(end.fileno() < 0 for end in ends))


async def encrypted(
    end: socket.socket,
    layer: TlsLayer,
    owner: Owner,
    received: bytes = b"",
    make_feed: MakeFeed | None = None,
) -> FramedConnection:
    """Begin the handshake on one end, which is open when its connection says so."""
    loop = asyncio.get_running_loop()
    connection = FramedConnection(lambda _: owner, make_feed=make_feed)
    await loop.create_connection(lambda: TlsOpening(layer, connection, received), sock=end)
    return connection
