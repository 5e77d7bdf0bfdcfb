"""The next frames of a steady leader, byte for byte: the template of the fast path. Pure.

A steady leader sends the primary's WAL to all safekeepers, and commits what a quorum acknowledges.
The compiled fast path (walkeeper_fastpath) does this without messages, events and effects. The
template has everything that `Leader.on_wal`, `Feeder.feed` and `Leader.on_append_response` would
look at. Where it cannot hold a fact, there is no template:

    a settling leader, one without a stream           no template
    a pause, a full window                            no template; `unsettled_bytes_max`
    a member that lags, is slow, or awaits a witness  no template
    learners, which bound restart_lsn in their own way  no template
    a fork of timelines ahead                         no template
    too much in flight, a long chunk                  `in_flight_bytes_max`, `wal_bytes_max`
    an ack of another term, with other feedback       the bytes of `acks`
    an ack of more than was sent, of less than before the positions
    an ack below the term's start (R10)               `start_lsn`

Members that have not attached count with zero (`sets`). A template is void with the next event,
except for the news of the fast path itself and the announcement of commit_lsn.
test_fast_stream.py holds the fast path against the slow one, WAL by WAL and ack by ack.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import MemberSet
from walkeeper_common.wire.framing import encode
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, Feedback
from walkeeper_proposer.consensus.campaign import Phase, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import (
    APPEND_BYTES_MAX,
    BUNCHED_BYTES_MAX,
    IN_FLIGHT_BYTES_MAX,
    Member,
    Stage,
)
from walkeeper_proposer.consensus.proposer import Proposer


@dataclass(frozen=True, slots=True)
class ExpectedStream:
    """The frames of a leader whose members have all been sent the same WAL.

    `append`: the frame of an append without WAL at the stream's end.
    `acks`: the frame of each member's last ack, in the order of `links`.
    `sets`: the ack quorum of each set, and its members as indexes in `links`. -1 counts zero.
    `zones`: how many zones each set counts, or 0, and the number of each member's zone.
    `may_wait`: the links without which the others commit, so that one may be sent WAL in bunches.
    """

    append: bytes
    links: tuple[int, ...]
    acks: tuple[bytes, ...]
    sets: tuple[tuple[int, tuple[int, ...]], ...]
    start_lsn: Lsn
    restart_lsn_max: Lsn
    feedback: tuple[Feedback, ...]
    zones: tuple[tuple[int, tuple[int, ...]], ...] = ()
    may_wait: tuple[int, ...] = ()
    bunched_bytes_max: int = BUNCHED_BYTES_MAX
    wal_bytes_max: int = APPEND_BYTES_MAX
    in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX
    unsettled_bytes_max: int = IN_FLIGHT_BYTES_MAX


def expected_stream(proposer: Proposer) -> ExpectedStream | None:
    """Return the next frames of a proposer that leads for a primary, or None."""
    leader = proposer.leader
    if leader is None or proposer.phase is not Phase.LEADING or not _is_steady(leader):
        return None
    members = [m for m in leader.members if m.attached]
    at = {id(member): index for index, member in enumerate(members)}
    feeder, end_lsn = leader.feeder, leader.window.end_lsn
    append = AppendRequest(
        generation=feeder.generation,
        ballot=feeder.ballot,
        timeline=feeder.timelines.at(end_lsn),
        begin_lsn=end_lsn,
        end_lsn=end_lsn,
        commit_lsn=leader.commit_lsn,
        restart_lsn=feeder.restart_lsn,
        crc=0,
        payload=b"",
    )
    return ExpectedStream(
        append=b"".join(encode(append)),
        links=tuple(m.link for m in members),
        acks=tuple(_last_ack(leader, m) for m in members),
        sets=tuple(
            (each.ack_quorum, tuple(at.get(id(m), -1) for m in counted))
            for each, counted in leader.counted()
        ),
        zones=tuple(counted_zones(each) for each, _ in leader.counted()),
        may_wait=tuple(m.link for m in members if _may_wait(leader, m)),
        start_lsn=leader.start_lsn,
        restart_lsn_max=min(leader.restart_lsn_max, leader.held_lsn),
        feedback=leader.feedback(),
    )


def _may_wait(leader: Leader, member: Member) -> bool:
    """Return True if the others, all that have attached, commit what they have without it."""
    return all(
        each.acknowledged([Lsn(m.attached and m is not member) for m in counted])
        for each, counted in leader.counted()
    )


def counted_zones(each: MemberSet) -> tuple[int, tuple[int, ...]]:
    """Return how many zones the set counts, and a number of the zone of each member."""
    if not each.ack_zones:
        return 0, ()
    numbers = {zone: number for number, zone in enumerate(dict.fromkeys(each.zones))}
    return each.ack_zones, tuple(numbers[zone] for zone in each.zones)


def _is_steady(leader: Leader) -> bool:
    """Return True if new WAL goes to all that stream, and an ack moves commit_lsn alone."""
    end_lsn = leader.window.end_lsn
    return (
        leader.purpose is Purpose.ATTACH
        and leader.is_streaming
        and not leader.is_paused
        and not leader.window.is_full
        and not leader.configuration.is_learning
        and end_lsn >= leader.feeder.timelines.last_start_lsn
        and not any(m.awaits_witness for m in leader.members)
        and all(_keeps_up(m, end_lsn) for m in leader.members if m.stage is Stage.STREAMING)
    )


def _keeps_up(member: Member, end_lsn: Lsn) -> bool:
    is_usual = not member.is_slow and not member.is_probed
    return member.attached and member.next_lsn == end_lsn and is_usual


def _last_ack(leader: Leader, member: Member) -> bytes:
    ack = AppendResponse(
        generation=leader.configuration.generation,
        ballot=leader.ballot,
        flush_lsn=member.flush_lsn,
        durable_commit_lsn=member.durable_commit_lsn,
        feedback=member.feedback,
    )
    return b"".join(encode(ack))
