"""pgoutput's messages, as far as a keeper of them must look inside. Pure.

    type_of, Begin, Commit, relations_of, described     of one message without its CopyData header
    pack_copy_data                                      an XLogData message as a server sends it

Relation and Type messages are sent once per connection, so whoever starts in the middle needs them
again; everything else is passed on as it came. Layout: PostgreSQL's manual, "Logical Replication
Message Formats", protocol versions 1 to 4 without streamed transactions.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from struct import error as StructError

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.pgwire import Buffer

BEGIN, COMMIT, RELATION, TYPE = ord("B"), ord("C"), ord("R"), ord("Y")
CHANGES = frozenset(b"IUD")
TRUNCATE, ORIGIN, MESSAGE = ord("T"), ord("O"), ord("M")
KNOWN = CHANGES | {BEGIN, COMMIT, RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE}

_OID = Struct("!cI")
_TRUNCATE = Struct("!cIB")
_BEGIN = Struct("!cQqI")
_COMMIT = Struct("!cBQQq")
_MESSAGE = Struct("!cBQ")
_XLOG_DATA = Struct("!cIcQQq")  # the CopyData header and XLogData's
COPY_HEADER_BYTES = _XLOG_DATA.size


@dataclass(frozen=True, slots=True)
class Begin:
    """`final_lsn` is where the commit record starts."""

    final_lsn: Lsn
    committed_at_us: int
    xid: int

    @classmethod
    def unpack(cls, message: memoryview) -> Begin:
        try:
            _, lsn, at_us, xid = _BEGIN.unpack(message)
        except StructError as error:
            raise RemoteProtocolError(f"a Begin of {len(message)} bytes") from error
        return cls(Lsn(lsn), at_us, xid)


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` is where the commit record ends: what a session's COMMIT waits for."""

    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at_us: int

    @classmethod
    def unpack(cls, message: memoryview) -> Commit:
        try:
            _, _, commit_lsn, end_lsn, at_us = _COMMIT.unpack(message)
        except StructError as error:
            raise RemoteProtocolError(f"a Commit of {len(message)} bytes") from error
        return cls(Lsn(commit_lsn), Lsn(end_lsn), at_us)


@dataclass(frozen=True, slots=True)
class Emitted:
    """A message of pg_logical_emit_message; `end_lsn` is where its record ends."""

    is_transactional: bool
    end_lsn: Lsn

    @classmethod
    def unpack(cls, message: memoryview) -> Emitted:
        try:
            _, flags, lsn = _MESSAGE.unpack_from(message)
        except StructError as error:
            raise RemoteProtocolError(f"a Message of {len(message)} bytes") from error
        return cls(bool(flags & 1), Lsn(lsn))


def has_origin(payload: memoryview | bytes) -> bool:
    """Whether a transaction came from elsewhere: pgoutput puts an Origin right behind its Begin.

    `payload` begins with the Begin's CopyData message.
    """
    at = 1 + int.from_bytes(payload[1:5], "big") + COPY_HEADER_BYTES
    return len(payload) > at and payload[at] == ORIGIN


def relations_of(message: memoryview) -> tuple[int, ...]:
    """The OIDs of the relations whose description this message needs."""
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
    """The OID that a Relation or Type message describes."""
    try:
        oid: int = _OID.unpack_from(message)[1]
    except StructError as error:
        raise RemoteProtocolError(f"a description of {len(message)} bytes") from error
    return oid


def relation_name(message: memoryview) -> tuple[str, str]:
    """(schema, table) of a Relation message; an empty schema means pg_catalog."""
    words = bytes(message[_OID.size :]).split(b"\0", 2)
    if len(words) < 3:
        raise RemoteProtocolError(f"a Relation of {len(message)} bytes")
    schema, name = (word.decode(errors="replace") for word in words[:2])
    return schema or "pg_catalog", name


def pack_copy_data(payload: Buffer) -> bytes:
    """The inside of a CopyData (an XLogData) with the header that a server puts before it."""
    return b"d" + (len(payload) + 4).to_bytes(4, "big") + payload


class MessageSplitter:
    """Cuts frames' payloads into pgoutput messages; one may lie across frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, payload: memoryview | bytes) -> list[tuple[bytes, memoryview]]:
        """(the CopyData message, the pgoutput message inside it) of each that is complete."""
        data = self._rest + bytes(payload) if self._rest else bytes(payload)
        view, at = memoryview(data), 0
        found = []
        while at + COPY_HEADER_BYTES <= len(data):
            size = 1 + int.from_bytes(data[at + 1 : at + 5], "big")
            if data[at : at + 1] != b"d" or size <= COPY_HEADER_BYTES:
                raise RemoteProtocolError(f"no message in an entry: {data[at : at + 8]!r}")
            if at + size > len(data):
                break
            found.append((data[at : at + size], view[at + COPY_HEADER_BYTES : at + size]))
            at += size
        self._rest = data[at:]
        return found


class Descriptions:
    """The Relation and Type messages seen so far, and which of them are still to be repeated.

    A type's message comes before the relation's that uses it, and is kept with that relation.
    """

    def __init__(self) -> None:
        self._by_relation: dict[int, bytes] = {}
        self._types = b""
        self._valid: set[int] = set()

    def forget_valid(self) -> None:
        """From here on every relation has to be described again before it is used."""
        self._valid.clear()

    def see(self, copy_data: bytes, message: memoryview) -> bytes:
        """What has to go out before this message: descriptions that it needs and lacks."""
        kind = message[0]
        if kind == TYPE:
            self._types += copy_data
        elif kind == RELATION:
            oid = described(message)
            self._by_relation[oid] = self._types + copy_data
            self._types = b""
            self._valid.add(oid)
        elif kind in CHANGES or kind == TRUNCATE:
            needed = relations_of(message)
            if not self._valid.issuperset(needed):
                lacking = [oid for oid in needed if oid not in self._valid]
                self._valid.update(lacking)
                return b"".join(self._by_relation.get(oid, b"") for oid in lacking)
        return b""
