"""One safekeeper gets WAL in bunches while the others are quick, and at once as soon as not."""

from __future__ import annotations

from functools import partial

import pytest

from tests.proposer.test_fast_stream import Leading, acked, pass_time
from tests.support.fast import NEEDS_FAST_PATH
from tests.support.replaced_members import OLD
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import MemberSet
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_proposer.bunches import CALM_BUNCHES, PATIENCE_MAX, PATIENCE_MIN, Bunches
from walkeeper_proposer.consensus.expected_stream import expected_stream
from walkeeper_proposer.consensus.progress import APPEND_BYTES_MAX, BUNCHED_BYTES_MAX
from walkeeper_proposer.consensus.proposer_events import LinkLost, Tick, WalArrived

pytestmark = NEEDS_FAST_PATH

FIRST_LSN = CREATION_LSN + 100
ALL, LAST = (0, 1, 2), 2


def bunching() -> Leading:
    """Return a leader whose third safekeeper was behind a commit, and gets WAL in bunches."""
    leading = Leading(patience=1)
    stream(leading, CREATION_LSN, 100)
    acked(leading, 0, FIRST_LSN)
    acked(leading, 1, FIRST_LSN)
    pass_time(leading)
    assert sent(leading) == [(link, CREATION_LSN, FIRST_LSN) for link in ALL]
    return leading


def stream(leading: Leading, begin: Lsn, size: int) -> Lsn:
    """Let the primary send WAL of which each byte tells where it stands; return its end."""
    wal = bytes((begin + at) % 251 for at in range(size))
    leading.driver.post(WalArrived(begin, memoryview(wal)))
    return begin + size


def sent(leading: Leading) -> list[tuple[int, Lsn, Lsn]]:
    """Return the appends since the last call: link, begin and end. Check each one's WAL."""
    appends = list[tuple[int, Lsn, Lsn]]()
    for one in leading.around.said:
        match one:
            case (int(link), AppendRequest() as append) if append.payload:
                begin, end = append.begin_lsn, append.end_lsn
                assert bytes(append.payload) == bytes(at % 251 for at in range(begin, end))
                appends.append((link, begin, end))
    leading.around.said.clear()
    return appends


def release(leading: Leading) -> None:
    """Let the time of a bunch pass. The driver has one timer for it."""
    due = leading.around.due
    (what,) = (w for w in due if isinstance(w, partial) and w.func == leading.driver._release_bunch)
    due.remove(what)
    what()


def test_the_last_one_gets_in_one_append_what_the_others_get_at_once() -> None:
    leading, lsn = bunching(), FIRST_LSN
    for _ in range(3):
        end = stream(leading, lsn, 100)
        assert sent(leading) == [(0, lsn, end), (1, lsn, end)]
        lsn = end
    release(leading)
    assert sent(leading) == [(2, FIRST_LSN, lsn)]
    stream(leading, lsn, 100)
    assert [link for link, _, _ in sent(leading)] == [0, 1]
    release(leading)
    assert sent(leading) == [(2, lsn, lsn + 100)]


def test_a_bunch_leaves_before_all_that_the_core_does() -> None:
    """The core believes that all have been sent what the fast path took."""
    leading = bunching()
    end = stream(leading, FIRST_LSN, 100)
    leading.around.said.clear()
    leading.driver.post(Tick())
    appends = [one for one in leading.around.said if isinstance(one, tuple) and one[0] == LAST]
    first = appends[0][1]
    assert isinstance(first, AppendRequest) and first.end_lsn == end
    assert bytes(first.payload), "the bunch, and then a heartbeat at its end"
    member = leading.core.members[LAST]
    assert member.next_lsn == end


def test_a_commit_that_waits_for_a_bunch_ends_the_bunches() -> None:
    """So a stall of a quick safekeeper delays commits by one bunch's time, once."""
    leading = bunching()
    lsn = stream(leading, stream(leading, FIRST_LSN, 100), 100)
    acked(leading, 0, lsn)
    release(leading)
    end = stream(leading, lsn, 100)
    assert sent(leading)[-2:] == [(0, lsn, end), (1, lsn, end)]
    acked(leading, LAST, lsn)
    assert sent(leading) == [(LAST, lsn, end)], "it is not kept back any longer"
    lsn, end = end, stream(leading, end, 100)
    assert sent(leading) == [(link, lsn, end) for link in ALL]
    release(leading)
    lsn, end = end, stream(leading, end, 100)
    assert sent(leading) == [(link, lsn, end) for link in ALL]
    assert leading.driver._bunches._patience == 2


def test_a_client_that_waits_for_a_bunch_ends_the_bunches() -> None:
    """It writes no more WAL before its commit, which is the bunch's only append."""
    leading = bunching()
    lsn = stream(leading, FIRST_LSN, 100)
    acked(leading, 0, lsn)
    release(leading)
    assert leading.driver._bunches._patience == 2
    sent(leading)
    end = stream(leading, lsn, 100)
    assert sent(leading) == [(link, lsn, end) for link in ALL]


def test_an_ack_for_which_no_commit_had_to_wait_ends_nothing() -> None:
    """The WAL that moves commit_lsn was on its way to the others for less than a bunch's time."""
    leading = bunching()
    lsn = stream(leading, FIRST_LSN, 100)
    acked(leading, 0, lsn)
    acked(leading, 1, lsn)
    end = stream(leading, lsn, 100)
    acked(leading, 0, end)
    release(leading)
    acked(leading, LAST, end)
    sent(leading)
    stream(leading, end, 100)
    assert [link for link, _, _ in sent(leading)] == [0, 1]


def test_a_bunch_has_a_bound_and_long_appends_go_to_all_at_once() -> None:
    leading, end = bunching(), FIRST_LSN
    for _ in range(APPEND_BYTES_MAX // BUNCHED_BYTES_MAX):
        end = stream(leading, end, BUNCHED_BYTES_MAX)
    assert [link for link, _, _ in sent(leading)] == 4 * [0, 1]
    more = stream(leading, end, 1)
    assert sent(leading) == [(0, end, more), (1, end, more), (LAST, FIRST_LSN, end)]
    last = stream(leading, more, BUNCHED_BYTES_MAX + 1)
    assert sent(leading) == [
        (0, more, last), (1, more, last), (LAST, end, more), (LAST, more, last)
    ]  # fmt: skip


def test_none_waits_that_is_needed() -> None:
    leading = bunching()
    found = expected_stream(leading.core)
    assert found is not None and found.may_wait == ALL
    leading.driver.post(LinkLost(0))
    end = stream(leading, FIRST_LSN, 100)
    assert sent(leading) == [(1, FIRST_LSN, end), (LAST, FIRST_LSN, end)]


@pytest.mark.parametrize(
    ("ack_quorum", "zones", "may_wait"),
    [
        (2, (), ALL),
        (3, (), ()),
        (2, ("a", "b", "b"), (1, 2)),
        (2, ("a", "b", "c"), ALL),
    ],
)
def test_who_may_wait_is_as_the_ack_rule_says(
    ack_quorum: int, zones: tuple[str, ...], may_wait: tuple[int, ...]
) -> None:
    leading = Leading()
    leading.leader._sets = (MemberSet(OLD.members, ack_quorum, 2 if zones else 0, zones),)
    found = expected_stream(leading.core)
    assert found is not None and found.may_wait == may_wait


def test_the_one_that_was_behind_most_often_is_chosen_after_some_commits() -> None:
    bunches = Bunches()
    bunches.learn(PATIENCE_MIN - 1, [(0, 1), (1, 30), (2, 32)], ALL)
    assert bunches.link is None
    bunches.learn(1, [(1, 1)], ())
    assert bunches.link is None, "none may wait"
    bunches.learn(0, [(1, 1)], (0, 1))
    assert bunches.link == 1


def commits_until_chosen(bunches: Bunches) -> int:
    commits = 0
    while bunches.link is None:
        bunches.learn(1, [(0, 1)], ALL)
        commits += 1
    return commits


def test_bunches_that_commits_wait_for_become_rare_and_calm_makes_them_usual_again() -> None:
    bunches, commits = Bunches(), [0]
    for _ in range(6):
        commits.append(commits_until_chosen(bunches))
        bunches.judge(5, was_needed=True)
    assert commits[1:] == [PATIENCE_MIN << n for n in range(5)] + [PATIENCE_MAX]
    for patience in (PATIENCE_MAX, PATIENCE_MAX // 2):
        assert commits_until_chosen(bunches) == patience
        for _ in range(CALM_BUNCHES):
            bunches.judge(2, was_needed=False)
        assert bunches.link is not None
        bunches.judge(1, was_needed=False)


def test_little_wal_goes_to_all_at_once() -> None:
    """A bunch of one append saves nothing."""
    bunches = Bunches()
    assert commits_until_chosen(bunches) == PATIENCE_MIN
    bunches.judge(1, was_needed=False)
    assert bunches.link is None
    assert commits_until_chosen(bunches) == PATIENCE_MIN
