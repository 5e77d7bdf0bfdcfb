"""A primary's logical stream, made into entries, and commits of the log into LSNs. Pure.

    on_copy_data(payload)    one XLogData or Keepalive; take() gives the bytes for the log
    replay(size)             while is_replaying, before the next payload: a transaction that was
                             streamed has committed, and goes into the log piece by piece
    on_committed(position)   -> the LSN to report to PostgreSQL, or None if it has not moved

PostgreSQL sends transactions again whenever a proposer connects. The stream drops those that the
log has, by their commit LSN. past_comparison.py checks that they are the same. A keepalive beyond
the last entry becomes a progress entry. So the quorum releases commits that publish nothing as it
releases others. While one progress entry is under way, the next one takes in later keepalives
(docs/logical.md).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

from walkeeper_common.buffers import Buffer
from walkeeper_common.entries import EntryKind
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgoutput import (
    BEGIN,
    CHANGES,
    COMMIT,
    KNOWN,
    MESSAGE,
    ORIGIN,
    RELATION,
    STREAM,
    STREAM_ABORT,
    STREAM_START,
    STREAM_STOP,
    TRUNCATE,
    TYPE,
    XLOG_DATA,
    XLOG_DATA_BYTES,
    Begin,
    Commit,
    Descriptions,
    Emitted,
    pack_copy_data,
    relation_name,
)
from walkeeper_common.postgres.pgwire import Keepalive, XLogData, unpack_from_sender
from walkeeper_common.wire.consumer_slots import SlotNews, after
from walkeeper_proposer.logical.entry_writer import EntryWriter
from walkeeper_proposer.logical.open_transactions import (
    CannotStream,
    OpenTransaction,
    OpenTransactions,
    Spool,
)
from walkeeper_proposer.logical.past_comparison import LoggedTail, Overlap

ANSWERED_MAX = 1024


@dataclass(frozen=True, slots=True)
class Published:
    """The tables of the publications, as (schema, name).

    Two publications list different columns of those in `clashing`. No change of them is decoded.
    """

    tables: tuple[tuple[str, str], ...]
    clashing: tuple[tuple[str, str], ...] = ()


class ChangeStream:
    """The end of one log in one term; it outlives connections to the primary."""

    def __init__(
        self,
        position: Lsn,
        *,
        end_lsn: Lsn,
        timeline: int,
        segment_bytes: int,
        settings: Mapping[str, object],
        new_spool: Callable[[], Spool],
        spool_bytes_max: int,
        slots: Mapping[str, Lsn] | None = None,
        tables: Iterable[tuple[str, str]] = (),
        tail: LoggedTail | None = None,
    ) -> None:
        self.writer = EntryWriter(
            position, end_lsn=end_lsn, timeline=timeline, segment_bytes=segment_bytes
        )
        self.tail = tail or LoggedTail(since_lsn=end_lsn)
        self.transactions = 0  # that have come whole
        self._settings = dict(settings)
        self._tables = set(tables)  # (schema, name) of published tables, as far as they are known
        self._answer: tuple[Published, tuple[str, ...]] | None = None  # to be written
        self._answered: deque[str] = deque(maxlen=ANSWERED_MAX)  # tokens of written answers
        self._slots: dict[str, Lsn] = dict(slots or {})  # the consumers' slots, as the log has them
        self._unwritten_slots: dict[str, Lsn] | None = None
        self._slots_position: Lsn | None = None  # the entry under way with slots
        self._ends: deque[tuple[Lsn, Lsn]] = deque([(position, end_lsn)])
        self._arrivals = count()  # descriptions so far
        self._descriptions = Descriptions(self._arrivals)
        self._open = OpenTransactions(new_spool, self._arrivals, bytes_max=spool_bytes_max)
        self._replaying: tuple[OpenTransaction, Commit, bytes] | None = None
        self._settled_segment: Lsn | None = None  # its first entries repeat the settings
        self._is_dropping = False  # inside a transaction that the log has
        self._is_inside = self._has_rows = False
        self._overlap: Overlap | None = None  # for this connection
        self._is_connected = self._streams = False
        self._progress_lsn = ZERO_LSN  # the last keepalive's LSN, if it is beyond the log's end
        self._progress_position: Lsn | None = None  # the progress entry under way

    @property
    def end_lsn(self) -> Lsn:
        """The LSN below which every commit is in the log, or on its way there."""
        return self.writer.end_lsn

    @property
    def is_comparing(self) -> bool:
        return self._overlap is not None and not self._overlap.is_over

    @property
    def received_lsn(self) -> Lsn:
        """The highest LSN to confirm to the connected primary, even if a quorum has more."""
        if self._overlap is not None and self.is_comparing:
            return self._overlap.confirmed_lsn
        return self.end_lsn

    def overlap(self, confirmed_lsn: Lsn) -> Overlap:
        """Return the comparison for a connection to a primary whose slot has confirmed this LSN."""
        return Overlap(self.tail, self.end_lsn, confirmed_lsn)

    def on_connected(self, overlap: Overlap | None = None, *, streams: bool = False) -> None:
        """Take a new connection, which sends from overlap.begin_lsn on.

        It describes every relation anew. With `streams` it sends transactions while they are open.
        The loss of the connection before may have cut off a transaction of which the log has
        frames. These are abandoned, because the new connection sends it from its start.
        """
        if self.writer.is_inside:
            self.writer.abandon()
        self._descriptions = Descriptions(self._arrivals)
        self._forget_open()
        self._is_inside = self._is_dropping = False
        self._overlap = overlap
        self._is_connected, self._streams = True, streams
        self._progress_lsn = ZERO_LSN
        self._settled_segment = None
        self._settle_segment()  # so that readers know the log before the first transaction
        if self._slots_position is None:
            self._write_slots()

    def on_disconnected(self) -> None:
        """Make nothing until the next connection.

        A transaction that waited for its commit would move the log's end after the core asked
        for a stream from it (seed 145 of tests.proof.sim.logical).
        """
        self._is_connected = False
        self._answer = None
        self._forget_open()

    def unanswered(self, tokens: Iterable[str]) -> tuple[str, ...]:
        """Return the queries that have no answer yet."""
        made = (*self._answered, *(self._answer[1] if self._answer is not None else ()))
        return tuple(token for token in tokens if token not in made)

    def on_published(self, published: Published, tokens: tuple[str, ...] = ()) -> None:
        """Take the tables in the catalogs now, and the queries of subscriptions that they answer.

        A name that is gone would stop a new subscription. An older description may add it again.
        So an answer is an entry of its own, with these tables and no others.
        """
        found = set(published.tables)
        if tokens:
            before = self._answer[1] if self._answer is not None else ()
            self._answer = published, (*before, *tokens)
            self._write_answer()
            return
        if found == self._tables:
            return
        self._tables = found
        self._settled_segment = None
        if self._is_connected and not self._is_inside:
            self._settle_segment()

    def _write_answer(self) -> None:
        if self._answer is None or self._is_inside or not self._is_connected:
            return  # the transaction's end writes it
        (published, tokens), self._answer = self._answer, None
        self._tables = set(published.tables)
        self._answered.extend(tokens)
        self._settle_segment()
        answer = {"tables": sorted(self._tables), "clashing": sorted(published.clashing)}
        self._write_settings({**answer, "answered": tokens})

    def _forget_open(self) -> None:
        """Drop open transactions, which the next connection sends again."""
        self._open.clear()
        if self._replaying is not None:
            self._replaying[0].close()
            self._replaying = None

    def on_copy_data(self, payload: Buffer) -> bool:
        """Return True if the primary asks for a status now."""
        assert self._replaying is None, f"{self._replaying=}"
        if self._open.add_plain(payload):
            return False
        if self._is_plain_change(payload):
            self._has_rows = True
            if not self._is_dropping:
                self.writer.add(pack_copy_data(payload))
            return False
        match unpack_from_sender(payload):
            case XLogData(_, _, _, message):
                self._on_message(payload, message)
                return False
            case Keepalive(wal_end_lsn, _, reply_requested):
                self._on_keepalive(wal_end_lsn)
                return reply_requested

    def take(self) -> tuple[Lsn, memoryview]:
        """Return (position, bytes) for the log; there may be no bytes."""
        position, data = self.writer.take()
        return position, memoryview(data)

    def on_committed(self, position: Lsn) -> Lsn | None:
        """Return the end LSN of the last whole entry below `position`, or None if it is not new."""
        found = None
        while self._ends and self._ends[0][0] <= position:
            found = self._ends.popleft()[1]
        if self._slots_position is not None and position >= self._slots_position:
            self._slots_position = None
            self._write_slots()
        if self._progress_position is not None and position >= self._progress_position:
            self._progress_position = None
            self._write_progress()
        return found

    def _is_plain_change(self, payload: Buffer) -> bool:
        """Return True for a row of a relation that is described already, as most messages are."""
        return (
            self._is_inside
            and len(payload) > XLOG_DATA_BYTES + 4
            and payload[0] == XLOG_DATA
            and payload[XLOG_DATA_BYTES] in CHANGES
            and self._descriptions.is_valid(
                int.from_bytes(payload[XLOG_DATA_BYTES + 1 : XLOG_DATA_BYTES + 5], "big")
            )
        )

    def _on_message(self, payload: Buffer, message: memoryview) -> None:
        if not len(message) or message[0] not in KNOWN:
            raise RemoteProtocolError(f"pgoutput sent {bytes(message[:20])!r}, which is unknown")
        kind = message[0]
        if kind == ORIGIN and self._streams:
            # PostgreSQL takes the origin of a streamed transaction from its first change. So a
            # transaction that begins with DDL is streamed without it (ReorderBufferProcessTXN).
            raise CannotStream("replication origins are in use at the primary")
        if self._open.is_receiving or kind in STREAM:
            self._on_streamed(payload, message)
            return
        if kind == BEGIN:
            self._on_begin(message)
        elif kind == MESSAGE and not self._is_inside:
            self._on_lone_message(payload, Emitted.unpack(message))
            return
        elif not self._is_inside:
            raise RemoteProtocolError(f"pgoutput sent {bytes(message[:1])!r} outside a transaction")
        self._has_rows |= kind in CHANGES or kind == TRUNCATE
        copy_data = pack_copy_data(payload)
        if self._is_dropping:
            if kind in (RELATION, TYPE):
                self._descriptions.see(copy_data, message)
                self._descriptions.forget_valid()
        else:
            lacking = self._descriptions.see(copy_data, message)
            if lacking:
                self.writer.add(lacking)
            self.writer.add(copy_data)
        if kind == RELATION and relation_name(message) not in self._tables:
            self._tables.add(relation_name(message))
            self._settled_segment = None  # written at the transaction's end
        if kind == COMMIT:
            self._on_commit(Commit.unpack(message))

    def _on_begin(self, message: memoryview) -> None:
        if self._is_inside:
            raise RemoteProtocolError("pgoutput began a transaction inside another one")
        final_lsn = Begin.unpack(message).final_lsn
        self._is_inside, self._has_rows = True, False
        # final_lsn is the start of the commit record, end_lsn the end of a record.
        self._is_dropping = final_lsn < self.end_lsn
        if not self._is_dropping:
            self._reach(final_lsn)
            self._settle_segment()
            self.writer.begin(EntryKind.TRANSACTION)

    def _on_commit(self, commit: Commit) -> None:
        dropped, self._is_inside, self._is_dropping = self._is_dropping, False, False
        if dropped:
            self._compare(commit, has_rows=self._has_rows)
            return
        self._check_order(commit)
        if self._has_rows:
            self.tail = LoggedTail(commit)
        self._end_transaction(commit.end_lsn)

    def _compare(self, commit: Commit, *, has_rows: bool) -> None:
        if self._overlap is not None:
            self._overlap.on_transaction(commit, has_rows=has_rows)

    def _reach(self, lsn: Lsn) -> None:
        if self._overlap is not None:
            self._overlap.on_reached(lsn)

    def _check_order(self, commit: Commit) -> None:
        if commit.end_lsn <= self.end_lsn:
            self._is_inside = True  # the next connection abandons it
            raise RemoteProtocolError(f"a commit that ends at {commit.end_lsn}: {self.end_lsn} was")

    # Transactions that are streamed while they are open

    @property
    def spooled_bytes(self) -> int:
        """Bytes on disk and in memory, of transactions neither in the log nor rolled back."""
        ending = self._replaying[0].held_bytes if self._replaying is not None else 0
        return self._open.held_bytes + ending

    def _on_streamed(self, payload: Buffer, message: memoryview) -> None:
        kind = message[0]
        # Without streams, PostgreSQL 18 reports the rollback of a spilled transaction as well. Then
        # `abort` does not know the transaction.
        if self._is_inside or not (self._streams or kind == STREAM_ABORT):
            raise RemoteProtocolError(f"pgoutput sent {bytes(message[:1])!r} where none may be")
        if kind == STREAM_STOP:
            self._open.stop()
        elif self._open.is_receiving:
            self._open.add(payload, message)
        elif kind == STREAM_START:
            self._open.start(payload, message)
        elif kind == STREAM_ABORT:
            self._open.abort(message)
        else:
            self._on_stream_commit(payload, message)

    def _on_stream_commit(self, payload: Buffer, message: memoryview) -> None:
        """Begin the entry of a streamed transaction that has committed; `replay` writes it."""
        one, ended = self._open.commit(message)
        commit = ended.commit
        if commit.commit_lsn < self.end_lsn:  # the log has it
            self._compare(commit, has_rows=not one.is_empty)
            self._descriptions.take_in(one.descriptions)
            one.close()
            return
        self._check_order(commit)
        self._reach(commit.commit_lsn)
        self._is_inside, self._has_rows = True, not one.is_empty
        self._settle_segment()
        self.writer.begin(EntryKind.TRANSACTION)
        self.writer.add(pack_copy_data(one.header + ended.begin.pack()))
        self._replaying = one, commit, bytes(payload[:XLOG_DATA_BYTES])

    @property
    def is_replaying(self) -> bool:
        """True until `replay` has come to the transaction's end; no payload may come before."""
        return self._replaying is not None

    def replay(self, size: int) -> None:
        """Write `size` more bytes of the transaction."""
        assert self._replaying is not None
        one, commit, header = self._replaying
        data = one.read(size)
        if data:
            self.writer.add(data)
            return
        self.writer.add(pack_copy_data(header + commit.pack()))
        one.close()
        self._replaying, self._is_inside = None, False
        if self._has_rows:
            self.tail = LoggedTail(commit)
        self._descriptions.take_in(one.descriptions)
        if not one.tables <= self._tables:
            self._tables |= one.tables
            self._settled_segment = None
        self._end_transaction(commit.end_lsn)

    def _on_lone_message(self, payload: Buffer, emitted: Emitted) -> None:
        """Write a message that is not transactional, as an entry of its own.

        PostgreSQL sends it between transactions, when it has decoded it. Its LSN shows whether the
        log has it.
        """
        if emitted.is_transactional:
            raise RemoteProtocolError("pgoutput sent a transactional message outside of one")
        if emitted.end_lsn <= self.end_lsn:
            return
        self._reach(emitted.end_lsn)
        self._settle_segment()
        self.writer.begin(EntryKind.TRANSACTION)
        self.writer.add(pack_copy_data(payload))
        self._end_transaction(emitted.end_lsn)

    def _end_transaction(self, end_lsn: Lsn) -> None:
        """End the entry of a transaction, and write the entries that waited for this."""
        self.transactions += 1
        self._end_entry(end_lsn)
        if self._settled_segment is None:
            self._settle_segment()
        if self._progress_lsn > self.end_lsn and self._progress_position is None:
            self._write_progress()
        if self._slots_position is None:
            self._write_slots()
        self._write_answer()

    def _end_entry(self, end_lsn: Lsn) -> None:
        self.writer.end(end_lsn)
        self._ends.append((self.writer.position, end_lsn))

    def _settle_segment(self) -> None:
        """Write the settings that a reader needs first, once for each segment and connection."""
        while self.writer.segment != self._settled_segment:
            self._settled_segment = self.writer.segment
            self._descriptions.forget_valid()
            self._write_settings({"tables": sorted(self._tables)})

    def _write_settings(self, more: Mapping[str, object]) -> None:
        slots = {name: str(lsn) for name, lsn in self._slots.items()}
        self.writer.begin(EntryKind.SETTINGS)
        self.writer.add(json.dumps({**self._settings, "slots": slots, **more}).encode())
        self._end_entry(self.end_lsn)

    # The consumers' slots

    def on_consumer_slots(self, news: tuple[SlotNews, ...]) -> None:
        """Write positions of slots into the log, one entry at a time.

        Positions that come meanwhile go into the next entry. A new slot begins at the end of the
        last whole entry. Every log with this slot has below that all that was acknowledged before
        the request, even if the slot's safekeeper lags far. All later entries are above.
        """
        known = self._slots if self._unwritten_slots is None else self._unwritten_slots
        self._unwritten_slots = after(known, news, end_lsn=self.end_lsn)
        if self._slots_position is None:
            self._write_slots()

    def _write_slots(self) -> None:
        if self._unwritten_slots in (None, self._slots):
            return
        if self._is_inside or not self._is_connected:
            return  # the transaction's end writes it, or the next connection
        assert self._unwritten_slots is not None
        self._slots, self._unwritten_slots = self._unwritten_slots, None
        self._settle_segment()
        self._write_settings({})  # without the tables, which may be many and are in the segment
        self._slots_position = self.writer.position

    # Keepalives

    def _on_keepalive(self, wal_end_lsn: Lsn) -> None:
        self._reach(wal_end_lsn)
        self._progress_lsn = max(self._progress_lsn, wal_end_lsn)
        if not self._is_inside and self._progress_position is None:
            self._write_progress()

    def _write_progress(self) -> None:
        """Write a progress entry up to the keepalive's LSN, if the log is not that far."""
        if self._progress_lsn <= self.end_lsn or self._is_inside or not self._is_connected:
            return
        self._settle_segment()
        self.writer.begin(EntryKind.PROGRESS)
        self._end_entry(self._progress_lsn)
        self._progress_position = self.writer.position
