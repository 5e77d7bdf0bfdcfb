"""The steady state of a leader: a safekeeper has made more durable, and nothing else is new. Pure.

Nearly every ack is one of these. How the acks of one safekeeper look then, byte for byte, is
written down once; no message and no event is made of them (walkeeper_safekeeper/steady.py: why).

    acks = steady_acks(proposer, link)      None: the next message has to be looked at
    acks.advance(memory, size)              the effects; None: not what is awaited

Void with the next event but WAL from the primary and the announcement of commit_lsn.
test_steady_acks.py holds it against `Proposer.on_append_response`.
"""

from __future__ import annotations

from walkeeper_common.framing import ACK_FRAME, ack_parts
from walkeeper_common.lsn import Lsn
from walkeeper_common.messages import AppendResponse
from walkeeper_proposer.campaign import Phase, Purpose
from walkeeper_proposer.consensus import Proposer
from walkeeper_proposer.leadership import Leader
from walkeeper_proposer.progress import Member, Stage
from walkeeper_proposer.proposer_events import Effect


class SteadyAcks:
    """Of one safekeeper that has attached in this term."""

    __slots__ = ("_leader", "_member", "_parts")

    def __init__(self, leader: Leader, member: Member) -> None:
        self._leader, self._member = leader, member
        self._parts = ack_parts(
            AppendResponse(
                leader.configuration.generation,
                leader.ballot,
                member.flush_lsn,
                member.durable_commit_lsn,
                member.feedback,
            )
        )

    def advance(self, memory: bytearray, size: int) -> list[Effect] | None:
        """The frames in the first `size` bytes are acks, each of at least as much as before."""
        flush_lsn = int(self._member.flush_lsn)
        if not size or size % ACK_FRAME.size:
            return None
        for before, flush, behind in ACK_FRAME.iter_unpack(memoryview(memory)[:size]):
            if (before, behind) != self._parts or flush < flush_lsn:
                return None
            flush_lsn = flush
        if flush_lsn > self._member.next_lsn:
            return None
        return self._leader.on_flushed(self._member, Lsn(flush_lsn))


def steady_acks(proposer: Proposer, link: int) -> SteadyAcks | None:
    """If this one streams, and its acks mean nothing but that the commit may move."""
    leader, member = proposer.leader, proposer.members[link]
    if (
        leader is None
        or proposer.phase is not Phase.LEADING
        or leader.purpose is not Purpose.ATTACH
        or member.stage is not Stage.STREAMING
        or not member.attached
    ):
        return None
    return SteadyAcks(leader, member)
