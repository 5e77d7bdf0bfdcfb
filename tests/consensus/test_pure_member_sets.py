"""Sets of members of any size and any ack quorum: their quorums, successors and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest

from tests.support.replaced_members import BOTH, OLD, durable_of
from tests.support.scenario_words import incarnation_of
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import Ballot
from walkeeper_common.quorum import Configuration, MemberSet, flaw_of, member_name
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    cancelled,
    final,
    is_successor,
    joint_with,
    learning_with,
    may_follow,
)
from walkeeper_safekeeper.consensus.member_register import changed

ROUND = Ballot(1, b"r" * 16)


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(member_name(number, incarnation_of(number)) for number in numbers)


def set_of(ack_quorum: int, *numbers: int) -> MemberSet:
    return MemberSet(names(*numbers), ack_quorum)


def sets_within(most: int) -> list[MemberSet]:
    everyone = names(*range(1, most + 1))
    chosen = [c for size in range(1, most + 1) for c in combinations(everyone, size)]
    return [MemberSet(c, a) for c in chosen for a in range(1, len(c) + 1)]


def made_of(each: MemberSet) -> Configuration:
    return OLD.having(each)


# Quorums


def meets(one: Configuration, another: Configuration) -> bool:
    """Return True if all that elects with one meets all that commits with the other."""
    everyone = sorted({*one.everyone, *another.everyone})
    some = [set(c) for size in range(len(everyone) + 1) for c in combinations(everyone, size)]
    commits = [held for held in some if another.commits(held)]
    return all(asked & held for asked in some if one.elects(asked) for held in commits)


def test_neighbouring_generations_of_any_two_sets_meet() -> None:
    """Each of 3 safekeepers or fewer to each other, with each ack quorum, and a third set."""
    third = set_of(2, 1, 4)
    for old, new in product(sets_within(3), repeat=2):
        if old == new:
            continue
        first = made_of(old)
        both = joint_with(first, new, "")
        neighbours = [(first, both), (both, final(both)), (both, cancelled(both)),
                      (both, joint_with(both, third, ""))]  # fmt: skip
        for one, another in neighbours:
            assert meets(one, another) and meets(another, one), f"{old=} {new=} {one} {another}"
        assert not flaw_of(both)


def test_each_set_counts_by_its_own_numbers() -> None:
    both = joint_with(OLD, set_of(3, 1, 2, 3, 4, 5), "")
    one, two, three, four, five = both.everyone
    assert not both.commits({one, two}) and both.commits({one, two, four})
    assert not both.commits({one, four, five}) and not both.elects({one, four, five})
    assert both.elects({one, two, five}) and both.voters_min == both.holders_min == 3
    full = joint_with(OLD, set_of(3, 1, 2, 3), "")
    assert not full.commits({one, two}) and full.commits({one, two, three})
    assert full.elects({one, two}) and not full.elects({one}), "although one vote elects the new"


# The register


def test_what_no_log_can_have_is_refused() -> None:
    for target in (
        OLD.present,
        set_of(0, 1, 2, 3),
        set_of(4, 1, 2, 3),
        MemberSet((), 1),
        MemberSet((*names(1, 2), "2#aa"), 2),
        MemberSet((*names(1, 2), names(2)[0]), 2),
        MemberSet((*names(1), "two"), 2),
        set_of(17, *range(4, 34)),
    ):
        following = joint_with(OLD, target, "")
        assert flaw_of(following) is not None, target
        assert changed(durable_of(1), AcceptMembers("main", ROUND, following)) is None


def reachable(first: Configuration, sets: Sequence[MemberSet], steps: int) -> set[Configuration]:
    """Return all that may be `steps` generations later."""
    found = {first}
    for _ in range(steps):
        found = {
            follower
            for each in found
            for follower in [
                *(joint_with(each, one, "") for one in sets if one != each.present),
                *(learning_with(each, one, "") for one in sets if one != each.present),
                *((cancelled(each),) if each.target is not None else ()),
                *((final(each),) if len(each.sets) > 1 else ()),
            ]
        }
    return found


def test_what_may_be_installed_is_what_changes_can_lead_to() -> None:
    sets = [set_of(1, 1), set_of(2, 1, 2), set_of(1, 1, 2), set_of(2, 1, 2, 3)]
    alone = made_of(sets[0])
    starts = [alone, joint_with(alone, sets[1], ""), learning_with(alone, sets[1], "")]
    for first in starts:
        for steps in (1, 2, 3, 4):
            found = reachable(first, sets, steps)
            for present, target, learns in product(sets, (None, *sets), (False, True)):
                later = replace(made_of(present), generation=first.generation + steps,
                                target=target, is_learning=learns)  # fmt: skip
                if flaw_of(later) is None:
                    assert may_follow(first, later) == (later in found), f"{first} {later}"


def test_nothing_but_the_members_may_change_on_the_way() -> None:
    both = joint_with(OLD, set_of(3, 1, 2, 3, 4, 5), "4@h4:1,5@h5:1")
    assert is_successor(OLD, both) and is_successor(both, final(both))
    for wrong in (
        replace(both, system_id=8),
        replace(both, members=names(1, 2)),
        replace(both, generation=3),
        replace(final(both), generation=2),
    ):
        assert not is_successor(OLD, wrong), wrong
    assert not is_successor(both, replace(final(both), ack_quorum=2)), "nobody decided that"
    durable = changed(durable_of(1), InstallMembers("main", final(both)))
    assert durable is not None, "a member that was down has missed the joint one"


# The codec, and disks of earlier versions


def packed(value: Configuration) -> bytes:
    writer = Writer()
    writer.configuration(value)
    return writer.finish()


def test_a_replacement_is_written_as_before_and_other_changes_are_not() -> None:
    """An older version reads the first, and refuses the ack quorum of the others."""
    writer = Writer()
    writer.configuration(OLD)
    as_before = bytearray(packed(replace(OLD, generation=BOTH.generation)))
    assert as_before[-1] == OLD.ack_quorum
    as_before[-1] |= 0x80
    texts = Writer()
    for text in (BOTH.leaving, BOTH.joining, BOTH.address):
        texts.text(text)
    assert packed(BOTH) == bytes(as_before) + texts.finish()
    joined = final(BOTH)
    assert packed(joined)[-len("h4:5454") - 6 :] == b"\0\0\0\0\0\x07h4:5454"
    assert Reader(packed(joined)).configuration() == joined
    for target in (set_of(3, 1, 2, 3), set_of(3, 1, 2, 3, 4, 5), set_of(1, 2), set_of(1, 1, 2, 4)):
        both = joint_with(OLD, target, "4@h4:1")
        said = packed(both)
        assert Reader(said).configuration() == both
        assert said[len(as_before) - 1] == OLD.ack_quorum | 0x40


def test_a_replacement_that_replaces_nobody_is_refused() -> None:
    head = bytearray(packed(OLD))
    head[-1] |= 0x80
    for leaving, joining in ((names(7)[0], names(4)[0]), (OLD.members[0], OLD.members[1]),
                             (OLD.members[0], "four"), ("", names(4)[0])):  # fmt: skip
        texts = Writer()
        for text in (leaving, joining, ""):
            texts.text(text)
        with pytest.raises(RemoteProtocolError):
            Reader(bytes(head) + texts.finish()).configuration()
    head[-1] |= 0x40
    with pytest.raises(RemoteProtocolError):
        Reader(bytes(head) + bytes(200)).configuration()
