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
from tests.support.replaced_members import OLD, B
from tests.support.scenario_words import CREATION_LSN
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.wire.messages import VoteResponse
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_proposer.consensus.campaign import Campaign, Phase
from walkeeper_proposer.consensus.leadership import DONOR_WAIT_TICKS, Leader
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Outcome, Send, Stop, Tick

SAFEKEEPERS = (1, 2, 3)


def image_of(stage: ClusterStage, name: str) -> PlayedProposer:
    """What a hypervisor keeps: the core and the primary's WAL."""
    played = stage.proposers[name]
    twin = PlayedProposer(stage, name, bytes(played.wal), played.core.campaign.purpose)
    twin.core = copy.deepcopy(played.core)
    twin.reported, twin.sent_lsn, twin.donor = played.reported, played.sent_lsn, played.donor
    return twin


def set_back(stage: ClusterStage, image: PlayedProposer, writes: str) -> None:
    """The image goes on where it was made; what it sends does not arrive anywhere."""
    stage.run(f"kill {image.name}")
    stage.proposers[image.name] = image
    image.links = {number: -number for number in SAFEKEEPERS}
    image.wanted = set(SAFEKEEPERS)
    deliver = stage.to_safekeeper
    stage.to_safekeeper = lambda *_: None  # type: ignore[method-assign]
    if writes:
        stage.run(f"write {image.name} {writes}")
    stage.to_safekeeper = deliver  # type: ignore[method-assign]


@pytest.mark.parametrize("writes", ["", "X", "XY", "XYZ"])
@pytest.mark.parametrize("first", SAFEKEEPERS)
def test_a_leader_from_an_older_image_is_not_followed(writes: str, first: int) -> None:
    stage = ClusterStage()
    stage.run("cluster 3")
    stage.run("attach b wal=AB reach=1,2,3")
    image = image_of(stage, "b")
    assert "b reports at R4" in stage.run("write b CD")
    set_back(stage, image, writes)
    assert "b stops: new election" in stage.run(f"reconnect b {first}")
    assert all(f"sk{number} ABCD " in stage.run("show") for number in SAFEKEEPERS)


def test_a_leader_from_an_image_that_missed_nothing_goes_on() -> None:
    stage = ClusterStage()
    stage.run("cluster 3")
    stage.run("attach b wal=AB reach=1,2,3")
    set_back(stage, image_of(stage, "b"), "XY")
    said = [stage.run(f"reconnect b {number}") for number in SAFEKEEPERS]
    assert "b reports at R4" in "\n".join(said), said
    assert all(f"sk{number} ABXY " in stage.run("show") for number in SAFEKEEPERS)


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
