"""The steady state of an elected term: the next WAL, and nothing else to decide. Pure.

Nearly every commit takes this way. How its appends and the answers to them look, byte for byte, is
written down once, when nothing is under way; from then on no message, event or effect is made of
them. What a commit waits for here is not so much the work as the code and the objects that it
touches, which the processor's caches have lost since the commit before.

    steady = steady_state(acceptor, …)      None: what comes next has to be decided
    wal = steady.wal_of(memory, size)       None: not what is awaited, `Acceptor.on_append` sees it
    steady.advance(acceptor)                that WAL is durable: rules 9 and 10
    steady.ack()

Void with the next event that the acceptor sees, and when `wal_of` gave WAL that was not written.
test_steady_append.py holds it against `on_append` and `on_wal_flushed`, message by message.
"""

from __future__ import annotations

from typing import TypeAlias

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import (
    ACK_FRAME,
    APPEND_FRAME,
    APPEND_REST_BYTES,
    ack_fields,
    append_term,
    crc_of,
)
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.answers import ack_of

Buffer: TypeAlias = bytes | bytearray | memoryview


class Steady:
    """Of one leader's connection. `segment_end_lsn`: where `append` would need another file."""

    __slots__ = (
        "_ack_head",
        "_ack_rest",
        "_append_term",
        "_commit_lsn",
        "_limit_lsn",
        "_restart_lsn",
        "connection",
        "end_lsn",
        "taken",
    )

    def __init__(self, acceptor: Acceptor, connection: int, segment_end_lsn: Lsn) -> None:
        durable = acceptor.durable
        assert durable.configuration is not None, f"{durable=}"
        self.connection, self.end_lsn = connection, int(acceptor.flush_lsn)
        self._limit_lsn = int(min(acceptor.unreached_lsn, segment_end_lsn))
        self._commit_lsn, self._restart_lsn = int(acceptor.told_commit_lsn), 0
        self.taken = 0
        generation, timeline = durable.configuration.generation, acceptor.timelines.last
        self._append_term = append_term(generation, durable.ballot, timeline)
        self._ack_head, _, *self._ack_rest = ack_fields(ack_of(acceptor))

    def wal_of(self, memory: bytearray, size: int) -> Buffer | None:
        """What the whole frames in the first `size` bytes append, a view if it is one; empty if it
        is there to tell us of commit_lsn alone. They are the first `taken` bytes."""
        end_lsn, told_lsn, restart_lsn = self.end_lsn, self._commit_lsn, self._restart_lsn
        pieces: list[memoryview] = []
        at = 0
        while size - at >= APPEND_FRAME.size:
            length, term, begin, end, commit, restart, crc = APPEND_FRAME.unpack_from(memory, at)
            if (
                term != self._append_term
                or begin != end_lsn
                or length - APPEND_REST_BYTES != end - begin
                or end >= self._limit_lsn
                or commit < told_lsn
            ):
                return None
            begins_at, ends_at = at + APPEND_FRAME.size, at + 4 + length
            if ends_at > size:
                break
            at = ends_at
            if end > begin:
                piece = memoryview(memory)[begins_at:at]
                if crc_of(piece) != crc:
                    return None
                pieces.append(piece)
            end_lsn, told_lsn = end, commit
            if restart > restart_lsn:
                restart_lsn = restart
        if not pieces:
            is_news = at == APPEND_FRAME.size and self._commit_lsn < min(told_lsn, end_lsn)
            if not is_news:
                return None  # a heartbeat that is answered
        self.end_lsn, self._commit_lsn, self._restart_lsn = end_lsn, told_lsn, restart_lsn
        self.taken = at
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def advance(self, acceptor: Acceptor) -> Lsn | None:
        """What `wal_of` gave is durable: the log is longer. commit_lsn, if that has moved."""
        acceptor.write_lsn = acceptor.flush_lsn = acceptor.acked_lsn = Lsn(self.end_lsn)
        acceptor.told_commit_lsn = acceptor.heard_commit_lsn = Lsn(self._commit_lsn)
        acceptor.silent_ticks = 0
        if self._restart_lsn > acceptor.restart_lsn:
            acceptor.restart_lsn = Lsn(self._restart_lsn)
        return acceptor.commit_lsn if acceptor.commit_moves() else None

    def ack(self) -> bytes:
        """The frame that acknowledges it (rule 9)."""
        return ACK_FRAME.pack(self._ack_head, self.end_lsn, *self._ack_rest)


def steady_state(acceptor: Acceptor, segment_end_lsn: Lsn) -> Steady | None:
    """If the log is durable to its end and nothing waits: then the next WAL of the elected leader
    (rule 8) needs an ack and nothing else, short of the points that have marks of their own (rules
    9 and 11)."""
    durable, timelines = acceptor.durable, acceptor.timelines
    if (
        acceptor.appender is None
        or durable.configuration is None
        or not acceptor.write_lsn == acceptor.flush_lsn == acceptor.acked_lsn
        or not (timelines.first == timelines.last or timelines.last_start_lsn < durable.commit_lsn)
        or acceptor.term_start_lsn > durable.commit_lsn
        or acceptor.waiting
        or acceptor.refusal is not None
        or acceptor.failure is not None
    ):
        return None
    return Steady(acceptor, acceptor.appender, segment_end_lsn)
