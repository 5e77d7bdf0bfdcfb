"""The TLS file of a daemon or command: its key, its certificate and the CAs that it trusts.

One PEM file has all three: the private key, the leaf, then every CA. `walkeeper certs` writes it.
libpq takes the same file as sslcert, sslkey and sslrootcert. During a change of CA it has the old
and the new one.

Each new connection looks at the file and loads a newer one, and so does SIGHUP. A renewal needs no
restart, and open connections keep the certificate with which they began. A file that cannot be
loaded leaves the old one in force, with one warning for each such file.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from walkeeper_common.certificate_identity import identity_of_certificate
from walkeeper_common.errors import Refused
from walkeeper_common.identity import Identity

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

logger = logging.getLogger("walkeeper.tls")

ALPN: Final = "walkeeper/1"
ALPN_POSTGRESQL: Final = "postgresql"
MODE_MAX: Final = 0o600
WARN_BEFORE_S: Final = 14 * 86400


@dataclass(frozen=True, slots=True)
class _Loaded:
    """One version of the file: a context for each kind of peer, and the end of validity."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    reader: ssl.SSLContext
    end_s: float


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
        self._stamp = _stamp(path)
        self._loaded = _load(path)
        self._refused_stamp: tuple[int, ...] | None = None

    def server_context(self) -> ssl.SSLContext:
        """Return the context for new connections of clients, from the file as it is now."""
        self.reload()
        return self._loaded.server

    def client_context(self) -> ssl.SSLContext:
        """Return the context for new connections to safekeepers, from the file as it is now."""
        self.reload()
        return self._loaded.client

    def reader_context(self) -> ssl.SSLContext:
        """Return the context for a safekeeper's PostgreSQL side, from the file as it is now."""
        self.reload()
        return self._loaded.reader

    def own_identity(self) -> Identity:
        """Return the identity that the file's certificate states; raise Refused if it has none."""
        from cryptography import x509

        try:
            names = _leaf(self.path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return identity_of_certificate({})
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        return identity_of_certificate({"subjectAltName": [("URI", uri) for uri in uris]})

    @property
    def end_s(self) -> float:
        """The end of the validity of the certificate in use, in Unix time."""
        return self._loaded.end_s

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

    def warn_of_end(self) -> None:
        """Warn if the certificate in use ends soon."""
        _warn_of_end(self.path, self.end_s)

    def reload(self) -> None:
        """Load the file if it has changed; keep the former one, with a warning, if it is bad."""
        try:
            stamp = _stamp(self.path)
            if stamp in (self._stamp, self._refused_stamp):
                return
        except Refused as error:
            stamp, why = (), error
        else:
            try:
                self._loaded = _load(self.path)
            except Refused as error:
                why = error
            else:
                self._stamp, self._refused_stamp = stamp, None
                logger.info("loaded the TLS file %s again", self.path)
                return
        if stamp != self._refused_stamp:
            self._refused_stamp = stamp
            logger.warning("%s; the certificate that was loaded before stays in use", why)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise Refused(f"cannot read the TLS file {path}: {error.strerror}; check --tls") from error
    if stat.S_IMODE(found.st_mode) & ~MODE_MAX:
        raise Refused(f"others may read the private key in {path}: run chmod 600 {path}")
    return found.st_mtime_ns, found.st_ino, found.st_size


def _load(path: str) -> _Loaded:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    reader = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client, reader):
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
    client.set_alpn_protocols([ALPN])
    reader.set_alpn_protocols([ALPN_POSTGRESQL])
    end_s = _leaf(path).not_valid_after_utc.timestamp()
    _warn_of_end(path, end_s)
    return _Loaded(server, client, reader, end_s)


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


def _has_signed(authority: Certificate, leaf: Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
