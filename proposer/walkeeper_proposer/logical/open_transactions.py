"""Transactions that PostgreSQL streams while they are open, kept until they end. Pure.

    start, add, stop    one piece of a transaction
    abort               of a subtransaction, or of the transaction
    commit              takes it out: `read` then gives what a server sends that streams nothing

The log has whole transactions in commit order, so pieces wait here, each transaction in a spool of
its own, without the transaction ids that streaming puts into every message. What a subtransaction
did is at the end of its transaction's spool when it is rolled back, so rolling back is cutting off
(as a subscription's apply worker does with its files).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Protocol

from walkeeper_common.errors import RemoteProtocolError, WalkeeperError
from walkeeper_common.postgres.pgoutput import (
    CHANGES,
    COPY_HEADER_BYTES,
    RELATION,
    TRUNCATE,
    TYPE,
    XLOG_DATA,
    XLOG_DATA_BYTES,
    Descriptions,
    StreamAbort,
    StreamCommit,
    pack_without_xid,
    relation_name,
    stream_xid,
)
from walkeeper_common.postgres.pgwire import Buffer

WRITE_BYTES = 128 << 10
SUBTRANSACTION_BYTES = 128  # of memory, about
_CHANGE = Struct(f"!B{XLOG_DATA_BYTES - 1}xBII")  # of a stream: tag, kind, xid, relation
PLAIN_BYTES_MIN = _CHANGE.size
INSIDE = CHANGES | {RELATION, TYPE, TRUNCATE}


class Spool(Protocol):
    """A file of this process alone. OSError as a file has it."""

    def write(self, data: bytes, /) -> object: ...
    def read(self, size: int, /) -> bytes: ...
    def seek(self, place: int, /) -> object: ...
    def truncate(self, size: int, /) -> object: ...
    def close(self) -> None: ...


class CannotStream(WalkeeperError):
    """Open transactions cannot be taken. PostgreSQL can keep them itself, until they commit."""


@contextmanager
def _spooling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotStream(f"cannot keep what is streamed of open transactions: {error}") from None


class OpenTransaction:
    """One transaction's messages so far, as CopyData."""

    def __init__(self, xid: int, header: bytes, spool: Spool, arrivals: Iterator[int]) -> None:
        self.xid = xid
        self.header = header  # XLogData's, of its first piece
        self.descriptions = Descriptions(arrivals)
        self._arrivals = arrivals
        self._table_bytes: dict[tuple[str, str], int] = {}  # where a table is described first
        self._spool = spool
        self._unwritten: list[bytes] = []
        self._written_bytes = self._unwritten_bytes = 0
        self._first_bytes: dict[int, int] = {}  # where each subtransaction's begin, in order

    @property
    def held_bytes(self) -> int:
        """On disk and in memory."""
        subtransactions = SUBTRANSACTION_BYTES * len(self._first_bytes)
        return self._written_bytes + self._unwritten_bytes + subtransactions

    @property
    def is_empty(self) -> bool:
        """Nothing was done that was not rolled back."""
        return not self._written_bytes + self._unwritten_bytes

    @property
    def tables(self) -> set[tuple[str, str]]:
        """(schema, name) of what it has changed."""
        return set(self._table_bytes)

    def expects(self, subxid: int, relation: int) -> bool:
        """Whether one more row of this relation is just its bytes."""
        is_known = subxid == self.xid or subxid in self._first_bytes
        return is_known and self.descriptions.is_valid(relation)

    def add(self, subxid: int, copy_data: bytes) -> None:
        """One message that needs no transaction id any more."""
        message = memoryview(copy_data)[COPY_HEADER_BYTES:]
        at = self._written_bytes + self._unwritten_bytes
        if subxid != self.xid and subxid not in self._first_bytes:
            self._first_bytes[subxid] = at
        if message[0] == RELATION:
            self._table_bytes.setdefault(relation_name(message), at)
        self.extend(self.descriptions.see(copy_data, message) + copy_data)

    def extend(self, copy_data: bytes) -> None:
        """Messages as they are read later."""
        self._unwritten.append(copy_data)
        self._unwritten_bytes += len(copy_data)
        if self._unwritten_bytes >= WRITE_BYTES:
            self.write()

    def write(self) -> None:
        """What was added."""
        if not self._unwritten:
            return
        with _spooling():
            self._spool.write(b"".join(self._unwritten))
        self._written_bytes += self._unwritten_bytes
        self._unwritten.clear()
        self._unwritten_bytes = 0

    def roll_back(self, subxid: int) -> None:
        """All from this subtransaction's first message on: the rest is of those inside it."""
        at = self._first_bytes.get(subxid)
        if at is None:
            return
        self.write()
        with _spooling():
            self._spool.seek(at)
            self._spool.truncate(at)
        self._written_bytes = at
        while self._first_bytes and next(reversed(self._first_bytes.values())) >= at:
            self._first_bytes.popitem()
        # What PostgreSQL has described since it describes again; it forgets all that it did.
        self.descriptions = Descriptions(self._arrivals)
        self._table_bytes = {name: n for name, n in self._table_bytes.items() if n < at}

    def rewind(self) -> None:
        """To `read` it from its start."""
        self.write()
        with _spooling():
            self._spool.seek(0)

    def read(self, size: int) -> bytes:
        """The next bytes; none: that was all."""
        with _spooling():
            return self._spool.read(size)

    def close(self) -> None:
        self._spool.close()


class OpenTransactions:
    """Of one connection to the primary, by transaction id."""

    def __init__(
        self, new_spool: Callable[[], Spool], arrivals: Iterator[int], *, bytes_max: int
    ) -> None:
        self._new_spool, self._arrivals, self._bytes_max = new_spool, arrivals, bytes_max
        self._by_xid: dict[int, OpenTransaction] = {}
        self._others_bytes = 0  # of all but `_current`
        self._current: OpenTransaction | None = None  # a piece of it is being received

    @property
    def held_bytes(self) -> int:
        return sum(one.held_bytes for one in self._by_xid.values())

    @property
    def is_receiving(self) -> bool:
        """Between a Stream Start and its Stream Stop."""
        return self._current is not None

    def start(self, payload: Buffer, message: memoryview) -> None:
        if self._current is not None:
            raise RemoteProtocolError("pgoutput began a stream inside another one")
        xid = stream_xid(message)
        found = self._by_xid.get(xid)
        if found is None:
            header = bytes(payload[:XLOG_DATA_BYTES])
            found = OpenTransaction(xid, header, self._new_spool(), self._arrivals)
            self._by_xid[xid] = found
        self._current = found
        self._others_bytes = self.held_bytes - found.held_bytes

    def add_plain(self, payload: Buffer) -> bool:
        """Most messages inside a stream: one more row. False, and nothing done: `add` has to see
        it."""
        current = self._current
        if current is None or len(payload) < PLAIN_BYTES_MIN:
            return False
        tag, kind, xid, oid = _CHANGE.unpack_from(payload)
        if tag != XLOG_DATA or kind not in CHANGES or not current.expects(xid, oid):
            return False
        current.extend(pack_without_xid(payload))
        self._check_size(current)
        return True

    def add(self, payload: Buffer, message: memoryview) -> None:
        """One message inside a stream."""
        current = self._current
        assert current is not None
        if message[0] not in INSIDE:
            raise RemoteProtocolError(f"pgoutput sent {bytes(message[:1])!r} inside a stream")
        current.add(stream_xid(message), pack_without_xid(payload))
        self._check_size(current)

    def _check_size(self, current: OpenTransaction) -> None:
        if self._others_bytes + current.held_bytes > self._bytes_max:
            raise CannotStream(
                f"open transactions are larger than --spool-size-max, {self._bytes_max} bytes"
            )

    def stop(self) -> None:
        if self._current is None:
            raise RemoteProtocolError("pgoutput ended a stream that it has not begun")
        self._current.write()
        self._current = None

    def abort(self, message: memoryview) -> None:
        """One that nothing was streamed of is none of ours."""
        abort = StreamAbort.unpack(message)
        found = self._by_xid.get(abort.xid)
        if found is None:
            return
        if abort.subxid == abort.xid:
            del self._by_xid[abort.xid]
            found.close()
        else:
            found.roll_back(abort.subxid)

    def commit(self, message: memoryview) -> tuple[OpenTransaction, StreamCommit]:
        """It is the caller's now, to read and to close."""
        commit = StreamCommit.unpack(message)
        found = self._by_xid.pop(commit.xid, None)
        if found is None:
            raise RemoteProtocolError(f"pgoutput committed {commit.xid}, which was not streamed")
        found.rewind()
        return found, commit

    def clear(self) -> None:
        """A new connection sends all of them again."""
        for one in self._by_xid.values():
            one.close()
        self._by_xid.clear()
        self._current = None
