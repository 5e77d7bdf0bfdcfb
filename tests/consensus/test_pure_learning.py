"""Newcomers learn first: they get WAL while they are in no set, and enter one when they keep up.

The steps run without sockets, as in test_pure_replacing.py. docs/protocol.md M2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from tests.consensus.few_members import run
from tests.consensus.test_pure_generations import vote
from tests.consensus.test_pure_member_sets import packed, set_of
from tests.consensus.test_pure_resizing import (
    CHANGES,
    Any,
    add,
    begun_with,
    cancel,
    command,
    steps_from,
)
from tests.support.replaced_members import BOTH, NEWCOMER, OLD, C, durable_of
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import flaw_of
from walkeeper_common.wire.fields import Reader
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    MembersState,
    cancelled,
    final,
    joint_with,
    learning_with,
)
from walkeeper_proposer.consensus.campaign import Campaign, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.members.deciding import Batch, Steps, standing
from walkeeper_proposer.consensus.progress import LEARNER_BYTES_MAX, Member
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX
from walkeeper_safekeeper.consensus.member_register import changed

LEARNING = learning_with(OLD, BOTH.wanted, BOTH.address)
GROWING = [name for name, (_, _, goal, _) in CHANGES.items() if goal.joining]


def asked(few: Any, steps: Steps, batch: Batch, rounds: int = 60) -> tuple[Batch, str]:
    """Return the last batch after so many rounds, and the last text."""
    text = ""
    for _ in range(rounds):
        text = batch.text or text
        batch = steps.send(few.answers(batch))
    return batch, text


def say(few: Any, what: Callable[[MembersState], MembersState]) -> None:
    """Let each safekeeper's state be changed before it is sent."""
    honest: Callable[..., MembersState] = few._state

    def told(number: int, *, granted: bool) -> MembersState:
        return what(honest(number, granted=granted))

    few._state = told  # type: ignore[method-assign]


@pytest.mark.parametrize("name", GROWING)
def test_a_dead_newcomer_is_in_no_set(name: str) -> None:
    """It dies when the change has begun: the old members elect and commit alone."""
    few, goal, wanted = begun_with(name)
    old, numbers = few.newest(), count(1)
    steps = command(few, goal, numbers)
    batch = next(steps)
    while max(few.generations()) == 1:
        batch = steps.send(few.answers(batch))
    few.down = {goal.joining[0].number}
    batch, text = asked(few, steps, batch)
    newest = few.newest()
    assert (newest.generation, newest.sets) == (2, (old.present,)) and newest.learners
    assert text.endswith(f"{goal.joining[0].address} does not answer")
    assert newest.elects(old.members) and newest.commits(old.members)
    few.down = set()
    assert run(few, steps_from(few, steps, batch)).present == wanted


@pytest.mark.parametrize(
    ("lacks", "generation"), [(WINDOW_BYTES_MAX, 2), (WINDOW_BYTES_MAX - 1, 3), (0, 3)]
)
def test_a_newcomer_that_lacks_a_window_enters_no_set(lacks: int, generation: int) -> None:
    few, numbers = Any(3), count(1)
    few.restart_lsn = Lsn(CREATION_LSN + 2 * WINDOW_BYTES_MAX)

    def lagging(state: MembersState) -> MembersState:
        if not state.member.startswith("4#"):
            return state
        has_it = state.configuration.is_learning
        return replace(
            state, flush_lsn=Lsn(state.commit_lsn - lacks), commit_lsn=CREATION_LSN,
            has_committed=has_it,
        )  # fmt: skip

    say(few, lagging)
    steps = command(few, add(4), numbers)
    asked(few, steps, next(steps))
    assert max(few.generations()) == generation


def test_a_newcomer_that_follows_no_leader_of_its_generation_enters_no_set() -> None:
    few, numbers = Any(3), count(1)
    say(few, lambda s: replace(s, has_committed=False) if s.member.startswith("4#") else s)
    steps = command(few, add(4), numbers)
    asked(few, steps, next(steps))
    assert max(few.generations()) == 2


def test_a_learner_that_lacks_what_nobody_keeps_is_told_of() -> None:
    few, numbers = Any(3), count(1)

    def behind(state: MembersState) -> MembersState:
        if state.member.startswith("4#"):
            return replace(state, flush_lsn=CREATION_LSN, has_committed=False)
        return replace(state, oldest_lsn=Lsn(CREATION_LSN + (1 << 20)))

    say(few, behind)
    steps = command(few, add(4), numbers)
    _, text = asked(few, steps, next(steps))
    assert f"safekeeper 4 lacks WAL from {CREATION_LSN} on, and no member keeps it: take" in text
    assert "`walkeeper members cancel`" in text


@pytest.mark.parametrize("name", GROWING)
def test_learners_are_given_up_by_a_cancel(name: str) -> None:
    few, goal, _ = begun_with(name)
    old, numbers = few.newest(), count(1)
    steps = command(few, goal, numbers)
    batch = next(steps)
    while max(few.generations()) == 1:
        batch = steps.send(few.answers(batch))
    made = run(few, cancel(few, numbers))
    assert (made.present, made.target, made.is_learning) == (old.present, None, False)
    assert made.generation == 3


# The register


def test_learners_become_no_final_set_without_a_joint_one() -> None:
    """M4: nothing says that an ack quorum of them has what is committed."""
    round_ = Ballot(1, b"r" * 16)
    durable = changed(durable_of(1), AcceptMembers("main", round_, LEARNING))
    assert durable is not None
    held = durable_of(1, LEARNING)
    both = joint_with(LEARNING, LEARNING.wanted, LEARNING.address)
    for following in (both, cancelled(LEARNING), learning_with(LEARNING, set_of(2, 1, 2, 5), "")):
        assert changed(held, AcceptMembers("main", round_, following)) is not None, following
        assert changed(held, InstallMembers("main", following)) is not None, following
    at_once = replace(final(both), generation=LEARNING.generation + 1)
    assert changed(held, AcceptMembers("main", round_, at_once)) is None
    assert changed(held, InstallMembers("main", at_once)) is None
    assert changed(held, InstallMembers("main", final(both))) is not None, "the joint was missed"


def test_what_no_learners_can_be_is_refused() -> None:
    assert flaw_of(LEARNING) is None
    for wrong in (
        learning_with(OLD, set_of(3, 1, 2, 3), ""),
        learning_with(OLD, set_of(4, 1, 2, 4), ""),
        replace(OLD, generation=2, is_learning=True),
    ):
        assert flaw_of(wrong) is not None, wrong


def test_learners_are_written_in_a_form_that_earlier_versions_refuse() -> None:
    assert Reader(packed(LEARNING)).configuration() == LEARNING
    plain = packed(replace(OLD, generation=LEARNING.generation))
    at = len(plain) - 1
    assert packed(LEARNING)[:at] == plain[:at]
    assert packed(LEARNING)[at : at + 2] == bytes((OLD.ack_quorum | 0xC0, 1))
    for features in (0, 4, 64, 0x81):
        said = bytearray(packed(LEARNING))
        said[at + 1] = features
        with pytest.raises(RemoteProtocolError, match="a newer version of walkeeper wrote it"):
            Reader(said).configuration()
    done = final(joint_with(LEARNING, LEARNING.wanted, LEARNING.address))
    assert packed(done) == packed(replace(final(BOTH), generation=4)), "the way back is open again"


def test_what_commits_need_is_said_while_newcomers_learn() -> None:
    assert standing(LEARNING).endswith("(generation 2), and commits need the old members alone")


# The leader


def acknowledged(commit: int, *flushed: int | None) -> tuple[Lsn, Lsn]:
    """Return commit_lsn and restart_lsn with members 1 to 3 and learner 4, or None if away."""
    members = [Member(link) for link in range(4)]
    campaign = Campaign("main", b"p" * 16, 4, Purpose.ATTACH)
    leader = Leader(LEARNING, C, vote(LEARNING, C), members, campaign)
    for member, name, flush in zip(members, (*OLD.members, NEWCOMER), flushed, strict=True):
        member.name, member.attached = name, flush is not None
        member.flush_lsn = Lsn(CREATION_LSN + (flush or 0))
    leader.advance_commit(leader.counted())
    assert leader.commit_lsn == CREATION_LSN + commit
    return leader.commit_lsn, leader.feeder.restart_lsn


def test_a_learner_acknowledges_no_commit_and_wal_is_kept_for_it_within_a_bound() -> None:
    much = LEARNER_BYTES_MAX
    assert acknowledged(7, 9, 7, 5, 9)[1] == CREATION_LSN + 5, "the slowest member"
    assert acknowledged(9, 9, 9, 9, 4)[1] == CREATION_LSN + 4, "the learner lags"
    assert acknowledged(9, 9, 9, 9, None)[1] <= max(ZERO_LSN, CREATION_LSN + 9 - much)
    assert acknowledged(much + 9, *[much + 9] * 3, None)[1] == CREATION_LSN + 9
    assert acknowledged(much + 9, *[much + 9] * 3, 4)[1] == CREATION_LSN + 9
    assert acknowledged(5, 9, 5, None, 9)[1] == ZERO_LSN, "a member is away, not a learner"
