"""A connection of the one port, until its first bytes and its TLS show its protocol. A shell.

| first bytes        | meaning                                                                  |
|--------------------|--------------------------------------------------------------------------|
| PREFACE            | a proposer or a command, in plain                                        |
| 0                  | the length of a PostgreSQL client's startup packet, or its SSLRequest    |
| 0x16               | TLS at once; ALPN says which protocol follows, and ours needs TLS 1.3    |

A peer in plain is admitted only if `Port.admits_plain` says so. A peer over TLS has the identity of
its certificate. Without one it is admitted as in plain, or where passwords are taken, and only with
PostgreSQL's protocol. Its session then asks for the password. All bytes before the decision are
bounded, and it has one time limit.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from struct import Struct
from typing import Protocol, cast

from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import ANYBODY, NOBODY
from walkeeper_common.addresses import shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.postgres.pgwire import (
    GSSENC_REQUEST,
    SSL_REQUEST,
    SqlRefused,
    error_response,
)
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_common.shell.tls.credentials import ALPN, ALPN_POSTGRESQL
from walkeeper_common.shell.tls.revocation_lists import Revoked
from walkeeper_common.shell.tls.tls_layer import TlsLayer
from walkeeper_common.shell.tls.tls_transport import TlsTransport
from walkeeper_common.wire.framing import PREFACE, encode
from walkeeper_common.wire.messages import Reject, RejectCode

logger = logging.getLogger("walkeeper.server")

TLS_HANDSHAKE = 0x16
OUR_TLS = "TLSv1.3"
ENCRYPTION_REQUEST = Struct("!II")  # its length, 8, and a code
GSS_REQUESTS_MAX = 2
NEEDS_TLS = "this safekeeper admits peers with a certificate only"
CLIENT_NEEDS_TLS = f"{NEEDS_TLS}: use sslmode=verify-full with sslcert and sslkey"
PASSWORD_NEEDS_TLS = (
    "this safekeeper takes passwords over TLS only: use sslmode=verify-full with sslrootcert"
)


class Port(Protocol):
    """The opening's view of its server."""

    @property
    def opening_s(self) -> float:
        """The time limit until a peer has said what it is."""
        ...

    def takes(self, opening: Opening, /) -> bool: ...
    def left(self, opening: Opening, /) -> None: ...

    def admits_plain(self, transport: asyncio.BaseTransport, /) -> bool:
        """Return whether this peer needs no certificate."""
        ...

    @property
    def takes_passwords(self) -> bool:
        """Return whether a client of PostgreSQL without a certificate has to prove a password."""
        ...

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the context for a new connection, or None without a TLS file."""
        ...

    def check_revoked(self, transport: TlsTransport, /) -> None:
        """Raise Revoked if the peer's certificate is revoked, and end the connection once it is."""
        ...

    def start_proposer(self, transport: asyncio.Transport, received: bytes, /) -> None: ...
    def start_session(self, transport: asyncio.Transport, received: bytes, /) -> None: ...
    def note_refusal(self, reason: str, address: str, text: str, /) -> None: ...


class Opening(asyncio.Protocol):
    """One connection; the port's table holds it until it is decided."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._gss_requests = 0
        self._is_decided = False

    def __str__(self) -> str:
        return peer_name(self._transport)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the time limit for the first bytes."""
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport = transport
        if not self._port.takes(self):
            text = "refused %s: the safekeeper stops"
            logger.warning(text, peer_name(transport), extra=alike("stops"))
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._port.opening_s, self._on_silence)

    def data_received(self, data: bytes) -> None:
        """Decide in plain, start TLS, or wait for more."""
        transport = self._transport
        assert transport is not None
        self._received += data
        while self._received:
            received = self._received
            if received[0] == TLS_HANDSHAKE:
                self._start_tls(transport, received, is_direct=True)
            elif received[0] == 0 and self._is_encryption_next():
                if len(received) < ENCRYPTION_REQUEST.size:
                    return
                if self._is_answered(transport, received):
                    continue
            else:
                self._admit(transport, received, is_admitted=self._port.admits_plain(transport))
            return

    def _is_encryption_next(self) -> bool:
        """Return whether a request for encryption is this protocol's matter, not the session's."""
        transport = self._transport
        assert transport is not None
        return self._port.tls_context() is not None or not self._port.admits_plain(transport)

    def _is_answered(self, transport: asyncio.Transport, received: bytes) -> bool:
        """Answer a request for encryption; return True if the next packet is to be looked at."""
        length, code = ENCRYPTION_REQUEST.unpack_from(received)
        rest = received[ENCRYPTION_REQUEST.size :]
        is_request = length == ENCRYPTION_REQUEST.size
        if is_request and code == GSSENC_REQUEST and self._gss_requests < GSS_REQUESTS_MAX:
            self._gss_requests += 1
            self._received = rest
            transport.write(b"N")
            return True
        if is_request and code == SSL_REQUEST and self._port.tls_context() is not None:
            if rest:  # a stranger on the path may have added them: CVE-2021-23214
                self._refuse(transport, "08P01", "received unencrypted data after SSL request")
            else:
                transport.write(b"S")
                self._start_tls(transport, b"", is_direct=False)
            return False
        self._admit(transport, received, is_admitted=self._port.admits_plain(transport))
        return False

    # Over TLS

    def _start_tls(self, transport: asyncio.Transport, received: bytes, *, is_direct: bool) -> None:
        context = self._port.tls_context()
        if context is None:
            self._leave()
            logger.warning(
                "closed %s: it starts TLS at once, and this safekeeper has no TLS file: add --tls, "
                "or connect without TLS (a client of PostgreSQL with sslmode=disable)",
                peer_name(transport),
                extra=alike("starts TLS"),
            )
            transport.close()
            return
        self._received = b""
        layer = TlsLayer(context, server_side=True)
        TlsTransport(transport, layer, _Encrypted(self, is_direct=is_direct)).start(received)

    def decide_encrypted(
        self, transport: TlsTransport, data: bytes, refusal: Refused | None, *, is_direct: bool
    ) -> None:
        """Decide with decrypted bytes, or wait for more; refuse the peer if it has a `refusal`."""
        self._received += data
        received, alpn = self._received, transport.layer.alpn
        version = transport.layer.object.version()
        is_ours = alpn == ALPN and is_direct and version == OUR_TLS
        is_postgres = alpn == ALPN_POSTGRESQL or (alpn is None and not is_direct)
        if not (is_ours or is_postgres):
            self._leave()
            text = f"it started {version} {'at once ' * is_direct}with the protocol {alpn}"
            self._note("protocol", text)
            transport.close()
            return
        if is_ours and len(received) < len(PREFACE) and PREFACE.startswith(received):
            return
        is_right = received.startswith(PREFACE) if is_ours else received[0] == 0
        if not is_right:
            self._leave()
            self._refuse_garbage(transport, received)
            return
        is_admitted = transport.identity is not NOBODY
        if not is_admitted and refusal is None:
            takes_passwords = self._port.takes_passwords
            is_admitted = is_postgres and (takes_passwords or self._port.admits_plain(transport))
            transport.identity = ANYBODY if is_admitted and not takes_passwords else NOBODY
        self._admit(transport, received, is_admitted=is_admitted, refusal=refusal)

    def on_tls_lost(self, error: Exception | None) -> None:
        """Note a handshake that failed, mostly for want of a certificate that is trusted."""
        if error is not None and not self._is_decided:
            self._note("tls", str(error))
        self._leave()

    def check_revoked(self, transport: TlsTransport) -> None:
        """Raise Revoked if the peer's certificate is revoked."""
        self._port.check_revoked(transport)

    def is_encrypted(self, transport: TlsTransport) -> None:
        """Go on with the encrypted side."""
        self._transport = transport

    # The decision

    def _admit(
        self,
        transport: asyncio.Transport,
        received: bytes,
        *,
        is_admitted: bool,
        refusal: Refused | None = None,
    ) -> None:
        """Hand the connection over, refuse it, or wait for more of a preface."""
        reason = "revoked" if isinstance(refusal, Revoked) else "certificate"
        if received.startswith(PREFACE):
            self._leave()
            if is_admitted:
                self._port.start_proposer(transport, received)
                return
            text = str(refusal or f"{NEEDS_TLS}: add --tls FILE")
            self._note(reason, text)
            refuse_proposer(transport, text)
        elif received[0] == 0:
            # StreamReader takes the rest; the session checks the length.
            self._leave()
            if is_admitted:
                self._port.start_session(transport, received)
                return
            needs = PASSWORD_NEEDS_TLS if self._port.takes_passwords else CLIENT_NEEDS_TLS
            text = str(refusal or needs)
            self._note(reason, text)
            refuse(transport, "28000", text)
        elif not PREFACE.startswith(received):
            self._leave()
            self._refuse_garbage(transport, received)

    def _refuse_garbage(self, transport: asyncio.Transport, received: bytes) -> None:
        if received.startswith(PREFACE[:-1]):
            said = f"a proposer that speaks protocol {received[7]}, not {PREFACE[7]}"
        else:
            said = f"neither a proposer nor a PostgreSQL client; it began with {received[:16]!r}"
        self._note("protocol", said)
        refuse(transport, "08P01", f"this is a walkeeper safekeeper, and you are {said}")

    def _refuse(self, transport: asyncio.Transport, sqlstate: str, text: str) -> None:
        self._leave()
        self._note("protocol", text)
        refuse(transport, sqlstate, text)

    def _note(self, reason: str, text: str) -> None:
        self._port.note_refusal(reason, peer_name(self._transport), text)

    def eof_received(self) -> None:
        """Log a peer that left without a byte, mostly a port check."""
        logger.debug("%s closed after %r", peer_name(self._transport), self._received)

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget the connection, if it is still undecided."""
        self._leave()

    def close(self) -> None:
        """Abort the connection without an answer."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _on_silence(self) -> None:
        text = "closed %s: it did not say what it is"
        logger.info(text, peer_name(self._transport), extra=alike("did not say"))
        self.close()

    def _leave(self) -> None:
        self._is_decided = True
        self._port.left(self)
        if self._timer is not None:
            self._timer.cancel()


class _Encrypted(asyncio.Protocol):
    """The protocol of a TLS connection until it is decided."""

    def __init__(self, opening: Opening, *, is_direct: bool) -> None:
        self._opening, self._is_direct = opening, is_direct
        self._transport: TlsTransport | None = None
        self._refusal: Refused | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the identity from the certificate, which TLS has verified."""
        transport = cast(TlsTransport, transport)
        self._transport = transport
        self._opening.is_encrypted(transport)
        certificate = transport.layer.peer_certificate
        if certificate is not None:
            try:
                self._opening.check_revoked(transport)
                transport.identity = identity_of_certificate(certificate)
            except Refused as error:
                self._refusal = error

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._opening.decide_encrypted(
            self._transport, data, self._refusal, is_direct=self._is_direct
        )

    def connection_lost(self, error: Exception | None) -> None:
        self._opening.on_tls_lost(error)


def refuse(transport: asyncio.Transport, sqlstate: str, message: str) -> None:
    """Send an error and close; a PostgreSQL client shows the text, and others can read it."""
    transport.write(error_response(SqlRefused(sqlstate, message), "FATAL"))
    transport.close()


def refuse_proposer(transport: asyncio.Transport, text: str) -> None:
    """Refuse a connection; a retry, as proposers and commands make, may succeed."""
    logger.warning("refused %s: %s", peer_name(transport), text, extra=alike("refused"))
    transport.writelines(encode(Reject(RejectCode.REFUSED, text, NO_BALLOT)))
    transport.close()


def peer_name(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("peername") if transport is not None else None
    return shown_address(name[:2]) if isinstance(name, tuple) else "(gone)"


def host_of(transport: asyncio.BaseTransport) -> str:
    """Return the peer's address without its port, or "" if the peer has gone."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) else ""
