"""The steady state of a leader: WAL comes, safekeepers make it durable, and nothing else is new.

Pure. This is the fast path of nearly every commit. One frame of WAL goes to all members that have
been sent the WAL before it. A `Steady` knows the first bytes of this term's acks, and makes no
message and no event of them. walkeeper_safekeeper/consensus/steady.py gives the reason.

    steady = steady_state(proposer)             None if each event needs the slow path
    steady.on_wal(begin_lsn, wal)               the frame for `links`, or None for `Leader.on_wal`
    steady.bound_window()                       the effects that follow it
    steady.on_frames(link, memory, size)        the LSN to report, or None for the slow path
    steady.go_on()                              the effects that follow it

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
    """The fast path of one leader, with the members that have attached in this term.

    `feedback`: for PostgreSQL, beside the LSN of `on_frames`. `goes_on`: `go_on` has effects."""

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
        self._said: Member | None = None  # the sender of the last acks
        self._moves = self.goes_on = False

    def on_wal(self, begin_lsn: Lsn, wal: memoryview) -> list[Buffer] | None:
        """Put WAL of the primary into the window, and return its frame for all members.

        Return None, with no effect, if a member or the window needs the slow path."""
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
        """Return the effects that follow the frame of `on_wal`."""
        leader = self._leader
        return leader.bound_window() if leader.window.is_full else []

    def on_frames(self, link: int, memory: bytearray, size: int) -> Lsn | None:
        """Take the acks in `memory[:size]`; return the LSN to report, or zero.

        Return None, with no effect, if the bytes are not acks of as much WAL as before or more."""
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
        """Return the effects of the acks that `on_frames` took, after the report to PostgreSQL."""
        if not self.goes_on or self._said is None:
            return []
        self.goes_on = False
        return self._leader.go_on(self._said, moves=self._moves)


def steady_state(proposer: Proposer) -> Steady | None:
    """Return the fast path of a proposer that leads for a primary, or None."""
    leader = proposer.leader
    if leader is None or leader.purpose is not Purpose.ATTACH:
        return None
    if any(m.awaits_witness for m in proposer.members):
        return None  # the next ack is more than an ack
    return Steady(leader) if proposer.phase is Phase.LEADING else None
