"""`settle` says why it has waited in vain."""

from __future__ import annotations

from tests.support.proposer_stage import ProposerStage
from walkeeper_proposer.settling import who_is_missing

GREETED, VOTED = "greeting {} flush=0/100000", "vote {} ballot=1:x flush=0/100000"
ATTACHED = "ack {} flush=0/100000"


def missing(proposer: str, *answers: str) -> str:
    """Return the text with that proposer, once these answers have come."""
    stage = ProposerStage()
    stage.run(f"proposer x {proposer} settle=yes take_over=yes")
    for member in stage.proposer.members:
        stage.run(f"link {member.link + 1}")
    for answer in answers:
        stage.run(answer)
    return who_is_missing(stage.proposer)


def test_a_settle_that_was_elected_names_the_ack_quorum_that_it_lacks() -> None:
    text = missing("members=2 ack=2", GREETED.format(1), VOTED.format(1), ATTACHED.format(1))
    assert "a vote quorum has elected it, but an ack quorum (2 of 2)" in text
    assert "missing: safekeeper 2." in text
    voted = [line.format(n) for line in (GREETED, VOTED, ATTACHED) for n in (1, 2)]
    text = missing("members=4 ack=3", *voted)
    assert "an ack quorum (3 of 4)" in text and "missing: safekeeper 3, 4." in text


def test_a_settle_without_votes_names_the_vote_quorum() -> None:
    text = missing("members=3 ack=2", GREETED.format(1))
    assert "it needs a vote quorum (2 of 3); missing: safekeeper 2, 3;" in text
    assert "no safekeeper answered" in missing("members=3 ack=2")
