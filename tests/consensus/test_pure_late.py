"""Logs that begin late: who holds which WAL, when a set may be final, and what is kept (M5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest

from tests.consensus.test_pure_generations import vote
from tests.consensus.test_pure_member_sets import packed, set_of
from tests.support.replaced_members import BOTH, CREATION, NEWCOMER, OLD, B, C, durable_of
from tests.support.scenario_words import CREATION_LSN, SEGMENT_BYTES
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import NO_BALLOT, Fragment, History
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.wire.fields import Reader
from walkeeper_common.wire.member_change import (
    JoinLog,
    MembersQuery,
    MembersState,
    cancelled,
    final,
    is_successor,
    joint_with,
    learning_late,
    learning_with,
    may_follow,
    with_spares,
)
from walkeeper_proposer.consensus.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus.expected_stream import expected_stream
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.members.deciding import Batch
from walkeeper_proposer.consensus.members.newcomers import (
    Newcomer,
    begin_log,
    filling,
    is_far,
    is_held,
    what_it_waits_for,
)
from walkeeper_proposer.consensus.progress import Member, Stage
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Send
from walkeeper_safekeeper.consensus.member_register import joined

LATE = learning_late(OLD, BOTH.wanted, BOTH.address)
JOINT = joint_with(LATE, LATE.wanted, LATE.address)
DONE = final(JOINT)
FORMS = [
    *(LATE, JOINT, DONE, with_spares(DONE, ("5@h5:1",)), cancelled(LATE)),
    *(replace(each, spares=("5@h5:1",)) for each in (LATE, JOINT)),
]
START = Lsn(CREATION_LSN + 5 * SEGMENT_BYTES + 100)  # the leader's term begins here
KEPT = Lsn(CREATION_LSN + SEGMENT_BYTES)  # restart_lsn
BASE = Lsn(CREATION_LSN + 4 * SEGMENT_BYTES)
HISTORY: History = (CREATION, Fragment(C, START, 1, False, OLD.members, 2))


def state(number: int, configuration: Configuration, **facts: object) -> MembersState:
    """Return the state of a member that follows the leader and has all WAL, but for `facts`."""
    name = [*OLD.members, NEWCOMER][number - 1]
    end_lsn = Lsn(START + 50)
    plain = MembersState(name, True, configuration, NO_BALLOT, NO_BALLOT, None, True, end_lsn,
                         end_lsn, KEPT, HISTORY, oldest_lsn=CREATION_LSN)  # fmt: skip
    return replace(plain, **facts)  # type: ignore[arg-type]  # fields of all types


# The configuration, and what an earlier version makes of it


@pytest.mark.parametrize("form", FORMS)
def test_a_configuration_with_late_logs_is_written_in_a_form_of_its_own(
    form: Configuration,
) -> None:
    data = packed(form)
    assert Reader(data).configuration() == form and form.begins_late
    plain = packed(replace(form, begins_late=False))
    assert data != plain and Reader(plain).configuration() == replace(form, begins_late=False)


def test_features_that_nobody_knows_are_refused_with_late_logs_too() -> None:
    at = len(packed(replace(OLD, generation=LATE.generation))) - 1
    said = bytearray(packed(LATE))
    assert said[at + 1] == 16 | 1
    for features in (32 | 16, 64 | 16, 16 | 5):
        said[at + 1] = features
        with pytest.raises(RemoteProtocolError, match="a newer version of walkeeper wrote it"):
            Reader(said).configuration()


def test_no_later_configuration_forgets_that_logs_may_begin_late() -> None:
    assert is_successor(OLD, LATE) and is_successor(LATE, JOINT) and is_successor(JOINT, DONE)
    assert is_successor(LATE, cancelled(LATE)) and cancelled(LATE).begins_late
    for one, other in ((LATE, JOINT), (JOINT, DONE), (LATE, cancelled(LATE))):
        assert not is_successor(one, replace(other, begins_late=False))
    assert may_follow(OLD, JOINT) and may_follow(LATE, DONE)
    assert not may_follow(LATE, replace(DONE, begins_late=False))
    early = replace(joint_with(OLD, set_of(2, 1, 2, 4), ""), begins_late=True)
    assert not is_successor(OLD, early), "a newcomer learns first"


# The newcomer's log


def begun(at_work: Iterable[MembersState], configuration: Configuration = LATE) -> JoinLog | str:
    """Return the request for the newcomer, or what the command waits for."""
    steps = begin_log("main", configuration, Newcomer(4, "h4:1", 3), list(at_work), ("h1:1",))
    batch: Batch = next(steps)
    if not batch.requests:
        return batch.text
    (ask,) = batch.requests.values()
    assert isinstance(ask, JoinLog)
    return ask


def test_a_log_begins_late_one_segment_before_a_term_that_is_committed() -> None:
    ask = begun(state(number, LATE) for number in (1, 2))
    assert isinstance(ask, JoinLog)
    assert (ask.base_lsn, ask.restart_lsn, ask.donors) == (BASE, KEPT, ("h1:1",))
    assert ask.history == (CREATION,), "the term starts behind the log's beginning"


@pytest.mark.parametrize(
    "facts", [{"has_committed": False}, {"commit_lsn": Lsn(START - 1)}, {"has_committed": False}]
)
def test_no_log_begins_late_before_a_term_is_committed(facts: dict[str, object]) -> None:
    """An unfinished record may lie there, and the next term may start at its start (M3)."""
    text = begun(state(number, LATE, **facts) for number in (1, 2))
    assert isinstance(text, str) and "no proposer has committed with generation 2" in text


def test_a_newcomer_is_far_if_it_lacks_more_than_it_is_fed() -> None:
    states = [state(1, OLD), state(2, OLD)]
    lacks = int(states[0].commit_lsn) - KEPT
    assert is_far(OLD, states, lacks - 1) and not is_far(OLD, states, lacks)
    assert not is_far(replace(OLD, kind=LogKind.LOGICAL), states, 0) and not is_far(OLD, [], 0)


def test_a_newcomer_refuses_a_late_beginning_that_is_none() -> None:
    fresh = replace(durable_of(4), configuration=None)
    made = joined(fresh, JoinLog("main", LATE, BASE, (CREATION,), KEPT, ("h1:1",)))
    assert not isinstance(made, str)
    assert (made.begin_lsn, made.restart_lsn, made.donors) == (BASE, KEPT, ("h1:1",))
    early = learning_with(OLD, BOTH.wanted, BOTH.address)
    for wrong in (
        JoinLog("main", early, BASE, (CREATION,), KEPT, ("h1:1",)),
        JoinLog("main", LATE, BASE, (CREATION,), KEPT, ("h1,1",)),
        JoinLog("main", LATE, BASE, (CREATION,), KEPT, tuple(f"h{n}:1" for n in range(33))),
        JoinLog("main", LATE, BASE, (CREATION,), KEPT, ("h1:1", "h2")),
        JoinLog("main", LATE, BASE, (CREATION,), KEPT, ("h..1:1",)),
        JoinLog("main", LATE, BASE, (CREATION,), KEPT, ("h1:65536",)),
    ):
        assert isinstance(joined(fresh, wrong), str), wrong


# When the new set may be final


def test_a_set_is_final_only_if_an_ack_quorum_of_it_holds_each_byte() -> None:
    """Compared with a count of the holders of each byte, in all small cases."""
    firsts, flushes = (CREATION_LSN, KEPT, Lsn(KEPT + 1), BASE), (Lsn(START - 1), START)
    cases = list(product(firsts, flushes, (False, True)))
    for one, two in product(cases, repeat=2):
        states = [
            state(number, JOINT, oldest_lsn=first, flush_lsn=flush, has_committed=led)
            for number, (first, flush, led) in enumerate((one, two), 1)
        ]
        states.append(state(4, JOINT, oldest_lsn=BASE))
        held = [sum(led and first <= lsn and flush >= START
                    for first, flush, led in (one, two, (BASE, START, True)))
                for lsn in (KEPT, Lsn(BASE - 1))]  # fmt: skip
        assert is_held(JOINT, states) == (min(held) >= 2), f"{one} {two}"


def test_members_that_leave_are_no_holders() -> None:
    states = [state(1, JOINT), state(3, JOINT), state(4, JOINT, oldest_lsn=BASE)]
    assert not is_held(JOINT, states)
    assert is_held(JOINT, [*states[1:], state(1, JOINT), state(2, JOINT)])
    assert is_held(JOINT, [states[0], state(4, JOINT)]), "it was filled"
    assert not is_held(JOINT, [replace(each, oldest_lsn=LSN_MAX) for each in states])


def test_the_members_stay_joint_until_the_newcomer_is_filled() -> None:
    states = [state(1, JOINT), state(4, JOINT, oldest_lsn=BASE)]
    known_lsn = states[0].commit_lsn
    assert filling(JOINT, states, known_lsn) == (False, BASE - KEPT)
    text = what_it_waits_for(JOINT, states, BASE - KEPT)
    assert text == "too few of the new members hold older WAL, which is copied to the newcomers"
    states[1] = state(4, JOINT)
    assert filling(JOINT, states, known_lsn) == (True, 0)
    early = joint_with(BOTH, BOTH.wanted, "")
    at_once = [state(1, early), state(4, early, oldest_lsn=BASE)]
    assert filling(early, at_once, known_lsn) == (True, 0), "no log begins late there"


# Retention


def leader_of(configuration: Configuration, firsts: dict[str, Lsn]) -> Leader:
    """Return a leader that all have acknowledged; `firsts` has where each log began by its vote."""
    members = [Member(link) for link in range(len(firsts))]
    campaign = Campaign("main", b"p" * 16, len(firsts), Purpose.ATTACH)
    leader = Leader(configuration, C, vote(configuration, C), members, campaign)
    for member, (name, oldest_lsn) in zip(members, firsts.items(), strict=True):
        ballot = replace(vote(configuration, B), oldest_lsn=oldest_lsn, restart_lsn=KEPT)
        member.name, member.vote, member.stage = name, ballot, Stage.VOTING
        leader._tell(member, CREATION_LSN)
        member.attached, member.flush_lsn = True, Lsn(BASE + 10)
    return leader


@pytest.mark.parametrize("oldest_lsn", [KEPT, Lsn(KEPT + 1), BASE])
def test_restart_lsn_waits_until_a_late_log_is_filled(oldest_lsn: Lsn) -> None:
    firsts = dict.fromkeys(DONE.members, CREATION_LSN) | {NEWCOMER: oldest_lsn}
    leader = leader_of(DONE, firsts)
    leader.advance_commit(leader.counted())
    is_late = oldest_lsn > KEPT
    assert leader.feeder.restart_lsn == (KEPT if is_late else BASE + 10)
    asks = [
        e.link
        for e in leader.on_tick()
        if isinstance(e, Send) and e.message == MembersQuery("main")
    ]
    assert asks == ([2] if is_late else [])
    leader.members[2].holds_from(KEPT)
    assert leader.hold_wal() == []
    leader.advance_commit(leader.counted())
    assert leader.feeder.restart_lsn == BASE + 10


def test_logs_of_members_without_late_ones_hold_back_nothing() -> None:
    """An archive may have been there before: its WAL is missed by nobody."""
    leader = leader_of(OLD, dict.fromkeys(OLD.members, BASE))
    assert leader.hold_wal() == []
    leader.advance_commit(leader.counted())
    assert leader.feeder.restart_lsn == BASE + 10


@pytest.mark.parametrize("oldest_lsn", [KEPT, BASE])
def test_the_fast_path_lets_restart_lsn_wait_as_well(oldest_lsn: Lsn) -> None:
    leader = leader_of(DONE, dict.fromkeys(DONE.members, CREATION_LSN) | {NEWCOMER: oldest_lsn})
    leader.restart_lsn_max, leader.is_streaming = LSN_MAX, True
    proposer = Proposer(Campaign("main", b"p" * 16, 3))
    proposer.leader, proposer.phase = leader, Phase.LEADING
    for member in leader.members:
        member.next_lsn = leader.window.end_lsn
    stream = expected_stream(proposer)
    assert stream is not None and stream.restart_lsn_max == (
        LSN_MAX if oldest_lsn == KEPT else KEPT
    )
