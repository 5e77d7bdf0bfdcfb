"""Logical logs in the simulated world: the core, the acceptors, the entries, and what breaks."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.proof.sim.logical import LogicalStory
from tests.proof.sim.oracle import NoProgress, Violation
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.consensus import proposer
from walkeeper_proposer.logical.change_stream import ChangeStream

CUTS_OFF = 37  # a transaction, inside of which a connection is lost
TOO_EARLY = 10  # the first that shows a report which came too early, and soon
KEPT = (10,)  # a progress entry between the core's asking for a stream and the stream


@pytest.mark.parametrize("seed", [CUTS_OFF, *KEPT, 39])
def test_each_acknowledged_transaction_is_in_the_log_once_whatever_breaks(seed: int) -> None:
    """Or the story raises: python -m tests.proof.sim.logical --seed SEED shows it."""
    first, again = list[str](), list[str]()
    story = LogicalStory(seed, show=first.append)
    story.run()
    facts = story.world.facts
    assert facts["transactions in the log"] > 10 and facts["elections"] > 2
    if seed == CUTS_OFF:
        assert facts["transactions that were cut off"]
        LogicalStory(seed, show=again.append).run()
        assert first == again, "the same seed, another story"


def test_a_proposer_that_tells_postgresql_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quorums = ChangeStream.on_committed

    def early(stream: ChangeStream, position: Lsn) -> Lsn | None:
        return quorums(stream, stream.writer.position)

    monkeypatch.setattr(ChangeStream, "on_committed", early)
    with pytest.raises(Violation, match="Once: "):
        for seed in range(TOO_EARLY, TOO_EARLY + 40):
            with suppress(NoProgress):
                LogicalStory(seed).run()


def test_a_logical_log_ends_where_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The story closes it again and again, and a proposer is refused at its end (M7)."""
    story = LogicalStory(0, closes=True)
    story.run()
    assert story.world.facts["closes"] > 1 and story.world.facts["transactions in the log"]
    monkeypatch.setattr(proposer, "closed", lambda log: None)
    with pytest.raises(Violation, match="Closed: "):
        LogicalStory(0, closes=True).run()
