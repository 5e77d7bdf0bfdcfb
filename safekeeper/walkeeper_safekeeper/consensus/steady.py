"""The steady state of an elected term: the next WAL, and nothing else to decide. Pure.

This is the fast path of nearly every commit. A `Steady` knows the bytes of the next append's head
and of the ack to it. So one function handles them, without messages, events and effects. The cost
of a commit here is less the work than the code and the objects that it touches. The processor's
caches have lost them since the commit before, and each call of another function adds to them.

    steady = steady_state(acceptor, …)      None if the next event needs a decision
    steady.take(memory, size)               0 if `Acceptor.on_append` has to handle the bytes

Void with the next event that the acceptor sees.
test_steady_append.py holds it against `on_append` and `on_wal_flushed`, message by message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import (
    ACK_BYTES,
    ACK_FRAME,
    APPEND_FRAME,
    APPEND_FRAME_BYTES,
    APPEND_REST_BYTES,
    ack_fields,
    append_term,
    crc_of,
)
from walkeeper_common.wire.messages import Buffer
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_answers import ack_of

# WAL that begins at an LSN: it is durable when this returns True. False: nothing was done, as it
# may not be done at once. WalkeeperError: it cannot be made durable.
Write: TypeAlias = Callable[[int, Buffer], bool]
Answer: TypeAlias = Callable[[list[Buffer], int], object]


class Steady:
    """The fast path of one leader's connection. At `limit_lsn` another file or a mark is due."""

    __slots__ = (
        "_acceptor",
        "_ack_head",
        "_ack_rest",
        "_answer",
        "_append_term",
        "_commit_moved",
        "_end_lsn",
        "_limit_lsn",
        "_write",
        "connection",
        "groups_written",
        "taken",
    )

    def __init__(
        self,
        acceptor: Acceptor,
        connection: int,
        limit_lsn: Lsn,
        write: Write,
        answer: Answer,
        commit_moved: Callable[[Lsn], object],
    ) -> None:
        durable = acceptor.durable
        assert durable.configuration is not None, f"{durable=}"
        self.connection, self._acceptor = connection, acceptor
        self._write, self._answer, self._commit_moved = write, answer, commit_moved
        self._end_lsn, self._limit_lsn = int(acceptor.flush_lsn), int(limit_lsn)
        self.groups_written = self.taken = 0
        generation, timeline = durable.configuration.generation, acceptor.timelines.last
        self._append_term = append_term(generation, durable.ballot, timeline)
        self._ack_head, _, *self._ack_rest = ack_fields(ack_of(acceptor))

    def take(self, memory: bytearray, size: int) -> int:
        """Check, write, acknowledge and count the whole frames in `memory[:size]`, in this order.

        Return their number of bytes. Return 0, with no effect, if the acceptor has to decide.
        Raise WalkeeperError if the write of the first `taken` bytes failed."""
        acceptor, at = self._acceptor, 0
        check = acceptor.flaw_of_wal
        end_lsn, told_lsn, restart_lsn = self._end_lsn, acceptor.told_commit_lsn, 0
        begin_lsn, pieces, view = end_lsn, list[memoryview](), memoryview(memory)
        while size - at >= APPEND_FRAME_BYTES:
            length, term, begin, end, commit, restart, crc = APPEND_FRAME.unpack_from(memory, at)
            if (
                term != self._append_term
                or begin != end_lsn
                or length - APPEND_REST_BYTES != end - begin
                or end >= self._limit_lsn
                or commit < told_lsn
            ):
                return 0
            begins_at, ends_at = at + APPEND_FRAME_BYTES, at + 4 + length
            if ends_at > size:
                break
            at = ends_at
            if end > begin:
                piece = view[begins_at:at]
                if crc_of(piece) != crc:
                    return 0
                # A page starts in it. The acceptor says what is wrong.
                if check is not None and begin - 1 >> 13 != end - 1 >> 13 and check(begin, piece):
                    return 0
                pieces.append(piece)
            end_lsn, told_lsn = end, commit
            if restart > restart_lsn:
                restart_lsn = restart
        if pieces:
            self.taken = at
            if not self._write(begin_lsn, pieces[0] if len(pieces) == 1 else b"".join(pieces)):
                return 0
            # R9. The ack leaves before all work that can wait.
            self._answer([ACK_FRAME.pack(self._ack_head, end_lsn, *self._ack_rest)], ACK_BYTES)
            self.groups_written += 1
            self._end_lsn = end_lsn
            acceptor.write_lsn = acceptor.flush_lsn = acceptor.acked_lsn = Lsn(end_lsn)
        else:
            is_news = at == APPEND_FRAME_BYTES and acceptor.told_commit_lsn < min(told_lsn, end_lsn)
            if not is_news:
                return 0  # a heartbeat that is answered
        acceptor.told_commit_lsn = acceptor.heard_commit_lsn = Lsn(told_lsn)
        acceptor.silent_ticks = 0
        if restart_lsn > acceptor.restart_lsn:
            acceptor.restart_lsn = Lsn(restart_lsn)
        if acceptor.commit_moves():
            self._commit_moved(acceptor.commit_lsn)
        return at


def steady_state(
    acceptor: Acceptor,
    connection: int,
    segment_end_lsn: Lsn,
    write: Write,
    answer: Answer,
    commit_moved: Callable[[Lsn], object],
) -> Steady | None:
    """Return the fast path of the next append, if the log is durable to its end and nothing waits.

    The next WAL of the elected leader (R8) then needs an ack and nothing else. The fast path ends
    before the points that have marks of their own (R9, R11). `segment_end_lsn`: where `write` would
    need another file.
    """
    durable, timelines = acceptor.durable, acceptor.timelines
    if (
        acceptor.appender != connection
        or durable.configuration is None
        or not acceptor.write_lsn == acceptor.flush_lsn == acceptor.acked_lsn
        or not (timelines.first == timelines.last or timelines.last_start_lsn < durable.commit_lsn)
        or acceptor.term_start_lsn > durable.commit_lsn
        or acceptor.waiting
        or acceptor.refusal is not None
        or acceptor.failure is not None
    ):
        return None
    limit_lsn = min(acceptor.unreached_lsn, segment_end_lsn)
    return Steady(acceptor, connection, limit_lsn, write, answer, commit_moved)
