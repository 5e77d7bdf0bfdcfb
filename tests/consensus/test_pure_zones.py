"""Ack rules that count zones: the two rules, neighbouring generations, the codec, the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, count, product

import pytest

from tests.consensus.few_members import run
from tests.consensus.test_pure_member_sets import made_of, meets, names, packed, set_of
from tests.consensus.test_pure_resizing import Any, cancel, command, newcomers
from tests.support.replaced_members import BOTH, OLD
from tests.support.scenario_words import incarnation_of
from walkeeper_common.errors import Refused, RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.zones import (
    ack_rule,
    lacking_zones,
    shown_votes,
    vote_rule,
    zone_that_stops,
    zones_that_may_fail,
)
from walkeeper_common.quorum import (
    Configuration,
    MemberSet,
    flaw_of,
    flaw_of_set,
    member_name,
    member_set,
)
from walkeeper_common.wire.fields import Reader
from walkeeper_common.wire.member_change import (
    cancelled,
    final,
    is_successor,
    joint_with,
    learning_with,
    may_follow,
    with_spares,
)
from walkeeper_proposer.consensus.members.changing import Goal
from walkeeper_proposer.consensus.members.newcomers import Newcomer
from walkeeper_proposer.consensus.members.repairing import Auditor, Repair

GRACE_S = 60.0


def zoned(labels: str, ack_quorum: int, ack_zones: int = 0) -> MemberSet:
    """Return members 1, 2 and so on, in the zones of these letters; `-` is no zone."""
    members = names(*range(1, len(labels) + 1))
    zones = dict(zip(members, labels.replace("-", " "), strict=True))
    zones = {member: zone.strip() for member, zone in zones.items()}
    return member_set(zones, ack_quorum=ack_quorum, ack_zones=ack_zones)


def small_sets(most: int) -> Iterator[MemberSet]:
    """Yield each set of up to `most` members, in each partition into zones, with each rule."""
    for size in range(1, most + 1):
        for labels in sorted({"".join(each) for each in product("abc", repeat=size)}):
            for ack, zones in product(range(1, size + 1), (0, 2, 3)):
                each = zoned(labels, ack, zones)
                if flaw_of_set(each) is None:
                    yield each


def subsets(each: MemberSet) -> list[set[str]]:
    members = each.members
    return [set(c) for n in range(len(members) + 1) for c in combinations(members, n)]


# The two rules


def test_a_vote_quorum_is_what_no_ack_quorum_avoids() -> None:
    """A naive twin, in all sets of at most 4 members and 3 zones."""
    for each in small_sets(4):
        some = subsets(each)
        for names_ in some:
            zones = {zone for m, zone in zip(each.members, each.zones, strict=True) if m in names_}
            naive = len(names_) >= each.ack_quorum and len(zones) >= each.ack_zones
            assert each.commits(names_) == naive, f"{each} {names_}"
        acks = [held for held in some if each.commits(held)]
        for asked in some:
            assert each.elects(asked) == all(asked & held for held in acks), f"{each} {asked}"
        elects, commits = ([len(n) for n in some if f(n)] for f in (each.elects, each.commits))
        assert min(elects) == each.voters_min and min(commits) == each.holders_min, each


def test_commit_lsn_is_what_an_ack_quorum_has() -> None:
    for each in small_sets(4):
        for reached in product((1, 2, 3), repeat=len(each.members)):
            lsns = [Lsn(lsn) for lsn in reached]
            naive = max(
                (lsn for lsn in range(4)
                 if each.commits({m for m, r in zip(each.members, reached, strict=True)
                                  if r >= lsn})),
            )  # fmt: skip
            assert each.acknowledged(lsns) == naive, f"{each} {reached}"


def test_what_a_commit_needs_survives_a_zone() -> None:
    """With 2 zones or more, every ack quorum has a member outside any one zone."""
    for each in small_sets(4):
        if not each.ack_zones:
            continue
        for held in filter(each.commits, subsets(each)):
            for zone in set(each.zones):
                left = {m for m in each.members if each.zone_of(m) != zone}
                assert held & left and each.elects(left), f"{each} {held} {zone}"


def test_neighbouring_generations_meet_with_zones() -> None:
    """From no zones to zones and back, and from one rule to another."""
    rules = (("abc", 2, 0), ("abc", 2, 2), ("aab", 2, 2), ("abc", 3, 3), ("aabb", 2, 2),
             ("aabb", 3, 2))  # fmt: skip
    sets = [*(zoned(*rule) for rule in rules), set_of(2, 1, 2, 3), set_of(2, 1, 2, 3, 4)]
    for old, new in product(sets, repeat=2):
        if old == new:
            continue
        first = made_of(old)
        both = joint_with(first, new, "")
        assert flaw_of(both) is None and both.sets == (old, new)
        for one, another in ((first, both), (both, final(both)), (both, cancelled(both))):
            assert meets(one, another) and meets(another, one), f"{old=} {new=}"
        assert final(both).present == new and cancelled(both).present == old
        assert may_follow(first, final(both)) and is_successor(both, final(both))


def test_a_zone_may_fail_or_the_rule_is_refused_with_the_reason() -> None:
    assert zone_that_stops(zoned("abc", 2, 2)) is None
    assert zone_that_stops(zoned("aabbc", 3, 2)) is None
    assert zone_that_stops(zoned("aabb", 2)) is None, "a rule without zones promises nothing"
    assert zone_that_stops(zoned("aabb", 2, 2)) == (
        "with the loss of zone a no ack quorum would be left"
    )
    assert zone_that_stops(zoned("abc", 3, 3)) is not None
    assert zones_that_may_fail([zoned("aab", 2)], names(1, 2, 3)) == {
        "a": "no vote quorum would be left", "b": None,
    }  # fmt: skip
    three = zoned("abc", 2, 2)
    assert set(zones_that_may_fail([three], three.members).values()) == {None}
    assert zones_that_may_fail([three], names(1, 2)) == {
        "a": "no vote quorum would be left", "b": "no vote quorum would be left",
        "c": None,
    }  # fmt: skip


def test_the_rules_in_words() -> None:
    assert ack_rule(zoned("abc", 2)) + ", " + vote_rule(zoned("abc", 2)) == (
        "2 acknowledge a commit, 2 elect"
    )
    three = zoned("aabbc", 3, 2)
    assert ack_rule(three) == "3, from at least 2 zones, acknowledge a commit"
    assert vote_rule(three) == "3 elect, or all members outside any one zone"
    assert shown_votes(three).endswith(", or all members outside any one zone")
    assert lacking_zones([three], names(1, 2)) == (
        "at least 2 zones have to acknowledge a commit, and only zone a does"
    )
    assert lacking_zones([three], names(1, 3)) is None


# The codec


@pytest.mark.parametrize("spares", [(), ("7@h7:1",), ("7@h7:1/zone=c", "8@h8:1")])
@pytest.mark.parametrize("begin", [None, joint_with, learning_with])
def test_zones_are_written_only_if_there_are_some(
    begin: Callable[..., Configuration] | None, spares: tuple[str, ...]
) -> None:
    for present, target in (
        (zoned("abc", 2, 2), zoned("abcd", 3, 2)),
        (OLD.present, zoned("abcd", 2)),
        (zoned("a-c", 2), set_of(2, 1, 2, 3, 4)),
    ):
        first = replace(OLD.having(present), address="1@h1:1", spares=spares)
        value = first if begin is None else begin(first, target, "4@h4:1")
        said = packed(value)
        assert Reader(said).configuration() == value
        at = len(packed(OLD)) - 1
        assert said[at] == value.ack_quorum | 0xC0 or not value.uses_zones
        if value.uses_zones:
            assert said[at + 1] & 8


def test_a_log_without_zones_is_written_as_before() -> None:
    for value in (OLD, BOTH, with_spares(OLD, ("4@h4:1",)), joint_with(OLD, set_of(1, 1), "")):
        assert not value.uses_zones and Reader(packed(value)).configuration() == value
    zones_bytes = len(packed(OLD.having(zoned("abc", 2)))) - len(packed(OLD))
    assert zones_bytes == 1 + 2 + 1 + 1 + 3 * 3, "features, address, number of zones, labels"


def test_zones_that_the_features_do_not_tell_of_are_refused() -> None:
    said = bytearray(packed(OLD.having(zoned("abc", 2, 2))))
    at = len(packed(OLD))
    assert said[at] == 8
    with pytest.raises(RemoteProtocolError, match="zones that the features do not tell of"):
        Reader(bytes(said[:at]) + b"\x08\0\0\0\0").configuration()
    spare = packed(with_spares(OLD, ("4@h4:1/zone=a",)))
    assert spare[at] == 8 | 2
    with pytest.raises(RemoteProtocolError, match="zones that the features do not tell of"):
        Reader(spare[:at] + b"\x02" + spare[at + 1 : -2]).configuration()


@pytest.mark.parametrize("wrong", [
    MemberSet(names(1, 2, 3), 2, 2, ("a", "b")), MemberSet(names(1, 2, 3), 2, 1, ("a", "b", "c")),
    MemberSet(names(1, 2, 3), 2, 2), MemberSet(names(1, 2, 3), 2, 0, ("", "", "")),
    MemberSet(names(1, 2, 3), 2, 2, ("a", "b", "")),
    MemberSet(names(1, 2, 3), 2, 3, ("a", "b", "b")),
    MemberSet(names(1, 2, 3), 2, 0, ("a", "b", "c d")), MemberSet(names(1), 1, 2, ("a",)),
])  # fmt: skip
def test_zones_that_no_set_can_have_are_refused(wrong: MemberSet) -> None:
    assert flaw_of_set(wrong) is not None
    assert flaw_of(joint_with(OLD, wrong, "")) is not None


def test_a_spares_zone_has_a_name() -> None:
    assert flaw_of(with_spares(OLD, ("4@h4:1/zone=eu-1a",))) is None
    assert flaw_of(with_spares(OLD, ("4@h4:1/zone=",))) is not None
    assert flaw_of(with_spares(OLD, ("4@h4:1/zone=a/b",))) is not None


# The commands


def zones(*labels: tuple[int, str], of: int | None = None, stop: bool = False) -> Goal:
    return Goal("main", zones=labels, ack_zones=of, allow_zone_stop=stop)


ABC = ((1, "a"), (2, "b"), (3, "c"))


def test_zones_are_set_and_unset_and_a_second_run_changes_nothing() -> None:
    few, numbers = Any(3), count(1)
    made = run(few, command(few, zones(*ABC, of=2), numbers))
    assert made.present == zoned("abc", 2, 2) and made.generation == 3
    assert run(few, command(few, zones(*ABC, of=2), numbers)) == made
    assert run(few, command(few, zones((3, "c")), numbers)) == made
    fewer = run(few, command(few, zones(of=0), numbers))
    assert fewer.present == zoned("abc", 2)


def test_a_member_that_joins_has_its_zone_and_one_with_another_disk_keeps_it() -> None:
    few, numbers = Any(3), count(1)
    run(few, command(few, zones(*ABC, of=2), numbers))
    goal = Goal("main", joining=(Newcomer(4, "h4:1", 4, "a"), Newcomer(5, "h5:1", 5, "b")))
    made = run(few, command(few, goal, numbers))
    assert made.present == zoned("abcab", 3, 2)
    with pytest.raises(Refused, match="need a zone of safekeeper 6"):
        run(few, command(few, Goal("main", joining=newcomers(6)), numbers))
    leaves = Goal("main", (3,), (Newcomer(6, "h6:1", 6, "c"),))
    made = run(few, command(few, leaves, numbers))
    assert made.zones == ("a", "b", "a", "b", "c") and made.members == names(1, 2, 4, 5, 6)
    disk = Goal("main", (3,), (Newcomer(3, "h3:1", 3),))
    wanted = disk.target(zoned("abc", 2, 2), [member_name(3, incarnation_of(7))])
    assert wanted.zones == ("a", "b", "c"), "the same safekeeper is where it was"


def test_a_rule_under_which_a_zone_stops_commits_needs_a_word() -> None:
    few, numbers = Any(3), count(1)
    rule = ((1, "a"), (2, "b"), (3, "b"))
    with pytest.raises(Refused, match="with the loss of zone a no ack quorum would be left"):
        run(few, command(few, zones(*rule, of=2), numbers))
    made = run(few, command(few, zones(*rule, of=2, stop=True), numbers))
    assert made.present == zoned("abb", 2, 2)
    with pytest.raises(Refused, match="safekeeper 9 is no member"):
        run(few, command(few, zones((9, "a")), numbers))


def test_the_loss_of_a_needed_member_is_refused_with_the_zone() -> None:
    few, numbers = Any(3), count(1)
    run(few, command(few, zones(*ABC, of=2), numbers))
    with pytest.raises(Refused, match="with the loss of zone a no ack quorum would be left"):
        run(few, command(few, Goal("main", leaving=(3,)), numbers))


def test_a_change_of_zones_is_taken_back() -> None:
    few, numbers = Any(3, has_leader=False), count(1)
    steps = command(few, zones(*ABC, of=2), numbers)
    batch = next(steps)
    for _ in range(12):
        batch = steps.send(few.answers(batch))
    few.has_leader = True
    assert run(few, cancel(few, numbers)).present == OLD.present
    with pytest.raises(Refused, match="was cancelled"):
        for _ in range(12):
            batch = steps.send(few.answers(batch))


# A repair


def repaired(present: MemberSet, silent: int, *spares: str) -> tuple[Auditor, Repair | None]:
    configuration = with_spares(OLD.having(present), spares)
    auditor, members = Auditor(GRACE_S), present.members
    auditor.audit(configuration, members, 0.0)
    well = [member for member in members if member != names(silent)[0]]
    return auditor, auditor.audit(configuration, well, GRACE_S)


def test_a_repair_takes_a_spare_in_the_zone_that_lacks_one() -> None:
    spares = ("4@h4:1", "5@h5:1/zone=a", "6@h6:1/zone=c")
    for present in (zoned("abc", 2, 2), zoned("abc", 2)):
        _, repair = repaired(present, 3, *spares)
        assert repair is not None and repair.spare == spares[2]
        assert repair.goal("main", 6).joining[0].zone == "c"
    _, repair = repaired(OLD.present, 3, *spares)
    assert repair is not None and repair.spare == spares[0], "without zones the first one"


def test_a_spare_in_a_zone_that_would_stop_commits_is_not_taken() -> None:
    auditor, repair = repaired(zoned("abc", 2, 2), 3, "4@h4:1", "5@h5:1/zone=a")
    assert repair is None and auditor.held is not None
    assert "no spare is in a zone that its place needs" in auditor.held.why
    _, repair = repaired(zoned("abc", 2), 3, "5@h5:1/zone=a")
    assert repair is not None, "labels alone promise nothing"
