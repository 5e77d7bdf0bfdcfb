"""R24: a leader that is set back to an image with its memory loses and forks nothing.

The image is made while it leads. It comes back with connections that are dead, and its primary
writes into them before anybody notices; then the links come back one by one.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest

from tests.support.cluster_players import PlayedProposer
from tests.support.cluster_stage import ClusterStage
from tests.support.replaced_members import CREATION, OLD, B
from tests.support.scenario_words import CREATION_LSN, LOG_UUID
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.quorum import member_id
from walkeeper_common.wire.messages import AcceptorGreeting, VoteRequest, VoteResponse
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_proposer.consensus.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus.leadership import DONOR_WAIT_TICKS, Leader
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    BackOff,
    LinkLost,
    LinkUp,
    Outcome,
    Received,
    Send,
    Stop,
    Tick,
)

SAFEKEEPERS = (1, 2, 3)


def image_of(stage: ClusterStage, name: str) -> PlayedProposer:
    """Copy what a hypervisor keeps: the core and the primary's WAL."""
    played = stage.proposers[name]
    twin = PlayedProposer(stage, name, bytes(played.wal), played.core.campaign.purpose)
    twin.core = copy.deepcopy(played.core)
    twin.reported, twin.sent_lsn, twin.donor = played.reported, played.sent_lsn, played.donor
    return twin


def greeting_of(name: str) -> AcceptorGreeting:
    at = CREATION_LSN
    number, incarnation = member_id(name), bytes.fromhex(name.partition("#")[2])
    return AcceptorGreeting(
        number, incarnation, LOG_UUID, OLD, NO_BALLOT, (CREATION,), at, at, at, at, None
    )


def set_back(stage: ClusterStage, image: PlayedProposer, writes: str) -> None:
    """Let the image go on where it was made; its messages arrive nowhere."""
    stage.run(f"kill {image.name}")
    stage.proposers[image.name] = image
    image.links = {number: -number for number in SAFEKEEPERS}
    image.wanted = set(SAFEKEEPERS)
    deliver = stage.to_safekeeper
    stage.to_safekeeper = lambda *_: None  # type: ignore[method-assign]
    if writes:
        stage.run(f"write {image.name} {writes}")
    stage.to_safekeeper = deliver  # type: ignore[method-assign]


def back(stage: ClusterStage, name: str, *numbers: int) -> str:
    """Return what becomes visible when these links come back one by one, and a tick later."""
    lines = [*(f"reconnect {name} {number}" for number in numbers), f"tick {name}"]
    return "\n".join(stage.run(line) for line in lines)


@pytest.mark.parametrize("writes", ["", "X", "XY", "XYZ"])
@pytest.mark.parametrize("first", SAFEKEEPERS)
def test_a_leader_from_an_older_image_is_not_followed(writes: str, first: int) -> None:
    stage = ClusterStage()
    stage.run("cluster 3")
    stage.run("attach b wal=AB reach=1,2,3")
    image = image_of(stage, "b")
    assert "b reports at R4" in stage.run("write b CD")
    set_back(stage, image, writes)
    assert "b stops: new election" in back(stage, "b", first)
    assert all(f"sk{number} ABCD " in stage.run("show") for number in SAFEKEEPERS)


@pytest.mark.parametrize("writes", ["", "X", "XY", "XYZ"])
@pytest.mark.parametrize("away", SAFEKEEPERS)
def test_a_safekeeper_that_was_away_takes_nothing_from_an_older_image(
    writes: str, away: int
) -> None:
    """It has nothing to compare. The others had acknowledged CD, and lost it in an election."""
    stage = ClusterStage()
    stage.run("cluster 3")
    stage.run("attach b wal=AB reach=1,2,3")
    others = [number for number in SAFEKEEPERS if number != away]
    stage.run(f"reach b {','.join(map(str, others))}")
    image = image_of(stage, "b")
    assert "b reports at R4" in stage.run("write b CD")
    set_back(stage, image, writes)
    said = back(stage, "b", away)
    assert "b stops: new election" in said and "FORKED" not in said
    shown = stage.run("show")
    assert f"sk{away} AB " in shown and all(f"sk{number} ABCD " in shown for number in others)
    assert "LOST" not in stage.run("elections")


def test_a_leader_without_a_connection_of_its_term_starts_over() -> None:
    """It may have missed nothing, and cannot know that."""
    stage = ClusterStage()
    stage.run("cluster 3")
    stage.run("attach b wal=AB reach=1,2,3")
    set_back(stage, image_of(stage, "b"), "XY")
    assert "b stops: new election" in back(stage, "b", *SAFEKEEPERS)
    assert all(f"sk{number} AB " in stage.run("show") for number in SAFEKEEPERS)


def test_a_candidate_asks_for_no_vote_on_a_connection_newer_than_its_ballot() -> None:
    """An image of it may be elected again by those that were away, and it was elected since."""
    core = Proposer(Campaign("main", B.proposer_id, 3, Purpose.SETTLE, take_over=True))
    for link in range(3):
        core.step(LinkUp(link))
    for link in range(2):
        core.step(Received(link, greeting_of(OLD.members[link])))
    assert core.phase is Phase.CAMPAIGNING
    granted = VoteResponse(1, core.ballot, True, *(CREATION_LSN,) * 4, (CREATION,))
    asked = core.step(Received(2, greeting_of(OLD.members[2])))
    assert len(asked) == 1, "its connection is as old as the ballot"
    core.step(LinkLost(2))
    core.step(LinkUp(2))
    assert core.step(Received(2, greeting_of(OLD.members[2]))) == []
    image = copy.deepcopy(core)
    core.step(Received(0, granted))
    effects = core.step(Received(1, granted))
    asks = [e for e in effects if isinstance(e, Send) and isinstance(e.message, VoteRequest)]
    assert core.leader is not None and [ask.link for ask in asks] == [2], "once it leads"
    image.step(Received(0, granted))
    (pause,) = image.step(LinkLost(1))
    assert isinstance(pause, BackOff), "with another ballot"


def test_voters_that_nobody_can_be_compared_with_need_an_election() -> None:
    """All are back at once, and what they have not acknowledged has left the window."""
    core = Proposer(Campaign("main", B.proposer_id, 3))
    begin = CREATION_LSN
    created = Fragment(NO_BALLOT, begin, 1, False, OLD.members, 2)
    vote = VoteResponse(1, B, True, begin, begin, begin, begin, (created,))
    leader = core.leader = Leader(OLD, B, vote, core.members, core.campaign)
    core.phase, core.configuration, core.ballot = Phase.LEADING, OLD, B
    for _ in range(4):
        leader.window.append(leader.window.end_lsn, memoryview(bytes(100)))
    leader.commit_lsn = leader.window.end_lsn
    for member, name in zip(core.members, OLD.members, strict=True):
        member.name, member.sent_lsn = name, leader.window.end_lsn
        ours = replace(created, ballot=B)
        member.vote = replace(vote, flush_lsn=begin + 200, history=(created, ours))
        member.known_lsn = begin + 100
    leader.window.trim(needed_lsn=begin + 300, commit_lsn=leader.commit_lsn)
    asked = [effect for member in core.members for effect in leader.elect(member)]
    assert [type(e.message) for e in asked if isinstance(e, Send)] == [ReadRequest] * 3
    ticks = [core.step(Tick()) for _ in range(DONOR_WAIT_TICKS + 1)]
    assert ticks[:-1] == [[]] * DONOR_WAIT_TICKS
    (stop,) = ticks[-1]
    assert isinstance(stop, Stop) and stop.outcome is Outcome.NEW_ELECTION
