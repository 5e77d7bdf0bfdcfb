"""A blocking connection to a safekeeper, for programs that end too soon for asyncio. A shell.

It follows the rules of safekeeper_connection. ssl is imported only if this process has a TLS file.
"""

from __future__ import annotations

import socket

from walkeeper_common.access.identity import ANYBODY, Identity
from walkeeper_common.addresses import Address
from walkeeper_common.shell.tls.own_credentials import own_credentials

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl

    from walkeeper_common.shell.tls.credentials import Credentials


def connect(address: Address, timeout_s: float) -> tuple[socket.socket, Identity]:
    """Connect for walkeeper's own protocol; return the safekeeper's identity, too.

    Raise OSError with the reason on failure. `timeout_s` bounds each wait, also later ones.
    """
    return _connect(address, timeout_s, for_postgres=False)


def connect_postgres(address: Address, timeout_s: float) -> socket.socket:
    """Connect for PostgreSQL's protocol, as a client that starts with TLS at once."""
    return _connect(address, timeout_s, for_postgres=True)[0]


def _connect(
    address: Address, timeout_s: float, *, for_postgres: bool
) -> tuple[socket.socket, Identity]:
    connection, credentials = socket.create_connection(address, timeout_s), own_credentials()
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if credentials is None:
            return connection, ANYBODY
        return _secured(connection, address[0], credentials, for_postgres)
    except BaseException:
        connection.close()
        raise


def _secured(
    connection: socket.socket, host: str, credentials: Credentials, for_postgres: bool
) -> tuple[ssl.SSLSocket, Identity]:
    """Return the connection over TLS; raise ConnectionError with the reason if that fails."""
    import ssl

    from walkeeper_common.access.certificate_identity import safekeeper_of_certificate
    from walkeeper_common.errors import Refused
    from walkeeper_common.shell.tls.tls_layer import tls_reason

    context = credentials.reader_context() if for_postgres else credentials.client_context()
    try:
        secured = context.wrap_socket(connection, server_hostname=host)
    except ssl.SSLError as error:
        raise ConnectionError(f"TLS: {tls_reason(error)}") from error
    certificate = secured.getpeercert() or {}
    try:
        credentials.check(certificate)
        identity = safekeeper_of_certificate(certificate)
    except Refused as error:
        secured.close()
        raise ConnectionError(f"TLS: {error}") from error
    return secured, identity
