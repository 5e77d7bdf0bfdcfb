"""The steady state of a leader: WAL comes, safekeepers make it durable, and nothing else is new.

Pure. Nearly every commit takes this way. WAL goes to all who have been sent what came before it, as
one message; how acks of this term begin, byte for byte, is written down once, and no message and no
event is made of them (walkeeper_safekeeper/consensus/steady.py: why).

    steady = steady_state(proposer)             None: every event has to be looked at
    steady.on_wal(begin_lsn, wal)               the frame for `links`; None: `Leader.on_wal` sees it
    steady.on_frames(link, memory, size)        the effects; None: they are not what is awaited
    steady.bound_window()                       what else there is to be done after WAL

Void with the next event but WAL from the primary and the announcement of commit_lsn.
test_steady_leader.py holds it against `Leader.on_wal` and `Leader.on_append_response`.
"""

from __future__ import annotations

from collections.abc import Iterable

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.framing import ACK_FRAME, ack_fields, append_term
from walkeeper_common.wire.messages import NO_FEEDBACK, AppendResponse, Buffer, Feedback
from walkeeper_proposer.consensus.campaign import Phase, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import APPEND_BYTES_MAX, IN_FLIGHT_BYTES_MAX, Stage
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Effect


class Steady:
    """Of one leader, with those who have attached in this term."""

    __slots__ = (
        "_ack_head",
        "_append_term",
        "_by_link",
        "_counted",
        "_leader",
        "_members",
        "_takes_wal",
        "links",
    )

    def __init__(self, leader: Leader) -> None:
        streaming = [m for m in leader.members if m.stage is Stage.STREAMING]
        timelines, end_lsn = leader.feeder.timelines, leader.window.end_lsn
        self._leader, self._counted = leader, leader.counted()
        self._members = [m for m in streaming if m.attached]
        self._by_link = {m.link: m for m in self._members}
        self.links = tuple(self._by_link)
        self._takes_wal = self._members == streaming and end_lsn >= timelines.last_start_lsn
        term = (leader.configuration.generation, leader.ballot)
        self._append_term = append_term(*term, timelines.last)
        self._ack_head = ack_fields(AppendResponse(*term, ZERO_LSN, ZERO_LSN, NO_FEEDBACK))[0]

    def on_wal(self, begin_lsn: Lsn, wal: memoryview) -> list[Buffer] | None:
        """What the primary has sent, to everybody. A frame is APPEND_FRAME.size longer."""
        leader, feeder = self._leader, self._leader.feeder
        if (
            not self._takes_wal
            or len(wal) > APPEND_BYTES_MAX
            or not feeder.window.is_trimmed(leader.commit_lsn)
        ):
            return None
        lowest_lsn = int(begin_lsn) - IN_FLIGHT_BYTES_MAX
        for member in self._members:
            if member.next_lsn != begin_lsn or member.flush_lsn <= lowest_lsn:
                return None
        return feeder.feed_alike(self._members, self._append_term, begin_lsn, wal)

    def bound_window(self) -> list[Effect]:
        """Behind what `on_wal` gave."""
        leader = self._leader
        return leader.bound_window() if leader.window.is_full else []

    def on_frames(self, link: int, memory: bytearray, size: int) -> Iterable[Effect] | None:
        """If what is in the first `size` bytes are acks, each of at least as much as before."""
        member = self._by_link.get(link)
        if member is None or not size or size % ACK_FRAME.size:
            return None
        flush_lsn, commit_lsn = int(member.flush_lsn), 0
        known, news = member.feedback, False
        for at in range(0, size, ACK_FRAME.size):
            head, flush, commit, apply, xmin, catalog_xmin = ACK_FRAME.unpack_from(memory, at)
            if head != self._ack_head or flush < flush_lsn:
                return None
            flush_lsn, commit_lsn = flush, commit
            if known.apply_lsn != apply or known.xmin != xmin or known.catalog_xmin != catalog_xmin:
                known, news = Feedback(Lsn(apply), xmin, catalog_xmin), True
        if flush_lsn > member.next_lsn:
            return None
        member.feedback, member.durable_commit_lsn = known, Lsn(commit_lsn)
        now = Lsn(flush_lsn)
        return self._leader.on_flushed(member, now, self._counted, is_new=False, news=news)


def steady_state(proposer: Proposer) -> Steady | None:
    """If it leads for a primary: then acks mean nothing but that the commit may move."""
    leader = proposer.leader
    if leader is None or leader.purpose is not Purpose.ATTACH:
        return None
    return Steady(leader) if proposer.phase is Phase.LEADING else None
