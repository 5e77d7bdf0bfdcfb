"""When the core learns of what the fast path did, so that it tells of commits."""

from __future__ import annotations

from collections.abc import Callable

from tests.proposer.test_fast_stream import Leading, acked
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.frames import tell
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.messages import Feedback
from walkeeper_proposer.consensus.proposer_events import WalArrived

pytestmark = NEEDS_FAST_PATH


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
    return [(link, message.commit_lsn) for link, message in said]


def test_the_announcement_tells_the_core_too() -> None:
    """While it is awaited, no other timer wakes the loop; an append tells what was announced."""
    leading = Leading()
    end, announce = announced_soon(leading)
    committed(leading, end, 50)
    assert leading.around.due == [announce] and leading.leader.commit_lsn == end
    leading.around.due.clear()
    leading.around.said.clear()
    announce()
    assert leading.leader.commit_lsn == end + 50 and not leading.around.said
    (announce,) = leading.around.due
    announce()
    assert heartbeats(leading) == [(link, end + 50) for link in range(3)]


def test_standbys_do_not_wait_for_the_announcement() -> None:
    """The core learns by a timer of its own, and tells the member with standbys at once."""
    leading = Leading()
    tell(leading.driver, 2, leading.ack(2, CREATION_LSN, Feedback(CREATION_LSN, 1, 2)))
    (announce,) = leading.around.due
    end = committed(leading, CREATION_LSN, 50)
    first, settle = leading.around.due
    assert first == announce
    leading.around.said.clear()
    settle()
    assert heartbeats(leading) == [(2, end)]
