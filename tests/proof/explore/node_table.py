"""Every node that was ever met, once, and what every event does to it, once.

A world of a few million states has some ten thousand different nodes. The reason is that a node's
step depends only on itself and the event. So the shipping cores run once for each pair. The rest of
the exploration handles numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.proof.explore.bounds import Bounds
from tests.proof.explore.explored_acceptor import AcceptorNode, Crash, CrashDuring, Flush, Happening
from tests.proof.explore.explored_proposer import (
    Outcome,
    ProposerNode,
    configuration,
    incarnation,
)
from tests.proof.explore.interned import Interned
from tests.proof.explore.queues import ballots_in
from tests.proof.explore.tiny_wal import CREATION_LSN, LAST, WRITERS_MAX, byte, continuations
from tests.proof.sim.oracle import Violation
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import InstallMembers
from walkeeper_common.wire.messages import AcceptorGreeting, ProposerGreeting, VoteRequest
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_proposer.consensus.campaign import Phase
from walkeeper_safekeeper.consensus.acceptor_events import ConnectionLost, Received, Tick
from walkeeper_safekeeper.consensus.durable import Durable

SETTLED_PHASES = (Phase.CAMPAIGNING, Phase.LEADING)


@dataclass(frozen=True, slots=True)
class AcceptorStep:
    """`sent` has (connection, message number); `log` is what the sender has then, for votes."""

    node: int
    sent: tuple[tuple[int, int], ...]
    committed: bytes | None
    operations: int
    log: bytes


@dataclass(frozen=True, slots=True)
class ProposerStep:
    """node: None when this process is over. elected: its log, when this event won the election.

    closed: its log, when it reports that this is the end. A process that closes never writes."""

    node: int | None
    sent: tuple[tuple[int, int], ...]
    dropped: tuple[int, ...]
    reported: bytes | None
    elected: bytes | None
    ballot: Ballot
    writes: bool = True
    closed: bytes | None = None


class NodeTable:
    """The explored nodes of one run within `bounds`."""

    def __init__(self, bounds: Bounds, messages: Interned[Message]) -> None:
        self.bounds, self.messages = bounds, messages
        self._acceptors: list[AcceptorNode] = []
        self._proposers: list[ProposerNode] = []
        self._acceptor_numbers: dict[object, int] = {}
        self._proposer_numbers: dict[object, int] = {}
        self._acceptor_steps: dict[tuple[int, object], AcceptorStep | Violation] = {}
        self._proposer_steps: dict[tuple[int, object], ProposerStep | Violation] = {}
        self._forgotten: dict[int, int] = {}
        self._ballots: Interned[Ballot] = Interned()
        self.promised: list[int] = []  # by acceptor node: the ballot's number
        self.taken: list[int] = []  # by proposer node: that of its own ballot
        self.leads: list[bool] = []  # by proposer node: with a primary
        self.connects: list[bool] = []  # by proposer node: to members that it lacks
        self.unsynced: list[int] = []  # by acceptor node: bytes written and not synced
        self._permuted: dict[tuple[int, tuple[int, ...]], int] = {}
        self.broken: dict[str, int] = {}  # errors that cores raised and no oracle did
        self.runs = 0

    # Acceptors

    def fresh_acceptor(self) -> int:
        config = configuration(self.bounds)
        entry = Fragment(NO_BALLOT, CREATION_LSN, 1, False, config.members, config.ack_quorum)
        durable = Durable(
            acceptor_id=1,
            incarnation=incarnation(0),
            log_uuid=config.log_uuid,
            configuration=config,
            history=(entry,),
            commit_lsn=CREATION_LSN,
            restart_lsn=CREATION_LSN,
            reached_lsn=CREATION_LSN,
        )
        slow_disk, folds = self.bounds.slow_disks, self.bounds.folds
        return self._acceptor(AcceptorNode(durable, slow_disk=slow_disk, folds=folds))

    def _acceptor(self, node: AcceptorNode) -> int:
        key = node.key()
        number = self._acceptor_numbers.get(key)
        if number is None:
            number = self._acceptor_numbers[key] = len(self._acceptors)
            self._acceptors.append(node)
            self.promised.append(self._ballots.number(node.core.durable.ballot))
            self.unsynced.append(len(node.written))
        return number

    def number_of_acceptor(self, node: AcceptorNode) -> int:
        return self._acceptor(node)

    def acceptor(self, number: int) -> AcceptorNode:
        return self._acceptors[number]

    def deliver(self, number: int, connection: int, message: int) -> AcceptorStep:
        key = (number, (connection, message))
        step = self._acceptor_steps.get(key)
        if step is None:
            step = self._run_acceptor(key, Received(connection, self.messages.values[message]))
        if isinstance(step, Violation):
            raise step
        return step

    def deliver_and_crash(
        self, number: int, connection: int, message: int, at: int
    ) -> AcceptorStep:
        event = Received(connection, self.messages.values[message])
        return self.happen(number, (connection, message, at), CrashDuring(event, at))

    def lose_connection(self, number: int, connection: int) -> AcceptorStep:
        return self.happen(number, ("lost", connection), ConnectionLost(connection))

    def flush(self, number: int) -> AcceptorStep:
        return self.happen(number, "flush", Flush())

    def mark(self, number: int) -> AcceptorStep:
        return self.happen(number, "mark", Tick())

    def crash(self, number: int, kept_bytes: int) -> AcceptorStep:
        return self.happen(number, ("crash", kept_bytes), Crash(kept_bytes))

    def happen(self, number: int, name: object, event: Happening) -> AcceptorStep:
        key = (number, name)
        step = self._acceptor_steps.get(key)
        if step is None:
            step = self._run_acceptor(key, event)
        if isinstance(step, Violation):
            raise step
        return step

    def _run_acceptor(self, key: tuple[int, object], event: Happening) -> AcceptorStep | Violation:
        self.runs += 1
        node = self._acceptors[key[0]].clone()
        step: AcceptorStep | Violation
        try:
            outcome = node.happen(event)
        except Violation as error:
            step = error
        except Exception as error:
            self._note_broken("acceptor", error)
            node = self._acceptors[key[0]].clone()
            node.happen(Crash(len(node.written)))  # it died and is started again
            step = AcceptorStep(self._acceptor(node), (), None, 0, node.log)
        else:
            sent = tuple((conn, self.messages.number(m)) for conn, m in outcome.sent)
            step = AcceptorStep(
                self._acceptor(node), sent, outcome.committed, outcome.operations, node.log
            )
        self._acceptor_steps[key] = step
        return step

    def _note_broken(self, who: str, error: Exception) -> None:
        text = f"{who}: {type(error).__name__}: {error}"
        self.broken[text] = self.broken.get(text, 0) + 1

    # Proposers

    def _proposer(self, node: ProposerNode) -> int:
        key = node.key()
        number = self._proposer_numbers.get(key)
        if number is None:
            number = self._proposer_numbers[key] = len(self._proposers)
            self._proposers.append(node)
            self.taken.append(self._ballots.number(node.core.ballot))
            self.leads.append(node.leads)
            self.connects.append(node.leads or (node.closes and node.core.leader is not None))
        return number

    def proposer(self, number: int) -> ProposerNode:
        return self._proposers[number]

    def fresh_proposer(self, *, term: int, slot: int, life: int, closes: bool = False) -> int:
        """Start a process. `term` is the one that it is about to take."""
        node = ProposerNode(self.bounds, term=term, slot=slot, life=life, closes=closes)
        return self._proposer(node)

    def receive(self, number: int, acceptor: int, message: int, log: bytes) -> ProposerStep:
        key = (number, (acceptor, message, log))
        step = self._proposer_steps.get(key)
        if step is None:
            value = self.messages.values[message]
            if isinstance(value, AcceptorGreeting):
                value = renamed(value, acceptor)
            step = self._run_proposer(key, lambda node: node.receive(acceptor, value, log))
        return _sound(step)

    def link_up(self, number: int, acceptor: int) -> ProposerStep:
        key = (number, ("up", acceptor))
        step = self._proposer_steps.get(key)
        return _sound(step or self._run_proposer(key, lambda node: node.link_up(acceptor)))

    def link_lost(self, number: int, acceptor: int) -> ProposerStep:
        key = (number, ("lost", acceptor))
        step = self._proposer_steps.get(key)
        return _sound(step or self._run_proposer(key, lambda node: node.link_lost(acceptor)))

    def write(self, number: int, wal: bytes) -> ProposerStep:
        key = (number, wal)
        step = self._proposer_steps.get(key)
        return _sound(step or self._run_proposer(key, lambda node: node.write(wal)))

    def begin(self, number: int) -> ProposerStep:
        key = (number, "begin")
        step = self._proposer_steps.get(key)
        return _sound(step or self._run_proposer(key, ProposerNode.start))

    def _run_proposer(
        self, key: tuple[int, object], happen: Callable[[ProposerNode], Outcome]
    ) -> ProposerStep | Violation:
        self.runs += 1
        node = self._proposers[key[0]].clone()
        ballot = node.core.ballot
        step: ProposerStep | Violation
        try:
            outcome = happen(node)
        except Violation as error:
            step = error
        except Exception as error:
            self._note_broken("proposer", error)
            step = ProposerStep(None, (), (), None, None, ballot)
        else:
            sent = tuple((link, self.messages.number(m)) for link, m in outcome.sent)
            step = ProposerStep(
                None if outcome.is_over else self._proposer(node),
                sent,
                tuple(outcome.dropped),
                outcome.reported,
                node.wal if outcome.elected else None,
                node.core.ballot,
                not node.closes,
                outcome.closed,
            )
        self._proposer_steps[key] = step
        return step

    def writes(self, number: int) -> list[bytes]:
        """Return the WAL that this leader's primary may send next: none if the log is long."""
        node = self._proposers[number]
        choices = continuations(node.wal, node.tail, node.writer, aborts=self.bounds.aborts)
        if not self.bounds.takes_halves:
            choices = [c + byte(LAST, c[0] % WRITERS_MAX) for c in choices]
        room = 2 * self.bounds.records - len(node.wal)
        return [wal for wal in choices if len(wal) <= room]

    def permuted(self, number: int, order: tuple[int, ...]) -> int:
        """Return the number of this proposer when acceptor `order[i]` is called i."""
        key = (number, order)
        found = self._permuted.get(key)
        if found is None:
            found = self._permuted[key] = self._proposer(self._proposers[number].permuted(order))
        return found

    def renumbered(self, number: int, connection: int, new: int) -> int:
        """Return this acceptor, with another number for one of its connections."""
        node = self._acceptors[number].clone()
        core = node.core
        if core.appender == connection:
            core.appender = new
        core.waiting = [
            replace(w, connection=new if w.connection == connection else w.connection)
            for w in core.waiting
        ]
        return self._acceptor(node)

    def forgotten(self, number: int) -> int:
        """Return this acceptor when no node is left that has the ballot that it promised. Its
        knowledge of that leader then has no effect any more."""
        found = self._forgotten.get(number)
        if found is None:
            node = self._acceptors[number].clone()
            if not node.written and not node.core.waiting:
                node.core = node.restarted()
            found = self._forgotten[number] = self._acceptor(node)
        return found

    def has_lazy_marks(self, number: int) -> bool:
        node = self._acceptors[number]
        return node.durable.commit_lsn != node.core.commit_lsn

    def has_campaigned(self, number: int) -> bool:
        return number >= 0 and self._proposers[number].core.phase in SETTLED_PHASES

    def is_asked_at_once(self, number: int, message: int) -> bool:
        """Return True if it waits for none: a greeting, a read, a leader's vote request."""
        value, core = self.messages.values[message], self._proposers[number].core
        return isinstance(value, ProposerGreeting | ReadRequest | InstallMembers) or (
            core.leader is not None and isinstance(value, VoteRequest)
        )

    def ballots_of_acceptor(self, number: int) -> set[Ballot]:
        node = self._acceptors[number]
        durable = node.core.durable
        waiting = (w.message for w in node.core.waiting)
        return {durable.ballot, *(e.ballot for e in durable.history), *ballots_in(*waiting)}

    @property
    def sizes(self) -> str:
        return (
            f"{len(self._acceptors)} acceptor and {len(self._proposers)} proposer nodes, "
            f"{self.runs} core steps"
        )


def _sound(step: ProposerStep | Violation) -> ProposerStep:
    if isinstance(step, Violation):
        raise step
    return step


def renamed(greeting: AcceptorGreeting, acceptor: int) -> AcceptorGreeting:
    """Return a greeting with its acceptor's own id: every acceptor runs as member 1."""
    return replace(greeting, acceptor_id=acceptor + 1, incarnation=incarnation(acceptor))
