"""When the core learns of what the fast path did, so that it tells of commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from tests.proposer.test_fast_stream import Leading, acked
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import tell
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.messages import AppendRequest, Feedback
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    Effect,
    Event,
    StreamTaken,
    WalArrived,
)

pytestmark = NEEDS_FAST_PATH

PUT_OFFS_MAX = 4  # _frames.pxi


def announced_soon(leading: Leading) -> tuple[Lsn, Callable[[], None]]:
    """Commit until the core learns of it; return commit_lsn and the announcement that is due."""
    begin = CREATION_LSN
    for _ in range(4):
        begin = committed(leading, begin, 100)
    (settle,) = leading.around.due
    leading.around.due.clear()
    settle()
    (announce,) = leading.around.due
    return begin, announce


def committed(leading: Leading, begin: Lsn, size: int) -> Lsn:
    end = begin + size
    leading.driver.post(WalArrived(begin, memoryview(bytes(size))))
    acked(leading, 0, end)
    acked(leading, 1, end)
    return end


def heartbeats(leading: Leading) -> list[tuple[int, Lsn]]:
    said = [one for one in leading.around.said if isinstance(one, tuple)]
    beats = [(link, one) for link, one in said if isinstance(one, AppendRequest)]
    return [(link, one.commit_lsn) for link, one in beats if one.begin_lsn == one.end_lsn]


def test_the_announcement_tells_the_core_too() -> None:
    """While it is awaited, no other timer wakes the loop."""
    leading = Leading()
    end, announce = announced_soon(leading)
    assert leading.leader.commit_lsn == end
    leading.around.said.clear()
    acked(leading, 2, end)
    assert leading.around.due == [announce], "no other timer"
    announce()
    assert heartbeats(leading) == [(link, end) for link in range(3)]
    assert leading.core.members[2].flush_lsn == end


def test_an_announcement_that_would_only_be_asked_for_again_does_not_wake_the_core() -> None:
    """An append has announced what was owed, and a newer commit_lsn is owed since."""
    leading, stepped = Leading(), list[type]()
    end, announce = announced_soon(leading)
    step = leading.core.step

    def counted(event: Event) -> Sequence[Effect]:
        stepped.append(type(event))
        return step(event)

    leading.core.step = counted  # type: ignore[method-assign,assignment]
    for times in range(1, PUT_OFFS_MAX + 2):
        leading.around.due.clear()
        end = committed(leading, end, 50)
        leading.around.said.clear()
        announce()
        assert not heartbeats(leading) and len(leading.around.due) == 1
        assert stepped == ([] if times <= PUT_OFFS_MAX else [StreamTaken, AnnounceDue])
        (announce,) = leading.around.due
    assert leading.leader.commit_lsn == end, "some times later the core learns of it all"
    announce()
    assert heartbeats(leading) == [(link, end) for link in range(3)]


@pytest.mark.parametrize("seed", range(20))
def test_both_paths_tell_of_a_commit_at_the_same_time(seed: int) -> None:
    """Between two announcements come commits, acks of a third member, or nothing."""
    random, said, put_off = Random(seed), list[list[tuple[object, list[tuple[int, Lsn]]]]](), 0
    rounds = [random.choice(((), (10,), (500,), (7, 90, 10))) for _ in range(80)]
    for is_fast in (True, False):
        leading, end = Leading(is_fast=is_fast), CREATION_LSN
        said.append([])
        for sizes in rounds:
            awaited, leading.around.due = leading.around.due, []
            for size in sizes:
                end = committed(leading, end, size)
                settle_now(leading)
            if len(sizes) == 3:
                acked(leading, 2, end)
            for announce in awaited:
                announce()
            put_off += leading.leader.commit_lsn < end
            said[-1].append((sizes, heartbeats(leading)))
            leading.around.said.clear()
    assert said[0] == said[1]
    assert sum(bool(told) for _, told in said[0]) > 5 and put_off > 5


def settle_now(leading: Leading) -> None:
    """Let the core learn now what it was to learn by a timer of its own."""
    if leading.driver._settle in leading.around.due:
        leading.around.due.remove(leading.driver._settle)
        leading.driver._settle()


def test_standbys_do_not_wait_for_the_announcement() -> None:
    """The ack that commits all WAL lets the core tell the member with standbys, at once."""
    leading = Leading()
    tell(leading.driver, 2, leading.ack(2, CREATION_LSN, Feedback(CREATION_LSN, 1, 2)))
    middle = CREATION_LSN + 50
    for begin in (CREATION_LSN, middle):
        leading.driver.post(WalArrived(begin, memoryview(bytes(50))))
    leading.around.said.clear()
    for link in (0, 1):
        acked(leading, link, middle)
    assert not heartbeats(leading), "the next append carries it"
    for link in (0, 1):
        acked(leading, link, middle + 50)
    assert heartbeats(leading) == [(2, middle + 50)]


def test_without_standbys_the_core_learns_of_a_commit_later() -> None:
    leading = Leading()
    end = committed(leading, CREATION_LSN, 50)
    assert not heartbeats(leading) and leading.leader.commit_lsn < end
