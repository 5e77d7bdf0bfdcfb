"""The steady state of a leader: WAL comes, safekeepers make it durable, and nothing else is new.

Pure. Nearly every commit takes this way. WAL goes to all who have been sent what came before it, as
one message; how acks of this term begin, byte for byte, is written down once, and no message and no
event is made of them (walkeeper_safekeeper/consensus/steady.py: why).

    steady = steady_state(proposer)             None: every event has to be looked at
    steady.on_wal(begin_lsn, wal)               the frame for `links`; None: `Leader.on_wal` sees it
    steady.bound_window()                       what else there is to be done after that
    steady.on_frames(link, memory, size)        what to report; None: they are not what is awaited
    steady.go_on()                              what else there is to be done after that

Void with the next event but WAL from the primary and the announcement of commit_lsn.
test_steady_leader.py holds it against `Leader.on_wal` and `Leader.on_append_response`.
"""

from __future__ import annotations

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.framing import (
    ACK_BYTES,
    ACK_FRAME,
    APPEND_FRAME,
    APPEND_REST_BYTES,
    ack_fields,
    append_term,
    crc_of,
)
from walkeeper_common.wire.messages import NO_FEEDBACK, AppendResponse, Buffer, Feedback
from walkeeper_proposer.consensus.campaign import Phase, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import (
    APPEND_BYTES_MAX,
    IN_FLIGHT_BYTES_MAX,
    Member,
    Stage,
)
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Effect


class Steady:
    """Of one leader, with those who have attached in this term. `feedback`: what `on_frames` has
    for PostgreSQL beside the LSN; `goes_on`: whether its acks lead to more, see `go_on`."""

    __slots__ = (
        "_ack_head",
        "_append_term",
        "_by_link",
        "_counted",
        "_leader",
        "_members",
        "_moves",
        "_said",
        "_takes_wal",
        "feedback",
        "goes_on",
        "links",
    )

    def __init__(self, leader: Leader) -> None:
        streaming = [m for m in leader.members if m.stage is Stage.STREAMING]
        timelines, end_lsn = leader.feeder.timelines, leader.window.end_lsn
        self._leader, self._counted = leader, leader.counted()
        self._members = [m for m in streaming if m.attached]
        self._by_link = {m.link: m for m in self._members if not m.is_slow}
        self.links = tuple(m.link for m in self._members)
        is_alike = self._members == streaming and len(self._by_link) == len(streaming)
        self._takes_wal = is_alike and end_lsn >= timelines.last_start_lsn
        term = (leader.configuration.generation, leader.ballot)
        self._append_term = append_term(*term, timelines.last)
        self._ack_head = ack_fields(AppendResponse(*term, ZERO_LSN, ZERO_LSN, NO_FEEDBACK))[0]
        self.feedback = leader.feedback()
        self._said: Member | None = None  # whose acks came last
        self._moves = self.goes_on = False

    def on_wal(self, begin_lsn: Lsn, wal: memoryview) -> list[Buffer] | None:
        """What the primary has sent: the frame for everybody, APPEND_FRAME_BYTES longer. It is in
        the window then."""
        leader, size, members = self._leader, len(wal), self._members
        feeder, window, commit_lsn = leader.feeder, leader.window, leader.commit_lsn
        if not self._takes_wal or size > APPEND_BYTES_MAX or not window.is_trimmed(commit_lsn):
            return None
        lowest_lsn = int(begin_lsn) - IN_FLIGHT_BYTES_MAX
        for member in members:
            if member.next_lsn != begin_lsn or member.flush_lsn <= lowest_lsn:
                return None
        crc = crc_of(wal)
        end_lsn = window.append(begin_lsn, wal, crc)
        for member in members:
            member.next_lsn, member.told_commit_lsn = end_lsn, commit_lsn
        lsns = begin_lsn, end_lsn, commit_lsn, feeder.restart_lsn
        return [APPEND_FRAME.pack(APPEND_REST_BYTES + size, self._append_term, *lsns, crc), wal]

    def bound_window(self) -> list[Effect]:
        """Behind what `on_wal` gave."""
        leader = self._leader
        return leader.bound_window() if leader.window.is_full else []

    def on_frames(self, link: int, memory: bytearray, size: int) -> Lsn | None:
        """If what is in the first `size` bytes are acks, each of at least as much as before: what
        PostgreSQL is to be told; zero: nothing."""
        member = self._by_link.get(link)
        if member is None or not size or size % ACK_BYTES:
            return None
        flush_lsn, commit_lsn = int(member.flush_lsn), 0
        known, news = member.feedback, False
        for at in range(0, size, ACK_BYTES):
            head, flush, commit, apply, xmin, catalog_xmin = ACK_FRAME.unpack_from(memory, at)
            if head != self._ack_head or flush < flush_lsn:
                return None
            flush_lsn, commit_lsn = flush, commit
            if known.apply_lsn != apply or known.xmin != xmin or known.catalog_xmin != catalog_xmin:
                known, news = Feedback(Lsn(apply), xmin, catalog_xmin), True
        if flush_lsn > member.next_lsn:
            return None
        leader = self._leader
        member.durable_commit_lsn, member.silent_ticks = Lsn(commit_lsn), 0
        member.flush_lsn, self._said = Lsn(flush_lsn), member
        if news:
            member.feedback = known
            self.feedback = leader.feedback()
        self._moves = moves = leader.advance_commit(self._counted)
        self.goes_on = moves or leader.goes_on_behind(member)
        return (leader.told_lsn() or ZERO_LSN) if moves or news else ZERO_LSN

    def go_on(self) -> list[Effect]:
        """What the acks that `on_frames` was shown lead to, once PostgreSQL has been told."""
        if not self.goes_on or self._said is None:
            return []
        self.goes_on = False
        return self._leader.go_on(self._said, moves=self._moves)


def steady_state(proposer: Proposer) -> Steady | None:
    """If it leads for a primary: then acks mean nothing but that the commit may move."""
    leader = proposer.leader
    if leader is None or leader.purpose is not Purpose.ATTACH:
        return None
    return Steady(leader) if proposer.phase is Phase.LEADING else None
