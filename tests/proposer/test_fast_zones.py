"""Zones on the compiled fast path: it counts what the rules count."""

from __future__ import annotations

from random import Random

import pytest

from tests.proposer.test_fast_stream import Leading
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import frames_of
from tests.support.replaced_members import OLD, B
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import MemberSet, flaw_of_set
from walkeeper_common.wire.messages import AppendRequest, Feedback
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.consensus.expected_stream import ExpectedStream, counted_zones

pytestmark = NEEDS_FAST_PATH


@pytest.mark.parametrize("seed", range(30))
def test_the_zones_are_those_of_the_rules(seed: int) -> None:
    """Commit as `MemberSet.acknowledged` says, with any partition into zones, in both sets."""
    random = Random(seed)
    count, start = random.randint(2, 5), Lsn(1000)
    members = tuple(f"{n}#aa" for n in range(count))
    sets = list[MemberSet]()
    while len(sets) < 2:
        zones = tuple(random.choice("abc") for _ in members)
        drawn = MemberSet(members, random.randint(1, count), random.choice((0, 2, 2, 3)), zones)
        if flaw_of_set(drawn) is None:
            sets.append(drawn)
    leading, flush_lsns = Leading(), [0] * count
    ack = bytes(frames_of(leading.ack(0, Lsn(0), Feedback(Lsn(0), 0, 0))))
    append = AppendRequest(OLD.generation, B, 1, Lsn(2000), Lsn(2000), Lsn(0), Lsn(0), 0, b"")
    expected = ExpectedStream(
        append=bytes(frames_of(append)),
        links=tuple(range(count)),
        acks=(ack,) * count,
        sets=tuple((each.ack_quorum, tuple(range(count))) for each in sets),
        zones=tuple(map(counted_zones, sets)),
        start_lsn=start,
        restart_lsn_max=Lsn(1700),
        feedback=(),
    )
    make = stream_path()
    assert make is not None
    path, commit_lsn = make(expected, [leading.around.answer(0) for _ in range(count)]), Lsn(0)
    for _ in range(40):
        link = random.randrange(count)
        flush_lsns[link] = random.randint(flush_lsns[link], 2000)
        frame = frames_of(leading.ack(0, Lsn(flush_lsns[link]), Feedback(Lsn(0), 0, 0)))
        path.take(link, frame, len(frame))
        counts = [Lsn(lsn if lsn >= start else 0) for lsn in flush_lsns]
        commit_lsn = max(commit_lsn, min(each.acknowledged(counts) for each in sets))
        assert path.commit_lsn == commit_lsn, f"{sets=} {flush_lsns=}"


def test_zones_that_do_not_fit_the_sets_make_no_fast_path() -> None:
    leading, make = Leading(), stream_path()
    ack = bytes(frames_of(leading.ack(0, Lsn(0), Feedback(Lsn(0), 0, 0))))
    append = AppendRequest(OLD.generation, B, 1, Lsn(2000), Lsn(2000), Lsn(0), Lsn(0), 0, b"")
    for zones in (((2, (0, 1)),), ((2, (0, 0, 0)),), ((2, (0, 1, 3)),), ((2, (0, 1, 2)), (0, ()))):
        expected = ExpectedStream(
            append=bytes(frames_of(append)),
            links=(0, 1, 2),
            acks=(ack,) * 3,
            sets=((2, (0, 1, 2)),),
            zones=zones,
            start_lsn=Lsn(1000),
            restart_lsn_max=Lsn(1700),
            feedback=(),
        )
        assert make is not None
        with pytest.raises(ValueError, match="given="):
            make(expected, [leading.around.answer(0) for _ in range(3)])
