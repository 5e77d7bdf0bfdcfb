"""A safekeeper in the explored world: the shipping acceptor on a disk of three fields.

    node.happen(event) -> Outcome       the node is changed; take a clone

The disk is a model: WAL that is synced, WAL that is written, and the control file. The real store
and its recovery run in the simulator. A crash keeps the control file, the synced WAL and any prefix
of the written one. Recovery falls back to the record's end (docs/protocol.md R9).

All acceptors are the same until something happens to them, so every node runs as member 1 and the
world renames what it sends. That is what lets symmetric states be folded.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field, replace

from tests.proof.explore.fast_step import fast_append
from tests.proof.explore.tiny_wal import (
    Mixture,
    at_lsn,
    begin_of,
    filled,
    offset_of,
    record_end,
    valid_end,
)
from tests.proof.sim.oracle import Violation
from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import AppendRequest, AppendResponse, VoteResponse
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    CommitMoved,
    ConnectionLost,
    Effect,
    Event,
    FindRecordEnd,
    Persist,
    ReadWal,
    Received,
    RecordEndCorrupt,
    RecordEndFound,
    Send,
    Tick,
    TruncateWal,
    WalFlushed,
    WalRead,
    WriteWal,
)
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.persisted_marks import PERSIST_COMMIT_TICKS

CREATION = at_lsn(0)


class CrashedHere(Exception):
    """The power went before this operation of the disk."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The fdatasync of all that is written is over."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A power cut: `kept_bytes` of the written and not synced WAL are there afterwards."""

    kept_bytes: int


@dataclass(frozen=True, slots=True)
class CrashDuring:
    """The power is cut while `event` is handled, in front of the disk's operation number `at`."""

    event: Received | Flush
    at: int


Happening = Received | ConnectionLost | Flush | Tick | Crash | CrashDuring


@dataclass(slots=True)
class Outcome:
    """sent: (connection, message), in order. committed: whole records, when commit_lsn moved.
    operations: how many of the disk had to finish before something else."""

    sent: list[tuple[int, Message]] = field(default_factory=list)
    committed: bytes | None = None
    operations: int = 0


class AcceptorNode:
    """Process and disk. `wal` is synced, `written` is not yet."""

    def __init__(
        self,
        durable: Durable,
        *,
        slow_disk: bool,
        keeps_leaders: bool = False,
        folds: bool = False,
    ) -> None:
        """Start on an empty disk. With `keeps_leaders` a dead leader's commits stay known.

        With `folds` restart_lsn counts: a vote carries it, and a leader folds up to it."""
        self.durable, self.slow_disk, self.keeps_leaders = durable, slow_disk, keeps_leaders
        self.folds = folds
        self.wal, self.written = bytes(max(0, durable.base_lsn - CREATION)), b""
        self.core = self._started()

    def clone(self) -> AcceptorNode:
        twin = copy.copy(self)
        twin.core = copy.copy(self.core)
        twin.core.waiting = list(self.core.waiting)
        twin.core._asked = set(self.core._asked)
        return twin

    def key(self) -> tuple[object, ...]:
        """Return the state that sets this node apart; `_fold` sets the rest."""
        core = self.core
        return (
            self.durable, self.wal, self.written, core.durable, core.write_lsn, core.flush_lsn,
            core.commit_lsn, core.leader_commit_lsn, core.appender, core.elected, core.voted_lsn,
            core.acked_lsn, tuple(core.waiting), core.unreached_lsn, core.term_start_lsn,
            core.elected_commit_lsn, core.restart_lsn, core.oldest_lsn,
        )  # fmt: skip

    def _fold(self) -> None:
        """Fold two nodes that can never behave differently into one. Clocks stand still. Retention
        is not explored, so restart_lsn has no effect but on folding. The disk has answered every
        request."""
        core = self.core
        core._ticks = core.silent_ticks = core.truncations = 0
        core._record_end = None
        if not self.keeps_leaders:
            core.elected_commit_lsn = ZERO_LSN
        if not self.folds:
            core.restart_lsn = CREATION
            core.durable = replace(core.durable, restart_lsn=CREATION)
            self.durable = replace(self.durable, restart_lsn=CREATION)
        core._asked.clear()

    @property
    def log(self) -> bytes:
        return self.wal + self.written

    def record_end(self, flush_lsn: Lsn) -> Lsn:
        return at_lsn(record_end(self.log[: offset_of(flush_lsn)]))

    # Events

    def happen(self, event: Happening) -> Outcome:
        """Apply one event. Raise Violation, or the error that the core breaks with."""
        outcome = Outcome()
        match event:
            case Crash(kept_bytes):
                self._crash(kept_bytes)
            case CrashDuring(during, at):
                try:
                    self._handle(during, outcome, left=at)
                except CrashedHere:
                    outcome = Outcome()
                self._crash(0)
            case Received(connection, AppendRequest() as append) if not self.slow_disk:
                twin = self.clone()
                self._handle(event, outcome, left=None)
                twin._compare(self, connection, append, outcome)
            case _:
                self._handle(event, outcome, left=None)
        self._fold()
        return outcome

    def _compare(
        self, slow: AcceptorNode, connection: int, append: AppendRequest, outcome: Outcome
    ) -> None:
        """Take the append on the fast path, if that takes it, and end as the slow path did."""
        taken = fast_append(self, connection, append, CREATION)
        if taken is None:
            return
        news, acks = taken
        fast, events = Outcome(), deque[Event]((news,))
        fast.sent += [(connection, ack) for ack in acks]
        while events:
            for effect in self.core.step(events.popleft()):
                self._perform(effect, events, fast)
        if (self.key(), fast) != (slow.key(), outcome):
            raise Violation("Fast path", f"{append}: {fast}, on the slow path {outcome}")

    def _handle(
        self, event: Received | ConnectionLost | Flush | Tick, outcome: Outcome, left: int | None
    ) -> None:
        events: deque[Event] = deque()
        if isinstance(event, Flush):
            self._flush(events)
        else:
            if isinstance(event, Tick):
                self.core._ticks = PERSIST_COMMIT_TICKS - 1
            events.append(event)
        while events:
            for effect in self.core.step(events.popleft()):
                if isinstance(effect, Persist | TruncateWal):
                    if outcome.operations == left:
                        raise CrashedHere
                    outcome.operations += 1
                self._perform(effect, events, outcome)
            if not events and self.written and not self.slow_disk:
                self._flush(events)
        if self.core.failure is not None:
            text = f"a safekeeper takes itself for damaged: {self.core.failure}"
            raise Violation("Durability", text)

    def _flush(self, events: deque[Event]) -> None:
        self.wal, self.written = self.log, b""
        events.append(WalFlushed(at_lsn(len(self.wal))))

    def _perform(self, effect: Effect, events: deque[Event], outcome: Outcome) -> None:
        match effect:
            case Send(connection, message):
                self._check_durable(message)
                outcome.sent.append((connection, message))
            case Persist(state):
                self.durable = state
            case TruncateWal(to_lsn):
                assert not self.written, f"{self.written=}"
                self.wal = self.wal[: offset_of(to_lsn)]
            case WriteWal(begin_lsn, payload):
                assert begin_lsn == at_lsn(len(self.log)), f"{begin_lsn=} {self.log=}"
                self.written += bytes(payload)
            case FindRecordEnd(flush_lsn):
                try:
                    events.append(RecordEndFound(effect, self.record_end(flush_lsn)))
                except Mixture as error:
                    events.append(RecordEndCorrupt(effect, str(error)))
            case ReadWal(connection, request, truncations, end_lsn):
                wal = self.log[offset_of(request.begin_lsn) : offset_of(end_lsn)]
                events.append(WalRead(connection, request, truncations, wal))
            case CommitMoved(commit_lsn):
                end = valid_end(self.log[: offset_of(commit_lsn)])[0]
                outcome.committed = self.log[:end]

    def _check_durable(self, message: Message) -> None:
        match message:
            case AppendResponse(flush_lsn=flush_lsn):
                pass
            case VoteResponse(granted=True, flush_lsn=flush_lsn, ballot=ballot):
                if self.durable.ballot < ballot:
                    raise Violation("Promises", f"a vote for {ballot} that is not durable")
            case _:
                return
        if offset_of(flush_lsn) > len(self.wal):
            text = f"acknowledged {flush_lsn}, durable is {at_lsn(len(self.wal))}"
            raise Violation("Durability", text)

    # Crash and recovery, as log_folder and wal_recovery do it on the real store

    def _crash(self, kept_bytes: int) -> None:
        durable, wal = self.durable, self.wal + self.written[:kept_bytes]
        limit = at_lsn(len(wal))
        if durable.truncating_to is not None:
            limit = min(limit, durable.truncating_to)
        end = valid_end(wal[: offset_of(limit)])[0]
        committed = valid_end(wal[: offset_of(min(durable.commit_lsn, limit))])[0]
        reached = offset_of(min(durable.reached_lsn, limit))
        if len(wal) < offset_of(durable.commit_lsn) and durable.truncating_to is None:
            text = f"a power cut took WAL committed up to {durable.commit_lsn}"
            raise Violation("Durability", text)
        if end < max(committed, reached):
            error = CorruptWal(f"valid WAL ends at {end}, {committed=} {reached=}")
            raise Violation("Durability", str(error))
        self.wal, self.written = wal[:end], b""
        self.durable = replace(
            durable,
            commit_lsn=min(durable.commit_lsn, at_lsn(end)),
            reached_lsn=min(durable.reached_lsn, at_lsn(end)),
            truncating_to=None,
        )
        self.core = self._started()

    def restarted(self) -> Acceptor:
        """Return a core that knows what this one does, but for the leader that it followed."""
        core, old = self._started(), self.core
        core.commit_lsn = core.leader_commit_lsn = old.commit_lsn
        core.durable, core.restart_lsn = old.durable, old.restart_lsn
        core._record_end = None
        return core

    def fill(self, other: AcceptorNode) -> bool:
        """Take all WAL below this log's beginning from another disk; return False if it lacks it.

        Another member answers with committed WAL alone (M5)."""
        begin = begin_of(self.wal)
        held = other.wal[: offset_of(other.core.commit_lsn)]
        if not begin or len(held) < begin or begin_of(held):
            return False
        self.wal, self.core.oldest_lsn = filled(self.wal, held), CREATION
        return True

    def _started(self) -> Acceptor:
        begin, end = at_lsn(begin_of(self.wal)), at_lsn(len(self.wal))
        return Acceptor(self.durable, oldest_lsn=begin, flush_lsn=end, record_lsn=end)
