"""The votes of an election: which of them count, and whose log the new term goes on with. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from walkeeper_common.history import Ballot, is_well_formed
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.messages import VoteResponse

VoteOnLink: TypeAlias = tuple[VoteResponse, int]


def is_granted(vote: VoteResponse, ballot: Ballot, configuration: Configuration) -> bool:
    """Return True if this vote counts for the ballot.

    Otherwise it answers an older ballot of ours, or it is not one of a safekeeper."""
    is_ours = (vote.ballot, vote.generation) == (ballot, configuration.generation)
    return vote.granted and is_ours and is_well_formed(vote.history)


def donor_of(votes: Sequence[VoteOnLink]) -> VoteOnLink:
    """Return the vote with the greatest last ballot, and of these the longest log (R4)."""
    return max(votes, key=lambda v: (v[0].history[-1].ballot, v[0].flush_lsn))
