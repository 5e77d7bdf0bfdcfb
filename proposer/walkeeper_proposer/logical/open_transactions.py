"""Transactions that PostgreSQL streams while they are open, kept until they end. Pure.

    start, add, stop    one piece of a transaction
    abort               a subtransaction, or the transaction, is rolled back
    commit              takes it out: `read` then returns it as a server without streaming sends it

The log has whole transactions in commit order, so pieces wait here. Each transaction has a spool of
its own, without the transaction ids that streaming puts into every message. The changes of a
subtransaction are at the end of its transaction's spool when it is rolled back. So a rollback cuts
the spool off, as a subscription's apply worker does with its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Protocol

from walkeeper_common.buffers import Buffer
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

WRITE_BYTES = 128 << 10
SUBTRANSACTION_BYTES = 128  # about as much memory as one takes
_CHANGE = Struct(f"!B{XLOG_DATA_BYTES - 1}xBII")  # in a stream: tag, kind, xid, relation
PLAIN_BYTES_MIN = _CHANGE.size
INSIDE = CHANGES | {RELATION, TYPE, TRUNCATE}


class Spool(Protocol):
    """A file of this process alone; it raises OSError as a file does."""

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
        self.header = header  # the XLogData header of its first piece
        self.descriptions = Descriptions(arrivals)
        self._arrivals = arrivals
        self._table_bytes: dict[tuple[str, str], int] = {}  # where a table is described first
        self._spool = spool
        self._unwritten: list[bytes] = []
        self._written_bytes = self._unwritten_bytes = 0
        self._first_bytes: dict[int, int] = {}  # where each subtransaction begins, in order

    @property
    def held_bytes(self) -> int:
        """The bytes on disk and in memory."""
        subtransactions = SUBTRANSACTION_BYTES * len(self._first_bytes)
        return self._written_bytes + self._unwritten_bytes + subtransactions

    @property
    def is_empty(self) -> bool:
        """True if every change was rolled back, or none was made."""
        return not self._written_bytes + self._unwritten_bytes

    @property
    def tables(self) -> set[tuple[str, str]]:
        """(schema, name) of each table that it has changed."""
        return set(self._table_bytes)

    def expects(self, subxid: int, relation: int) -> bool:
        """Return True if one more row of this relation adds its bytes and no more."""
        is_known = subxid == self.xid or subxid in self._first_bytes
        return is_known and self.descriptions.is_valid(relation)

    def add(self, subxid: int, copy_data: bytes) -> None:
        """Add one message that no longer needs a transaction id."""
        message = memoryview(copy_data)[COPY_HEADER_BYTES:]
        at = self._written_bytes + self._unwritten_bytes
        if subxid != self.xid and subxid not in self._first_bytes:
            self._first_bytes[subxid] = at
        if message[0] == RELATION:
            self._table_bytes.setdefault(relation_name(message), at)
        self.extend(self.descriptions.see(copy_data, message) + copy_data)

    def extend(self, copy_data: bytes) -> None:
        """Add messages in the form in which they are read later."""
        self._unwritten.append(copy_data)
        self._unwritten_bytes += len(copy_data)
        if self._unwritten_bytes >= WRITE_BYTES:
            self.write()

    def write(self) -> None:
        """Write the added messages to the spool."""
        if not self._unwritten:
            return
        with _spooling():
            self._spool.write(b"".join(self._unwritten))
        self._written_bytes += self._unwritten_bytes
        self._unwritten.clear()
        self._unwritten_bytes = 0

    def roll_back(self, subxid: int) -> None:
        """Cut off all from this subtransaction's first message on.

        The rest of the spool is its own and that of the subtransactions inside it.
        """
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
        # PostgreSQL forgets all its descriptions on a rollback, and sends them again.
        self.descriptions = Descriptions(self._arrivals)
        self._table_bytes = {name: n for name, n in self._table_bytes.items() if n < at}

    def rewind(self) -> None:
        """Prepare to `read` it from its start."""
        self.write()
        with _spooling():
            self._spool.seek(0)

    def read(self, size: int) -> bytes:
        """Return the next bytes, or no bytes at the end."""
        with _spooling():
            return self._spool.read(size)

    def close(self) -> None:
        self._spool.close()


class OpenTransactions:
    """The open transactions of one connection to the primary, by transaction id."""

    def __init__(
        self, new_spool: Callable[[], Spool], arrivals: Iterator[int], *, bytes_max: int
    ) -> None:
        self._new_spool, self._arrivals, self._bytes_max = new_spool, arrivals, bytes_max
        self._by_xid: dict[int, OpenTransaction] = {}
        self._others_bytes = 0  # the bytes of all but `_current`
        self._current: OpenTransaction | None = None  # the one whose piece is being received

    @property
    def held_bytes(self) -> int:
        return sum(one.held_bytes for one in self._by_xid.values())

    @property
    def is_receiving(self) -> bool:
        """True between a Stream Start and its Stream Stop."""
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
        """Add one more row, as most messages inside a stream are.

        Return False, and do nothing, if `add` has to see the message.
        """
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
        """Add one message inside a stream."""
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
        """Roll back a transaction or subtransaction; ignore one that was not streamed."""
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
        """Return the transaction and its commit; the caller reads and closes it."""
        commit = StreamCommit.unpack(message)
        found = self._by_xid.pop(commit.xid, None)
        if found is None:
            raise RemoteProtocolError(f"pgoutput committed {commit.xid}, which was not streamed")
        found.rewind()
        return found, commit

    def clear(self) -> None:
        """Close all of them: a new connection sends them again."""
        for one in self._by_xid.values():
            one.close()
        self._by_xid.clear()
        self._current = None
