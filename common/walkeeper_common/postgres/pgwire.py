"""PostgreSQL's frontend/backend protocol 3.0, both sides, as bytes in and bytes out. Pure.

    MessageBuffer            bytes in, whole messages out, never more than a bound of either
    parse_startup            the packets before the first tagged message
    authentication_ok() …    what a server answers
    XLogData, Keepalive      CopyData from a walsender; WAL is never copied: header and payload
    StandbyStatus, …         are packed apart, and unpacking gives a slice of the buffer

Bytes that break the protocol raise RemoteProtocolError and no other error. SqlRefused is for
requests that a client may send and that are not granted. It carries an SQLSTATE and goes out as an
ErrorResponse.

The sources are the chapters "Frontend/Backend Protocol" and "Streaming Replication Protocol" of
PostgreSQL's manual. backend_startup.c has the startup packet, walsender.c and walreceiver.c have
the payloads. Times on the wire are microseconds since 2000-01-01 UTC, as PostgreSQL's are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import ClassVar, TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.values import value

STARTUP_BYTES_MAX = 10_000  # MAX_STARTUP_PACKET_LENGTH
STARTUP_BYTES_MIN = 8
QUERY_BYTES_MAX = 1 << 16
PROTOCOL_3_0 = 3 << 16
SSL_REQUEST, GSSENC_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
UNIX_EPOCH_TO_2000_US = 946_684_800_000_000

BOOL_OID, INT8_OID, INT4_OID, TEXT_OID = 16, 20, 23, 25
TYPE_BYTES = {BOOL_OID: 1, INT8_OID: 8, INT4_OID: 4, TEXT_OID: -1}

_INT16, _INT32 = Struct("!h"), Struct("!i")
_FRAME = Struct("!cI")
_FIELD = Struct("!IhIhih")


class SqlRefused(Refused):
    """A valid command that is refused; the session goes on after the answer."""

    def __init__(self, sqlstate: str, message: str, *, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate, self.message, self.detail, self.hint = sqlstate, message, detail, hint


# The startup phase: packets without a tag.


@dataclass(frozen=True, slots=True)
class SslRequest:
    """A request to start TLS. One byte answers it: S or N."""


@dataclass(frozen=True, slots=True)
class GssEncRequest:
    """A request to start GSSAPI encryption. One byte answers it: G or N."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A request to cancel another connection's command. It gets no answer."""


@dataclass(frozen=True, slots=True)
class Startup:
    """A login. `parameters` has user, database, replication, options and all others that came."""

    minor: int
    parameters: Mapping[str, str]

    @property
    def protocol_options(self) -> tuple[str, ...]:
        """Return the `_pq_.` options, which no server of protocol 3.0 knows, for a refusal."""
        return tuple(name for name in self.parameters if name.startswith("_pq_."))


StartupPacket: TypeAlias = SslRequest | GssEncRequest | CancelRequest | Startup


def parse_startup(body: bytes) -> StartupPacket:
    """Return the packet of these bytes, which lack its length. Raise RemoteProtocolError."""
    if not STARTUP_BYTES_MIN - 4 <= len(body) <= STARTUP_BYTES_MAX - 4:
        raise RemoteProtocolError("invalid length of startup packet")
    code: int = _INT32.unpack_from(body)[0]
    if code == SSL_REQUEST:
        return SslRequest()
    if code == GSSENC_REQUEST:
        return GssEncRequest()
    if code == CANCEL_REQUEST:
        return CancelRequest()
    major, minor = code >> 16, code & 0xFFFF
    if major != 3:
        raise RemoteProtocolError(
            f"unsupported frontend protocol {major}.{minor}: server supports 3.0"
        )
    return Startup(minor, _parse_parameters(body[4:]))


def _parse_parameters(body: bytes) -> dict[str, str]:
    if body[-2:] != b"\0\0" and body != b"\0":
        raise RemoteProtocolError("invalid startup packet layout: expected terminator as last byte")
    words = body[:-2].split(b"\0") if len(body) > 1 else []
    if len(words) % 2 or not all(words[::2]):
        raise RemoteProtocolError("invalid startup packet layout: a name without a value")
    text = [word.decode("utf-8", "replace") for word in words]
    return dict(zip(text[::2], text[1::2], strict=True))


def startup_packet(parameters: Mapping[str, str], *, minor: int = 0) -> bytes:
    """Return the packet that a client sends first."""
    words = "".join(f"{name}\0{value}\0" for name, value in parameters.items()) + "\0"
    return _untagged(_INT32.pack(PROTOCOL_3_0 + minor) + words.encode())


def request_packet(code: int) -> bytes:
    """Return the SSLRequest or GSSENCRequest with this code."""
    return _untagged(_INT32.pack(code))


def _untagged(body: bytes) -> bytes:
    return _INT32.pack(len(body) + 4) + body


# Framing.


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its tag and its body without the length."""

    tag: bytes
    body: bytes

    def text(self) -> str:
        """Return the only string of a Query, Terminate-like or CopyFail message."""
        return self.string().decode("utf-8", "replace")

    def string(self) -> bytes:
        """Return that string in the client's encoding."""
        if self.body[-1:] != b"\0" or b"\0" in self.body[:-1]:
            raise RemoteProtocolError("invalid message format: expected one terminated string")
        return self.body[:-1]


class MessageBuffer:
    """Received bytes, cut into messages: at most one message and one read of the socket."""

    def __init__(self, body_bytes_max: int = QUERY_BYTES_MAX) -> None:
        self._data = bytearray()
        self.body_bytes_max = body_bytes_max

    def feed(self, data: bytes) -> None:
        """Add bytes that the socket gave."""
        self._data += data

    def __len__(self) -> int:
        return len(self._data)

    def next_startup(self) -> StartupPacket | None:
        """Return the next packet of the startup phase, or None until more bytes come."""
        if len(self._data) < 4:
            return None
        size: int = _INT32.unpack_from(self._data)[0]
        if not STARTUP_BYTES_MIN <= size <= STARTUP_BYTES_MAX:
            raise RemoteProtocolError("invalid length of startup packet")
        if len(self._data) < size:
            return None
        body = bytes(self._data[4:size])
        del self._data[:size]
        return parse_startup(body)

    def next_message(self) -> Message | None:
        """Return the next tagged message, or None until more bytes come."""
        if len(self._data) < _FRAME.size:
            return None
        tag, size = _FRAME.unpack_from(self._data)
        if not 4 <= size <= self.body_bytes_max + 4:
            raise RemoteProtocolError(
                f"invalid message length {size} of type {tag!r}: 4 to {self.body_bytes_max + 4}"
            )
        if len(self._data) < size + 1:
            return None
        body = bytes(self._data[5 : size + 1])
        del self._data[: size + 1]
        return Message(tag, body)


def message(tag: bytes, *parts: bytes) -> bytes:
    """Return one tagged message."""
    body = b"".join(parts)
    return _FRAME.pack(tag, len(body) + 4) + body


def _text(text: str) -> bytes:
    """Return the text up to the first NUL, which a client may have put into it."""
    return text.partition("\0")[0].encode("utf-8", "replace") + b"\0"


# The answers of a server.


def authentication_ok() -> bytes:
    """Accept the login."""
    return message(b"R", _INT32.pack(0))


def negotiate_protocol_version(unknown_options: Sequence[str]) -> bytes:
    """Offer protocol 3.0, and name the options that the server does not know."""
    names = b"".join(_text(name) for name in unknown_options)
    return message(b"v", _INT32.pack(PROTOCOL_3_0), _INT32.pack(len(unknown_options)), names)


def parameter_status(name: str, value: str) -> bytes:
    """Report a setting that clients keep track of."""
    return message(b"S", _text(name), _text(value))


def backend_key_data(pid: int, key: int) -> bytes:
    """Name the connection; walreceiver names its temporary slot after the pid."""
    return message(b"K", _INT32.pack(pid), _INT32.pack(key))


def ready_for_query() -> bytes:
    """Report that the server is ready, and outside any transaction."""
    return message(b"Z", b"I")


def empty_query_response() -> bytes:
    """Answer a query string without a command."""
    return message(b"I")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result; values travel as text."""

    name: str
    type_oid: int = TEXT_OID


def row_description(columns: Sequence[Column]) -> bytes:
    """Open a result set."""
    fields = (
        _text(c.name) + _FIELD.pack(0, 0, c.type_oid, TYPE_BYTES[c.type_oid], -1, 0)
        for c in columns
    )
    return message(b"T", _INT16.pack(len(columns)), *fields)


def data_row(values: Sequence[str | bytes | None]) -> bytes:
    """Return one row; None is NULL."""
    parts = [_INT16.pack(len(values))]
    for column in values:
        data = column.encode() if isinstance(column, str) else column
        parts.append(_INT32.pack(-1) if data is None else _INT32.pack(len(data)) + data)
    return message(b"D", *parts)


def command_complete(tag: str) -> bytes:
    """End a command."""
    return message(b"C", _text(tag))


def result(
    columns: Sequence[Column], rows: Iterable[Sequence[str | bytes | None]], tag: str
) -> bytes:
    """Return a whole answer without ReadyForQuery."""
    return row_description(columns) + b"".join(map(data_row, rows)) + command_complete(tag)


def error_response(error: SqlRefused, severity: str = "ERROR") -> bytes:
    """Return an error: ERROR ends the command, FATAL the connection."""
    return message(b"E", _error_fields(error, severity))


def notice_response(notice: SqlRefused, severity: str = "WARNING") -> bytes:
    """Return a notice for the user, without effect on the command."""
    return message(b"N", _error_fields(notice, severity))


def _error_fields(error: SqlRefused, severity: str) -> bytes:
    fields = {
        b"S": severity,
        b"V": severity,
        b"C": error.sqlstate,
        b"M": error.message,
        b"D": error.detail,
        b"H": error.hint,
    }
    return b"".join(code + _text(text) for code, text in fields.items() if text) + b"\0"


def parse_error_fields(body: bytes) -> dict[str, str]:
    """Return the fields of an ErrorResponse or NoticeResponse by their one-letter codes."""
    if body[-1:] != b"\0":
        raise RemoteProtocolError("an ErrorResponse without its terminator")
    words = body[:-1].split(b"\0")
    if words.pop() != b"" or not all(words):
        raise RemoteProtocolError("an ErrorResponse with an empty or unterminated field")
    return {chr(word[0]): word[1:].decode("utf-8", "replace") for word in words}


def copy_both_response() -> bytes:
    """Begin the phase in which both sides send CopyData."""
    return message(b"W", b"\0", _INT16.pack(0))


def copy_out_response(*, binary: bool = False) -> bytes:
    """Begin the phase in which the server sends CopyData, as text or in binary form."""
    return message(b"H", b"\1" if binary else b"\0", _INT16.pack(0))


def copy_data(payload: bytes) -> bytes:
    """Return a small payload. WAL goes out as `XLogData.pack_header` and then its bytes."""
    return message(b"d", payload)


def copy_done() -> bytes:
    """End the CopyData of this side."""
    return message(b"c")


# Replication payloads: the inside of CopyData. One dataclass, one Struct, one tag.


def _unpack(layout: Struct, payload: Buffer, *, exactly: bool) -> tuple[int, ...]:
    if exactly and len(payload) != layout.size:
        tag = bytes(payload[:1])
        raise RemoteProtocolError(f"{tag!r} has {len(payload)} bytes instead of {layout.size}")
    try:
        return layout.unpack_from(payload)[1:]
    except StructError as error:
        raise RemoteProtocolError(f"a replication message is too short: {error}") from error


@value
class XLogData:
    """WAL from `start_lsn` on. `payload` is a slice of the buffer it was unpacked from."""

    TAG: ClassVar[bytes] = b"w"
    LAYOUT: ClassVar[Struct] = Struct("!cQQq")
    FRAMED: ClassVar[Struct] = Struct("!cIcQQq")
    start_lsn: Lsn
    wal_end_lsn: Lsn  # the end of the WAL that the sender could send now
    sent_at_us: int
    payload: memoryview

    @classmethod
    def pack_header(
        cls, *, start_lsn: Lsn, wal_end_lsn: Lsn, sent_at_us: int, payload_bytes: int
    ) -> bytes:
        """Return the CopyData message without the WAL, which goes out as a second buffer."""
        size = 4 + cls.LAYOUT.size + payload_bytes
        return cls.FRAMED.pack(b"d", size, cls.TAG, start_lsn, wal_end_lsn, sent_at_us)

    @classmethod
    def unpack(cls, payload: Buffer) -> XLogData:
        """Unpack without a copy of the WAL. Raise RemoteProtocolError."""
        start, end, sent_at_us = _unpack(cls.LAYOUT, payload, exactly=False)
        return cls(Lsn(start), Lsn(end), sent_at_us, memoryview(payload)[cls.LAYOUT.size :])


@value
class Keepalive:
    """The sign that the sender is alive; `reply_requested` asks for a StandbyStatus at once."""

    TAG: ClassVar[bytes] = b"k"
    LAYOUT: ClassVar[Struct] = Struct("!cQqB")
    wal_end_lsn: Lsn
    sent_at_us: int
    reply_requested: bool

    def pack(self) -> bytes:
        """Return the payload of a CopyData."""
        return self.LAYOUT.pack(self.TAG, self.wal_end_lsn, self.sent_at_us, self.reply_requested)

    @classmethod
    def unpack(cls, payload: Buffer) -> Keepalive:
        """Unpack exactly one message. Raise RemoteProtocolError."""
        end, sent_at_us, reply = _unpack(cls.LAYOUT, payload, exactly=True)
        return cls(Lsn(end), sent_at_us, bool(reply))


@value
class StandbyStatus:
    """The positions of the receiver; `reply_requested` asks for a Keepalive at once."""

    TAG: ClassVar[bytes] = b"r"
    LAYOUT: ClassVar[Struct] = Struct("!cQQQqB")
    write_lsn: Lsn
    flush_lsn: Lsn
    replay_lsn: Lsn
    sent_at_us: int
    reply_requested: bool

    def pack(self) -> bytes:
        """Return the payload of a CopyData."""
        lsns = self.write_lsn, self.flush_lsn, self.replay_lsn
        return self.LAYOUT.pack(self.TAG, *lsns, self.sent_at_us, self.reply_requested)

    @classmethod
    def unpack(cls, payload: Buffer) -> StandbyStatus:
        """Unpack exactly one message. Raise RemoteProtocolError."""
        write, flush, replay, at_us, reply = _unpack(cls.LAYOUT, payload, exactly=True)
        return cls(Lsn(write), Lsn(flush), Lsn(replay), at_us, bool(reply))


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback:
    """The oldest transactions that the standby's queries need; zeros if there are none."""

    TAG: ClassVar[bytes] = b"h"
    LAYOUT: ClassVar[Struct] = Struct("!cqIIII")
    sent_at_us: int
    xmin: int
    xmin_epoch: int
    catalog_xmin: int
    catalog_xmin_epoch: int

    def pack(self) -> bytes:
        """Return the payload of a CopyData."""
        return self.LAYOUT.pack(
            self.TAG,
            self.sent_at_us,
            self.xmin,
            self.xmin_epoch,
            self.catalog_xmin,
            self.catalog_xmin_epoch,
        )

    @classmethod
    def unpack(cls, payload: Buffer) -> HotStandbyFeedback:
        """Unpack exactly one message. Raise RemoteProtocolError."""
        return cls(*_unpack(cls.LAYOUT, payload, exactly=True))


def wal_of(payload: memoryview) -> tuple[int, memoryview] | None:
    """Return (start LSN, WAL) of an XLogData, or None if the payload is no whole XLogData.

    `unpack_from_sender` takes the other payloads apart.
    """
    size = XLogData.LAYOUT.size
    if len(payload) < size or payload[0] != XLogData.TAG[0]:
        return None
    return XLogData.LAYOUT.unpack_from(payload)[1], payload[size:]


def unpack_from_sender(payload: Buffer) -> XLogData | Keepalive:
    """Unpack the payload of a walsender's CopyData without a copy. Raise RemoteProtocolError."""
    match bytes(payload[:1]):
        case XLogData.TAG:
            return XLogData.unpack(payload)
        case Keepalive.TAG:
            return Keepalive.unpack(payload)
        case tag:
            raise RemoteProtocolError(f"unknown replication message {tag!r} from the sender")


def unpack_from_receiver(payload: Buffer) -> StandbyStatus | HotStandbyFeedback:
    """Unpack the payload of a standby's or pg_receivewal's CopyData. Raise RemoteProtocolError."""
    match bytes(payload[:1]):
        case StandbyStatus.TAG:
            return StandbyStatus.unpack(payload)
        case HotStandbyFeedback.TAG:
            return HotStandbyFeedback.unpack(payload)
        case tag:
            raise RemoteProtocolError(f'unexpected message type "{tag!r}"')
