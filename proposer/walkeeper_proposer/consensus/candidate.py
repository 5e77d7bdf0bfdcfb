"""A candidate: it asks for votes for one ballot, counts them and chooses the donor. Pure.

Built once a vote quorum has greeted and the primary has passed its first check. A lost election
ends it, and the next try has another ballot. While its leader leads, it asks members that come
late. It sends no WAL, and it does not judge the primary (docs/protocol.md R2 to R4).
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.history import Ballot
from walkeeper_common.operator_text.note import Note
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.messages import VoteResponse
from walkeeper_proposer.consensus import election, primary_check, progress
from walkeeper_proposer.consensus.admission import LogEnd
from walkeeper_proposer.consensus.campaign import Campaign
from walkeeper_proposer.consensus.election import VoteOnLink
from walkeeper_proposer.consensus.primary_check import Range
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer_events import Effect, Send


class Candidate:
    """One ballot. `members` are the proposer's own records of its links."""

    def __init__(
        self,
        configuration: Configuration,
        ballot: Ballot,
        members: Sequence[Member],
        campaign: Campaign,
    ) -> None:
        self.configuration, self.ballot, self.members = configuration, ballot, members
        self.campaign = campaign
        self.donor_vote: VoteResponse | None = None
        self._counted: dict[int, VoteResponse | None] = {}

    def ask_all(self) -> list[Effect]:
        """Ask each member that has greeted for its vote."""
        for member in self.members:
            member.is_late = False
        asks = [self.ask(member) for member in self.members if member.greeting is not None]
        return [Note("campaigning", (("ballot", self.ballot),)), *asks]

    def ask(self, member: Member) -> Send:
        """Ask one member for its vote."""
        return Send(member.link, member.ask(self.configuration, self.ballot))

    def on_vote(self, member: Member, vote: VoteResponse) -> bool:
        """Record a vote. Return False if it does not count for this ballot."""
        if not election.is_granted(vote, self.ballot, self.configuration):
            return False
        member.vote = vote
        return True

    def is_elected(self, ticks: int) -> bool:
        """Return True if a vote quorum has granted the ballot, and no other vote is waited for."""
        have, asked = progress.voters(self.members), progress.asked(self.members)
        waits = self.campaign.lingers(len(asked) - len(have), ticks)
        return not waits and elects(self.configuration, have)

    def can_be_elected(self) -> bool:
        """Return True if the members with our request are a vote quorum.

        No member votes for this ballot on a newer connection."""
        return elects(self.configuration, progress.asked(self.members))

    def close_poll(self) -> None:
        """Count the votes that are here, and no later ones."""
        self._counted = {m.link: m.vote for m in progress.voters(self.members)}

    def choose_donor(self) -> VoteOnLink | None:
        """Return the donor's vote and link (R4), or None if too few counted votes are left."""
        have = self._counted_voters()
        if not elects(self.configuration, have):
            return None
        best = election.donor_of(_votes_of(have))
        self.donor_vote = best[0]
        return best

    def scope_from(self, donor: VoteOnLink) -> tuple[LogEnd, Range]:
        """Return the log's end and the range that the primary is compared with."""
        votes = _votes_of(self._counted_voters())
        return primary_check.scope_of_votes(self.configuration, donor, votes, self.ballot)

    def _counted_voters(self) -> list[Member]:
        voters = progress.voters(self.members)
        return [m for m in voters if m.vote is self._counted.get(m.link)]


def elects(configuration: Configuration, members: Sequence[Member]) -> bool:
    """Return True if these members are a vote quorum."""
    return configuration.elects([m.name for m in members])


def _votes_of(members: Sequence[Member]) -> list[VoteOnLink]:
    return [(m.vote, m.link) for m in members if m.vote is not None]
