"""The states of the explored world, and all that can happen next in each.

    world.initial; world.successors(state) -> [(action, state | Violation)]

A state is a tuple of numbers. It has a node for each acceptor and proposer, and a queue of messages
for each connection. It also has the WAL that was ever called committed, and the faults that were
used up. Symmetric states are folded: acceptors are sorted, and the proposers' records of them
permuted alike.

One step is one message that arrives, one fault, or one write of a primary. An event that needs no
luck follows at once. So an answer arrives when it is sent, or is lost with its connection. The step
that connects a proposer includes its greetings and its check of the primary. That loses no outcome:
a late answer carries what an earlier one would have carried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise, permutations, product
from typing import Any, TypeAlias

from tests.proof.explore.bounds import Bounds
from tests.proof.explore.committed import Chains
from tests.proof.explore.explored_proposer import LIVES_MAX, ballot_of
from tests.proof.explore.node_table import AcceptorStep, NodeTable, ProposerStep
from tests.proof.explore.queues import EMPTY, Queues
from tests.proof.sim.oracle import Violation
from walkeeper_common.history import Ballot

State: TypeAlias = tuple[int, ...]
Action: TypeAlias = tuple[Any, ...]  # a name and its arguments

NOBODY = -1  # in the place of a proposer, or of a queue that is not connected
LATE = 9  # the number of a connection that the proposer has given up


@dataclass(slots=True)
class Draft:
    """A state that is being changed."""

    acceptors: list[int]
    proposers: list[int]
    queues: list[list[int]]  # by proposer, acceptor
    late_at: int  # the acceptor of the connection that was given up, or NOBODY
    late: int
    chain: int
    used: list[int]  # crashes, breaks, lates, campaigns, closes


class World:
    """All within `bounds`."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds, self.queues, self.chains = bounds, Queues(bounds), Chains()
        self.table = NodeTable(bounds, self.queues.messages)
        self._in_place = tuple(range(bounds.acceptors))
        labels = bounds.zones or ("",) * bounds.acceptors
        self._zones = [sorted(set(labels)).index(zone) for zone in labels]
        self._limits = (bounds.crashes, bounds.breaks, bounds.lates)
        start = Draft(
            acceptors=self._first_acceptors(),
            proposers=[NOBODY] * bounds.proposers,
            queues=[[NOBODY] * bounds.acceptors for _ in range(bounds.proposers)],
            late_at=NOBODY,
            late=EMPTY,
            chain=self.chains.empty,
            used=self._first_used(),
        )
        self.initial = self._state(start)
        self._doers: dict[str, Callable[..., bool]] = {
            "deliver": self._deliver,
            "deliver, answer lost": self._deliver_unanswered,
            "deliver, crash": self._deliver_and_crash,
            "break": self._break,
            "break, late": self._break_late,
            "connect": self._connect,
            "write": self._write,
            "start": self._start,
            "close": self._close,
            "flush": self._flush,
            "mark": self._mark,
            "crash": self._crash,
            "deliver late": self._deliver_late,
            "late connection ends": self._end_late,
        }

    def _first_acceptors(self) -> list[int]:
        return [self.table.fresh_acceptor()] * self.bounds.acceptors

    def _first_used(self) -> list[int]:
        return [0, 0, 0, 0, 0]

    # States

    def draft(self, state: State) -> Draft:
        n, p = self.bounds.acceptors, self.bounds.proposers
        at = n + p
        rows = [list(state[at + s * n : at + s * n + n]) for s in range(p)]
        late_at, late, chain, *used = state[at + n * p :]
        return Draft(
            list(state[:n]), list(state[n:at]), rows, late_at, late, chain, used
        )  # fmt: skip

    def _state(self, draft: Draft) -> State:
        """Fold a draft: acceptors sorted by all that is known of them, then by the proposers.

        An acceptor stays in its zone."""
        if draft.late_at == NOBODY:
            self._forget_the_dead(draft)
        rows = [self._zones, draft.acceptors, *draft.queues]
        if draft.late_at != NOBODY:
            rows.append([int(a == draft.late_at) for a in range(self.bounds.acceptors)])
        keys = list(zip(*rows, strict=True))
        order = sorted(range(len(keys)), key=keys.__getitem__)
        orders = [tuple(order)]
        if any(keys[a] == keys[b] for a, b in pairwise(order)):
            orders = _orders_of_equals(keys, order)
        proposers, best = min(
            ([self._permuted(p, order) for p in draft.proposers], order) for order in orders
        )
        return (
            *[draft.acceptors[a] for a in best],
            *proposers,
            *[row[a] for row in draft.queues for a in best],
            NOBODY if draft.late_at == NOBODY else best.index(draft.late_at),
            draft.late,
            draft.chain,
            *draft.used,
        )

    def _forget_the_dead(self, draft: Draft) -> None:
        promised, taken = self.table.promised, self.table.taken
        alive = [taken[p] for p in draft.proposers if p != NOBODY]
        for index, acceptor in enumerate(draft.acceptors):
            if promised[acceptor] not in alive:
                draft.acceptors[index] = self.table.forgotten(acceptor)

    def _permuted(self, proposer: int, order: tuple[int, ...]) -> int:
        if proposer == NOBODY or order == self._in_place:
            return proposer
        return self.table.permuted(proposer, order)

    # Possible actions

    def successors(self, state: State) -> Iterator[tuple[Action, State | Violation]]:
        draft = self.draft(state)
        for action in self._actions(draft):
            after = self.draft(state)
            try:
                if self._doers[action[0]](after, *action[1:]):
                    yield action, self._state(after)
            except Violation as violation:
                yield action, violation

    def _actions(self, draft: Draft) -> Iterator[Action]:
        bounds, table = self.bounds, self.table
        for slot, proposer in enumerate(draft.proposers):
            leads = proposer != NOBODY and table.leads[proposer]
            connects = proposer != NOBODY and table.connects[proposer]
            for acceptor, queue in enumerate(draft.queues[slot]):
                if queue == NOBODY:
                    if connects:
                        yield "connect", slot, acceptor
                else:
                    yield from self._connection_actions(draft, slot, acceptor, queue)
            if leads:
                for wal in table.writes(proposer):
                    yield "write", slot, wal
            if draft.used[3] < bounds.campaigns:
                for chosen in self._voters():
                    yield "start", slot, chosen
                    if bounds.closes and draft.used[4] < bounds.closes:
                        yield "close", slot, chosen
        yield from self._acceptor_actions(draft)

    def _voters(self) -> Iterator[tuple[int, ...]]:
        """Yield the sets of acceptors that a candidate may reach."""
        bounds = self.bounds
        for size in range(bounds.voters_min, bounds.vote_quorum + 1):
            yield from combinations(range(bounds.acceptors), size)

    def _connection_actions(
        self, draft: Draft, slot: int, acceptor: int, queue: int
    ) -> Iterator[Action]:
        bounds = self.bounds
        crashes, breaks, lates = draft.used[:3]
        if queue != EMPTY:
            yield "deliver", slot, acceptor
            if breaks < bounds.breaks:
                yield "deliver, answer lost", slot, acceptor
            if crashes < bounds.crashes:
                for at in range(1, self._operations(draft, slot, acceptor)):
                    yield "deliver, crash", slot, acceptor, at
        if breaks < bounds.breaks:
            yield "break", slot, acceptor
            if queue != EMPTY and lates < bounds.lates and draft.late_at == NOBODY:
                yield "break, late", slot, acceptor

    def _acceptor_actions(self, draft: Draft) -> Iterator[Action]:
        bounds, table = self.bounds, self.table
        for acceptor, number in enumerate(draft.acceptors):
            unsynced = table.unsynced[number]
            if unsynced:
                yield "flush", acceptor
            if draft.used[0] < bounds.crashes:
                for kept_bytes in range(unsynced + 1):
                    yield "crash", acceptor, kept_bytes
            if bounds.lazy_marks and table.has_lazy_marks(number):
                yield "mark", acceptor
        if draft.late_at != NOBODY:
            if draft.late != EMPTY:
                yield ("deliver late",)
            yield ("late connection ends",)

    def _operations(self, draft: Draft, slot: int, acceptor: int) -> int:
        message = self.queues.first(draft.queues[slot][acceptor])
        try:
            return self.table.deliver(draft.acceptors[acceptor], slot, message).operations
        except Violation:
            return 0  # reported by the delivery without a crash

    # Actions; each returns False if it leads out of the bounds or changes nothing new

    def _deliver(self, draft: Draft, slot: int, acceptor: int) -> bool:
        message = self._take(draft, slot, acceptor)
        step = self.table.deliver(draft.acceptors[acceptor], slot, message)
        self._accepted(draft, acceptor, step)
        is_more = draft.queues[slot][acceptor] > EMPTY
        if is_more and self.queues.is_election(message):  # the heartbeat follows at once
            return self._deliver(draft, slot, acceptor)
        return True

    def _use(self, draft: Draft, fault: int) -> None:
        draft.used[fault] += 1

    def _take(self, draft: Draft, slot: int, acceptor: int) -> int:
        queue = draft.queues[slot][acceptor]
        draft.queues[slot][acceptor] = self.queues.rest(queue)
        return self.queues.first(queue)

    def _deliver_unanswered(self, draft: Draft, slot: int, acceptor: int) -> bool:
        self._use(draft, 1)
        message = self._take(draft, slot, acceptor)
        step = self.table.deliver(draft.acceptors[acceptor], slot, message)
        if all(connection != slot for connection, _ in step.sent):
            return False
        self._accepted(draft, acceptor, step, deaf=slot)
        return self._break_now(draft, slot, acceptor)

    def _deliver_and_crash(self, draft: Draft, slot: int, acceptor: int, at: int) -> bool:
        self._use(draft, 0)
        message = self._take(draft, slot, acceptor)
        number = draft.acceptors[acceptor]
        step = self.table.deliver_and_crash(number, slot, message, at)
        return self._crashed(draft, acceptor, step)

    def _crash(self, draft: Draft, acceptor: int, kept_bytes: int) -> bool:
        self._use(draft, 0)
        step = self.table.crash(draft.acceptors[acceptor], kept_bytes)
        return self._crashed(draft, acceptor, step)

    def _crashed(self, draft: Draft, acceptor: int, step: AcceptorStep) -> bool:
        """Take away a crashed acceptor's connections as well."""
        draft.acceptors[acceptor] = step.node
        if draft.late_at == acceptor:
            draft.late_at, draft.late = NOBODY, EMPTY
        for slot, row in enumerate(draft.queues):
            if row[acceptor] != NOBODY:
                row[acceptor] = NOBODY
                self._lost_here(draft, slot, acceptor)
        return True

    def _flush(self, draft: Draft, acceptor: int) -> bool:
        self._accepted(draft, acceptor, self.table.flush(draft.acceptors[acceptor]))
        return True

    def _mark(self, draft: Draft, acceptor: int) -> bool:
        self._accepted(draft, acceptor, self.table.mark(draft.acceptors[acceptor]))
        return True

    def _write(self, draft: Draft, slot: int, wal: bytes) -> bool:
        self._proposed(draft, slot, self.table.write(draft.proposers[slot], wal))
        return True

    def _break(self, draft: Draft, slot: int, acceptor: int) -> bool:
        self._use(draft, 1)
        return self._break_now(draft, slot, acceptor)

    def _break_now(self, draft: Draft, slot: int, acceptor: int) -> bool:
        """Break a connection: both sides notice, and messages under way are lost."""
        if draft.queues[slot][acceptor] != NOBODY:
            draft.queues[slot][acceptor] = NOBODY
            self._lost_there(draft, slot, acceptor)
            self._lost_here(draft, slot, acceptor)
        return True

    def _lost_there(self, draft: Draft, connection: int, acceptor: int) -> None:
        step = self.table.lose_connection(draft.acceptors[acceptor], connection)
        self._accepted(draft, acceptor, step)

    def _lost_here(self, draft: Draft, slot: int, acceptor: int) -> None:
        if draft.proposers[slot] != NOBODY:
            self._proposed(draft, slot, self.table.link_lost(draft.proposers[slot], acceptor))

    def _break_late(self, draft: Draft, slot: int, acceptor: int) -> bool:
        """Let the proposer give up a connection, on which its sent messages go on arriving."""
        self._use(draft, 1)
        self._use(draft, 2)
        draft.late_at, draft.late = acceptor, draft.queues[slot][acceptor]
        draft.queues[slot][acceptor] = NOBODY
        draft.acceptors[acceptor] = self.table.renumbered(draft.acceptors[acceptor], slot, LATE)
        self._lost_here(draft, slot, acceptor)
        return True

    def _deliver_late(self, draft: Draft) -> bool:
        acceptor, queue = draft.late_at, draft.late
        draft.late = self.queues.rest(queue)
        number = draft.acceptors[acceptor]
        self._accepted(draft, acceptor, self.table.deliver(number, LATE, self.queues.first(queue)))
        return True

    def _end_late(self, draft: Draft) -> bool:
        acceptor, draft.late_at, draft.late = draft.late_at, NOBODY, EMPTY
        self._lost_there(draft, LATE, acceptor)
        return True

    def _connect(self, draft: Draft, slot: int, acceptor: int) -> bool:
        draft.queues[slot][acceptor] = EMPTY
        self._proposed(draft, slot, self.table.link_up(draft.proposers[slot], acceptor))
        return True

    def _close(self, draft: Draft, slot: int, chosen: tuple[int, ...]) -> bool:
        """Start a command that closes the log in the place of a proposer."""
        self._use(draft, 4)
        return self._start(draft, slot, chosen, closes=True)

    def _start(
        self, draft: Draft, slot: int, chosen: tuple[int, ...], *, closes: bool = False
    ) -> bool:
        """Kill the process, if there is one; start another one that greets these, and campaigns."""
        heard = (self.table.acceptor(draft.acceptors[a]).core.durable.ballot for a in chosen)
        term = max(ballot.term for ballot in heard) + 1
        if term > self.bounds.terms:
            return False
        draft.used[3] += 1
        self._kill(draft, slot)
        taken = self._ballots(draft)
        # Where some of these elect, it campaigns before it knows of the greatest term.
        least = 1 if self.bounds.zones or self.bounds.commands else term
        lives = (
            life
            for life in range(LIVES_MAX)
            if all(ballot_of(t, slot, life) not in taken for t in range(least, term + 1))
        )
        numbers = {"term": term, "slot": slot, "life": next(lives)}
        draft.proposers[slot] = self.table.fresh_proposer(**numbers, closes=closes)
        self._proposed(draft, slot, self.table.begin(draft.proposers[slot]))
        for acceptor in chosen:
            if draft.proposers[slot] != NOBODY:  # else a closed log has ended it already
                self._connect(draft, slot, acceptor)
        if self.bounds.votes_at_once:
            self._vote_now(draft, slot, chosen)
        return self.table.has_campaigned(draft.proposers[slot])

    def _vote_now(self, draft: Draft, slot: int, chosen: Iterable[int]) -> None:
        for acceptor in chosen:
            if draft.queues[slot][acceptor] > EMPTY:  # it may be elected already
                self._deliver(draft, slot, acceptor)

    def _kill(self, draft: Draft, slot: int) -> None:
        draft.proposers[slot] = NOBODY
        for acceptor in range(self.bounds.acceptors):
            self._break_now(draft, slot, acceptor)

    def _ballots(self, draft: Draft) -> set[Ballot]:
        """Return all ballots that a node, a queue or the chain still remembers."""
        table = self.table
        found = self.chains.ballots(draft.chain) | self.queues.ballots(draft.late)
        for number in draft.acceptors:
            found |= table.ballots_of_acceptor(number)
        for slot, number in enumerate(draft.proposers):
            if number != NOBODY:
                found.add(table.proposer(number).core.ballot)
            for queue in draft.queues[slot]:
                if queue != NOBODY:
                    found |= self.queues.ballots(queue)
        return found

    # Events that follow at once

    def _accepted(
        self, draft: Draft, acceptor: int, step: AcceptorStep, deaf: int | None = None
    ) -> None:
        """Deliver an acceptor's answers, but none on the connection `deaf`."""
        draft.acceptors[acceptor] = step.node
        if step.committed is not None:
            draft.chain = self.chains.shown(draft.chain, step.committed)
        for connection, message in step.sent:
            if connection in (LATE, deaf) or draft.queues[connection][acceptor] == NOBODY:
                continue
            number = draft.proposers[connection]
            if number != NOBODY:
                answer = self.table.receive(number, acceptor, message, step.log)
                self._proposed(draft, connection, answer)

    def _proposed(self, draft: Draft, slot: int, step: ProposerStep) -> None:
        if step.elected is not None:
            given = (draft.chain, step.ballot, step.elected)
            draft.chain = self.chains.elected(*given, writes=step.writes)
        if step.reported is not None:
            draft.chain = self.chains.committed(draft.chain, step.ballot, step.reported)
        if step.closed is not None:
            draft.chain = self.chains.closed(draft.chain, step.ballot, step.closed)
        if step.node is None:
            self._kill(draft, slot)
            return
        draft.proposers[slot] = step.node
        at_once = []
        row = draft.queues[slot]
        for acceptor, message in step.sent:
            if row[acceptor] == NOBODY:
                continue
            if self.table.is_asked_at_once(step.node, message):
                at_once.append((acceptor, message))
            else:
                row[acceptor] = self.queues.behind(row[acceptor], message)
        for acceptor, message in at_once:
            answer = self.table.deliver(draft.acceptors[acceptor], slot, message)
            self._accepted(draft, acceptor, answer)
        for acceptor in step.dropped:
            self._break_now(draft, slot, acceptor)


def _orders_of_equals(keys: list[tuple[int, ...]], order: list[int]) -> list[tuple[int, ...]]:
    """Return every order in which the keys ascend, where some are equal."""
    groups = [list(group) for _, group in groupby(order, key=keys.__getitem__)]
    parts = [list(permutations(group)) for group in groups]
    return [tuple(i for part in chosen for i in part) for chosen in product(*parts)]
