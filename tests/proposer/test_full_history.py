"""R25: a history that nears its bound is refused while there is a way out, and never asserted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.scenario_words import CREATION_LSN, configuration_of, incarnation_of
from walkeeper_common.history import (
    HISTORY_ENTRIES_MAX,
    HISTORY_RESERVE,
    NO_BALLOT,
    Ballot,
    Fragment,
)
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.wire.framing import encode
from walkeeper_common.wire.member_change import final, joint
from walkeeper_common.wire.messages import VoteResponse
from walkeeper_proposer.consensus.campaign import Campaign, Phase, Purpose
from walkeeper_proposer.consensus.candidate import Candidate
from walkeeper_proposer.consensus.progress import Stage
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import Effect, Outcome, Send, Stop

OLD = configuration_of(3)
BOTH = joint(OLD, leaving=OLD.members[2], joining=member_name(4, incarnation_of(4)), address="")
FULL = HISTORY_ENTRIES_MAX - HISTORY_RESERVE
BALLOT = Ballot(10**6, b"p" * 16)


def elected(
    size: int,
    here: tuple[str, ...],
    *,
    configuration: Configuration = OLD,
    purpose: Purpose = Purpose.ATTACH,
    restart_lsn: Lsn = CREATION_LSN,
) -> list[Effect]:
    """Make the leader that makes a history of `size` entries, if none of it is folded."""
    created = Fragment(NO_BALLOT, CREATION_LSN, 1, False, OLD.members, 2)
    history = [created]
    for number in range(1, size - 1):
        ballot = Ballot(number, b"q" * 16)
        history.append(replace(created, ballot=ballot, start_lsn=CREATION_LSN + number))
    end = CREATION_LSN + size
    vote = VoteResponse(
        configuration.generation, BALLOT, True, CREATION_LSN, end, end, restart_lsn, tuple(history)
    )
    core = Proposer(Campaign("main", BALLOT.proposer_id, 4, purpose=purpose))
    core.configuration, core.ballot = configuration, BALLOT
    core.candidate = Candidate(configuration, BALLOT, core.members, core.campaign)
    core.candidate.donor_vote = vote
    core.phase = Phase.CHECKING_VOTES
    for member, name in zip(core.members, here, strict=False):
        member.name, member.vote, member.stage = name, vote, Stage.VOTING
    return core.become_leader()


def refusal_in(effects: list[Effect]) -> str | None:
    """Return the refusal's text. Without one, every message is packed."""
    if isinstance(effects[0], Stop):
        assert effects[0].outcome is Outcome.REFUSED
        return effects[0].text
    sent = [encode(effect.message) for effect in effects if isinstance(effect, Send)]
    assert sent
    return None


def test_a_leader_for_a_primary_is_refused_while_there_is_room() -> None:
    assert refusal_in(elected(FULL, OLD.members[:2])) is None
    text = refusal_in(elected(FULL + 1, OLD.members[:2]))
    assert text is not None
    assert "it has 61,441 entries (most: 65,536)" in text and "missing: safekeeper 3" in text
    assert "`walkeeper replace --member ID --with ID@HOST:PORT`" in text


@pytest.mark.parametrize(
    "size", [FULL + 1, pytest.param(HISTORY_ENTRIES_MAX, marks=pytest.mark.soak)]
)
def test_elections_that_make_it_short_again_still_work(size: int) -> None:
    two = OLD.members[:2]
    for purpose in (Purpose.SETTLE, Purpose.SEAL):
        assert refusal_in(elected(size, two, purpose=purpose)) is None
    assert refusal_in(elected(size, (*two, BOTH.joining), configuration=BOTH)) is None
    assert refusal_in(elected(size, final(BOTH).members, configuration=final(BOTH))) is None
    assert refusal_in(elected(size, OLD.members)) is None, "the one that was away is back"


def test_a_history_that_can_be_folded_is_not_full() -> None:
    reached = CREATION_LSN + FULL
    assert refusal_in(elected(FULL + 1, OLD.members[:2], restart_lsn=reached)) is None


def test_beyond_the_bound_everything_is_refused_with_the_reason() -> None:
    """It was an assertion in the codec: nobody could be elected, and nothing said why."""
    for purpose in Purpose:
        text = refusal_in(elected(HISTORY_ENTRIES_MAX + 1, OLD.members, purpose=purpose))
        assert text is not None and "it has 65,537 entries" in text
