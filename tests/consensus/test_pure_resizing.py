"""Commands that make any set of members, with any ack quorum, of any other.

The steps run without sockets, as in test_pure_replacing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

import pytest

from tests.consensus.few_members import Few, assert_one_for_each_generation, run, run_side_by_side
from tests.consensus.test_pure_member_sets import ROUND, names, set_of
from tests.support.replaced_members import CREATION, OLD, durable_of
from tests.support.scenario_words import configuration_of
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.quorum import Configuration, MemberSet, joined_addresses
from walkeeper_common.wire.member_change import (
    MembersState,
    final,
    joint_with,
    replaced_text,
    with_ids,
)
from walkeeper_proposer.consensus.members.changing import Goal, cancel_change, change_members
from walkeeper_proposer.consensus.members.deciding import Batch, Steps, standing
from walkeeper_proposer.consensus.members.newcomers import Newcomer


class Any(Few):
    """Members 1 to `size`; the others, up to 6, are running without this log."""

    def __init__(self, size: int, ack_quorum: int | None = None, *, has_leader: bool = True):
        super().__init__(has_leader=has_leader)
        first = configuration_of(size, ack_quorum)
        self.held = {n: durable_of(n, first) if n <= size else None for n in range(1, 7)}


def newcomers(*numbers: int) -> tuple[Newcomer, ...]:
    return tuple(Newcomer(number, f"h{number}:1", number) for number in numbers)


def add(*numbers: int, ack: int | None = None) -> Goal:
    return Goal("main", joining=newcomers(*numbers), ack_quorum=ack)


def remove(*numbers: int, ack: int | None = None) -> Goal:
    return Goal("main", leaving=numbers, ack_quorum=ack)


def quorum(ack: int, *, alone: bool = False) -> Goal:
    return Goal("main", ack_quorum=ack, allow_single_ack=alone)


def command(few: Few, goal: Goal, numbers: count[int]) -> Steps:
    members = {n for n, durable in few.held.items() if durable is not None}
    places = sorted({*members, *(newcomer.at for newcomer in goal.joining)})
    return change_members(goal, places, lambda: next(numbers).to_bytes(16))


def cancel(few: Few, numbers: count[int]) -> Steps:
    places = [n for n, durable in few.held.items() if durable is not None]
    return cancel_change("main", places, lambda: next(numbers).to_bytes(16))


CHANGES: dict[str, tuple[int, int, Goal, MemberSet]] = {
    "1 to 2": (1, 1, add(2), set_of(2, 1, 2)),
    "2 to 3": (2, 2, add(3), set_of(2, 1, 2, 3)),
    "3 to 5": (3, 2, add(4, 5), set_of(3, 1, 2, 3, 4, 5)),
    "3 to 4 of which 2 are enough": (3, 2, add(4, ack=2), set_of(2, 1, 2, 3, 4)),
    "5 to 3": (5, 3, remove(2, 4), set_of(2, 1, 3, 5)),
    "5 with 2 acks to 3": (5, 2, remove(4, 5, ack=2), set_of(2, 1, 2, 3)),
    "3 to 1": (3, 2, remove(2, 3), set_of(1, 1)),
    "3/2 to 3/3": (3, 2, quorum(3), set_of(3, 1, 2, 3)),
    "3/2 to 3/1": (3, 2, quorum(1, alone=True), set_of(1, 1, 2, 3)),
    "3/3 to 3/2": (3, 3, quorum(2), set_of(2, 1, 2, 3)),
    "one for another": (3, 2, Goal("main", (3,), newcomers(4)), set_of(2, 1, 2, 4)),
    "two for one": (3, 2, Goal("main", (3,), newcomers(4, 5), 3), set_of(3, 1, 2, 4, 5)),
    "all at once": (3, 2, Goal("main", (1, 2, 3), newcomers(4, 5, 6)), set_of(2, 4, 5, 6)),
}


def begun_with(name: str, *, has_leader: bool = True) -> tuple[Any, Goal, MemberSet]:
    size, ack_quorum, goal, wanted = CHANGES[name]
    return Any(size, ack_quorum, has_leader=has_leader), goal, wanted


@pytest.mark.parametrize("name", CHANGES)
def test_a_set_becomes_another_and_a_second_run_finds_nothing_to_do(name: str) -> None:
    few, goal, wanted = begun_with(name)
    numbers = count(1)
    made = run(few, command(few, goal, numbers))
    last = 4 if goal.joining else 3  # without newcomers there is no learning generation
    assert (made.present, made.generation, made.target) == (wanted, last, None)
    for newcomer in goal.joining:
        durable = few.held[newcomer.number]
        assert durable is not None and durable.configuration == made
    assert run(few, command(few, goal, numbers)) == made
    assert f"members are {', '.join(str(m)[0] for m in wanted.members)} (generation {last})" in (
        standing(made)
    )


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_goes_on_where_it_was_killed_at_every_step(name: str) -> None:
    for killed_at in range(1, 60):
        few, goal, wanted = begun_with(name)
        numbers = count(1)
        steps = command(few, goal, numbers)
        batch = next(steps)
        try:
            for _ in range(killed_at):
                batch = steps.send(few.answers(batch))
        except StopIteration:
            assert killed_at > 7
            return
        assert run(few, command(few, goal, numbers)).present == wanted
        assert all(len(known) == 1 for known in few.decided.values())
    raise AssertionError("60 steps and no end")


@pytest.mark.parametrize("name", CHANGES)
def test_a_set_is_final_when_a_leader_has_committed_with_both(name: str) -> None:
    """M4, also if nobody joins: 3/2 to 3/3 would forget what two have."""
    few, goal, wanted = begun_with(name, has_leader=False)
    numbers = count(1)
    steps = command(few, goal, numbers)
    batch, waits = next(steps), Batch()
    for _ in range(60):
        batch = steps.send(few.answers(batch))
        waits = batch if batch.text else waits
    assert max(few.generations()) == 2
    assert "has committed with generation 2 yet: one that runs" in waits.text, waits
    few.has_leader = True
    assert run(few, steps_from(few, steps, batch)).present == wanted


def steps_from(few: Few, steps: Steps, batch: Batch) -> Steps:
    """Go on with a command that has asked `batch` already."""
    while True:
        answers = yield batch
        try:
            batch = steps.send(answers)
        except StopIteration as done:
            made = done.value
            assert isinstance(made, Configuration)
            return made


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_taken_back_as_long_as_it_is_not_final(name: str) -> None:
    few, goal, wanted = begun_with(name, has_leader=False)
    numbers = count(1)
    before = few.newest()
    steps = command(few, goal, numbers)
    batch = next(steps)
    for _ in range(40):
        batch = steps.send(few.answers(batch))
    made = run(few, cancel(few, numbers))
    assert (made.present, made.target, made.address) == (before.present, None, "")
    with pytest.raises(Refused, match=r"was cancelled \(generation 3\): to begin it again, repeat"):
        run(few, steps_from(few, steps, batch))
    few.has_leader = True
    for number in few.held:
        if number > len(before.members):
            few.held[number] = None  # the directory of a newcomer that was given up is removed
    assert run(few, command(few, goal, numbers)).present == wanted


def test_newcomers_that_one_leader_has_not_filled_are_waited_for() -> None:
    few, numbers = Any(3, has_leader=True), count(1)
    honest: Callable[..., object] = few._state

    def state(number: int, *, granted: bool) -> object:
        told = honest(number, granted=granted)
        assert isinstance(told, MembersState)
        is_lost = number == 5 and not told.configuration.is_learning
        return replace(told, has_committed=False) if is_lost else told

    few._state = state  # type: ignore[assignment,method-assign]
    steps = command(few, add(4, 5), numbers)
    batch = next(steps)
    for _ in range(60):
        batch = steps.send(few.answers(batch))
    assert max(few.generations()) == 3, "they have learned, and are joint"


def test_every_newcomer_has_to_answer_before_anything_is_decided() -> None:
    few, numbers = Any(3), count(1)
    few.down = {5}
    steps = command(few, add(4, 5), numbers)
    batch, told = next(steps), set()
    for _ in range(20):
        told.add(batch.text)
        batch = steps.send(few.answers(batch))
    assert "safekeeper 5 at h5:1 does not answer" in told and max(few.generations()) == 1


def test_addresses_of_all_that_joined_are_known_until_they_leave() -> None:
    few, numbers = Any(1), count(1)
    made = run(few, command(few, add(2), numbers))
    made = run(few, command(few, add(3), numbers))
    assert made.address == "2@h2:1,3@h3:1"
    assert joined_addresses(made) == ("h2:1", "h3:1")
    made = run(few, command(few, remove(2), numbers))
    assert run(few, command(few, add(4), numbers)).address == "3@h3:1,4@h4:1"
    again = Goal("main", (1,), newcomers(5))
    assert run(few, command(few, again, numbers)).address == "3@h3:1,4@h4:1,5@h5:1"


def test_who_was_removed_is_told_so() -> None:
    made = final(joint_with(OLD, set_of(2, 1, 2), ""))
    text = replaced_text(OLD.members[2], made, (CREATION,))
    assert text is not None and "was removed (generation 3): it no longer votes" in text


REFUSED = {
    "a log needs a member": (3, 2, remove(1, 2, 3)),
    "--ack-quorum 4 is impossible with 3 members: give 1 to 3": (3, 2, quorum(4)),
    "to accept that, add --allow-single-ack": (3, 2, quorum(1)),
    "--ack-quorum 3 is impossible with 2 members: give 1 to 2": (3, 2, remove(1, ack=3)),
    "is no majority: name --ack-quorum for 2 members": (3, 3, remove(1)),
    "is no member; members are 1, 2, 3": (3, 2, Goal("main", (7,), newcomers(4))),
    "4 is a member already; name one": (4, 3, Goal("main", (1,), newcomers(4))),
    "safekeeper 3 is a member already, as 3#": (3, 2, add(3)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_done_is_refused_and_changes_nothing(text: str) -> None:
    size, ack_quorum, goal = REFUSED[text]
    few = Any(size, ack_quorum)
    if goal == add(3):  # it comes back on an empty disk
        with_disk = replace(few.newest(), members=(*names(1, 2), f"3#{'aa' * 16}"))
        few.held = {n: durable_of(n, with_disk) for n in (1, 2)} | {3: None}
    with pytest.raises(Refused, match=text):
        run(few, command(few, goal, count(1)))
    assert max(few.generations()) == 1


def test_one_change_at_a_time() -> None:
    few, numbers = Any(3, has_leader=False), count(1)
    steps = command(few, add(4, 5), numbers)
    batch = next(steps)
    for _ in range(40):
        batch = steps.send(few.answers(batch))
    change = r"1, 2, 3 \(ack quorum 2\) to 1, 2, 3, 4, 5 \(ack quorum 3\)"
    for rival in (add(6), add(4), add(4, 5, ack=4), remove(3), quorum(3),
                  Goal("main", (3,), newcomers(6))):  # fmt: skip
        with pytest.raises(Refused, match=rf"under way, {change}: repeat .*members cancel`"):
            run(few, command(few, rival, numbers))
    few.has_leader = True
    made = run(few, command(few, add(4, 5, ack=3), numbers))
    assert len(made.members) == 5 and made.generation == 4


def rivals(random: Random) -> Few:
    few, numbers = Any(3), count(1)
    all_goals = [add(4), add(4, 5), remove(3), remove(1, ack=2), quorum(3), quorum(1, alone=True),
                 Goal("main", (2,), newcomers(6), instead=True)]  # fmt: skip
    commands = [partial(command, few, goal, numbers) for goal in random.sample(all_goals, 2)]
    run_side_by_side(few, random, [*commands, partial(cancel, few, numbers)])
    return few


def test_rival_commands_never_make_two_configurations_of_one_generation() -> None:
    assert_one_for_each_generation(rivals)


def test_a_second_replacement_keeps_the_address_of_the_first_newcomer() -> None:
    """A proposer that was started with the addresses of the creation finds both."""
    few, numbers = Any(3), count(1)

    def replaced(leaving: int, joining: int) -> Configuration:
        goal = Goal("main", (leaving,), newcomers(joining))
        return run(few, command(few, goal, numbers))

    made = replaced(3, 4)
    assert made.address == "h4:1", "as a version that knows replacements alone writes it"
    made = replaced(2, 5)
    assert made.address == "4@h4:1,5@h5:1"
    few.has_leader = False
    steps = command(few, add(6), numbers)
    batch = next(steps)
    for _ in range(12):
        batch = steps.send(few.answers(batch))
    assert few.newest().address == "4@h4:1,5@h5:1,6@h6:1"
    few.has_leader = True
    made = run(few, cancel(few, numbers))
    assert joined_addresses(made) == ("h4:1", "h5:1"), "those of members stay"


def test_a_cancelled_first_replacement_leaves_no_address() -> None:
    few, numbers = Any(3, has_leader=False), count(1)
    steps = command(few, Goal("main", (3,), newcomers(4)), numbers)
    batch = next(steps)
    for _ in range(12):
        batch = steps.send(few.answers(batch))
    few.has_leader = True
    assert run(few, cancel(few, numbers)).address == ""


def test_the_histories_tell_whose_address_the_first_replacement_has_left() -> None:
    old = Fragment(NO_BALLOT, CREATION.start_lsn, 1, False, OLD.members, 2)
    made = replace(OLD, members=names(1, 2, 4), address="h4:1")
    late = Fragment(ROUND, CREATION.start_lsn, 1, False, made.members, 2)
    assert with_ids(made, [(old,), (old, late)]) == "4@h4:1"
    assert with_ids(made, [(late,)]) == "h4:1", "it is folded"
    assert with_ids(replace(made, members=names(1, 4, 5)), [(old,)]) == "h4:1"
    assert with_ids(replace(made, address="h4:1,2@h2:1"), [(old,)]) == "4@h4:1,2@h2:1"
