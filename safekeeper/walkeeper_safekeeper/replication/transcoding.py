"""A logical log's messages in the client's encoding, as a walsender sends them. Pure.

    transcoded_messages(messages, encoding)    whole CopyData messages of a stream
    transcoded_answer(answer, encoding)        rows and errors of any other answer

The log is kept in UTF-8. PostgreSQL converts names and the values in text form (pq_sendstring,
pq_sendcountedtext in logical/proto.c). It sends the content of a pg_logical_emit_message as it is.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.postgres.client_encoding import ClientEncoding
from walkeeper_common.postgres.pgoutput import (
    CHANGES,
    MESSAGE,
    ORIGIN,
    RELATION,
    TYPE,
    MessageSplitter,
    pack_copy_data,
)
from walkeeper_common.postgres.pgwire import message as pack_message

OID_BYTES, LSN_BYTES = 4, 8
NEW, KEY, OLD = b"NKO"
TEXT, BINARY, NULL, UNCHANGED = b"tbnu"
_U16, _U32, _I32 = Struct("!H"), Struct("!I"), Struct("!i")
_HEAD = Struct("!cI")
_COLUMN_REST_BYTES = 8  # type OID and typmod


def transcoded_messages(messages: Buffer, encoding: ClientEncoding) -> bytes:
    """Return whole CopyData messages with their texts in `encoding`. SqlRefused 22P05."""
    return b"".join(
        _transcoded(copy_data, message, encoding)
        for copy_data, message in MessageSplitter().feed(messages)
    )


def _transcoded(copy_data: bytes, message: memoryview, encoding: ClientEncoding) -> bytes:
    kind = message[0]
    if kind not in CHANGES and kind not in (RELATION, TYPE, ORIGIN, MESSAGE):
        return copy_data
    body = bytes(message)
    try:
        changed = _Texts(body, encoding).rewritten()
    except (StructError, ValueError, IndexError) as error:
        raise RemoteProtocolError(f"a message that cannot be read: {body[:20]!r}") from error
    if changed == body:
        return copy_data
    header = copy_data[_HEAD.size : len(copy_data) - len(body)]
    return pack_copy_data(header + changed)


class _Texts:
    """One message, read from left to right; `_made` is what was read, with other texts."""

    def __init__(self, body: bytes, encoding: ClientEncoding) -> None:
        self._body, self._encoding = body, encoding
        self._at = 0
        self._made: list[bytes] = []

    def rewritten(self) -> bytes:
        """Return the whole message."""
        kind = self._body[0]
        self._keep(1)
        if kind in CHANGES:
            self._keep(OID_BYTES)
            while self._at < len(self._body):
                self._tuple()
        elif kind == RELATION:
            self._relation()
        elif kind == TYPE:
            self._keep(OID_BYTES)
            self._name()
            self._name()
        elif kind == ORIGIN:
            self._keep(LSN_BYTES)
            self._name()
        else:  # a message: its prefix is text, its content is bytes
            self._keep(1 + LSN_BYTES)
            self._name()
        self._keep(len(self._body) - self._at)
        return b"".join(self._made)

    def _relation(self) -> None:
        self._keep(OID_BYTES)
        self._name()
        self._name()
        self._keep(1)
        for _ in range(self._number(_U16)):
            self._keep(1)
            self._name()
            self._keep(_COLUMN_REST_BYTES)

    def _tuple(self) -> None:
        if self._body[self._at] not in (NEW, KEY, OLD):
            raise ValueError("no tuple")
        self._keep(1)
        for _ in range(self._number(_U16)):
            kind = self._body[self._at]
            self._keep(1)
            if kind == TEXT:
                (size,) = _U32.unpack_from(self._body, self._at)
                text = self._encoding.from_utf8(self._take(_U32.size, size))
                self._made.append(_U32.pack(len(text)) + text)
            elif kind == BINARY:
                self._keep(self._number(_U32))
            elif kind not in (NULL, UNCHANGED):
                raise ValueError("no column")

    def _keep(self, size: int) -> None:
        self._made.append(self._take(0, size))

    def _number(self, layout: Struct) -> int:
        (number,) = layout.unpack_from(self._body, self._at)
        self._keep(layout.size)
        return int(number)

    def _name(self) -> None:
        size = self._body.index(b"\0", self._at) - self._at
        self._made.append(self._encoding.from_utf8(self._take(0, size)))
        self._keep(1)

    def _take(self, skipped: int, size: int) -> bytes:
        begin = self._at + skipped
        if begin + size > len(self._body):
            raise ValueError("too short")
        self._at = begin + size
        return self._body[begin : self._at]


def transcoded_answer(answer: bytes, encoding: ClientEncoding) -> bytes:
    """Return messages of the server with rows, errors and notices in `encoding`.

    A row's text without an equivalent is SqlRefused 22P05. In an error it becomes `?`.
    """
    if encoding.is_utf8 or answer.isascii():
        return answer
    made, at = [], 0
    while at < len(answer):
        tag, size = _HEAD.unpack_from(answer, at)
        body = answer[at + _HEAD.size : at + 1 + size]
        if tag == b"D":
            body = _row(body, encoding)
        elif tag in (b"E", b"N"):
            body = encoding.shown(body.decode())
        made.append(pack_message(tag, body))
        at += 1 + size
    return b"".join(made)


def _row(body: bytes, encoding: ClientEncoding) -> bytes:
    made, at = [body[: _U16.size]], _U16.size
    while at < len(body):
        (size,) = _I32.unpack_from(body, at)
        at += _I32.size
        value = encoding.from_utf8(body[at : at + max(size, 0)])
        made.append(_I32.pack(size if size < 0 else len(value)) + value)
        at += max(size, 0)
    return b"".join(made)
