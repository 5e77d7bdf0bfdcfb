"""Members change: quorums of two sets, a register written once, and a command that may be killed.

The register and the steps run here without disks and sockets; the simulator runs them with all the
rest (`python -m tests.proof.sim --replace`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import combinations, count
from random import Random

import pytest

from tests.consensus.few_members import (
    Few,
    assert_one_for_each_generation,
    command,
    goal_of,
    run,
    run_side_by_side,
)
from tests.support.replaced_members import BOTH, CREATION, NEW, NEWCOMER, OLD, B, durable_of
from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SEGMENT_BYTES,
    configuration_of,
    incarnation_of,
)
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, MemberSet, member_name
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    PromiseMembers,
    cancelled,
    final,
    joint,
)
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import PrepareLog
from walkeeper_proposer.consensus.members.deciding import Batch
from walkeeper_proposer.consensus.members.replacing import Replacement, replace_member
from walkeeper_safekeeper.consensus.creation import prepared
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import changed, joined

# Quorums


@pytest.mark.parametrize(
    ("members", "ack_quorum"), [(1, 1), (2, 2), (3, 2), (3, 3), (5, 2), (5, 4)]
)
def test_what_neighbouring_generations_elect_and_commit_with_always_meets(
    members: int, ack_quorum: int
) -> None:
    """And generations that are no neighbours need not meet: that is what the joint one is for."""
    old = configuration_of(members, ack_quorum)
    both = joint(old, leaving=old.members[0], joining=member_name(9, bytes(16)), address="")
    other = joint(both, leaving=old.members[0], joining=member_name(8, bytes(16)), address="")
    for one, another in ((old, both), (both, final(both)), (both, other), (old, other)):
        for elects, commits in ((one, another), (another, one)):
            everyone = {*elects.everyone, *commits.everyone}
            sets = [set(c) for n in range(len(everyone) + 1) for c in combinations(everyone, n)]
            electing = [names for names in sets if elects.elects(names)]
            for committing in (names for names in sets if commits.commits(names)):
                assert all(names & committing for names in electing), f"{committing=}"


def test_with_joint_members_both_sets_decide() -> None:
    one, two, three = OLD.members
    assert BOTH.elects({one, two}) and BOTH.commits({one, two})
    assert not BOTH.elects({one, three}) and not BOTH.commits({one, three})
    assert not BOTH.elects({one, NEWCOMER}) and not BOTH.commits({two, NEWCOMER})
    assert BOTH.elects({one, three, NEWCOMER})
    assert NEW.members == (one, two, NEWCOMER) and NEW.elects({one, NEWCOMER})
    assert not NEW.elects({one, three})


# The register


def test_a_generation_is_followed_by_one_that_changes_one_member_and_nothing_else() -> None:
    flaws = [
        replace(BOTH, generation=3),
        replace(BOTH, ack_quorum=1),
        replace(BOTH, system_id=8),
        replace(BOTH, target=OLD.present),
        replace(BOTH, target=MemberSet((*OLD.members[:2], OLD.members[0]), 2)),
        replace(BOTH, target=MemberSet((*OLD.members[:2], "2#aa"), 2)),
        replace(BOTH, target=MemberSet((*OLD.members, NEWCOMER), 5)),
        replace(BOTH, target=MemberSet((), 1)),
        replace(NEW, generation=2),
    ]
    round_ = Ballot(1, b"r" * 16)
    for following in flaws:
        assert changed(durable_of(1), AcceptMembers("main", round_, following)) is None, following
    assert changed(durable_of(1), AcceptMembers("main", round_, BOTH)) is not None


def test_who_promised_a_greater_round_accepts_nothing_of_a_smaller_one() -> None:
    small, great = Ballot(1, b"z" * 16), Ballot(2, b"a" * 16)
    durable = changed(durable_of(1), PromiseMembers("main", LOG_UUID, 1, great))
    assert durable is not None and durable.change_round == great
    assert changed(durable, AcceptMembers("main", small, BOTH)) is None
    assert changed(durable, PromiseMembers("main", LOG_UUID, 1, small)) is None
    assert changed(durable, PromiseMembers("main", LOG_UUID, 2, Ballot(3, b"a" * 16))) is None
    assert changed(durable, PromiseMembers("main", b"M" * 16, 1, Ballot(3, b"a" * 16))) is None


def test_a_generation_never_decreases() -> None:
    durable = changed(durable_of(1), InstallMembers("main", NEW))
    assert durable is not None and durable.configuration == NEW, "one may be left out"
    for older in (OLD, BOTH, replace(NEW, members=OLD.members)):
        assert changed(durable, InstallMembers("main", older)) is None
    assert changed(durable, InstallMembers("main", NEW)) is durable
    assert changed(durable, InstallMembers("main", replace(OLD, log_uuid=b"M" * 16))) is None


def changes(seed: int) -> list[Configuration]:
    """Draw configurations that follow one another as the register decides them, with cancels."""
    random, line = Random(seed), [OLD]
    for number in range(10, 10 + random.randrange(2, 12)):
        newest = line[-1]
        if newest.target and random.random() < 0.7:
            line.append(random.choice((final, final, cancelled))(newest))
            continue
        leaving = newest.leaving or random.choice(newest.members)
        named = {"joining": member_name(number, bytes(16)), "address": f"h{number}:1"}
        line.append(joint(newest, leaving=leaving, **named))
    return line


def test_every_later_configuration_may_be_installed() -> None:
    for seed in range(300):
        line = changes(seed)
        for older, newer in combinations(line, 2):
            durable = changed(durable_of(1, older), InstallMembers("main", newer))
            assert durable is not None, f"{seed=} {older} {newer}"
            assert durable.configuration == newer


def test_members_that_nobody_can_have_decided_are_not_installed() -> None:
    """R25: one message with a great generation was believed, whatever the members were."""
    strangers = tuple(member_name(n, bytes(16)) for n in (7, 8, 9))
    one, two, _ = OLD.members
    forged = [
        replace(OLD, generation=2, members=(strangers[0],), ack_quorum=1),
        replace(OLD, generation=2, members=(one, two, strangers[0])),
        replace(OLD, generation=2, ack_quorum=3),
        replace(BOTH, generation=3, members=strangers, target=OLD.present),
        replace(OLD, generation=9, ack_quorum=4),
        replace(OLD, generation=9, members=(*OLD.members, "3#aa")),
        replace(OLD, generation=9, system_id=8),
        replace(OLD, generation=2**32 - 1),
    ]
    for following in forged:
        assert changed(durable_of(1), InstallMembers("main", following)) is None, following
    made = replace(OLD, generation=3, members=strangers)
    assert changed(durable_of(1), InstallMembers("main", made)) is not None, "it was a target"


def test_a_newcomer_claims_nothing_but_what_is_below_its_log() -> None:
    fresh = prepared(None, PrepareLog("main", LOG_UUID), acceptor_id=4,
                     incarnation=incarnation_of(4))  # fmt: skip
    base = Lsn(CREATION_LSN + (1 << 20))
    ask = JoinLog("main", BOTH, base, (CREATION,))
    durable = joined(fresh, ask)
    assert isinstance(durable, Durable) and durable.begin_lsn == base
    assert joined(durable, ask) is durable
    writes_next = replace(CREATION, ballot=B, start_lsn=base)
    refused = [
        replace(ask, history=(CREATION, writes_next)),
        replace(ask, base_lsn=base + 1),
        replace(ask, base_lsn=ZERO_LSN),
        replace(ask, configuration=OLD),
        replace(ask, configuration=replace(BOTH, log_uuid=b"M" * 16)),
    ]
    for wrong in refused:
        assert isinstance(joined(fresh, wrong), str), wrong


# The steps


def test_a_member_is_replaced_and_a_second_run_finds_nothing_to_do() -> None:
    few, numbers = Few(), count(1)
    few.down = {3}
    made = run(few, command(few, goal_of(3, 4), numbers))
    assert made.members == NEW.members and made.generation == 4 and made.address == "h4:1"
    newcomer = few.held[4]
    assert newcomer is not None and newcomer.base_lsn == CREATION_LSN
    assert run(few, command(few, goal_of(3, 4), numbers)) == made
    few.down = set()
    run(few, command(few, goal_of(3, 4), numbers))
    assert few.generations() == [4] * 4, "the old member hears of it when it is back"


@pytest.mark.parametrize(
    ("restart", "first", "base"),
    [
        (5 * SEGMENT_BYTES + 9, 0, 4 * SEGMENT_BYTES),
        (5 * SEGMENT_BYTES, 0, 3 * SEGMENT_BYTES),
        (5 * SEGMENT_BYTES, 4 * SEGMENT_BYTES, 4 * SEGMENT_BYTES),
        (5 * SEGMENT_BYTES, LSN_MAX, 5 * SEGMENT_BYTES),
        (5 * SEGMENT_BYTES, 5 * SEGMENT_BYTES, 5 * SEGMENT_BYTES),
        (5 * SEGMENT_BYTES + 9, 5 * SEGMENT_BYTES, 5 * SEGMENT_BYTES),
        (SEGMENT_BYTES, 0, 0),
        (0, 0, 0),
    ],
    ids=[
        "inside a segment",
        "at its end",
        "no more is kept",
        "nobody says",
        "they have just joined",
        "and were fed",
        "the first",
        "empty",
    ],
)
def test_the_newcomers_log_begins_a_segment_before_the_last_that_all_have(
    restart: int, first: int, base: int
) -> None:
    oldest_lsn = min(CREATION_LSN + first, LSN_MAX)
    few = Few(oldest_lsn=Lsn(oldest_lsn), restart=restart)
    run(few, command(few, goal_of(3, 4), count(1)))
    newcomer = few.held[4]
    assert newcomer is not None and newcomer.base_lsn == CREATION_LSN + base


@pytest.mark.parametrize(
    ("whole", "first", "base"),
    [
        (2 * SEGMENT_BYTES + 9, 0, SEGMENT_BYTES),
        (2 * SEGMENT_BYTES, 0, 0),
        (9, 0, 0),
        (2 * SEGMENT_BYTES + 9, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES),
        (0, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES),
    ],
    ids=["inside a segment", "at its end", "the first", "no more is kept", "not known"],
)
def test_the_newcomers_log_begins_before_a_record_that_is_being_written(
    whole: int, first: int, base: int
) -> None:
    """M3: all have four segments of it, and its next leader starts where it starts."""
    few = Few(oldest_lsn=CREATION_LSN + first, restart=6 * SEGMENT_BYTES + 9, whole=whole)
    run(few, command(few, goal_of(3, 4), count(1)))
    newcomer = few.held[4]
    assert newcomer is not None and newcomer.base_lsn == CREATION_LSN + base


def test_members_at_addresses_that_were_not_named_are_told_of() -> None:
    """Another command has replaced some meanwhile, or they are down."""
    few = Few()
    few.down = {1, 2}
    steps = command(few, goal_of(3, 4), count(1))
    batch, told = next(steps), set()
    for _ in range(10):
        told.add(batch.text)
        batch = steps.send(few.answers(batch))
    text = "too few members answer: not 1, 2 (--safekeepers has to name where they are now)"
    assert told == {"", text}


def test_it_goes_on_where_it_was_killed_at_every_step() -> None:
    for killed_at in range(1, 30):
        few, numbers = Few(), count(1)
        steps = command(few, goal_of(3, 4), numbers)
        batch = next(steps)
        try:
            for _ in range(killed_at):
                batch = steps.send(few.answers(batch))
        except StopIteration:
            assert killed_at > 8
            return
        assert run(few, command(few, goal_of(3, 4), numbers)).members == NEW.members
        assert all(len(known) == 1 for known in few.decided.values())
    raise AssertionError("30 steps and no end")


def test_the_final_members_wait_for_a_leader_with_the_joint_ones() -> None:
    few, numbers = Few(has_leader=False), count(1)
    steps = command(few, goal_of(3, 4), numbers)
    batch, waits = next(steps), Batch()
    for _ in range(40):
        batch = steps.send(few.answers(batch))
        waits = batch if batch.text else waits
    assert max(few.generations()) == 2
    assert waits.to_go and waits.text.startswith("no proposer has committed with generation 2 yet")
    few.has_leader = True
    for _ in range(40):
        try:
            batch = steps.send(few.answers(batch))
        except StopIteration:
            return
    raise AssertionError(f"no end: {batch}")


def rivals(random: Random) -> Few:
    few, numbers = Few(), count(1)
    goals = [goal_of(3, 4, instead=True), goal_of(random.choice((2, 3)), 5, instead=True)]
    run_side_by_side(few, random, [partial(command, few, goal, numbers) for goal in goals])
    return few


def test_two_commands_at_once_never_make_two_configurations_of_one_generation() -> None:
    assert_one_for_each_generation(rivals)


REFUSED: Mapping[str, Replacement] = {
    "no member": goal_of(7, 4),
    "a member already": goal_of(3, 2),
    "is safekeeper 4, not 5": Replacement("main", 3, 5, "h5:1", 4),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_done_is_refused_with_the_reason(text: str) -> None:
    few = Few()
    with pytest.raises(Refused, match=text):
        run(few, command(few, REFUSED[text], count(1)))


@pytest.mark.parametrize(("text", "down"), [("no member", 4), ("a member already", 2)])
def test_a_wrong_id_is_refused_while_the_newcomer_is_still_down(text: str, down: int) -> None:
    few = Few()
    few.down = {down}
    with pytest.raises(Refused, match=text):
        run(few, command(few, REFUSED[text], count(1)))


def test_one_at_a_time_unless_the_newcomer_is_lost() -> None:
    few, numbers = Few(has_leader=False), count(1)
    with pytest.raises(AssertionError):
        run(few, command(few, goal_of(3, 4), numbers), rounds=40)
    with pytest.raises(Refused, match="a replacement is under way, 3 by 4 at h4:1"):
        run(few, command(few, goal_of(3, 5), numbers))
    with pytest.raises(Refused, match="under way"):
        run(few, command(few, goal_of(2, 5, instead=True), numbers))
    few.down, few.has_leader = {4}, True
    made = run(few, command(few, goal_of(3, 5, instead=True), numbers))
    assert made.generation == 5 and made.members[2].startswith("5#")
    few.down = set()
    with pytest.raises(Refused, match="3 is no member; members are 1, 2, 5"):
        run(few, command(few, goal_of(3, 4), numbers))
    with pytest.raises(Refused, match="holds a log of cluster 'main' as 4#"):
        run(few, command(few, goal_of(2, 4), numbers))


def test_a_cluster_that_nobody_knows_is_told_with_what_they_have() -> None:
    """As of a name that was typed wrong."""
    steps = replace_member(goal_of(3, 4), [1, 2], lambda: bytes(16))
    next(steps)
    answer = Reject(RejectCode.UNKNOWN_LOG, "no log of cluster 'mian' (it has: main)", NO_BALLOT)
    asked = steps.send({1: answer})
    assert asked.text == f"no safekeeper with this log answers; {answer.text}"
