"""Requests to one safekeeper over a blocking socket: its greeting, its WAL, history files. Shell.

The socket blocks, because PostgreSQL waits for this process anyway. To import asyncio takes more
time than to fetch a segment. Every wait has a limit. Unreachable and Rejected name the address.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from struct import error as StructError
from struct import unpack_from

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused, RemoteProtocolError, WalkeeperError
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    MessageBuffer,
    message,
    parse_error_fields,
    startup_packet,
)
from walkeeper_common.quorum import LogKind
from walkeeper_common.shell import safekeeper_socket
from walkeeper_common.wire.conversation import Closed, Conversation
from walkeeper_common.wire.framing import Message, crc_of
from walkeeper_common.wire.messages import (
    PROTOCOL_VERSION,
    UNKNOWN_LOG_UUID,
    WAL_PAYLOAD_BYTES_MAX,
    AcceptorGreeting,
    ProposerGreeting,
    Reject,
    RejectCode,
)
from walkeeper_common.wire.requests import ReadRequest, ReadResponse

READS_AT_ONCE = 4
HISTORY_BYTES_MAX = 1 << 24
RECEIVE_BYTES = 1 << 16
ZEROS_BYTES = 1 << 20
UNDEFINED_FILE = "58P01"


class Unreachable(WalkeeperError):
    """The safekeeper did not answer in time, or not in its protocol."""


class Rejected(WalkeeperError):
    """The safekeeper answered with a Reject; `code` is its reason."""

    def __init__(self, text: str, code: RejectCode) -> None:
        super().__init__(text)
        self.code = code


class Safekeeper:
    """A connection in walkeeper's own protocol; it cannot be used after an error."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self.shown = f"safekeeper at {shown_address(address)}"
        try:
            self._socket, identity = safekeeper_socket.connect(address, timeout_s)
        except OSError as error:
            raise Unreachable(f"{self.shown} is unreachable: {error}") from error
        self._conversation = Conversation(identity)
        self._messages = self._received()

    def greet(self, cluster: str) -> AcceptorGreeting:
        """Return the safekeeper's greeting; this request fences no proposer and promises nothing.

        Raise Unreachable or Rejected if there is no greeting.
        """
        greeting = ProposerGreeting(
            protocol_version=PROTOCOL_VERSION,
            cluster=cluster,
            log_uuid=UNKNOWN_LOG_UUID,
            system_id=0,
            segment_bytes=0,
            server_version="",
            proposer_id=os.urandom(16),
            kind=LogKind.PHYSICAL,
            application_name="restore",
            configuration=None,
        )
        self._send(greeting)
        answer = self._next()
        if not isinstance(answer, AcceptorGreeting):
            raise Unreachable(f"{self.shown} answered with {type(answer).__name__}")
        return answer

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> Iterator[tuple[Lsn, memoryview]]:
        """Yield all of [begin_lsn, end_lsn), committed, in pieces of at most 1 MiB in any order."""
        wanted = [
            (Lsn(at), min(end_lsn, Lsn(at + WAL_PAYLOAD_BYTES_MAX)))
            for at in range(begin_lsn, end_lsn, WAL_PAYLOAD_BYTES_MAX)
        ]
        wanted.reverse()
        asked: dict[Lsn, Lsn] = {}
        while wanted or asked:
            while wanted and len(asked) < READS_AT_ONCE:
                begin, end = wanted.pop()
                self._send(ReadRequest(NO_BALLOT, begin, end - begin))
                asked[begin] = end
            answer = self._next()
            if not isinstance(answer, ReadResponse) or answer.begin_lsn not in asked:
                raise Unreachable(f"{self.shown} answered a read with {answer!r:.200}")
            begin = answer.begin_lsn
            end, got = asked.pop(begin), begin + len(answer.payload)
            if not begin < got <= end or crc_of(answer.payload) != answer.crc:
                raise Unreachable(f"{self.shown} sent no valid WAL at {begin}")
            if got < end:
                wanted.append((got, end))
            yield begin, memoryview(answer.payload)

    def fileno(self) -> int:
        """Return the socket's descriptor, for a caller that closes all others."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _send(self, question: Message) -> None:
        try:
            self._socket.sendall(self._conversation.ask(question))
        except OSError as error:
            raise Unreachable(f"{self.shown}: {error}") from error

    def _next(self) -> Message:
        try:
            answer = next(self._messages)
        except Closed as error:
            raise Unreachable(f"{self.shown} closed the connection") from error
        except (OSError, RemoteProtocolError, Refused) as error:
            raise Unreachable(f"{self.shown}: {error}") from error
        if isinstance(answer, Reject):
            raise Rejected(f"{self.shown}: {answer.text}", answer.code)
        return answer

    def _received(self) -> Iterator[Message]:
        while True:
            size = self._socket.recv_into(self._conversation.buffer())
            yield from self._conversation.received(size)


def fetch(source: Safekeeper, begin_lsn: Lsn, end_lsn: Lsn, path: str, size: int) -> None:
    """Write [begin_lsn, end_lsn) into a file of `size` bytes, padded with zeros.

    The zeros are written, because PostgreSQL recycles segments. A hole would need its space then.
    """
    with open(path, "wb", buffering=0) as file:
        for lsn, wal in source.read(begin_lsn, end_lsn):
            file.seek(lsn - begin_lsn)
            while wal:
                wal = wal[file.write(wal) :]
        at = file.seek(end_lsn - begin_lsn)
        while at < size:
            at += file.write(bytes(min(size - at, ZEROS_BYTES)))


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
