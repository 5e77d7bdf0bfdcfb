"""A connection to a safekeeper: plain, or over TLS if this process has a TLS file. asyncio.

    transport, protocol = await connect(address, protocol_factory)
    reader, writer = await open_streams(address)

Each daemon and command reaches safekeepers in this way (blocking ones: safekeeper_socket). With a
TLS file there is no way back to plain. The certificate must be of our CA, valid at the host that
was named, a safekeeper's, and not revoked. Each failure is an OSError with the reason. The time
limit is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, cast

from walkeeper_common.access.certificate_identity import safekeeper_of_certificate
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.shell.tls.credentials import ALPN, Credentials
from walkeeper_common.shell.tls.own_credentials import own_credentials
from walkeeper_common.shell.tls.tls_layer import TlsLayer
from walkeeper_common.shell.tls.tls_transport import TlsOpening, TlsTransport

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def connect(address: Address, factory: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    """Return the transport and its protocol once bytes may be sent to the safekeeper."""
    loop, credentials = asyncio.get_running_loop(), own_credentials()
    try:
        if credentials is None:
            return await loop.create_connection(factory, *address)
        checked: asyncio.Future[asyncio.Transport] = loop.create_future()
        protocol = factory()
        layer = TlsLayer(
            credentials.client_context(), server_side=False, server_hostname=address[0]
        )
        raw, _ = await loop.create_connection(
            lambda: TlsOpening(layer, _Unchecked(protocol, checked, credentials)), *address
        )
    except UnicodeError as error:  # an address from another safekeeper
        raise OSError(f"this cannot be a host's name: {error}") from error
    try:
        return await checked, protocol
    except BaseException:
        raw.abort()
        raise


async def open_streams(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return the two streams of a new connection, as asyncio.open_connection does."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, protocol = await connect(
        address, lambda: asyncio.StreamReaderProtocol(reader, loop=loop)
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class _Unchecked(asyncio.Protocol):
    """The protocol of a TLS connection until the safekeeper's certificate is checked."""

    def __init__(
        self,
        protocol: asyncio.BaseProtocol,
        checked: asyncio.Future[asyncio.Transport],
        credentials: Credentials,
    ) -> None:
        self._protocol, self._checked, self._credentials = protocol, checked, credentials

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(TlsTransport, transport)
        if self._checked.done():  # the caller waits no longer
            transport.abort()
            return
        try:
            if transport.layer.alpn != ALPN:
                raise Refused(f"it does not speak {ALPN} over TLS")
            self._credentials.admit(transport, self._checked.get_loop())
            transport.identity = safekeeper_of_certificate(transport.layer.peer_certificate or {})
        except Refused as error:
            self._checked.set_exception(ConnectionError(f"TLS: {error}"))
            transport.abort()
            return
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
        self._checked.set_result(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._checked.done():
            error = error or ConnectionError("TLS: the peer closed the connection")
            self._checked.set_exception(error)
