"""The acceptor: one safekeeper's side of the consensus protocol, for one log.

    step(event) -> effects          no I/O, no clock, no randomness

In an effect list, Persist always precedes the Send that depends on it. Only `acknowledge` makes
an acknowledgement, from a flush_lsn that only a finished fdatasync moves.

Invariant I1: the promised ballot never decreases. I2: record_lsn <= flush_lsn <= write_lsn.
I3: commit_lsn <= flush_lsn. I4: only `appender` may write, and it was elected with the promised
ballot on that very connection.
Spec: docs/protocol.md#rules, Raft 5.2 and 5.4.2, the seed's "Voting" and "Recovery".
Deviations from the seed: the end of the log travels in the vote, because an older proposer may
append after the greeting (scenarios/vote_reports_the_end_of_the_log.txt). A term history takes
the place of an epoch (scenarios/divergent_tail_is_cut_once.txt).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import assert_never

from walkeeper_common.history import (
    Ballot,
    Corrupt,
    cut,
    divergence,
    is_well_formed,
    term_start,
)
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.quorum import member_name
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import MembersQuery
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AppendRequest,
    Feedback,
    ProposerElected,
    ProposerGreeting,
    RejectCode,
    VoteRequest,
)
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_safekeeper.consensus import acceptor_answers
from walkeeper_safekeeper.consensus.acceptor_events import (
    AppendsTaken,
    ConnectionLost,
    Effect,
    EndReaders,
    Event,
    FindRecordEnd,
    Persist,
    Received,
    RecordEndCorrupt,
    RecordEndFound,
    SegmentsRemoved,
    Send,
    StandbysReported,
    StorageFailed,
    Tick,
    TruncateWal,
    Waiting,
    WalFlushed,
    WalRead,
    WriteRefused,
    WriteWal,
)
from walkeeper_safekeeper.consensus.durable import Durable, unreached_start
from walkeeper_safekeeper.consensus.greeting_check import other_log
from walkeeper_safekeeper.consensus.log_positions import LogPositions
from walkeeper_safekeeper.consensus.member_register import MembersRequest, changed, members_state
from walkeeper_safekeeper.consensus.persisted_marks import due_marks, lazy_marks
from walkeeper_safekeeper.consensus.read_limit import answer_read, answer_wal_read


class Acceptor(LogPositions):
    """One log's consensus state; built anew at every start from what the disk says."""

    def __init__(
        self,
        durable: Durable,
        *,
        oldest_lsn: Lsn,
        flush_lsn: Lsn,
        record_lsn: Lsn,
        flaw_of_wal: acceptor_answers.FlawOfWal | None = None,
    ) -> None:
        super().__init__(durable, flush_lsn)
        self.durable, self.oldest_lsn, self.flaw_of_wal = durable, oldest_lsn, flaw_of_wal
        self.member = member_name(durable.acceptor_id, durable.incarnation)  # signs its promises
        self.appender: int | None = None
        self.elected = False  # ProposerElected of the promised ballot was processed in this life
        self.voted_lsn: Lsn | None = None  # record_lsn in the vote for the promised ballot
        self.failure: str | None = None
        self.refusal: str | None = None  # why appends are refused for now (R16)
        self.feedback = NO_FEEDBACK
        self._record_end: tuple[Lsn, Lsn] | None = (flush_lsn, record_lsn)
        self.waiting: list[Waiting] = []
        self._asked: set[Lsn] = set()
        self.truncations = self._ticks = 0
        self.unreached_lsn = unreached_start(durable)
        self.timelines = Timelines(durable.history)
        self.term_start_lsn = LSN_MAX  # the promised ballot's, once it is elected here

    def step(self, event: Event) -> list[Effect]:
        """Return the effects of one event, to perform in order."""
        match event:
            case Received(connection, message):
                return self.on_message(connection, message)
            case WalFlushed(flush_lsn):  # a failed disk is not believed (R15)
                return self.on_wal_flushed(flush_lsn) if self.failure is None else []
            case AppendsTaken():
                return self.on_appends_taken(event)
            case RecordEndFound(asked, record_lsn):
                return self.on_record_end(asked, record_lsn)
            case WalRead():
                return answer_wal_read(self, event)
            case Tick(receiving):
                return self.on_tick(receiving)
            case ConnectionLost(connection):
                return self.on_connection_lost(connection)
            case WriteRefused(flush_lsn, text):
                return self.on_write_refused(flush_lsn, text)
            case RecordEndCorrupt(_, text):
                return self.on_storage_failed(acceptor_answers.corrupt_text(text))
            case StorageFailed(text):
                return self.on_storage_failed(text)
            case StandbysReported(feedback):
                return self.on_standbys_reported(feedback)
            case SegmentsRemoved(oldest_lsn):
                self.oldest_lsn = oldest_lsn
                return []
            case _:
                assert_never(event)

    def on_message(self, connection: int, message: Message) -> list[Effect]:
        match message:
            case AppendRequest():
                return self.on_append(connection, message)
            case ReadRequest():
                return answer_read(self, connection, message)
            case ProposerGreeting():
                return self.on_greeting(connection, message)
            case VoteRequest():
                return self.on_vote_request(connection, message)
            case ProposerElected():
                return self.on_elected(connection, message)
            case _ if isinstance(message, MembersRequest):
                return self.on_members(connection, message)
            case _:
                text = f"a proposer does not send {type(message).__name__}"
                return [self._reject(connection, RejectCode.REFUSED, text)]

    # Voting

    def on_greeting(self, connection: int, greeting: ProposerGreeting) -> list[Effect]:
        if self.failure is not None:
            return [self._reject(connection, RejectCode.STORAGE_FAILED, self.failure)]
        wrong = other_log(greeting, self.durable)
        if wrong is not None:
            return [self._reject(connection, RejectCode.WRONG_LOG, wrong)]
        # Not drained: a greeting fences nobody, and under load a drained moment may never come.
        self.waiting.append(Waiting(connection, greeting, self.flush_lsn))
        return self._answer_waiting()

    def on_vote_request(self, connection: int, ask: VoteRequest) -> list[Effect]:
        refusal = self._not_ours(connection, ask.generation, ask.ballot)
        if refusal is not None:
            return [refusal]
        if (ask.log_uuid, ask.member) != (self.durable.log_uuid, self.member):
            text = f"asked as {ask.member} of log {ask.log_uuid.hex()}, this is {self.member}"
            return [self._reject(connection, RejectCode.NOT_A_MEMBER, text)]
        if ask.ballot < self.durable.ballot:
            return [Send(connection, acceptor_answers.refused_vote(self))]
        # Equal: the same proposer again (R1). No Persist is due, but its older connection
        # would move the flush_lsn that we report (scenarios/vote_fences_a_waiting_election.txt).
        effects = self._promise(ask.ballot)
        self.appender = None
        if not effects:
            self.waiting = [w for w in self.waiting if w.message.TAG != ProposerElected.TAG]
        self.waiting.append(Waiting(connection, ask, self.flush_lsn))
        return effects + self._answer_waiting()

    def _promise(self, ballot: Ballot) -> list[Effect]:
        """Promise never to serve a smaller ballot again; durable before any answer (R1)."""
        assert ballot >= self.durable.ballot, f"{ballot=} {self.durable.ballot=}"
        if ballot == self.durable.ballot:
            return []
        self.durable = replace(self.durable, ballot=ballot)
        self.appender, self.elected, self.voted_lsn = None, False, None
        self.term_start_lsn = LSN_MAX
        return [Persist(self.durable)]

    # Requests that wait for the disk

    def on_record_end(self, asked: FindRecordEnd, record_lsn: Lsn) -> list[Effect]:
        assert record_lsn <= asked.flush_lsn, f"{record_lsn=} {asked=}"
        if asked.truncations != self.truncations:
            return []  # the bytes were cut: scenarios/stale_record_end_is_not_a_vote.txt
        self._asked.discard(asked.flush_lsn)
        self._record_end = (asked.flush_lsn, record_lsn)
        return self._answer_waiting()

    def _answer_waiting(self) -> list[Effect]:
        """Answer each waiting request that can be answered; ask the disk for the others."""
        effects: list[Effect] = []
        waiting, self.waiting = self.waiting, []
        for request in waiting:
            match request.message:
                case ProposerGreeting() | MembersQuery():
                    answer = self._answer_question(request)
                case VoteRequest():
                    answer = self._answer_vote(request, request.message)
                case ProposerElected():
                    answer = self._answer_elected(request, request.message)
            if answer is None:
                self.waiting.append(request)
            else:
                effects += answer
        return effects + [e for w in self.waiting for e in self._ask_record_end(w)]

    def _ask_record_end(self, request: Waiting) -> list[Effect]:
        """Look once for the record end of a drained log; wait until the log is drained."""
        at = min(request.flush_lsn, self.flush_lsn)  # scenarios/greeting_outlives_a_cut.txt
        if not isinstance(request.message, ProposerGreeting | MembersQuery):
            if self.flush_lsn < self.write_lsn:
                return []
            at = self.flush_lsn if isinstance(request.message, VoteRequest) else self.commit_lsn
        if at in self._asked:
            return []
        self._asked.add(at)
        return [FindRecordEnd(at, self.truncations)]

    def _known_record_end(self, flush_lsn: Lsn) -> Lsn | None:
        known = self._record_end
        return known[1] if known is not None and known[0] == flush_lsn else None

    def _answer_question(self, request: Waiting) -> list[Effect] | None:
        flush_lsn = min(request.flush_lsn, self.flush_lsn)  # the log may have been cut since
        record_lsn = self._known_record_end(flush_lsn)
        if record_lsn is None:
            return None
        if isinstance(request.message, MembersQuery):
            state = members_state(self, granted=True)
            return [Send(request.connection, replace(state, whole_lsn=record_lsn))]
        greeting = acceptor_answers.greeting_of(self, flush_lsn=flush_lsn, record_lsn=record_lsn)
        return [Send(request.connection, greeting)]

    def _answer_vote(self, request: Waiting, ask: VoteRequest) -> list[Effect] | None:
        if ask.ballot != self.durable.ballot:  # a greater one came while this one waited
            return [Send(request.connection, acceptor_answers.refused_vote(self))]
        if self.flush_lsn < self.write_lsn:
            return None
        record_lsn = self._known_record_end(self.flush_lsn)
        if record_lsn is None:
            return None
        self.voted_lsn = record_lsn
        return [Send(request.connection, acceptor_answers.granted_vote(self, record_lsn))]

    # Becoming a follower of a leader

    def on_elected(self, connection: int, elected: ProposerElected) -> list[Effect]:
        refusal = self._not_ours(connection, elected.generation, elected.ballot)
        if refusal is not None:
            return [refusal]
        if elected.ballot < self.durable.ballot:
            return [self._stale(connection, elected.ballot)]
        history = elected.history
        if not is_well_formed(history) or history[-1].ballot != elected.ballot:
            text = f"the history of {elected.ballot} does not end with it: {history[-2:]}"
            return [self._reject(connection, RejectCode.REFUSED, text)]
        effects = self._promise(elected.ballot)
        # Fenced already now: with an appender at work the log might never be drained.
        self.appender = None
        self.waiting.append(Waiting(connection, elected, self.flush_lsn))
        return effects + self._answer_waiting()

    def _answer_elected(self, request: Waiting, elected: ProposerElected) -> list[Effect] | None:
        connection = request.connection
        if elected.ballot != self.durable.ballot:
            return [self._stale(connection, elected.ballot)]
        if self.flush_lsn < self.write_lsn:
            return None
        try:
            start = divergence(elected.history, self.durable.history, self.flush_lsn)
        except Corrupt as error:
            return [self._reject(connection, RejectCode.CORRUPT, str(error))]
        if start != elected.start_lsn:
            text = f"the divergence point is {start}, not {elected.start_lsn}"
            return [self._reject(connection, RejectCode.DIVERGENCE, text)]
        if start < self.commit_lsn:
            committed_record = self._known_record_end(self.commit_lsn)
            if committed_record is None:
                return None
            if start < committed_record:
                text = f"truncating to {start} would lose WAL committed up to {committed_record}"
                return [self._reject(connection, RejectCode.CORRUPT, text)]
        return self.become_follower(connection, elected)

    def become_follower(self, connection: int, elected: ProposerElected) -> list[Effect]:
        """Adopt the leader's history, and truncate our log at the divergence point, once (R7)."""
        start = elected.start_lsn
        assert start <= self.flush_lsn == self.write_lsn, f"{start=} {self.flush_lsn=}"
        effects: list[Effect] = []
        if start < self.flush_lsn:
            self.truncations += 1
            self._record_end = None
            self._asked.clear()
            self.durable = replace(self.durable, truncating_to=start)
            effects += [Persist(self.durable), TruncateWal(start)]
            effects.append(Note("cut WAL that no quorum has", (("from", self.flush_lsn),)))
            if start < self.commit_lsn:
                effects.append(EndReaders(start))
        self.write_lsn = self.flush_lsn = start
        self.commit_lsn = self.leader_commit_lsn = min(self.commit_lsn, start)
        self.term_start_lsn = term_start(elected.history, elected.ballot)
        self.restart_lsn = min(self.restart_lsn, self.term_start_lsn)  # others truncate to it
        self.durable = replace(
            self.durable,
            history=elected.history,
            truncating_to=None,
            commit_lsn=min(self.durable.commit_lsn, start),
            restart_lsn=min(self.durable.restart_lsn, self.term_start_lsn),
            reached_lsn=cut(elected.history, start)[-1].start_lsn,
        )
        effects.append(Persist(self.durable))
        self.appender, self.elected, self.silent_ticks, self.acked_lsn = connection, True, 0, None
        self.elected_commit_lsn = ZERO_LSN
        self.unreached_lsn = unreached_start(self.durable)
        self.timelines = Timelines(elected.history)
        facts = (("ballot", elected.ballot), ("term_start", self.term_start_lsn), ("at", start))
        return [*effects, Note("following an elected proposer", facts), *self.acknowledge()]

    # Appending

    def on_append(self, connection: int, append: AppendRequest) -> list[Effect]:
        if connection != self.appender or append.ballot != self.durable.ballot:
            return self._on_early_append(connection, append)
        refusal = self._not_ours(connection, append.generation, append.ballot)
        if refusal is not None:
            return [refusal]
        if append.begin_lsn != self.write_lsn:
            text = f"append at {append.begin_lsn}, the log was written up to {self.write_lsn}"
            return [self._reject(connection, RejectCode.GAP, text)]
        wrong = self.timelines.flaw(append.timeline, append.begin_lsn, append.end_lsn)
        if wrong is not None:
            return [self._reject(connection, RejectCode.REFUSED, wrong)]
        if (flaw := acceptor_answers.payload_flaw(append, self.flaw_of_wal)) is not None:
            return [self._reject(connection, RejectCode.BAD_PAYLOAD, flaw)]
        self.hear(append.commit_lsn, append.restart_lsn)
        moved = self.move_commit()
        if append.payload:
            self.write_lsn = append.end_lsn
            return [WriteWal(append.begin_lsn, append.payload), *moved]
        if moved and self.acked_lsn == self.flush_lsn and due_marks(self) is self.durable:
            return moved  # it only brought commit_lsn, and there is nothing new to acknowledge
        return moved + self.acknowledge()

    def _on_early_append(self, connection: int, append: AppendRequest) -> list[Effect]:
        if self.failure is not None:
            return [self._reject(connection, RejectCode.STORAGE_FAILED, self.failure)]
        if append.ballot < self.durable.ballot:
            return [self._stale(connection, append.ballot)]
        electing = [w for w in self.waiting if w.message.TAG == ProposerElected.TAG]
        if not append.payload and any(w.connection == connection for w in electing):
            return []  # the heartbeat after ProposerElected, which waits for the disk: answered
            # when that is done (scenarios/election_waits_for_the_disk.txt)
        text = f"append of {append.ballot} without its election on this connection"
        return [self._reject(connection, RejectCode.NOT_ELECTED, text)]

    def on_wal_flushed(self, flush_lsn: Lsn) -> list[Effect]:
        assert self.flush_lsn <= flush_lsn <= self.write_lsn, f"{flush_lsn=} {self.write_lsn=}"
        self.flush_lsn, self.refusal = flush_lsn, None
        effects = self.acknowledge()
        return effects + self._answer_waiting() if self.waiting else effects

    def acknowledge(self) -> list[Effect]:
        """Tell the leader what is durable here; besides expected_append.py the only ack (R9)."""
        effects: list[Effect] = self.move_commit()
        if self.appender is None or self.failure is not None:
            return effects
        marks = due_marks(self)
        if marks is not self.durable:
            self.durable = marks
            self.unreached_lsn = unreached_start(marks)
            effects.append(Persist(marks))
        effects.append(Send(self.appender, acceptor_answers.ack_of(self)))
        self.acked_lsn = self.flush_lsn
        return effects

    # A change of members

    def on_members(self, connection: int, ask: MembersRequest) -> list[Effect]:
        if self.failure is not None:
            return [self._reject(connection, RejectCode.STORAGE_FAILED, self.failure)]
        if isinstance(ask, MembersQuery) and self.durable.configuration is not None:
            self.waiting.append(Waiting(connection, ask, min(self.restart_lsn, self.commit_lsn)))
            return self._answer_waiting()
        durable, effects = changed(self.durable, ask), list[Effect]()
        if durable is not None and durable is not self.durable:
            leaves = durable.configuration != self.durable.configuration
            self.durable = durable
            effects += [Persist(durable), *(self._leave_generation() if leaves else [])]
        state = members_state(self, granted=durable is not None)
        return [*effects, Send(connection, state)]

    def _leave_generation(self) -> list[Effect]:
        """Drop all requests of the old generation, and acknowledge none of them
        (scenarios/members_change_ends_a_generation.txt)."""
        assert self.durable.configuration is not None, f"{self.member=}"
        text = f"the members have changed: generation {self.durable.configuration.generation}"
        waiting = [w for w in self.waiting if not isinstance(w.message, ProposerGreeting)]
        connections = {w.connection for w in waiting}
        if self.appender is not None:
            connections.add(self.appender)
        self.waiting = [w for w in self.waiting if w not in waiting]
        self.appender = self.voted_lsn = None
        self.elected, self.elected_commit_lsn = False, ZERO_LSN
        stale = RejectCode.STALE_GENERATION
        return [Note(text), *(self._reject(c, stale, text) for c in sorted(connections))]

    # Time, loss and failure

    def on_tick(self, receiving: Set[int]) -> list[Effect]:
        self._ticks += 1
        self.silent_ticks = 0 if self.appender in receiving else self.silent_ticks + 1
        signs: list[Effect] = [
            Send(one, acceptor_answers.SIGN_OF_LIFE) for one in sorted(receiving)
        ]
        marks = lazy_marks(self, self._ticks)
        if self.failure is not None or marks is self.durable:
            return signs
        self.durable = marks
        return [*signs, Persist(marks)]

    def on_standbys_reported(self, feedback: Feedback) -> list[Effect]:
        """Acknowledge at once: a commit of the primary may wait for a standby's apply_lsn."""
        news, self.feedback = feedback != self.feedback, feedback
        return self.acknowledge() if news else []

    def on_connection_lost(self, connection: int) -> list[Effect]:
        self.waiting = [w for w in self.waiting if w.connection != connection]
        if connection == self.appender:
            self.appender = None
            return [Note("lost the proposer's connection", (("ballot", self.durable.ballot),))]
        return []

    def on_write_refused(self, flush_lsn: Lsn, text: str) -> list[Effect]:
        """Forget WAL that was not written, reject it, and go on: no space is no failure (R16)."""
        assert self.flush_lsn <= flush_lsn <= self.write_lsn, f"{flush_lsn=} {self.write_lsn=}"
        appender, self.appender, self.refusal = self.appender, None, text
        self.flush_lsn = self.write_lsn = flush_lsn
        effects: list[Effect] = self.move_commit()
        if appender is not None:
            effects.append(self._reject(appender, RejectCode.NO_SPACE, text))
        note = Note(text, (("flush_lsn", flush_lsn),), Severity.WARNING)
        return [*effects, note, *self._answer_waiting()]

    def on_storage_failed(self, text: str) -> list[Effect]:
        """Record the failure. Never acknowledge or vote again; go on serving reads (R15)."""
        if self.failure is not None:
            return []
        self.failure = text
        connections = {w.connection for w in self.waiting}
        if self.appender is not None:
            connections.add(self.appender)
        self.appender, self.waiting = None, []
        rejects = [self._reject(c, RejectCode.STORAGE_FAILED, text) for c in sorted(connections)]
        self.durable = replace(self.durable, suspect_from=self.flush_lsn)
        note = Note(text, (("flush_lsn", self.flush_lsn),), Severity.ERROR)
        return [*rejects, note, Persist(self.durable)]

    # Refusals

    def _not_ours(self, connection: int, generation: int, ballot: Ballot) -> Effect | None:
        refusal = acceptor_answers.refusal_of(self, generation, ballot)
        return None if refusal is None else Send(connection, refusal)

    def _stale(self, connection: int, ballot: Ballot) -> Effect:
        text = f"ballot {ballot} is behind {self.durable.ballot}"
        return self._reject(connection, RejectCode.STALE_BALLOT, text)

    def _reject(self, connection: int, code: RejectCode, text: str) -> Send:
        return Send(connection, acceptor_answers.reject_of(self, code, text))
