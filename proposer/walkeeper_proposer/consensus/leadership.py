"""An elected proposer: it sends histories and WAL, counts acks and commits. Pure.

Built once an election is won and the primary has passed its check; lives until the proposer stops.
`commit_lsn` moves in one place, `advance_commit`, and the report to PostgreSQL is made in one
other, `report` (docs/protocol.md R10 and R12).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from walkeeper_common.history import (
    Ballot,
    divergence,
)
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.quorum import Configuration, LogKind, MemberSet
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.member_change import MembersQuery
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AppendResponse,
    Feedback,
    ProposerElected,
    VoteResponse,
)
from walkeeper_common.wire.requests import ReadResponse
from walkeeper_proposer.consensus.admission import LogEnd
from walkeeper_proposer.consensus.campaign import ABSENT_TICKS, Campaign, Purpose
from walkeeper_proposer.consensus.feeding import Feeder
from walkeeper_proposer.consensus.own_wal import Forgotten, OwnWalCheck
from walkeeper_proposer.consensus.primary_check import Range, with_older
from walkeeper_proposer.consensus.progress import (
    Member,
    Stage,
    behind_settle,
    kept_for,
    lacking,
)
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    AnnounceSoon,
    DropLink,
    Effect,
    NonceWritten,
    PauseStreaming,
    PrimaryIdentity,
    Report,
    ResumeStreaming,
    RetainWal,
    Send,
    Settled,
    StartStreaming,
    StreamTaken,
)
from walkeeper_proposer.consensus.telling_record import Telling
from walkeeper_proposer.consensus.term_history import entry_of_term, fullness, shortened, with_term
from walkeeper_proposer.consensus.wal_window import WalWindow
from walkeeper_proposer.consensus.witness import NO_WITNESS, lacks_witness, witnesses_for

Counted: TypeAlias = Sequence[tuple[MemberSet, Sequence[Member]]]

NOBODY = Member(-1)  # stands for a member that has not attached
DONOR_WAIT_TICKS = 5  # how long to wait for the donor of the election to come back


class Leader:
    """One term. `members` are the proposer's own records of its links."""

    def __init__(
        self,
        configuration: Configuration,
        ballot: Ballot,
        donor: VoteResponse,
        members: Sequence[Member],
        campaign: Campaign,
        primary: PrimaryIdentity | None = None,
    ) -> None:
        self.configuration, self.ballot, self.members = configuration, ballot, members
        self._knows_timelines = campaign.kind is LogKind.PHYSICAL
        if not self._knows_timelines:
            primary = None  # positions are no LSNs; the forks are inside the entries
        self._sets, self._learners = configuration.sets, configuration.learners
        self.purpose = campaign.purpose
        entry = entry_of_term(configuration, ballot, donor, campaign, primary)
        self.history = with_term(shortened(configuration, donor, campaign), entry, primary)
        self.start_lsn, self.donor_flush_lsn = entry.start_lsn, donor.flush_lsn
        self.commit_lsn = ZERO_LSN
        # Safekeepers remove WAL below restart_lsn. So it stays below the last telling record, and a
        # settle does not move it. The next primary has to find what the last one has written.
        self.telling = Telling()
        goes_by_nonces = campaign.writes_nonces or campaign.purpose is not Purpose.ATTACH
        is_bounded = goes_by_nonces and self._knows_timelines
        self.restart_lsn_max = ZERO_LSN if is_bounded else LSN_MAX
        self.window = WalWindow(entry.start_lsn, bytes_max=campaign.window_bytes_max)
        self.feeder = Feeder(
            generation=configuration.generation,
            ballot=ballot,
            timelines=Timelines(self.history),
            window=self.window,
            commit_lsn=ZERO_LSN,
            restart_lsn=ZERO_LSN,
        )
        self.is_streaming = self.is_paused = False
        self._owed_lsn: Lsn | None = None  # commit_lsn at the last AnnounceSoon
        self._cluster, self.held_lsn = campaign.cluster, LSN_MAX  # restart_lsn stays below it (M5)
        self._starved_ticks = self._lingered_ticks = 0
        self.linger_ticks = campaign.linger_ticks

    def full_history(self) -> str | None:
        """Return why no safekeeper may get this term's history, or None."""
        return fullness(self.history, self.configuration, self.members, self.purpose)

    def on_late_vote(self, member: Member) -> list[Effect]:
        """Ask the others for a sign of life before telling a voter on a new connection (R24).

        Raises Forgotten if there is nobody to ask: we may be an older copy of ourselves."""
        if not member.is_late or len(self.configuration.everyone) == 1:
            return self.elect(member)
        others = witnesses_for(member, self.members)
        member.awaits_witness = True
        return [self.feeder.heartbeat(other) for other in others if other.attached]

    def elect(self, member: Member) -> list[Effect]:
        """Tell one voter where its log diverges from ours; its acks count from its answer on.

        Raises Corrupt if no run of the protocol explains the two histories (R6). Raises Forgotten
        if it has more WAL of this term than was ever sent. A proposer with our ballot has sent it,
        and that is ourselves, before our machine was set back to an image with its memory
        (scenarios/leader_from_a_memory_image_starts_anew.txt). WAL of this term that it has not
        acknowledged to us is compared first (own_wal.py).
        """
        assert member.vote is not None, f"{member.link=}"
        member.awaits_witness = False
        sent_lsn = max(max(m.sent_lsn, m.next_lsn) for m in self.members)
        if member.vote.history[-1].ballot == self.ballot and member.vote.flush_lsn > sent_lsn:
            raise Forgotten(
                f"safekeeper {member.name} has WAL of this term up to {member.vote.flush_lsn}, and "
                f"we know of having sent {sent_lsn}: was this machine set back to an older image?"
            )
        vote = member.vote
        start_lsn = divergence(self.history, vote.history, vote.flush_lsn)
        known_lsn = max(member.known_lsn, self.start_lsn)
        if vote.history[-1].ballot != self.ballot or vote.flush_lsn <= known_lsn:
            return self._tell(member, start_lsn)
        if known_lsn < vote.oldest_lsn:
            raise Forgotten(
                f"safekeeper {member.name} does not keep the WAL at {known_lsn} any more, and no "
                "acknowledgement of it was seen"
            )
        ends = (known_lsn, vote.flush_lsn, vote.record_lsn, start_lsn)
        comparison = member.comparison = OwnWalCheck(member.name, *ends)
        return comparison.ask(member, self.members, self.ballot, self.held_wal)

    def on_read_response(self, member: Member, response: ReadResponse) -> list[Effect]:
        """Take WAL of a voter or of a donor. Raise Forgotten if a voter's is not what was sent."""
        effects: list[Effect] = []
        for voter in self.members:
            comparison = voter.comparison
            if comparison is None or not comparison.take(voter, member, response, self.held_wal):
                continue
            if comparison.is_done:
                effects += self._tell(voter, comparison.start_lsn)
            else:
                effects += comparison.ask(voter, self.members, self.ballot, self.held_wal)
        return effects + self.feeder.on_donated(member, response, self.members)

    def _tell(self, member: Member, start_lsn: Lsn) -> list[Effect]:
        member.start_streaming(start_lsn)
        self.hold_wal()
        generation = self.configuration.generation
        elected = ProposerElected(generation, self.ballot, start_lsn, self.history)
        return [Send(member.link, elected), self.feeder.heartbeat(member)]

    # From the primary to the safekeepers

    def start_streaming(self) -> list[Effect]:
        """Start at the end of the received WAL, which is the term's start at first."""
        if self.purpose is not Purpose.ATTACH or self.is_streaming:
            return []
        self.is_streaming, self.is_paused = True, False
        at_lsn = self.window.end_lsn
        timeline = self.feeder.timelines.shown_by(at_lsn, self.configuration.segment_bytes)
        start = StartStreaming(at_lsn, timeline)
        return [start, *self.report(), *self.bound_window()]

    def readable_log(self) -> tuple[LogEnd, Range] | None:
        """Return the log's end and what to compare, for a primary on a new connection.

        The end received so far is A and C. Return None while no readable member is attached."""
        end_lsn = self.window.end_lsn
        attached = [(m.flush_lsn, m.link, m.oldest_lsn) for m in self.members if m.attached]
        if not attached or max(attached)[0] < self.window.begin_lsn:
            return None
        log = LogEnd(self.configuration, self.history, end_lsn, end_lsn)
        _, link, oldest_lsn = max(attached)
        others = [(first, other, flush) for flush, other, first in attached]
        return log, with_older(Range(oldest_lsn, end_lsn, link, self.ballot), others)

    def is_for(self, primary: PrimaryIdentity) -> bool:
        """Return True if this primary writes on the timeline of this term's history."""
        return not self._knows_timelines or primary.timeline == self.history[-1].timeline

    def stop_streaming(self) -> None:
        """Record that the primary is gone; its WAL stays in the window."""
        self.is_streaming = self.is_paused = False

    def on_wal(self, begin_lsn: Lsn, wal: memoryview) -> list[Effect]:
        """Keep WAL once, and send it to all members that keep up."""
        self.window.append(begin_lsn, wal)
        return self.feed_all() + self.bound_window()

    def feed_all(self) -> list[Effect]:
        """Send all members what they may get now."""
        return self.feeder.feed_all(self.members)

    def on_tick(self) -> list[Effect]:
        """Send what waits, and let go of WAL. Ask members that had no space for votes, and another
        donor in the place of a lost one. Ask how far logs that begin late are filled."""
        asks = [Send(m.link, MembersQuery(self._cluster)) for m in self.hold_wal()]
        effects = [*self.feed_all(), *self._ask_refusing(), *asks]
        for comparison in [m.comparison for m in self.members if m.comparison is not None]:
            effects += comparison.ask_donor(self.members, self.ballot, self.held_wal)
        return effects + self._retain()

    def hold_wal(self) -> list[Member]:
        """Hold restart_lsn below WAL that logs that begin late lack; return their members (M5)."""
        known_lsn = self.feeder.restart_lsn
        lack, self.held_lsn = lacking(self.configuration, self.members, known_lsn)
        return lack

    def lost_by_all(self) -> str | None:
        """Return why we cannot go on although an election is possible, or None. Call it each tick.

        A vote quorum has attached, but lacks WAL below the window, so we cannot feed it. Either
        a quorum had it. Then a power cut took all of them back into one incomplete record (R9), and
        only the primary has its bytes
        (scenarios/half_a_record_that_all_lost_needs_an_election.txt). Or the donor of our election
        has vanished with it; it gets time to come back
        (scenarios/vanished_donor_needs_an_election.txt). A new term starts lower (R5).
        A voter that is being compared has not attached, and may lag the window as well.
        Or all connections are lost that show that we are no older copy of ourselves (witness.py).
        """
        if lacks_witness(self.members):
            return NO_WITNESS
        here = [m for m in self.members if m.attached or m.comparison is not None]
        ends = [m.flush_lsn if m.comparison is None else m.comparison.at_lsn for m in here]
        enough = self.configuration.elects([m.name for m in here])
        if not enough or max(ends) >= self.window.begin_lsn:
            self._starved_ticks = 0
            return None
        self._starved_ticks += 1
        waits = self.commit_lsn < self.window.begin_lsn or any(m.comparison for m in here)
        if waits and self._starved_ticks <= DONOR_WAIT_TICKS:
            return None
        return f"no safekeeper has the WAL from {max(ends)} to {self.window.begin_lsn} any more"

    def bound_window(self) -> list[Effect]:
        """Forget WAL that no member needs; pause the primary while the rest is too much."""
        is_full = self.feeder.trim(self.members)
        if is_full == self.is_paused or not self.is_streaming:
            return []
        self.is_paused = is_full
        return [PauseStreaming() if is_full else ResumeStreaming()]

    def held_wal(self, begin_lsn: Lsn, size_max: int) -> memoryview | None:
        """Return WAL of our window, to check a primary on a new connection, or None."""
        if not self.window.begin_lsn <= begin_lsn < self.window.end_lsn:
            return None
        return self.window.slice(begin_lsn, size_max)[0]

    # From the safekeepers to the primary

    def on_append_response(self, member: Member, response: AppendResponse) -> list[Effect]:
        """Replace what was known of the member by an ack of this term (R10)."""
        if response.flush_lsn > member.next_lsn:
            text = f"it acknowledged {response.flush_lsn}, it was sent {member.next_lsn}"
            return [DropLink(member.link, text)]
        is_new, member.attached = not member.attached, True
        member.durable_commit_lsn = response.durable_commit_lsn
        news, member.feedback = response.feedback != member.feedback, response.feedback
        member.flush_lsn, member.silent_ticks = response.flush_lsn, 0
        if member.is_slow:
            member.grow()
        if member.is_probed:
            member.is_probed = member.flush_lsn <= member.known_lsn
        moves = self.advance_commit(self.counted())
        effects = self.report() if moves or news else []
        if moves or is_new or self.has_work_for(member):
            effects += self.after_ack(member, moves=moves, is_new=is_new)
        return effects

    def has_work_for(self, member: Member) -> bool:
        """Return True if an ack of this member has effects even if commit_lsn does not move."""
        return self.is_paused or member.next_lsn < self.window.end_lsn

    def after_ack(self, member: Member, *, moves: bool, is_new: bool = False) -> list[Effect]:
        """Feed the member after its ack was reported; announce commit_lsn if it `moves`."""
        # The others may have waited for a donor: scenarios/laggard_waits_for_its_donor.txt
        fed = self.feed_all() if is_new else self.feeder.feed(member, self.members)
        effects = fed + (self._announce_soon() if moves else [])
        if moves or fed or self.is_paused:
            effects += self.bound_window()
        return effects

    def on_lost(self, member: Member) -> list[Effect]:
        """Forget a member. Its standbys no longer delay commits, with or without new WAL
        (scenarios/standbys_of_a_lost_safekeeper_hold_nothing.txt)."""
        news = member.feedback != NO_FEEDBACK
        member.lose()
        return self.report() if news else []

    def on_no_space(self, member: Member, note: Note) -> list[Effect]:
        """Wait for space at a member that refused an append (R16), and keep its connection.

        A connection that was dropped would be no witness any more (witness.py)."""
        if member.stage is not Stage.STREAMING:
            return []  # an append after the refused one
        news = member.feedback != NO_FEEDBACK
        member.wait_for_space()
        return [note, *(self.report() if news else [])]

    def _ask_refusing(self) -> list[Effect]:
        """Ask members that had no space for votes, which tell where their logs end."""
        refusing = [m for m in self.members if m.stage is Stage.GREETED]
        return [Send(m.link, m.ask(self.configuration, self.ballot)) for m in refusing]

    def counted(self) -> Counted:
        """Return each set that has to commit, and its members, or NOBODY for one without acks."""
        by_name = {m.name: m for m in self.members if m.attached}
        return [(each, [by_name.get(name, NOBODY) for name in each.members]) for each in self._sets]

    def advance_commit(self, counted: Counted) -> bool:
        """Move commit_lsn to what an ack quorum has in this term (R10); return True if it moved."""
        feeder, start_lsn = self.feeder, self.start_lsn
        restart_lsn, commit_lsn = min(self.restart_lsn_max, self.held_lsn), LSN_MAX
        for each, members in counted:  # two while members change: both must have it
            flushed = []
            for member in members:
                lsn = member.flush_lsn
                flushed.append(lsn if lsn >= start_lsn else ZERO_LSN)
            restart_lsn = min(restart_lsn, *flushed)
            commit_lsn = min(commit_lsn, each.acknowledged(flushed))
        if self._learners:
            restart_lsn = min(restart_lsn, kept_for(self._learners, self.members, commit_lsn))
        if restart_lsn > feeder.restart_lsn:
            feeder.restart_lsn = restart_lsn
        if commit_lsn <= self.commit_lsn:
            return False
        self.commit_lsn = feeder.commit_lsn = commit_lsn
        return True

    def on_stream_taken(self, taken: StreamTaken) -> list[Effect]:
        """Take WAL that was sent to all and acks that were reported to the primary already."""
        window = self.window
        for wal, crc in taken.sent:
            window.append(window.end_lsn, wal, crc)
        by_link = {member.link: member for member in self.members if member.attached}
        if taken.sent:
            for member in by_link.values():
                member.next_lsn = window.end_lsn
                member.sent_commit_lsn = taken.sent_commit_lsn
        for link, flush_lsn, durable_commit_lsn in taken.acks:
            member = by_link[link]
            assert member.flush_lsn <= flush_lsn <= member.next_lsn, f"{flush_lsn=} {member=}"
            member.flush_lsn, member.durable_commit_lsn = Lsn(flush_lsn), Lsn(durable_commit_lsn)
            member.silent_ticks = 0
        if self._owed_lsn is not None and taken.owed_lsn:
            assert self._owed_lsn <= taken.owed_lsn, f"{self._owed_lsn=} {taken.owed_lsn=}"
            self._owed_lsn = Lsn(taken.owed_lsn)
        moves = bool(taken.acks) and self.advance_commit(self.counted())
        assert self.commit_lsn == taken.commit_lsn, f"{self.commit_lsn=} {taken.commit_lsn=}"
        return (self._announce_soon() if moves else []) + self.bound_window()

    def on_leader_event(self, event: AnnounceDue | NonceWritten | StreamTaken) -> list[Effect]:
        """Handle an event that concerns the leader alone. Retention goes by nonces from the first
        one on. If the primary refuses nonces, retention goes by what all members have. Otherwise
        WAL would be kept without end."""
        match event:
            case AnnounceDue():
                return self.announce()
            case StreamTaken():
                return self.on_stream_taken(event)
            case NonceWritten(None):
                self.restart_lsn_max = LSN_MAX
            case NonceWritten(Lsn() as end_lsn):
                self.telling.on_nonce(end_lsn)
                self.restart_lsn_max = self.telling.end_lsn
        return []

    def _retain(self) -> list[Effect]:
        """Let go of WAL below the last nonce that an ack quorum durably knows as
        committed (scenarios/retention_keeps_what_tells.txt)."""
        if not self.telling.awaits:
            return []
        known = [
            each.acknowledged([m.durable_commit_lsn for m in members])
            for each, members in self.counted()
        ]
        if not self.telling.move(min(known)):
            return []
        self.restart_lsn_max = self.telling.end_lsn
        return [RetainWal(self.telling.page_lsn)]

    def _announce_soon(self) -> list[Effect]:
        """Send R10's heartbeat when commit_lsn moves. Under load an append carries it first.

        A member with standbys gets it at once if the quorum has all WAL that we have
        (scenarios/commit_is_announced_at_once_to_standbys.txt)."""
        read = [m for m in self._uninformed() if m.feedback.apply_lsn]
        informed = read if self.commit_lsn == self.window.end_lsn else []
        effects: list[Effect] = [self.feeder.heartbeat(m) for m in informed]
        if self._owed_lsn is not None:
            return effects
        self._owed_lsn = self.commit_lsn
        return [*effects, AnnounceSoon()]

    def _uninformed(self) -> list[Member]:
        """Return the members that neither an append nor a heartbeat has informed of commit_lsn."""
        return [m for m in self.members if m.attached and m.sent_commit_lsn < self.commit_lsn]

    def announce(self) -> list[Effect]:
        """Send commit_lsn to all members that lack its value at the last AnnounceSoon.

        Ask again if some have that value and lack a newer one: most next appends carry it."""
        owed_lsn, self._owed_lsn = self._owed_lsn or self.commit_lsn, None
        lacking = self._uninformed()
        waiting = [m for m in lacking if m.sent_commit_lsn < owed_lsn]
        effects: list[Effect] = [self.feeder.heartbeat(m) for m in waiting]
        return effects + (self._announce_soon() if len(waiting) < len(lacking) else [])

    def report(self) -> list[Effect]:
        """Report to PostgreSQL, if there is an LSN to report."""
        lsn = self.lsn_to_report()
        return [] if lsn is None else [Report(lsn, self.feedback())]

    def lsn_to_report(self) -> Lsn | None:
        """Return the LSN to report, at most what this term received (R12), or None."""
        lsn = min(self.commit_lsn, self.window.end_lsn)
        return lsn if self.is_streaming and lsn >= self.start_lsn else None

    def feedback(self) -> tuple[Feedback, ...]:
        """Return the feedback of the standbys of each attached safekeeper."""
        return tuple([m.feedback for m in self.members if m.attached])

    def settled(self) -> Settled | None:
        """Return the result of `settle` once an ack quorum knows durably that the log ends at A."""
        if self.purpose is Purpose.ATTACH or self.commit_lsn < self.start_lsn:
            return None
        knowing = [m for m in self.members if m.attached and m.durable_commit_lsn >= self.start_lsn]
        if not self.configuration.commits([m.name for m in knowing]):
            return None
        behind = behind_settle(self.configuration, self.members, self.start_lsn)
        reachable = any(flush_lsn is not None for _, flush_lsn in behind)
        most_ticks = self.linger_ticks if reachable else min(self.linger_ticks, ABSENT_TICKS)
        if behind and self._lingered_ticks < most_ticks:
            return None
        last, ends = self.history[-1], (self.start_lsn, self.donor_flush_lsn)
        return Settled(*ends, last.timeline, self.ballot, last.sealed, behind, last.closed)

    def linger(self) -> Settled | None:
        """Count a tick of a settle, and return its result or None."""
        self._lingered_ticks += self.commit_lsn >= self.start_lsn
        return self.settled()
