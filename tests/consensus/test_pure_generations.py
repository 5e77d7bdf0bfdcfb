"""A member of a newer generation serves no older one, and names the members that have missed it.

The acceptor, the proposer and its leader alone. test_pure_replacing.py decides which configuration
is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from tests.support.faulty_disk import FaultyDisk
from tests.support.faulty_shelf import FaultyShelf
from tests.support.replaced_members import BOTH, CREATION, NEW, NEWCOMER, OLD, B, C, durable_of
from tests.support.scenario_words import CREATION_LSN, LOG_UUID, incarnation_of
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.wire.member_change import (
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    cancelled,
    replaced_text,
)
from walkeeper_common.wire.messages import (
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    ProposerElected,
    Reject,
    RejectCode,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.requests import PrepareLog
from walkeeper_proposer.consensus.campaign import Campaign, Purpose
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import DropLink, LinkUp, Outcome, Stop
from walkeeper_proposer.consensus.proposer_events import Received as FromSafekeeper
from walkeeper_proposer.consensus.proposer_events import Send as ToSafekeeper
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    FindRecordEnd,
    Persist,
    Received,
    RecordEndFound,
    Send,
)
from walkeeper_safekeeper.consensus.creation import prepared
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import joined
from walkeeper_safekeeper.hosting.log_status import membership_trouble
from walkeeper_safekeeper.storage.log_folder import LogFolder

# The acceptor


def elected(acceptor: Acceptor, generation: int, ballot: Ballot, connection: int = 1) -> None:
    entry = replace(CREATION, ballot=ballot)
    acceptor.step(
        Received(connection, ProposerElected(generation, ballot, CREATION_LSN, (CREATION, entry)))
    )


def acceptor_of(number: int) -> Acceptor:
    durable = durable_of(number)
    return Acceptor(
        durable, oldest_lsn=CREATION_LSN, flush_lsn=CREATION_LSN, record_lsn=CREATION_LSN
    )


def heartbeat(generation: int, ballot: Ballot, commit_lsn: Lsn = CREATION_LSN) -> AppendRequest:
    at = CREATION_LSN
    return AppendRequest(generation, ballot, 1, at, at, commit_lsn, ZERO_LSN, 0, b"")


def state_in(effects: Sequence[object]) -> MembersState:
    sent = [e.message for e in effects if isinstance(e, Send)]
    return next(message for message in sent if isinstance(message, MembersState))


def test_who_has_left_a_generation_does_nothing_that_is_asked_in_it() -> None:
    acceptor = acceptor_of(1)
    elected(acceptor, 1, B)
    effects = acceptor.step(Received(1, heartbeat(1, B)))
    assert any(isinstance(e, Send) and isinstance(e.message, AppendResponse) for e in effects)
    effects = acceptor.step(Received(2, InstallMembers("main", BOTH)))
    assert isinstance(effects[0], Persist), "durable before anybody hears of it"
    told = [(e.connection, e.message.code) for e in effects
            if isinstance(e, Send) and isinstance(e.message, Reject)]  # fmt: skip
    assert told == [(1, RejectCode.STALE_GENERATION)]
    vote = VoteRequest(1, C, LOG_UUID, acceptor.member)
    for asked in (heartbeat(1, B), vote, ProposerElected(1, C, CREATION_LSN, (CREATION,))):
        (answer,) = acceptor.step(Received(1, asked))
        assert isinstance(answer, Send) and isinstance(answer.message, Reject), asked
    assert acceptor.durable.ballot == B and acceptor.appender is None
    (answer,) = acceptor.step(Received(1, replace(vote, generation=2)))[1:]
    assert isinstance(answer, Send) and isinstance(answer.message, VoteResponse)
    assert answer.message.granted


def test_a_vote_that_waits_for_the_disk_is_not_given_in_the_next_generation() -> None:
    acceptor = acceptor_of(1)
    elected(acceptor, 1, B)
    acceptor.step(Received(1, heartbeat(1, B)))
    wal = AppendRequest(1, B, 1, CREATION_LSN, CREATION_LSN + 4, ZERO_LSN, ZERO_LSN, 0, b"")
    acceptor.step(Received(1, wal))
    acceptor._record_end = None
    asked = acceptor.step(Received(3, VoteRequest(1, C, LOG_UUID, acceptor.member)))[-1]
    assert isinstance(asked, FindRecordEnd)
    acceptor.step(Received(2, InstallMembers("main", BOTH)))
    effects = acceptor.step(RecordEndFound(asked, CREATION_LSN))
    assert not [e for e in effects if isinstance(e, Send)]


def test_what_an_older_leader_committed_is_no_proof_for_newer_members() -> None:
    acceptor = acceptor_of(1)
    query = Received(9, MembersQuery("main"))
    assert not state_in(acceptor.step(query)).has_committed
    elected(acceptor, 1, B)
    assert not state_in(acceptor.step(query)).has_committed, "it has told of no commit"
    acceptor.step(Received(1, heartbeat(1, B)))
    assert state_in(acceptor.step(query)).has_committed
    acceptor.step(Received(2, InstallMembers("main", BOTH)))
    assert not state_in(acceptor.step(query)).has_committed
    elected(acceptor, 2, C)
    assert not state_in(acceptor.step(query)).has_committed


def test_a_replaced_member_learns_its_successor() -> None:
    acceptor = acceptor_of(3)
    acceptor.step(Received(2, InstallMembers("main", NEW)))
    (answer,) = acceptor.step(Received(1, VoteRequest(3, C, LOG_UUID, acceptor.member)))
    assert isinstance(answer, Send) and isinstance(answer.message, Reject)
    assert answer.message.code is RejectCode.NOT_A_MEMBER
    assert f"was replaced by {NEWCOMER} (generation 3)" in answer.message.text


def test_a_newcomer_that_was_given_up_learns_so() -> None:
    """It holds WAL and is in no history; the directory goes only when the members are well."""
    text = replaced_text(NEWCOMER, cancelled(BOTH), (CREATION,))
    assert text is not None
    assert "was to become a member, and was given up (generation 3)" in text
    assert "Once `walkeeper status` shows the members well, stop it and remove" in text
    assert replaced_text(NEWCOMER, BOTH, (CREATION,)) is None
    assert replaced_text(NEWCOMER, OLD, (CREATION,)) is None, "nobody was replaced yet"


@pytest.mark.parametrize("generation", (1, 3))
def test_a_wiped_member_learns_that_the_configuration_has_its_old_incarnation(
    generation: int,
) -> None:
    wiped = member_name(3, b"new incarnation!")
    configuration = replace(OLD, generation=generation)
    text = replaced_text(wiped, configuration, (CREATION,))
    assert text is not None
    assert f"{OLD.members[2]} is the member (generation {generation})" in text
    assert "run `walkeeper replace --member 3 --with 3@HOST:PORT`" in text
    assert membership_trouble(wiped, configuration, (CREATION,)) == "no_log"


def test_a_replaced_member_of_the_same_id_is_not_taken_for_a_wiped_one() -> None:
    again = member_name(3, b"new incarnation!")
    configuration = replace(OLD, generation=3, members=(*OLD.members[:2], again))
    was = (replace(CREATION, members=OLD.members),)
    assert membership_trouble(OLD.members[2], configuration, was) == "replaced"
    text = replaced_text(OLD.members[2], configuration, was)
    assert text is not None and f"was replaced by {again}" in text


def test_a_newcomer_whose_first_join_was_cut_off_may_begin_elsewhere() -> None:
    """A crash behind its first segment, and the members remove WAL meanwhile."""
    disk = FaultyDisk(Random(1))
    shelf = FaultyShelf(FaultyDisk(Random(3)))
    folder = LogFolder("sk4", FaultyDisk(Random(2)), disk, shelf)
    fresh = prepared(None, PrepareLog("main", LOG_UUID), acceptor_id=4,
                     incarnation=incarnation_of(4))  # fmt: skip
    for base in (CREATION_LSN, Lsn(CREATION_LSN + (3 << 20))):
        made = joined(fresh, JoinLog("main", BOTH, base, (CREATION,)))
        assert isinstance(made, Durable)
        durable = made
        folder.create_wal(durable)
    folder.save_control(durable)
    opened = folder.open_wal()
    assert opened.flush_lsn == opened.store.first_lsn == base
    disk.write_at(disk.names()[0], 0, [b"WAL of nobody knows which log"])
    with pytest.raises(Refused, match="no control file says of which log"):
        folder.create_wal(durable)


# The proposer


def greeting(number: int, configuration: Configuration) -> AcceptorGreeting:
    return AcceptorGreeting(
        number, incarnation_of(number), LOG_UUID, configuration, NO_BALLOT, (CREATION,),
        CREATION_LSN, CREATION_LSN, CREATION_LSN, CREATION_LSN, None,
    )  # fmt: skip


def vote(configuration: Configuration, ballot: Ballot) -> VoteResponse:
    at = CREATION_LSN
    return VoteResponse(configuration.generation, ballot, True, at, at, at, at, (CREATION,))


def proposer(links: int = 3, addresses: frozenset[str] = frozenset()) -> Proposer:
    campaign = Campaign("main", b"p" * 16, links, Purpose.SETTLE, take_over=True,
                        addresses=addresses)  # fmt: skip
    made = Proposer(campaign)
    for link in range(links):
        made.step(LinkUp(link))
    return made


def test_a_proposer_tells_who_has_missed_the_change_and_greets_everybody_anew() -> None:
    core = proposer()
    core.step(FromSafekeeper(0, greeting(1, OLD)))
    effects = core.step(FromSafekeeper(1, greeting(2, BOTH)))
    assert core.configuration == BOTH
    assert {e.link for e in effects if isinstance(e, ToSafekeeper)} == {0, 1, 2}
    effects = core.step(FromSafekeeper(0, greeting(1, OLD)))
    assert effects == [ToSafekeeper(0, InstallMembers("main", BOTH))]
    state = MembersState(OLD.members[0], True, BOTH, NO_BALLOT, NO_BALLOT, None, False, ZERO_LSN,
                         ZERO_LSN, ZERO_LSN, (CREATION,))  # fmt: skip
    (again,) = core.step(FromSafekeeper(0, state))
    assert isinstance(again, ToSafekeeper) and again.link == 0
    (dropped,) = core.step(FromSafekeeper(0, replace(state, granted=False)))
    assert isinstance(dropped, DropLink), "it is not asked for ever"


def test_a_leader_of_older_members_starts_over() -> None:
    core = proposer()
    for link in (0, 1):
        core.step(FromSafekeeper(link, greeting(link + 1, OLD)))
    for link in (0, 1):
        core.step(FromSafekeeper(link, vote(OLD, core.ballot)))
    assert core.leader is not None
    core.step(LinkUp(1))
    assert not core.gives_way_to_new_members
    (stop,) = core.step(FromSafekeeper(1, greeting(2, BOTH)))
    assert isinstance(stop, Stop) and stop.outcome is Outcome.NEW_ELECTION
    assert core.gives_way_to_new_members, "the next election needs no pause"


def test_a_vote_of_other_members_does_not_count() -> None:
    core = proposer()
    for link in (0, 1):
        core.step(FromSafekeeper(link, greeting(link + 1, OLD)))
    for link in (0, 1):
        core.step(FromSafekeeper(link, vote(BOTH, core.ballot)))
    assert core.leader is None


def test_a_proposer_that_was_started_without_the_newcomer_asks_for_its_link() -> None:
    core = proposer(addresses=frozenset({"h1:1", "h2:1", "h3:1"}))
    (stop,) = core.step(FromSafekeeper(0, greeting(1, BOTH)))
    assert isinstance(stop, Stop) and stop.outcome is Outcome.NEW_ELECTION
    assert core.configuration == BOTH, "its shell learns the address from there"
    core = proposer(links=4, addresses=frozenset({"h1:1", "h2:1", "h3:1", "h4:5454"}))
    assert not core.step(FromSafekeeper(0, greeting(1, BOTH)))


def test_neither_commits_nor_restart_lsn_move_with_one_of_the_two_sets() -> None:
    members = [Member(link) for link in range(4)]
    campaign = Campaign("main", b"p" * 16, 4, Purpose.ATTACH)  # a settle moves no restart_lsn
    leader = Leader(BOTH, C, vote(BOTH, C), members, campaign)
    names = (*OLD.members, NEWCOMER)
    for member, name in zip(members, names, strict=True):
        member.name, member.next_lsn = name, CREATION_LSN

    def acknowledge(*links: int) -> tuple[Lsn, Lsn]:
        leader.commit_lsn = leader.feeder.restart_lsn = ZERO_LSN
        for member in members:
            member.attached = member.link in links
            member.flush_lsn = CREATION_LSN
        leader.advance_commit(leader.counted())
        return leader.commit_lsn, leader.feeder.restart_lsn

    assert acknowledge(0, 2) == (ZERO_LSN, ZERO_LSN), "the old ones alone"
    assert acknowledge(0, 3) == (ZERO_LSN, ZERO_LSN), "the new ones alone"
    assert acknowledge(0, 1) == (CREATION_LSN, ZERO_LSN), "both"
    assert acknowledge(0, 1, 2) == (CREATION_LSN, ZERO_LSN), "the newcomer has not been filled"
    assert acknowledge(0, 1, 3) == (CREATION_LSN, ZERO_LSN), "the old one is a member still"
    assert acknowledge(0, 1, 2, 3) == (CREATION_LSN, CREATION_LSN)
