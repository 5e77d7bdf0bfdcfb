"""pgoutput's messages, as far as a logical log has to read them. Pure.

    Begin, Commit, Emitted, relations_of, described     parts of a message without CopyData header
    StreamCommit, StreamAbort, stream_xid               parts of a transaction sent before it ends
    pack_copy_data, pack_without_xid                    an XLogData message as a server sends it

Relation and Type messages are sent once per connection. A consumer that starts in the middle needs
them again. All other messages are passed on as they came. Layout: PostgreSQL's manual, "Logical
Replication Message Formats", protocol versions 1 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from struct import Struct
from struct import error as StructError

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn

BEGIN, COMMIT, RELATION, TYPE = ord("B"), ord("C"), ord("R"), ord("Y")
CHANGES = frozenset(b"IUD")
TRUNCATE, ORIGIN, MESSAGE = ord("T"), ord("O"), ord("M")
STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT = b"SEcA"
STREAM = frozenset((STREAM_START, STREAM_STOP, STREAM_COMMIT, STREAM_ABORT))
KNOWN = CHANGES | STREAM | {BEGIN, COMMIT, RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE}

_OID = Struct("!cI")
_TRUNCATE = Struct("!cIB")
_BEGIN = Struct("!cQqI")
_COMMIT = Struct("!cBQQq")
_MESSAGE = Struct("!cBQ")
_STREAM_COMMIT = Struct("!cIBQQq")
_STREAM_ABORT = Struct("!cII")  # from version 4 on an LSN and a time may follow
_XID = Struct("!cI")
_XLOG_DATA = Struct("!cIcQQq")  # the CopyData header and XLogData's
COPY_HEADER_BYTES = _XLOG_DATA.size
BEGIN_BYTES, COMMIT_BYTES = COPY_HEADER_BYTES + _BEGIN.size, COPY_HEADER_BYTES + _COMMIT.size
_COPY_DATA = Struct("!cI")  # the size counts itself
XLOG_DATA, XLOG_DATA_BYTES = ord("w"), COPY_HEADER_BYTES - 5


def _unpack(
    layout: Struct, message: memoryview, what: str, *, exactly: bool = False
) -> tuple[int, ...]:
    """Return the fields after the message's kind; `exactly` also refuses bytes after them."""
    try:
        return (layout.unpack if exactly else layout.unpack_from)(message)[1:]
    except StructError as error:
        raise RemoteProtocolError(f"a {what} of {len(message)} bytes") from error


@dataclass(frozen=True, slots=True)
class Begin:
    """`final_lsn` is where the commit record starts."""

    final_lsn: Lsn
    committed_at_us: int
    xid: int

    @classmethod
    def unpack(cls, message: memoryview) -> Begin:
        lsn, at_us, xid = _unpack(_BEGIN, message, "Begin", exactly=True)
        return cls(Lsn(lsn), at_us, xid)

    def pack(self) -> bytes:
        return _BEGIN.pack(b"B", self.final_lsn, self.committed_at_us, self.xid)


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` is where the commit record ends: a session's COMMIT waits for it."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int

    @classmethod
    def unpack(cls, message: memoryview) -> Commit:
        _, commit_lsn, end_lsn, at_us = _unpack(_COMMIT, message, "Commit", exactly=True)
        return cls(Lsn(commit_lsn), Lsn(end_lsn), at_us)

    @classmethod
    def ending(cls, data: bytes) -> Commit | None:
        """Return the Commit whose CopyData message ends this data, or None if another one does."""
        message = memoryview(data)[-_COMMIT.size :]
        is_commit = len(data) >= COMMIT_BYTES and data[-COMMIT_BYTES] == ord("d")
        return cls.unpack(message) if is_commit and message[0] == COMMIT else None

    def pack(self) -> bytes:
        return _COMMIT.pack(b"C", 0, self.commit_lsn, self.end_lsn, self.committed_at_us)


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """Transaction `xid`, which was streamed, has committed."""

    xid: int
    commit: Commit

    @classmethod
    def unpack(cls, message: memoryview) -> StreamCommit:
        what = "Stream Commit"
        xid, _, commit_lsn, end_lsn, at_us = _unpack(_STREAM_COMMIT, message, what, exactly=True)
        return cls(xid, Commit(Lsn(commit_lsn), Lsn(end_lsn), at_us))

    @property
    def begin(self) -> Begin:
        """The Begin that a server would have sent first, had it sent all at the commit."""
        return Begin(self.commit.commit_lsn, self.commit.committed_at_us, self.xid)


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """The subtransaction `subxid` of `xid` is rolled back, or all of `xid` if the two are equal."""

    xid: int
    subxid: int

    @classmethod
    def unpack(cls, message: memoryview) -> StreamAbort:
        return cls(*_unpack(_STREAM_ABORT, message, "Stream Abort"))


@dataclass(frozen=True, slots=True)
class Emitted:
    """A message of pg_logical_emit_message; `end_lsn` is where its record ends."""

    is_transactional: bool
    end_lsn: Lsn

    @classmethod
    def unpack(cls, message: memoryview) -> Emitted:
        flags, lsn = _unpack(_MESSAGE, message, "Message")
        return cls(bool(flags & 1), Lsn(lsn))


def has_origin(payload: Buffer) -> bool:
    """Return True if a transaction came from elsewhere: its Begin is followed by an Origin.

    `payload` begins with the Begin's CopyData message.
    """
    at = 1 + int.from_bytes(payload[1:5], "big") + COPY_HEADER_BYTES
    return len(payload) > at and payload[at] == ORIGIN


def stream_xid(message: memoryview) -> int:
    """Return the transaction of a Stream Start, or the (sub)transaction of a streamed message."""
    return _unpack(_XID, message, "streamed message")[0]


def pack_without_xid(payload: Buffer) -> bytes:
    """Return the CopyData of a streamed message as it is outside of a stream."""
    head, rest = payload[: XLOG_DATA_BYTES + 1], payload[XLOG_DATA_BYTES + _XID.size :]
    # The size counts itself, and is four bytes less: those of the xid.
    return b"".join((b"d", len(payload).to_bytes(4, "big"), head, rest))


def relations_of(message: memoryview) -> tuple[int, ...]:
    """Return the OIDs of the relations whose description this message needs."""
    kind = message[0]
    try:
        if kind in CHANGES:
            return (_OID.unpack_from(message)[1],)
        if kind == TRUNCATE:
            _, count, _ = _TRUNCATE.unpack_from(message)
            return Struct(f"!{count}I").unpack_from(message, _TRUNCATE.size)
    except StructError as error:
        raise RemoteProtocolError(f"a change of {len(message)} bytes") from error
    return ()


def described(message: memoryview) -> int:
    """Return the OID that a Relation or Type message describes."""
    return _unpack(_OID, message, "description")[0]


def relation_name(message: memoryview) -> tuple[str, str]:
    """Return (schema, table) of a Relation message; an empty schema means pg_catalog."""
    words = bytes(message[_OID.size :]).split(b"\0", 2)
    if len(words) < 3:
        raise RemoteProtocolError(f"a Relation of {len(message)} bytes")
    schema, name = (word.decode(errors="replace") for word in words[:2])
    return schema or "pg_catalog", name


def pack_copy_data(payload: Buffer) -> bytes:
    """Return the inside of a CopyData (an XLogData) with the header that a server puts first."""
    return b"d" + (len(payload) + 4).to_bytes(4, "big") + payload


def _no_message(found: Buffer) -> RemoteProtocolError:
    return RemoteProtocolError(f"no message in an entry: {bytes(found)!r}")


class WholeMessages:
    """Cuts frames' payloads where a CopyData message ends; a message may lie across frames.

    Bytes for a consumer have to end there. A keepalive or the end of the stream may be next, and
    the consumer would take it for the rest of the message.
    """

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, payload: Buffer) -> bytes:
        """Return all messages that are complete now."""
        held, at = self._held, 0
        held += payload
        while at + _COPY_DATA.size <= len(held):
            tag, size = _COPY_DATA.unpack_from(held, at)
            if tag != b"d":
                raise _no_message(held[at : at + 8])
            if at + 1 + size > len(held):
                break
            at += 1 + size
        whole = bytes(held[:at])
        del held[:at]
        return whole


class MessageSplitter:
    """Cuts frames' payloads into pgoutput messages; one may lie across frames."""

    def __init__(self) -> None:
        self._whole = WholeMessages()

    def feed(self, payload: Buffer) -> list[tuple[bytes, memoryview]]:
        """Return (CopyData message, pgoutput message inside it) of each that is complete."""
        data = self._whole.feed(payload)
        view, at = memoryview(data), 0
        found = []
        while at < len(data):
            size = 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if size <= COPY_HEADER_BYTES:
                raise _no_message(data[at : at + 8])
            found.append((data[at : at + size], view[at + COPY_HEADER_BYTES : at + size]))
            at += size
        return found


class Descriptions:
    """The Relation and Type messages seen so far, and which of them are still to be repeated.

    A type's message comes before the message of the relation that uses it, and is kept with that
    relation. `arrivals` numbers the messages. Two Descriptions that see messages side by side share
    one, and then the newer message counts.
    """

    def __init__(self, arrivals: Iterator[int] | None = None) -> None:
        self._arrivals = count() if arrivals is None else arrivals
        self._by_relation: dict[int, tuple[int, bytes]] = {}
        self._types = b""
        self._valid: set[int] = set()

    def forget_valid(self) -> None:
        """Require that every relation is described again before it is used."""
        self._valid.clear()

    def is_valid(self, relation: int) -> bool:
        """Return True if a change of this relation needs no description before it."""
        return relation in self._valid

    def see(self, copy_data: bytes, message: memoryview) -> bytes:
        """Return the descriptions that have to go out first: this message needs and lacks them."""
        kind = message[0]
        if kind == TYPE:
            self._types += copy_data
        elif kind == RELATION:
            oid = described(message)
            self._by_relation[oid] = next(self._arrivals), self._types + copy_data
            self._types = b""
            self._valid.add(oid)
        elif kind in CHANGES or kind == TRUNCATE:
            needed = relations_of(message)
            if not self._valid.issuperset(needed):
                lacking = [oid for oid in needed if oid not in self._valid]
                self._valid.update(lacking)
                return b"".join(self._by_relation.get(oid, (0, b""))[1] for oid in lacking)
        return b""

    def take_in(self, other: Descriptions) -> None:
        """Take those of a transaction that was seen beside ours and comes after it.

        They have to go out again.
        """
        for oid, found in other._by_relation.items():
            self._by_relation[oid] = max(found, self._by_relation.get(oid, found))
            self._valid.discard(oid)
