"""TLS under --http: connections between their first byte and the end of their handshake. A shell.

A handshake that is not complete in time is ended, and at most `arrivals_max` are at work. So a
client that stays silent costs no descriptor that the daemon's files need.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import cast

from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import NOBODY, Identity
from walkeeper_common.errors import Refused
from walkeeper_common.shell.tls.own_credentials import own_credentials
from walkeeper_common.shell.tls.tls_layer import TlsLayer
from walkeeper_common.shell.tls.tls_transport import TlsOpening, TlsTransport


class HttpsArrivals:
    """The handshakes of one port. Each connection gets the `context` that is valid at its start."""

    def __init__(
        self, context: Callable[[], ssl.SSLContext], *, arrivals_max: int, limit_s: float
    ) -> None:
        self._context, self._arrivals_max, self._limit_s = context, arrivals_max, limit_s
        self._open: dict[_Arrival, None] = {}  # the oldest first

    def arrive(self, connection: asyncio.Protocol) -> asyncio.Protocol:
        """Return the protocol of a new socket; `connection` has it after the handshake."""
        return _Arrival(self, TlsLayer(self._context(), server_side=True), connection)

    def began(self, arrival: _Arrival) -> None:
        """Give the handshake its time, and end the oldest one if there are too many."""
        self._open = {each: None for each in self._open if not each.is_over}
        if len(self._open) >= self._arrivals_max:
            next(iter(self._open)).end()
        self._open[arrival] = None
        asyncio.get_running_loop().call_later(self._limit_s, arrival.end)


class _Arrival(TlsOpening):
    def __init__(
        self, arrivals: HttpsArrivals, layer: TlsLayer, connection: asyncio.Protocol
    ) -> None:
        super().__init__(layer, connection)
        self._arrivals, self._handshake = arrivals, layer
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._arrivals.began(self)
        super().connection_made(transport)

    @property
    def is_over(self) -> bool:
        assert self._raw is not None
        return self._handshake.is_established or self._raw.is_closing()

    def end(self) -> None:
        """End the connection if its handshake is not complete."""
        if not self.is_over:
            assert self._raw is not None
            self._raw.abort()


def certified_identity(transport: asyncio.BaseTransport | None) -> Identity:
    """Return the identity that a connection's valid certificate states, or NOBODY.

    Each request of a connection asks again, so a list of revoked ones counts from the next one on.
    """
    credentials = own_credentials()
    if not isinstance(transport, TlsTransport) or credentials is None:
        return NOBODY
    certificate = transport.layer.peer_certificate
    try:
        credentials.check(certificate or {})
        return NOBODY if certificate is None else identity_of_certificate(certificate)
    except Refused:
        return NOBODY
