"""Logical logs for tests: pgoutput messages by hand, and the log that the product makes of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from struct import pack

from walkeeper_common.entries import EntryWalk, Frame
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgoutput import XLOG_DATA_BYTES
from walkeeper_common.postgres.pgwire import Keepalive
from walkeeper_proposer.logical.change_stream import ChangeStream
from walkeeper_proposer.logical.open_transactions import Spool

SPOOL_BYTES_MAX = 1 << 20
SETTINGS = {"publications": ["p"], "options": {}}


class LogBytes:
    """The bytes of a log from `begin` on, as `WalBytes`."""

    def __init__(self, begin: Lsn) -> None:
        self.begin = begin
        self.data = bytearray()

    @property
    def end(self) -> Lsn:
        return self.begin + len(self.data)

    def take(self, stream: ChangeStream) -> None:
        """Take the bytes that the stream has made since the last call."""
        position, data = stream.take()
        assert not data or position == self.end, f"{position=} {self.end=}"
        self.data += data

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        assert self.begin <= begin <= end <= self.end, f"{begin=} {end=} {self.end=}"
        return bytes(self.data[begin - self.begin : end - self.begin])

    def frames(self, position: Lsn, segment_bytes: int, limit: Lsn | None = None) -> list[Frame]:
        return list(EntryWalk(self, position, limit or self.end, segment_bytes))


def sent(message: bytes, lsn: int = 0) -> bytes:
    """Make an XLogData with a pgoutput message."""
    return b"w" + pack("!QQq", lsn, lsn, 0) + message


def keepalive(lsn: int, *, asks: bool = False) -> bytes:
    return Keepalive(Lsn(lsn), 0, asks).pack()


def begin(final_lsn: int, xid: int = 7) -> bytes:
    return sent(b"B" + pack("!QqI", final_lsn, 0, xid))


def relation(oid: int, name: str = "t") -> bytes:
    return sent(b"R" + pack("!I", oid) + b"public\0" + name.encode() + b"\0d\0\0")


def type_of(oid: int) -> bytes:
    return sent(b"Y" + pack("!I", oid) + b"public\0mood\0")


def insert(oid: int, value: bytes = b"x") -> bytes:
    column = b"t" + pack("!I", len(value)) + value
    return sent(b"I" + pack("!I", oid) + b"N" + pack("!H", 1) + column)


def truncate(*oids: int) -> bytes:
    return sent(b"T" + pack(f"!IB{len(oids)}I", len(oids), 0, *oids))


def origin(name: str = "elsewhere") -> bytes:
    return sent(b"O" + pack("!Q", 0) + name.encode() + b"\0")


def emitted(lsn: int, content: bytes = b"x", *, transactional: bool = False) -> bytes:
    head = pack("!BQ", transactional, lsn)
    return sent(b"M" + head + b"prefix\0" + pack("!I", len(content)) + content, lsn)


def stream_start(xid: int = 7, lsn: int = 0, *, first: bool = True) -> bytes:
    return sent(b"S" + pack("!IB", xid, first), lsn)


def stream_stop() -> bytes:
    return sent(b"E")


def stream_abort(xid: int = 7, subxid: int = 7) -> bytes:
    return sent(b"A" + pack("!II", xid, subxid))


def stream_commit(commit_lsn: int, end_lsn: int, xid: int = 7) -> bytes:
    return sent(b"c" + pack("!IBQQq", xid, 0, commit_lsn, end_lsn, 0), end_lsn)


def streamed(payload: bytes, xid: int = 7) -> bytes:
    """Make a message as it is inside of a stream."""
    return payload[: XLOG_DATA_BYTES + 1] + pack("!I", xid) + payload[XLOG_DATA_BYTES + 1 :]


def piece(*payloads: bytes, xid: int = 7, first: bool = True) -> tuple[bytes, ...]:
    """Make messages of transaction `xid`, streamed before it ends."""
    inside = (streamed(each, xid) for each in payloads)
    return stream_start(xid, first=first), *inside, stream_stop()


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return sent(b"C" + pack("!BQQq", 0, commit_lsn, end_lsn, 0), end_lsn)


def new_stream(
    position: Lsn,
    segment_bytes: int,
    *,
    end_lsn: int = 0x100,
    tables: tuple[str, ...] = (),
    new_spool: Callable[[], Spool] = io.BytesIO,
    settings: Mapping[str, object] = SETTINGS,
) -> ChangeStream:
    return ChangeStream(
        position,
        end_lsn=Lsn(end_lsn),
        timeline=1,
        segment_bytes=segment_bytes,
        settings=settings,
        new_spool=new_spool,
        spool_bytes_max=SPOOL_BYTES_MAX,
        tables=[("public", table) for table in tables],
    )
