"""A replacement is taken back (`walkeeper replace --cancel`), and no command of it spins.

The steps run without sockets, as in test_pure_replacing.py.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import count

import pytest

from tests.consensus.few_members import Few, command, goal_of, run
from tests.support.replaced_members import BOTH, NEW, OLD, durable_of
from walkeeper_common.errors import Refused
from walkeeper_common.history import Ballot
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    MembersState,
    cancelled,
    final,
)
from walkeeper_proposer.consensus.members.change_progress import ChangeProgress
from walkeeper_proposer.consensus.members.deciding import Batch, Steps, standing
from walkeeper_proposer.consensus.members.replacing import cancel_replacement
from walkeeper_safekeeper.consensus.member_register import changed

ROUND = Ballot(1, b"r" * 16)


def cancel(numbers: count[int], leaving: int | None = None) -> Steps:
    return cancel_replacement("main", leaving, [1, 2, 3], lambda: next(numbers).to_bytes(16))


def begun(few: Few, numbers: count[int]) -> tuple[Steps, Batch]:
    """Run a replacement of 3 by 4 until it is joint and waits; return the command there."""
    steps = command(few, goal_of(3, 4), numbers)
    batch = next(steps)
    while batch.to_go is None:
        batch = steps.send(few.answers(batch))
    assert max(few.generations()) == 2
    return steps, batch


def go_on(few: Few, steps: Steps, batch: Batch) -> None:
    with suppress(StopIteration):
        for _ in range(60):
            batch = steps.send(few.answers(batch))


def ends(few: Few, steps: Steps) -> Configuration | str:
    try:
        return run(few, steps)
    except Refused as error:
        return str(error)


def test_a_change_that_is_under_way_ends_with_the_new_members_or_with_the_old_ones() -> None:
    back = cancelled(BOTH)
    assert back.members == OLD.members and not back.joining and back.generation == 3
    for following in (final(BOTH), back):
        assert changed(durable_of(1, BOTH), AcceptMembers("main", ROUND, following)) is not None
        assert changed(durable_of(1, BOTH), InstallMembers("main", following)) is not None
    for current in (OLD, NEW):
        ask = AcceptMembers("main", ROUND, cancelled(BOTH))
        assert changed(durable_of(1, current), ask) is None, "there is nothing to take back"


def test_a_replacement_whose_newcomer_is_lost_is_taken_back() -> None:
    few, numbers = Few(has_leader=False), count(1)
    begun(few, numbers)
    few.down = {4}
    made = run(few, cancel(numbers))
    assert (made.members, made.generation, made.joining) == (OLD.members, 3, "")
    assert run(few, cancel(numbers)) == made, "a second run finds nothing to do"


def test_a_cancel_comes_in_time_or_says_that_it_is_too_late() -> None:
    """The replacement may be at any step, and the first cancel is killed at several."""
    kept = replaced = 0
    for steps_before in range(1, 30):
        for killed_at in (3, 5, 60):
            few, numbers = Few(), count(1)
            steps = command(few, goal_of(3, 4), numbers)
            batch = next(steps)
            with suppress(StopIteration):
                for _ in range(steps_before):
                    batch = steps.send(few.answers(batch))
            with pytest.raises((AssertionError, Refused, StopIteration)):
                run(few, cancel(numbers, 3), rounds=killed_at)
                raise StopIteration
            end = ends(few, cancel(numbers, 3))
            kept += end == few.newest() and few.newest().members == OLD.members
            replaced += isinstance(end, str) and few.newest().members == NEW.members
            assert all(len(known) == 1 for known in few.decided.values())
    assert kept > 20 and replaced > 10 and kept + replaced == 29 * 3


def test_who_replaced_the_member_is_said_when_the_cancel_is_too_late() -> None:
    few, numbers = Few(has_leader=False), count(1)
    replacing = begun(few, numbers)
    taking_back = cancel(numbers)
    batch = next(taking_back)
    for _ in range(2):
        batch = taking_back.send(few.answers(batch))
    few.has_leader = True
    go_on(few, *replacing)
    assert few.newest().members == NEW.members
    text = r"3 was replaced before the cancel: members are 1, 2, 4 \(generation 4\)"
    with pytest.raises(Refused, match=text):
        go_on(few, taking_back, batch)


def test_a_command_that_runs_does_not_begin_again_what_was_taken_back() -> None:
    """Its newcomer may be empty still, or be emptied meanwhile."""
    few, numbers = Few(has_leader=False), count(1)
    replacing = begun(few, numbers)
    run(few, cancel(numbers))
    few.held[4] = None
    with pytest.raises(Refused, match=r"3 by 4 was cancelled \(generation 3\)"):
        go_on(few, *replacing)
    few.has_leader = True
    made = run(few, command(few, goal_of(3, 4), numbers))
    assert made.generation == 6 and made.members == NEW.members, "a new command may"


@pytest.mark.parametrize(
    ("leaving", "text"), [(2, "another replacement is under way: 3 by 4"), (7, "another")]
)
def test_the_member_to_keep_may_be_named(leaving: int, text: str) -> None:
    few, numbers = Few(has_leader=False), count(1)
    begun(few, numbers)
    with pytest.raises(Refused, match=text):
        run(few, cancel(numbers, leaving))
    assert run(few, cancel(numbers, 3)).members == OLD.members
    with pytest.raises(Refused, match="safekeeper 7 is no member; members are 1, 2, 3"):
        run(few, cancel(numbers, 7))


def test_an_old_member_is_no_newcomer_of_the_change_that_replaces_it() -> None:
    """Proposed again and again, each time with a durable promise, it was refused for ever."""
    few, numbers = Few(has_leader=False), count(1)
    begun(few, numbers)
    few.down = {4}
    for goal in (goal_of(3, 3, instead=True), goal_of(3, 3), goal_of(3, 2, instead=True)):
        with pytest.raises(Refused, match=r"is a member still.*take it back with --cancel"):
            run(few, command(few, goal, numbers))


class Older(Few):
    """Safekeepers of a version without cancels."""

    def answer(self, number: int, ask: Message) -> Message | None:
        newest = self.newest()
        is_cancel = newest.joining and isinstance(ask, AcceptMembers) and not ask.following.joining
        if is_cancel:
            return self._state(number, granted=False)
        return super().answer(number, ask)


def test_a_round_that_is_refused_is_followed_by_a_pause_and_the_reason() -> None:
    few, numbers = Older(has_leader=False), count(1)
    begun(few, numbers)
    steps = cancel(numbers)
    batch, rounds, pauses = next(steps), 0, list[str]()
    for _ in range(40):
        answers = few.answers(batch)
        rounds += any(isinstance(a, MembersState) and not a.granted for a in answers.values())
        if not batch.requests:
            pauses.append(batch.text)
            assert batch.current == few.newest()
        batch = steps.send(answers)
    assert rounds == len(pauses) > 5
    assert set(pauses) == {
        "safekeeper 1, 2, 3 accepts no such change of members: is its version older than this "
        "command's?"
    }


def test_two_waits_by_turns_are_no_progress() -> None:
    progress, waits = ChangeProgress(), [Batch(text="a", current=OLD), Batch(text="b", current=OLD)]
    assert [progress.is_in(batch) for batch in waits * 2] == [True, True, False, False]
    filling = [Batch(text="fills", to_go=n, current=BOTH) for n in (9, 9, 7, 8, 7, 6)]
    assert [progress.is_in(batch) for batch in filling] == [True, False, True, False, False, True]
    assert progress.is_in(waits[0]), "a wait of an older generation that is new in this one"
    assert progress.is_in(Batch(text="a", current=NEW))


def test_what_stands_is_said_with_who_joins_whom() -> None:
    assert standing(OLD) == "members are 1, 2, 3 (generation 1)"
    assert standing(BOTH) == (
        "a replacement is under way, 3 by 4 at h4:5454 (generation 2), and commits need both sets "
        "of members"
    )
