"""History files from one safekeeper, over PostgreSQL's protocol. A shell.

Requests for segments do not import this module. The socket blocks, and every wait has a limit.
"""

from __future__ import annotations

import socket
from struct import error as StructError
from struct import unpack_from

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import RemoteProtocolError, Unreachable
from walkeeper_common.postgres.pgwire import (
    MessageBuffer,
    message,
    parse_error_fields,
    startup_packet,
)
from walkeeper_common.shell.safekeeper_links import safekeeper_socket

HISTORY_BYTES_MAX = 1 << 24
RECEIVE_BYTES = 1 << 16
UNDEFINED_FILE = "58P01"
AUTHENTICATION_OK = bytes(4)  # the body of the message


def timeline_history(
    address: Address, cluster: str, timeline: int, timeout_s: float
) -> bytes | None:
    """Return the .history file over PostgreSQL's protocol, or None if this safekeeper has none.

    Raise Unreachable if the safekeeper gives no valid answer in time.
    """
    shown = f"safekeeper at {shown_address(address)}"
    login = {
        "user": "walkeeper",
        "database": "replication",
        "replication": "true",
        "application_name": "walkeeper restore",
        "options": f"-c walkeeper.cluster={cluster}",
    }
    try:
        with safekeeper_socket.connect_postgres(address, timeout_s) as connection:
            connection.sendall(startup_packet(login))
            _rows_until_ready(connection)
            query = f"TIMELINE_HISTORY {timeline}\0".encode()
            connection.sendall(message(b"Q", query))
            rows = _rows_until_ready(connection)
    except _SqlError as error:
        if error.fields.get("C") == UNDEFINED_FILE:
            return None
        raise Unreachable(f"{shown}: {error.fields.get('M')}") from error
    except (OSError, RemoteProtocolError) as error:
        raise Unreachable(f"{shown}: {error}") from error
    if len(rows) != 1 or len(rows[0]) != 2 or not rows[0][1]:
        raise Unreachable(f"{shown} answered TIMELINE_HISTORY with {rows!r:.200}")
    return rows[0][1]


class _SqlError(Exception):
    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields.get("M", ""))
        self.fields = fields


def _rows_until_ready(connection: socket.socket) -> list[list[bytes | None]]:
    buffer, rows = MessageBuffer(HISTORY_BYTES_MAX), []
    while True:
        while (received := buffer.next_message()) is not None:
            if received.tag == b"R" and received.body != AUTHENTICATION_OK:
                raise RemoteProtocolError(
                    "it asks for a password, but this command can only show a certificate: "
                    "add --tls FILE"
                )
            if received.tag == b"E":
                raise _SqlError(parse_error_fields(received.body))
            if received.tag == b"D":
                rows.append(_values(received.body))
            if received.tag == b"Z":
                return rows
        data = connection.recv(RECEIVE_BYTES)
        if not data:
            raise RemoteProtocolError("the connection was closed")
        buffer.feed(data)


def _values(body: bytes) -> list[bytes | None]:
    """Return the columns of a DataRow; raise RemoteProtocolError if it is too short."""
    try:
        (columns,), at, values = unpack_from("!h", body), 2, []
        for _ in range(columns):
            (size,) = unpack_from("!i", body, at)
            at += 4 + max(size, 0)
            values.append(None if size < 0 else body[at - size : at])
    except StructError as error:
        raise RemoteProtocolError(f"a row that is too short: {error}") from error
    return values
