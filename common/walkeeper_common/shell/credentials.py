"""The TLS file of a daemon or command: its key, its certificate and the CAs that it trusts.

One PEM file has all three: the private key, the leaf, then every CA. `walkeeper certs` writes it.
libpq takes the same file as sslcert, sslkey and sslrootcert. During a change of CA it has the old
and the new one.

Each new connection looks at the file and loads a newer one. So a renewal needs no restart, and open
connections keep the certificate with which they began. A file that cannot be loaded leaves the old
one in force, with one warning for each such file.

`use_credentials` fixes the identity of this process towards safekeepers, once, at its start.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
import time
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


class Credentials:
    """One TLS file; raises Refused at once if it cannot be used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp = _stamp(path)
        self._server, self._client = _load(path)
        self._refused_stamp: tuple[int, ...] | None = None

    def server_context(self) -> ssl.SSLContext:
        """Return the context for new connections of clients, from the file as it is now."""
        self._reload()
        return self._server

    def client_context(self) -> ssl.SSLContext:
        """Return the context for new connections to safekeepers, from the file as it is now."""
        self._reload()
        return self._client

    def own_identity(self) -> Identity:
        """Return the identity that the file's certificate states; raise Refused if it has none."""
        from cryptography import x509

        try:
            names = _leaf(self._path).extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            )
        except x509.ExtensionNotFound:
            return identity_of_certificate({})
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
        return identity_of_certificate({"subjectAltName": [("URI", uri) for uri in uris]})

    def expires_at_s(self) -> float:
        """Return the end of the certificate's validity, in Unix time."""
        return _leaf(self._path).not_valid_after_utc.timestamp()

    def _reload(self) -> None:
        try:
            stamp = _stamp(self._path)
            if stamp in (self._stamp, self._refused_stamp):
                return
        except Refused as error:
            stamp, why = (), error
        else:
            try:
                self._server, self._client = _load(self._path)
            except Refused as error:
                why = error
            else:
                self._stamp, self._refused_stamp = stamp, None
                logger.info("loaded the TLS file %s again", self._path)
                return
        if stamp != self._refused_stamp:
            self._refused_stamp = stamp
            logger.warning("%s; the certificate that was loaded before stays in use", why)


_process: list[Credentials] = []


def use_credentials(path: str | None) -> None:
    """Fix how this process connects to safekeepers: with this TLS file, or in plain if None."""
    _process[:] = [] if path is None else [Credentials(path)]


def own_credentials() -> Credentials | None:
    """Return the credentials of this process, or None if it connects to safekeepers in plain."""
    return _process[0] if _process else None


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise Refused(f"cannot read the TLS file {path}: {error.strerror}; check --tls") from error
    if stat.S_IMODE(found.st_mode) & ~MODE_MAX:
        raise Refused(f"others may read the private key in {path}: run chmod 600 {path}")
    return found.st_mtime_ns, found.st_ino, found.st_size


def _load(path: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
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
    server.num_tickets = 0
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.verify_mode = ssl.CERT_OPTIONAL
    server.set_alpn_protocols([ALPN, ALPN_POSTGRESQL])
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    client.set_alpn_protocols([ALPN])
    _warn_of_expiry(path)
    return server, client


def _warn_of_expiry(path: str) -> None:
    end = _leaf(path).not_valid_after_utc
    if end.timestamp() - time.time() < WARN_BEFORE_S:
        shown = f"{end:%Y-%m-%d %H:%M} UTC"
        logger.warning("the certificate in %s ends at %s: run walkeeper certs renew", path, shown)


def _leaf(path: str) -> Certificate:
    """Return the first certificate of a file that OpenSSL has accepted."""
    from cryptography.x509 import load_pem_x509_certificates  # 50 ms, for TLS alone

    with open(path, "rb") as file:
        return load_pem_x509_certificates(file.read())[0]
