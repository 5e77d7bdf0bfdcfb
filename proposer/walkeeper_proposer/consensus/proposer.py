"""The proposer: campaigns, becomes the leader of one log, commits, steps down.

    step(event) -> effects          no I/O, no clock, no randomness

    GREETING -> CHECKING -> CAMPAIGNING -> CHECKING_VOTES -> LEADING
        ^___________ BACKING_OFF ___________|                   any -> STOPPED

The primary is compared with the log before any ballot is bumped, again on the votes, and again on
each new connection (docs/steps.md#check-of-the-primary). A position counts towards commit only
when the acceptor has answered the heartbeat after ProposerElected and has the term's start (R10).

Invariant P1: the LSN reported to PostgreSQL never exceeds commit_lsn or the received WAL. P2: once
elected, this object has one ballot for its life. P3: each acceptor counts once.
Spec: docs/protocol.md#rules, Raft 5.2-5.4 and figure 8, the seed's "Handshake" and "Recovery".
Deviations from the seed: there is no feedback `else VCL`. The new term starts at the donor's
record end (scenarios/half_a_record_is_cut_at_election.txt).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import assert_never

from walkeeper_common.history import NO_BALLOT, TERM_MAX, Ballot, Corrupt
from walkeeper_common.operator_text.note import Note
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import InstallMembers, MembersState
from walkeeper_common.wire.messages import (
    OF_NO_MEMBER,
    AcceptorGreeting,
    AppendResponse,
    Reject,
    RejectCode,
    VoteResponse,
)
from walkeeper_common.wire.requests import ReadResponse
from walkeeper_proposer.consensus import greetings, primary_check, progress, rejections
from walkeeper_proposer.consensus.admission import LogEnd, closed
from walkeeper_proposer.consensus.campaign import CAMPAIGN_TICKS_MAX, Campaign, Phase, Purpose
from walkeeper_proposer.consensus.candidate import Candidate, elects
from walkeeper_proposer.consensus.leadership import Leader
from walkeeper_proposer.consensus.own_wal import Forgotten
from walkeeper_proposer.consensus.primary_check import Examination, Range, Verdict
from walkeeper_proposer.consensus.progress import SILENT_TICKS_MAX, Member, Stage
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    BackedOff,
    BackOff,
    DropLink,
    Effect,
    Event,
    IdentifyPrimary,
    LinkLost,
    LinkUp,
    NonceWritten,
    Outcome,
    PrimaryIdentified,
    PrimaryIdentity,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    Received,
    Send,
    Settled,
    Stop,
    StreamTaken,
    Tick,
    WalArrived,
)
from walkeeper_proposer.consensus.witness import Steps, shown_by


class Proposer:
    """One attempt at leading one log; it ends with a Stop effect and is not used again."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.members = [Member(link) for link in range(campaign.links)]
        self.phase = Phase.GREETING
        self.configuration: Configuration | None = None
        self.ballot = self.seen_ballot = NO_BALLOT
        self.candidate: Candidate | None = None
        self.leader: Leader | None = None
        self.primary: PrimaryIdentity | None = None
        self.check: Examination | None = None
        self._refusals: dict[int, str] = {}
        self._counted: dict[int, AcceptorGreeting | None] = {}
        self._attempt = self._phase_ticks = 0

    def step(self, event: Event) -> list[Effect]:
        """Return the effects of one event, to perform in order."""
        if self.phase is Phase.STOPPED:
            return []
        match event:
            case WalArrived(begin_lsn, wal):
                assert self.leader is not None, f"{self.phase=}"
                return self.leader.on_wal(begin_lsn, wal)
            case Received(link, message):
                return self.on_message(self.members[link], message)
            case Tick(receiving):
                return self.on_tick(receiving)
            case LinkUp(link):
                return self.on_link_up(self.members[link])
            case LinkLost(link):
                return self.on_link_lost(self.members[link])
            case PrimaryIdentified(identity):
                return self.on_primary(identity)
            case PrimaryLost(text):
                return self.on_primary_lost(text)
            case PrimaryRead(begin_lsn, wal):
                return self._checking(lambda c: c.on_primary_read(begin_lsn, wal))
            case PrimaryReadFailed(text, removed):
                return self._checking(lambda c: c.on_primary_read_failed(text, removed=removed))
            case AnnounceDue() | NonceWritten() | StreamTaken():
                return self.leader.on_leader_event(event) if self.leader is not None else []
            case BackedOff():
                return self.become_greeting() if self.phase is Phase.BACKING_OFF else []
            case _:
                assert_never(event)

    def on_message(self, member: Member, message: Message) -> list[Effect]:
        member.silent_ticks = 0
        match message:
            case AppendResponse():
                return self.on_append_response(member, message)
            case AcceptorGreeting():
                return self.on_greeting(member, message)
            case VoteResponse():
                return self.on_vote(member, message)
            case ReadResponse():
                return self.on_read_response(member, message)
            case Reject():
                return self.on_reject(member, message)
            case MembersState(granted=True) if member.stage is Stage.GREETING:
                return self._greet(member)  # it had missed a change of members
            case MembersState() if member.stage is Stage.STREAMING:
                member.holds_from(message.oldest_lsn)
                return []
            case _:
                return [DropLink(member.link, f"it sent {type(message).__name__}")]

    # Greeting

    def on_link_up(self, member: Member) -> list[Effect]:
        member.lose()
        return self._greet(member)

    def _greet(self, member: Member) -> list[Effect]:
        if self.campaign.purpose is Purpose.ATTACH and not (self.primary or self.leader):
            member.stage = Stage.CONNECTED  # greeted when we know for which primary
            return []
        member.stage = Stage.GREETING
        known = None if self.phase is Phase.GREETING else self.configuration
        return [Send(member.link, greetings.greeting_for(self.campaign, self.primary, known))]

    def on_greeting(self, member: Member, greeting: AcceptorGreeting) -> list[Effect]:
        if member.stage is not Stage.GREETING:
            return []
        theirs, ours = member.learn_log(greeting), self.configuration
        if greetings.replaces(theirs, ours, self.members) or (
            theirs and self.campaign.needs_other_links(theirs)
        ):
            return self.on_newer_members(theirs)
        if greetings.is_newer(ours, theirs):
            return [Send(member.link, InstallMembers(self.campaign.cluster, ours))]
        member.greet(greeting)
        twin = any(m.name == member.name for m in self.members if m is not member)
        refusal = greetings.unwelcome(greeting, self.configuration, twin=twin)
        if refusal is not None:
            return self._refused(member, refusal)
        self.seen_ballot = max(self.seen_ballot, greeting.ballot)
        if greeting.ballot > self.ballot and self.phase is Phase.LEADING:
            return self._deposed(greeting.ballot)
        self.configuration = greeting.configuration
        self._refusals.pop(member.link, None)
        if self.phase not in (Phase.CAMPAIGNING, Phase.CHECKING_VOTES, Phase.LEADING):
            return self._consider()
        waits = self.leader is None and member.is_late  # until we lead, and have a witness (R24)
        assert self.candidate is not None, f"{self.phase=}"
        return [] if waits else [self.candidate.ask(member)]

    def on_newer_members(self, configuration: Configuration) -> list[Effect]:
        """Begin anew with other members: earlier answers do not count, and all greet again."""
        self.configuration, self.candidate = configuration, None
        self._refusals.clear()
        if self.phase is Phase.LEADING or self.campaign.needs_other_links(configuration):
            text = f"the members have changed: generation {configuration.generation}"
            return self._stop(Outcome.NEW_ELECTION, text)
        return self.become_greeting() if self.phase is Phase.GREETING else self.become_backing_off()

    @property
    def gives_way_to_new_members(self) -> bool:
        """Return True if a change of members has ended this term: no rival candidate did."""
        leader, newest = self.leader, self.configuration
        return bool(leader and newest and newest.generation > leader.configuration.generation)

    def _refused(self, member: Member, text: str) -> list[Effect]:
        """Exclude a safekeeper; stop if that leaves no vote quorum."""
        known, self._refusals[member.link] = self._refusals.get(member.link) == text, text
        member.lose()
        enough = self.configuration.voters_min if self.configuration else 1
        if self.phase is Phase.GREETING and len(self.members) - len(self._refusals) < enough:
            return self._stop(Outcome.REFUSED, "; ".join(sorted(set(self._refusals.values()))))
        return [*([] if known else [Note(text)]), DropLink(member.link, text)]

    def _consider(self) -> list[Effect]:
        """Go on from GREETING when a vote quorum has greeted and nobody else is live."""
        if self.phase is not Phase.GREETING or self.configuration is None:
            return []
        greeted = [m.greeting for m in self.members if m.greeting is not None]
        missing = len(self.members) - len(greeted)
        if not elects(self.configuration, self.members) or self.campaign.lingers(
            missing, self._phase_ticks
        ):
            return []
        text = greetings.kept_out(greeted, self.configuration, self.primary, self._phase_ticks)
        if text is not None and not self.campaign.take_over:  # empty: wait one lease first (R20)
            return self._stop(Outcome.REFUSED, text) if text else []
        attaches = self.campaign.purpose is Purpose.ATTACH
        return self.become_checking() if attaches else self.become_candidate()

    def become_checking(self) -> list[Effect]:
        """Compare before a ballot is bumped, with the end of WAL that the primary has now.

        An older proposer may have sent WAL since its last answer, and may send more after this one.
        Both would seem to be lost. So only members' answers from before the question count
        (scenarios/answers_that_outlast_the_question_to_the_primary.txt)."""
        self.phase, self._phase_ticks = Phase.CHECKING, 0
        self._counted = {m.link: m.greeting for m in self.members}
        return [IdentifyPrimary()]

    def _check_greetings(self) -> list[Effect]:
        assert self.configuration is not None, f"{self.phase=}"
        known = [m for m in self.members if m.greeting is self._counted.get(m.link)]
        if not elects(self.configuration, known):
            return self.become_backing_off()
        greeted = [(m.greeting, m.link) for m in known if m.greeting is not None]
        return self._start_check(*primary_check.scope_of_greetings(self.configuration, greeted))

    # Checking the primary

    def _start_check(self, log: LogEnd, scope: Range) -> list[Effect]:
        assert self.primary is not None, f"{self.phase=}"
        if (text := closed(log)) is not None:
            return self._stop(Outcome.CLOSED, text)
        held = self.leader.held_wal if self.leader is not None else None
        self.check = self.campaign.examine(self.primary, log, self.campaign.waivers, scope, held)
        return self._checking(lambda check: check.start())

    def _checking(self, feed: Callable[[Examination], list[Effect]]) -> list[Effect]:
        check = self.check
        if check is None:
            return []
        effects = feed(check)
        if check.verdict is None:
            return effects
        self.check = None
        match check.verdict:
            case Verdict.PASSED:
                return effects + self._check_passed()
            case Verdict.REFUSED:
                outcome = Outcome.NEW_ELECTION if self.phase is Phase.LEADING else Outcome.REFUSED
                return effects + self._stop(outcome, check.text)
            case Verdict.UNKNOWN:  # on_tick of a leader examines again
                lost = [] if self.phase is Phase.LEADING else self.become_backing_off()
                return [*effects, Note(check.text), *lost]

    def _check_passed(self) -> list[Effect]:
        match self.phase:
            case Phase.CHECKING:
                return self.become_candidate()
            case Phase.CHECKING_VOTES:
                return self.become_leader()
            case _:
                return self._stream()

    # Campaigning

    def become_candidate(self) -> list[Effect]:
        assert self.configuration is not None, f"{self.phase=}"
        if self.seen_ballot.term == TERM_MAX:
            return self._stop(Outcome.REFUSED, f"no ballot is greater than {self.seen_ballot}")
        self.phase, self._phase_ticks = Phase.CAMPAIGNING, 0
        self.ballot = Ballot(self.seen_ballot.term + 1, self.campaign.proposer_id)
        self.seen_ballot = max(self.seen_ballot, self.ballot)
        whose = (self.members, self.campaign)
        self.candidate = Candidate(self.configuration, self.ballot, *whose)
        return self.candidate.ask_all()

    def on_vote(self, member: Member, vote: VoteResponse) -> list[Effect]:
        self.seen_ballot = max(self.seen_ballot, vote.ballot)
        if member.stage is not Stage.VOTING:
            return []
        if vote.ballot > self.ballot:
            return self._outvoted(vote.ballot)
        if self.candidate is None or not self.candidate.on_vote(member, vote):
            return []
        if self.leader is not None:
            return self._elect(self.leader.on_late_vote, member)
        return self._count_votes() if self.phase is Phase.CAMPAIGNING else []

    def _count_votes(self) -> list[Effect]:
        assert self.candidate is not None, f"{self.phase=}"
        if not self.candidate.is_elected(self._phase_ticks):
            return []
        self.phase, self._phase_ticks = Phase.CHECKING_VOTES, 0
        self.candidate.close_poll()
        if self.campaign.purpose is not Purpose.ATTACH:
            return self._check_votes()
        return [IdentifyPrimary()]  # asked anew, as above; on_primary goes on

    def _check_votes(self) -> list[Effect]:
        """Let the candidate choose the donor (R4), and hold the primary against it."""
        assert self.candidate is not None, f"{self.phase=}"
        donor = self.candidate.choose_donor()
        if donor is None:
            return self.become_backing_off()
        if self.campaign.purpose is not Purpose.ATTACH:
            return self.become_leader()
        return self._start_check(*self.candidate.scope_from(donor))

    def _outvoted(self, ballot: Ballot) -> list[Effect]:
        return self._deposed(ballot) if self.phase is Phase.LEADING else self.become_backing_off()

    def become_backing_off(self) -> list[Effect]:
        """Pause before another try of the election, with a new round of greetings."""
        assert self.phase is not Phase.LEADING, f"{self.phase=}"
        if self.phase is Phase.BACKING_OFF:  # one lost try, one pause
            return []
        self.phase, self.check = Phase.BACKING_OFF, None
        self._attempt += 1
        return [BackOff(self._attempt)]

    def become_greeting(self) -> list[Effect]:
        self.phase, self._phase_ticks = Phase.GREETING, 0
        there = [member for member in self.members if member.stage is not Stage.ABSENT]
        for member in there:  # scenarios/candidate_that_lost_greets_again.txt
            member.forget()
        return [effect for member in there for effect in self._greet(member)]

    # Leading

    def become_leader(self) -> list[Effect]:
        """Start the term at the donor's record end A, where all logs are cut (R5)."""
        candidate = self.candidate
        assert candidate is not None and candidate.donor_vote is not None, f"{self.phase=}"
        self.phase = Phase.LEADING
        whose = (self.members, self.campaign, self.primary)
        term = (candidate.configuration, self.ballot, candidate.donor_vote)
        self.leader = Leader(*term, *whose)
        if (text := self.leader.full_history()) is not None:
            return self._stop(Outcome.REFUSED, text)
        facts = (("ballot", self.ballot), ("start", self.leader.start_lsn))
        voted, elect = progress.voters(self.members), self.leader.elect
        elected = [e for member in voted for e in self._elect(elect, member)]
        late = [candidate.ask(m) for m in self.members if m.stage is Stage.GREETED]
        return [Note("elected", facts), *elected, *late, *self._stream()]

    def _elect(self, step: Steps, member: Member, *read: ReadResponse) -> list[Effect]:
        try:
            return step(member, *read)
        except Forgotten as error:
            return self._stop(Outcome.NEW_ELECTION, str(error))
        except Corrupt as error:
            return self._refused(member, f"safekeeper {member.name}: {error}")

    def _stream(self) -> list[Effect]:
        return self.leader.start_streaming() if self.leader and self.primary else []

    def on_append_response(self, member: Member, response: AppendResponse) -> list[Effect]:
        leader = self.leader
        if leader is None or member.stage is not Stage.STREAMING or response.ballot != self.ballot:
            return []
        effects = leader.on_append_response(member, response)
        for late in shown_by(member, self.members):
            effects += self._elect(leader.elect, late)
        return effects + self._settled(leader.settled())

    def _settled(self, settled: Settled | None) -> list[Effect]:
        if settled is None:
            return []
        return self._stop(Outcome.SETTLED, f"the log ends at {settled.consensus_lsn}", settled)

    def on_read_response(self, member: Member, response: ReadResponse) -> list[Effect]:
        check = self.check
        if check is not None and check.is_answered_by(member.link, response):
            return self._checking(lambda check: check.on_log_read(response))
        leader = self.leader if response.ballot == self.ballot else None
        return [] if leader is None else self._elect(leader.on_read_response, member, response)

    # The primary and the links come and go

    def on_primary(self, identity: PrimaryIdentity) -> list[Effect]:
        self.primary = identity
        if self.phase is Phase.GREETING:
            return self.become_greeting()
        effects = [e for m in self.members if m.stage is Stage.CONNECTED for e in self._greet(m)]
        match self.phase:
            case Phase.LEADING:
                return effects + self._check_again()
            case Phase.CHECKING:
                return effects + self._check_greetings()
            case Phase.CHECKING_VOTES:
                return effects + self._check_votes()
            case _:
                return effects

    def _check_again(self) -> list[Effect]:
        """Check the primary on a new connection, with the end received so far as C."""
        leader = self.leader
        assert leader is not None, f"{self.phase=}"
        log = leader.readable_log()
        if log is None:  # no member can be read yet; on_tick tries again
            return []
        if self.primary is not None and not leader.is_for(self.primary):
            return self._stop(Outcome.NEW_ELECTION, f"{leader.history[-1]}: another timeline now")
        return self._start_check(*log)

    def on_primary_lost(self, text: str) -> list[Effect]:
        self.primary, self.check = None, None
        if self.leader is not None:
            self.leader.stop_streaming()
        lost = self.become_backing_off() if self.phase is Phase.CHECKING else []
        return [Note("lost the primary", (("reason", text),)), *lost]

    def on_link_lost(self, member: Member) -> list[Effect]:
        effects = self.leader.on_lost(member) if self.leader is not None else []
        member.lose()
        progress.repeat_reads(self.members)
        waits = self.candidate if self.phase is Phase.CAMPAIGNING else None
        too_few = waits is not None and not waits.can_be_elected()
        if self.check is not None and self.check.scope.asks(member.link):
            self.check, too_few = None, self.phase is not Phase.LEADING
        return self.become_backing_off() if too_few else effects

    def on_reject(self, member: Member, reject: Reject) -> list[Effect]:
        if reject.code in OF_NO_MEMBER:
            return self._refused(member, reject.text)
        self.seen_ballot = max(self.seen_ballot, reject.ballot)
        if reject.ballot > self.ballot and self.phase is Phase.LEADING:
            return self._deposed(reject.ballot)
        note = rejections.note_of(member, reject)
        checks = self.check is not None and self.check.scope.donor == member.link
        match reject.code:
            case RejectCode.STALE_BALLOT:
                return self._outvoted(reject.ballot)
            case RejectCode.WAL_REMOVED | RejectCode.NOT_READABLE if member.attached and not checks:
                member.refuse_reads()
                progress.repeat_reads(self.members)
                return [note]
            case code if self.leader is not None and member.lacks_space(code):
                return self.leader.on_no_space(member, note)
            case _:
                return [note, DropLink(member.link, note.text)]

    def _deposed(self, ballot: Ballot) -> list[Effect]:
        """Stop for good (R20). The outcome of commits in flight is unknown."""
        text = f"deposed: ballot {ballot} was promised to another proposer, ours is {self.ballot}"
        return self._stop(Outcome.DEPOSED, text)

    def _stop(self, outcome: Outcome, text: str, settled: Settled | None = None) -> list[Effect]:
        self.phase = Phase.STOPPED
        return [Stop(outcome, text, settled)]

    def on_tick(self, receiving: Set[int]) -> list[Effect]:
        self._phase_ticks, effects = self._phase_ticks + 1, list[Effect]()
        for member in progress.ticked(self.members, receiving):
            if member.silent_ticks > SILENT_TICKS_MAX:
                effects.append(DropLink(member.link, f"silent for {SILENT_TICKS_MAX} heartbeats"))
            elif member.attached and self.leader is not None:
                effects.append(self.leader.feeder.heartbeat(member))
        return effects + self._on_phase_tick()

    def _on_phase_tick(self) -> list[Effect]:
        match self.phase:
            case Phase.GREETING:  # again, to know another live proposer by now
                greeted = [m for m in self.members if m.stage is Stage.GREETED]
                return self._consider() or [e for m in greeted for e in self._greet(m)]
            case Phase.CAMPAIGNING:
                is_late = self._phase_ticks > CAMPAIGN_TICKS_MAX
                return self.become_backing_off() if is_late else self._count_votes()
            case Phase.LEADING:
                return self._on_leading_tick()
            case _:
                return []

    def _on_leading_tick(self) -> list[Effect]:
        assert self.leader is not None, f"{self.phase=}"
        if (lost := self.leader.lost_by_all()) is not None:
            return self._stop(Outcome.NEW_ELECTION, lost)
        effects = self.leader.on_tick() + self._settled(self.leader.linger())
        if self.primary is not None and not self.leader.is_streaming and self.check is None:
            effects += self._check_again()
        return effects
