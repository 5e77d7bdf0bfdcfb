"""Spares take the place of silent members (M6): the list, the auditor, and a whole repair.

The steps run without sockets, as in test_pure_resizing.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from tests.consensus.few_members import run
from tests.consensus.test_pure_member_sets import packed, set_of
from tests.consensus.test_pure_resizing import Any, cancel, newcomers
from tests.support.replaced_members import OLD, durable_of
from tests.support.scenario_words import incarnation_of
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.quorum import Configuration, flaw_of, member_name, spare_id
from walkeeper_common.wire.fields import Reader
from walkeeper_common.wire.member_change import (
    InstallMembers,
    cancelled,
    final,
    is_successor,
    joint_with,
    learning_with,
    may_follow,
    with_spares,
)
from walkeeper_proposer.consensus.members.changing import Goal, change_members
from walkeeper_proposer.consensus.members.deciding import Steps
from walkeeper_proposer.consensus.members.repairing import (
    REPAIRS_MAX,
    REPAIRS_S,
    Auditor,
    Held,
    Repair,
)
from walkeeper_proposer.consensus.members.spares import SpareGoal, change_spares
from walkeeper_safekeeper.consensus.member_register import changed

GRACE_S = 60.0
TWO = ("4@h4:1", "5@[::1]:5454")
LISTED = with_spares(OLD, TWO)
WANTED = set_of(2, 1, 2, 4)
ONE, _, THREE = OLD.members


# The configuration


def test_the_spares_change_alone_and_under_no_other_change() -> None:
    assert is_successor(OLD, LISTED) and is_successor(LISTED, with_spares(LISTED, ()))
    assert not is_successor(OLD, with_spares(OLD, ())), "nothing would change"
    assert not is_successor(OLD, replace(LISTED, ack_quorum=3))
    for begin in (learning_with, joint_with):
        under_way = begin(LISTED, WANTED, "4@h4:1")
        assert under_way.spares == TWO and is_successor(LISTED, under_way)
        other = replace(under_way, generation=4, spares=TWO[:1])
        assert not is_successor(under_way, other)
        assert not is_successor(LISTED, replace(under_way, spares=TWO[:1]))
    durable = changed(durable_of(1), InstallMembers("main", final(joint_with(LISTED, WANTED, ""))))
    assert durable is not None, "a member that was down has missed two configurations"


def test_a_spare_that_has_become_a_member_is_no_spare() -> None:
    made = final(joint_with(LISTED, WANTED, "4@h4:1"))
    assert made.spares == TWO[1:] and made.present == WANTED


def test_a_cancel_leaves_no_spare_that_could_begin_the_repair_again() -> None:
    for begin in (learning_with, joint_with):
        under_way = begin(LISTED, WANTED, "4@h4:1")
        taken_back = cancelled(under_way)
        assert taken_back.spares == () and is_successor(under_way, taken_back)
        assert not is_successor(under_way, replace(taken_back, spares=TWO))
        assert may_follow(LISTED, taken_back)


@pytest.mark.parametrize(
    "spares", [("4",), ("4@",), ("@h4:1",), ("4@h 4:1",), ("4@h4:1,5@h5:1",), ("4@a:1", "4@b:1"),
               ("4@\x1bh:1",), tuple(f"{n}@h:{n}" for n in range(40))]
)  # fmt: skip
def test_a_list_that_no_log_can_have_is_refused(spares: tuple[str, ...]) -> None:
    following = with_spares(OLD, spares)
    assert flaw_of(following) is not None
    assert changed(durable_of(1), InstallMembers("main", following)) is None


def test_the_list_is_written_only_if_there_is_one() -> None:
    """So an earlier version reads the files until the first spare, and after the last one."""
    for begun in (OLD, learning_with(OLD, WANTED, "4@h4:1"), joint_with(OLD, WANTED, "4@h4:1")):
        plain = packed(begun)
        listed = replace(begun, spares=TWO)
        assert Reader(plain).configuration() == begun
        assert Reader(packed(listed)).configuration() == listed
        assert packed(replace(listed, spares=())) == plain
    kept = replace(LISTED, address="3@h3:1")
    assert Reader(packed(kept)).configuration() == kept


def test_a_list_that_is_empty_or_of_a_newer_version_is_refused() -> None:
    said = packed(LISTED)
    at = len(packed(OLD))  # the byte of features
    assert said[at - 1] == OLD.ack_quorum | 0xC0 and said[at] == 2
    with pytest.raises(RemoteProtocolError, match="an empty list of spares"):
        Reader(said[: at + 3] + b"\0").configuration()
    for features in (0, 3 | 4, 4, 8 | 1 | 4, 64, 255):
        with pytest.raises(RemoteProtocolError, match="a newer version of walkeeper wrote it"):
            Reader(said[:at] + bytes([features]) + said[at + 1 :]).configuration()


# `walkeeper spare`


def spare_command(
    few: Any, numbers: count[int], *adding: int, removing: tuple[int, ...] = ()
) -> Steps:
    members = {n for n, durable in few.held.items() if durable is not None}
    goal = SpareGoal("main", newcomers(*adding), removing)
    return change_spares(goal, sorted({*members, *adding}), lambda: next(numbers).to_bytes(16))


def test_spares_are_added_and_removed_and_a_second_run_changes_nothing() -> None:
    few, numbers = Any(3), count(1)
    made = run(few, spare_command(few, numbers, 4, 5))
    assert made.spares == ("4@h4:1", "5@h5:1") and made.present == OLD.present
    assert run(few, spare_command(few, numbers, 4)) == made
    assert run(few, spare_command(few, numbers, removing=(9,))) == made
    fewer = run(few, spare_command(few, numbers, removing=(4,)))
    assert fewer.spares == ("5@h5:1",) and fewer.generation == made.generation + 1
    assert few.held[4] is None, "a spare has no log before it takes a member's place"


def test_no_member_and_no_stranger_becomes_a_spare() -> None:
    few, numbers = Any(3), count(1)
    with pytest.raises(Refused, match="safekeeper 3 is a member"):
        run(few, spare_command(few, numbers, 3))
    stranger = replace(durable_of(4), log_uuid=b"M" * 16)
    few.held[4] = stranger
    goal = SpareGoal("main", newcomers(4))
    with pytest.raises(Refused, match="which is no member"):
        run(few, change_spares(goal, [1, 2, 3, 4], lambda: bytes(16)))


def test_spares_wait_for_the_end_of_a_change() -> None:
    few, numbers = Any(3, has_leader=False), count(1)
    steps = change_members(
        Goal("main", (3,), newcomers(4)), [1, 2, 3, 4], lambda: next(numbers).to_bytes(16)
    )
    batch = next(steps)
    for _ in range(12):
        batch = steps.send(few.answers(batch))
    with pytest.raises(Refused, match="a replacement is under way, 3 by 4"):
        run(few, spare_command(few, numbers, 5))


# The auditor


def audited(
    auditor: Auditor, configuration: Configuration, *well: str, at_s: float
) -> Repair | None:
    return auditor.audit(configuration, well, at_s)


def test_a_member_that_is_silent_for_the_grace_time_is_replaced_by_the_first_spare() -> None:
    auditor = Auditor(GRACE_S)
    assert audited(auditor, LISTED, *OLD.members, at_s=0) is None
    assert audited(auditor, LISTED, *OLD.members[:2], at_s=GRACE_S - 1) is None
    found = audited(auditor, LISTED, *OLD.members[:2], at_s=GRACE_S)
    assert found == Repair(THREE, TWO[0]), "it was well for the last time at 0 s"
    assert found.shown == "safekeeper 3 by spare 4 at h4:1"


def test_a_member_that_answers_in_between_is_left_alone() -> None:
    auditor = Auditor(GRACE_S)
    for at_s in range(0, 600, 10):
        flaps = OLD.members if at_s % 50 == 0 else OLD.members[:2]
        assert audited(auditor, LISTED, *flaps, at_s=at_s) is None


def test_silence_counts_from_when_this_proposer_leads() -> None:
    auditor = Auditor(GRACE_S)
    audited(auditor, LISTED, *OLD.members, at_s=0)
    auditor.rest()
    assert audited(auditor, LISTED, *OLD.members[:2], at_s=GRACE_S) is None
    assert audited(auditor, LISTED, *OLD.members[:2], at_s=2 * GRACE_S) is not None


def test_without_an_ack_quorum_that_is_well_nothing_begins() -> None:
    auditor = Auditor(GRACE_S)
    for at_s in (0.0, GRACE_S, 10 * GRACE_S):
        assert audited(auditor, LISTED, ONE, at_s=at_s) is None
    assert audited(auditor, LISTED, *OLD.members[:2], at_s=10 * GRACE_S) is not None


def test_a_grace_time_of_zero_switches_repairs_off() -> None:
    auditor = Auditor(0.0)
    under_way = learning_with(LISTED, WANTED, "4@h4:1")
    for at_s in (0.0, GRACE_S, 10 * GRACE_S):
        assert audited(auditor, LISTED, *OLD.members[:2], at_s=at_s) is None
        assert audited(auditor, under_way, *OLD.members[:2], at_s=at_s) is None


def test_members_that_flap_use_up_a_bounded_number_of_spares() -> None:
    auditor, begun = Auditor(GRACE_S), 0
    listed = with_spares(OLD, tuple(f"{n}@h{n}:1" for n in range(4, 20)))
    for at_s in range(0, int(REPAIRS_S), 10):
        begun += audited(auditor, listed, *OLD.members[:2], at_s=at_s) is not None
    assert begun == REPAIRS_MAX
    assert audited(auditor, listed, *OLD.members[:2], at_s=GRACE_S + REPAIRS_S) is not None


def test_a_repair_that_is_held_back_says_why_and_until_when() -> None:
    auditor = Auditor(GRACE_S)
    listed = with_spares(OLD, tuple(f"{n}@h{n}:1" for n in range(4, 20)))
    for at_s in (0.0, GRACE_S, GRACE_S + 1):
        audited(auditor, listed, *OLD.members[:2], at_s=at_s)
    assert auditor.held is None
    assert audited(auditor, listed, *OLD.members[:2], at_s=GRACE_S + 2) is None
    assert auditor.held == Held(THREE, "2 repairs have begun in an hour", GRACE_S + REPAIRS_S)
    audited(auditor, listed, ONE, at_s=GRACE_S + 3)
    assert auditor.held is not None and "no ack quorum" in auditor.held.why
    audited(auditor, OLD, ONE, at_s=GRACE_S + 4)
    assert auditor.held is None, "without spares there is no repair to hold back"
    audited(auditor, listed, ONE, at_s=GRACE_S + 5)
    auditor.rest()
    assert auditor.held is None


def test_a_repair_that_another_proposer_has_begun_is_gone_on_with() -> None:
    for begin in (learning_with, joint_with):
        under_way = begin(LISTED, WANTED, "4@h4:1")
        assert audited(Auditor(GRACE_S), under_way, *OLD.members, at_s=0) == Repair(THREE, TWO[0])


def test_an_operators_change_is_left_to_the_operator() -> None:
    for target in (set_of(2, 1, 2, 6), set_of(3, 1, 2, 3, 4, 5), set_of(3, 1, 2, 3)):
        under_way = joint_with(LISTED, target, "")
        for at_s in (0.0, 10 * GRACE_S):
            assert audited(Auditor(GRACE_S), under_way, *OLD.members[:2], at_s=at_s) is None


def test_a_spare_that_gets_no_further_gives_way_to_the_next() -> None:
    auditor, under_way = Auditor(GRACE_S), learning_with(LISTED, WANTED, "4@h4:1")
    auditor.failed(Repair(THREE, TWO[0]))
    other = Repair(THREE, TWO[1], instead=True)
    assert audited(auditor, under_way, *OLD.members[:2], at_s=0) == other
    auditor.failed(other)
    assert audited(auditor, under_way, *OLD.members[:2], at_s=0) == Repair(THREE, TWO[0])
    alone = replace(under_way, spares=TWO[:1])
    auditor.failed(Repair(THREE, TWO[0]))
    assert audited(auditor, alone, *OLD.members[:2], at_s=0) == Repair(THREE, TWO[0])


def test_a_spare_under_the_id_of_a_member_is_passed_over() -> None:
    """`walkeeper members add` may have made it one."""
    auditor, own = Auditor(GRACE_S), with_spares(OLD, ("2@h2:1", TWO[1]))
    audited(auditor, own, *OLD.members, at_s=0)
    assert audited(auditor, own, *OLD.members[:2], at_s=GRACE_S) == Repair(THREE, TWO[1])


# A whole repair


def repair_steps(repair: Repair, numbers: count[int]) -> Steps:
    goal = repair.goal("main", spare_id(repair.spare))
    return change_members(goal, [1, 2, 3, 4, 5], lambda: next(numbers).to_bytes(16))


def test_a_repair_makes_the_members_as_many_as_before_and_uses_up_the_spare() -> None:
    few, numbers = Any(3), count(1)
    listed = run(few, spare_command(few, numbers, 4, 5))
    few.down = {3}
    auditor = Auditor(GRACE_S)
    audited(auditor, listed, *OLD.members, at_s=0)
    repair = audited(auditor, listed, *OLD.members[:2], at_s=GRACE_S)
    assert repair is not None
    made = run(few, repair_steps(repair, numbers))
    assert made.present == WANTED and made.spares == ("5@h5:1",)
    assert made.address == "4@h4:1", "a proposer that is started later finds it"
    assert audited(auditor, made, *made.members, at_s=2 * GRACE_S) is None


def test_two_repairs_leave_both_new_addresses_in_the_log() -> None:
    """A proposer that is started with the addresses of the creation still finds a quorum."""
    few, numbers = Any(3), count(1)
    listed = run(few, spare_command(few, numbers, 4, 5))
    few.down = {3}
    made = run(few, repair_steps(Repair(THREE, listed.spares[0]), numbers))
    assert made.address == "4@h4:1", "with its number, so that it cannot be taken for another one"
    few.down = {2, 3}
    made = run(few, repair_steps(Repair(OLD.members[1], listed.spares[1]), numbers))
    assert made.present == set_of(2, 1, 4, 5) and made.address == "4@h4:1,5@h5:1"


def test_an_operator_who_takes_a_repair_back_has_the_last_word() -> None:
    few, numbers = Any(3, has_leader=False), count(1)
    listed = run(few, spare_command(few, numbers, 4, 5))
    repair = Repair(THREE, listed.spares[0])
    steps = repair_steps(repair, numbers)
    batch = next(steps)
    for _ in range(12):
        batch = steps.send(few.answers(batch))
    assert max(few.generations()) == listed.generation + 1
    few.has_leader = True
    made = run(few, cancel(few, numbers))
    assert made.present == OLD.present and made.spares == ()
    with pytest.raises(Refused, match="was cancelled"):
        for _ in range(12):
            batch = steps.send(few.answers(batch))
    auditor = Auditor(GRACE_S)
    for at_s in (0.0, GRACE_S, REPAIRS_S):
        assert audited(auditor, made, *OLD.members[:2], at_s=at_s) is None


def test_the_next_spare_takes_the_place_of_one_that_died() -> None:
    few, numbers = Any(3, has_leader=False), count(1)
    listed = run(few, spare_command(few, numbers, 4, 5))
    steps = repair_steps(Repair(THREE, listed.spares[0]), numbers)
    batch = next(steps)
    for _ in range(12):
        batch = steps.send(few.answers(batch))
    few.has_leader, few.down = True, {3, 4}
    made = run(few, repair_steps(Repair(THREE, listed.spares[1], instead=True), numbers))
    assert made.present == set_of(2, 1, 2, 5) and made.spares == ("4@h4:1",)


def test_a_member_with_a_new_disk_is_another_member() -> None:
    """A wiped member greets under another incarnation: the member itself stays silent."""
    auditor, wiped = Auditor(GRACE_S), member_name(3, incarnation_of(7))
    audited(auditor, LISTED, *OLD.members, at_s=0)
    found = audited(auditor, LISTED, *OLD.members[:2], wiped, at_s=GRACE_S)
    assert found == Repair(THREE, TWO[0])
