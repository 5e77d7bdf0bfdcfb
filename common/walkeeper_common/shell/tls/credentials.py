"""The TLS file of a daemon or command: its key, its certificate and the CAs that it trusts.

One PEM file has all three: the private key, the leaf, then every CA. `walkeeper certs` writes it.
libpq takes the same file as sslcert, sslkey and sslrootcert. During a change of CA it has the old
and the new one. It may have lists of revoked certificates after them (`revocation_lists`).

Each new connection looks at the file and loads a newer one (`reloaded_file`), so a renewal needs no
restart. Open connections keep the certificate with which they began. A connection whose peer is in
a list ends once the file is loaded.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from walkeeper_common.access.certificate_identity import identity_of_certificate
from walkeeper_common.access.identity import Identity
from walkeeper_common.errors import Refused
from walkeeper_common.shell.files.reloaded_file import ReloadedFile
from walkeeper_common.shell.tls.revocation_lists import (
    ListEnd,
    Name,
    RevocationLists,
    Revoked,
    parse_lists,
)

if TYPE_CHECKING:
    import asyncio

    from cryptography.x509 import Certificate, CertificateRevocationList

    from walkeeper_common.shell.tls.tls_transport import TlsTransport

logger = logging.getLogger("walkeeper.tls")

ALPN: Final = "walkeeper/1"
ALPN_POSTGRESQL: Final = "postgresql"
WARN_BEFORE_S: Final = 14 * 86400


class ServerContext(ssl.SSLContext):
    """A safekeeper's context, with the hash of its certificate for tls-server-end-point.

    A connection keeps its context over a reload, and so the hash of what it was served. The hash
    is None for a certificate whose signature defines none, as Ed25519.
    """

    end_point: bytes | None = None


class _CheckedSocket(ssl.SSLSocket):
    """A socket for libraries that use a context as it is: its handshake refuses revoked peers."""

    context: _WebContext

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        try:
            self.context.lists.check(self.getpeercert() or {})
        except Revoked as error:
            raise ConnectionError(f"TLS: {error}") from error


class _WebContext(ssl.SSLContext):
    """The context of this process as a client of another one's --http."""

    lists = RevocationLists()
    sslsocket_class = _CheckedSocket


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One version of the file: a context for each kind of peer, its end, and its lists."""

    server: ServerContext
    client: ssl.SSLContext
    reader: ssl.SSLContext
    https: ssl.SSLContext
    web: ssl.SSLContext
    end_s: float
    lists: RevocationLists


@dataclass(frozen=True, slots=True)
class TrustedAuthority:
    """A CA of the file; `is_own` if it has signed the file's own certificate."""

    name: str
    end_s: float
    is_own: bool


class Credentials:
    """One TLS file; raises Refused at once if it cannot be used."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = ReloadedFile(path, _load, what="TLS file", option="--tls", secret="private key")
        self.file.on_change(self._end_revoked)
        self.on_revoked: Callable[[TlsTransport, str], None] = lambda _transport, _why: None
        # Commands look at the file from threads, which may not touch a connection of the loop.
        self._admitted: WeakKeyDictionary[TlsTransport, asyncio.AbstractEventLoop]
        self._admitted = WeakKeyDictionary()

    def server_context(self) -> ServerContext:
        """Return the context for new connections of clients, from the file as it is now."""
        return self.file.current().server

    def client_context(self) -> ssl.SSLContext:
        """Return the context for new connections to safekeepers, from the file as it is now."""
        return self.file.current().client

    def reader_context(self) -> ssl.SSLContext:
        """Return the context for a safekeeper's PostgreSQL side, from the file as it is now."""
        return self.file.current().reader

    def own_identity(self) -> Identity:
        """Return the identity that the file's certificate states; raise Refused if it has none."""
        from cryptography import x509

        try:
            names = _leaf(self.path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return identity_of_certificate({})
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        return identity_of_certificate({"subjectAltName": [("URI", uri) for uri in uris]})

    def https_context(self) -> ssl.SSLContext:
        """Return the context for new connections to --http, from the file as it is now."""
        return self.file.current().https

    def web_context(self) -> ssl.SSLContext:
        """Return the context for connections to the --http of a daemon, which its host names."""
        return self.file.current().web

    def check(self, certificate: Mapping[str, Any]) -> None:
        """Raise Revoked for a verified certificate that a list of the file has now."""
        self.file.current().lists.check(certificate)

    def admit(self, transport: TlsTransport, loop: asyncio.AbstractEventLoop) -> None:
        """Check the peer's certificate now and each time that the file changes; raise Revoked.

        A connection whose peer is revoked later is noted with `on_revoked`, and dismissed.
        """
        self.check(transport.layer.peer_certificate or {})
        self._admitted[transport] = loop

    def _end_revoked(self) -> None:
        for transport, loop in list(self._admitted.items()):
            with suppress(RuntimeError):  # the loop has closed, and its connections with it
                loop.call_soon_threadsafe(self._end_if_revoked, transport)

    def _end_if_revoked(self, transport: TlsTransport) -> None:
        try:
            self.file.loaded.lists.check(transport.layer.peer_certificate or {})
        except Revoked as error:
            if not transport.is_closing():
                self.on_revoked(transport, str(error))
                transport.dismiss(str(error))

    @property
    def end_s(self) -> float:
        """The end of the validity of the certificate in use, in Unix time."""
        return self.file.loaded.end_s

    def authorities(self) -> list[TrustedAuthority]:
        """Return the CAs that the file trusts."""
        leaf, *others = _certificates(self.path)
        return [
            TrustedAuthority(
                each.subject.rfc4514_string(),
                each.not_valid_after_utc.timestamp(),
                _has_signed(each, leaf),
            )
            for each in others
        ]

    @property
    def list_ends(self) -> tuple[ListEnd, ...]:
        """The times until which the lists of revoked certificates hold."""
        return self.file.loaded.lists.ends

    def has_list_of_each_authority(self) -> bool:
        """Return True if libpq can take the file as sslcrl; otherwise it would refuse all peers."""
        ends = self.list_ends
        has_ended = any(each.end_s <= time.time() for each in ends)
        return len(ends) == len(self.authorities()) and not has_ended

    def warn_of_end(self) -> None:
        """Warn if the certificate in use ends soon, or a list of revoked ones has ended."""
        _warn_of_end(self.path, self.end_s)
        _warn_of_old_lists(self.path, self.list_ends)


def _load(path: str) -> _Loaded:
    found_lists = _found_lists(path)
    server = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    reader = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    https = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    web = _WebContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client, reader, https, web):
        try:
            context.load_cert_chain(path)
            context.load_verify_locations(path)
        except OSError as error:  # ssl.SSLError is one
            reason = getattr(error, "reason", None) or error.strerror or error
            raise Refused(
                f"the TLS file {path} is not usable: {reason}; it must have a private key, its "
                "certificate and the CA: make it with walkeeper certs"
            ) from error
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # A leaf in the file is no anchor of trust: newer versions of Python would make it one.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_PARTIAL_CHAIN", 0)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    server.num_tickets = 0
    server.minimum_version = ssl.TLSVersion.TLSv1_2  # older clients of PostgreSQL
    server.verify_mode = ssl.CERT_OPTIONAL
    server.set_alpn_protocols([ALPN, ALPN_POSTGRESQL])
    https.minimum_version = ssl.TLSVersion.TLSv1_2
    https.verify_mode = ssl.CERT_OPTIONAL
    https.set_alpn_protocols(["http/1.1"])
    web.set_alpn_protocols(["http/1.1"])
    client.set_alpn_protocols([ALPN])
    reader.set_alpn_protocols([ALPN_POSTGRESQL])
    leaf = _leaf(path)
    server.end_point = _end_point(leaf)
    end_s = leaf.not_valid_after_utc.timestamp()
    lists = web.lists = _lists(path, found_lists, client)
    _warn_of_end(path, end_s)
    _warn_of_old_lists(path, lists.ends)
    return _Loaded(server, client, reader, https, web, end_s, lists)


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Refused(f"the TLS file {path} is not usable: {error}") from error


def _found_lists(path: str) -> list[CertificateRevocationList]:
    """Return the lists of the file. OpenSSL would give a worse reason for a damaged one."""
    with open(path, "rb") as file, _naming(path):
        return list(parse_lists(file.read()))


def _lists(
    path: str, found: Sequence[CertificateRevocationList], context: ssl.SSLContext
) -> RevocationLists:
    """Return the lists, whose issuers have names as this context's CAs."""
    from cryptography.x509 import load_der_x509_certificate

    authorities = [load_der_x509_certificate(der) for der in context.get_ca_certs(True)]
    names = [cast(Name, each["subject"]) for each in context.get_ca_certs()]
    with _naming(path):
        return RevocationLists.of(found, authorities, names)


def _warn_of_old_lists(path: str, ends: Sequence[ListEnd]) -> None:
    for each in ends:
        if each.end_s <= time.time():
            logger.warning(
                "the list of revoked certificates of %s in %s ended at %s: it stays in force, and "
                "certificates that were revoked since still come in; put a newer list there",
                each.authority,
                path,
                time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(each.end_s)),
            )


def _warn_of_end(path: str, end_s: float) -> None:
    if end_s - time.time() < WARN_BEFORE_S:
        shown = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end_s))
        logger.warning("the certificate in %s ends at %s: run walkeeper certs renew", path, shown)


def _leaf(path: str) -> Certificate:
    return _certificates(path)[0]


def _certificates(path: str) -> list[Certificate]:
    """Return the certificates of a file that OpenSSL has accepted, the own one first."""
    from cryptography.x509 import load_pem_x509_certificates  # 50 ms, for TLS alone

    with open(path, "rb") as file:
        return load_pem_x509_certificates(file.read())


def _end_point(leaf: Certificate) -> bytes | None:
    """Return the certificate's hash by RFC 5929, which replaces MD5 and SHA-1 by SHA-256."""
    from cryptography.hazmat.primitives.hashes import MD5, SHA1, SHA256

    signed_with = leaf.signature_hash_algorithm
    if signed_with is None:
        return None
    return leaf.fingerprint(SHA256() if isinstance(signed_with, MD5 | SHA1) else signed_with)


def _has_signed(authority: Certificate, leaf: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
