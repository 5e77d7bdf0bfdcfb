"""Members change in the explored world: register, elections and acks together.

The last acceptors are newcomers with empty disks, if there are any. Commands are the shipping
generators of a change of members and of its cancel. A question that changes nothing is answered at
once by all that are up. Any other request reaches any set of safekeepers: promises, acceptances,
installations and joins. A command may stand still for ever before each. So a killed command needs
no action.

A generator cannot be copied, so it is given the answers of its last two rounds again. Two commands
are one if they ask the same and remember the same. The memory is the commit_lsn of the round before
and the joint members that they have seen.

    Successor   one configuration follows each generation

Acceptors differ by their names, so no states are folded by symmetry. An acceptor keeps what it
knows of a dead leader, because that tells whether the joint members have committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias

from tests.proof.explore.bounds import Bounds
from tests.proof.explore.explored_acceptor import AcceptorNode
from tests.proof.explore.explored_proposer import configuration, incarnation
from tests.proof.explore.explored_world import NOBODY, Action, Draft, State, World
from tests.proof.explore.interned import Interned
from tests.proof.explore.queues import EMPTY
from tests.proof.explore.tiny_wal import CREATION_LSN, begin_of
from tests.proof.sim.oracle import Violation
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Fragment
from walkeeper_common.lsn import ZERO_LSN
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
)
from walkeeper_common.wire.requests import LogQuery, PrepareLog
from walkeeper_proposer.consensus.members.changing import Goal, cancel_change, change_members
from walkeeper_proposer.consensus.members.deciding import Batch, Steps
from walkeeper_proposer.consensus.members.newcomers import Newcomer
from walkeeper_safekeeper.consensus.creation import state_of
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import joined

CLUSTER = "main"
COMMAND = 8  # the connection of every command
OVER, NOT_STARTED = 0, 1  # numbers of commands
FIRST = 5  # in `used`, where the numbers of the commands begin

Answers: TypeAlias = tuple[tuple[int, Message], ...]


@dataclass(frozen=True, slots=True)
class Told:
    """A command that has had these answers. An idle one waits, and looks again at any time."""

    which: int
    answers: tuple[Answers, ...]
    is_idle: bool


class MemberWorld(World):
    """All within `bounds`, which name the commands."""

    def __init__(self, bounds: Bounds) -> None:
        self._told: list[Told | None] = [None, None]  # by number; the first two have none
        self._numbers: dict[object, int] = {}
        self._decided: Interned[tuple[Configuration, ...]] = Interned()
        self._pending: dict[int, Batch] = {}
        super().__init__(bounds)
        self._doers |= {"command": self._go_on, "look again": self._look_again}
        self._doers["fill"] = self._fill

    def _first_acceptors(self) -> list[int]:
        bounds, config = self.bounds, configuration(self.bounds)
        entry = Fragment(NO_BALLOT, CREATION_LSN, 1, False, config.members, config.ack_quorum)
        found = []
        for acceptor in range(bounds.acceptors):
            is_member = acceptor < bounds.members
            durable = Durable(
                acceptor_id=acceptor + 1,
                incarnation=incarnation(acceptor),
                log_uuid=config.log_uuid,
                configuration=config if is_member else None,
                history=(entry,),
                commit_lsn=CREATION_LSN,
                restart_lsn=CREATION_LSN,
                reached_lsn=CREATION_LSN,
            )
            found.append(self._booted(durable))
        return found

    def _booted(self, durable: Durable) -> int:
        slow_disk, folds = self.bounds.slow_disks, self.bounds.folds
        node = AcceptorNode(durable, slow_disk=slow_disk, keeps_leaders=True, folds=folds)
        return self.table.number_of_acceptor(node)

    def _first_used(self) -> list[int]:
        decided = self._decided.number((configuration(self.bounds),))
        return [*[0] * FIRST, *[NOT_STARTED] * len(self.bounds.commands), decided]

    def _state(self, draft: Draft) -> State:
        rows = [number for row in draft.queues for number in row]
        late = (draft.late_at, draft.late, draft.chain)
        return (*draft.acceptors, *draft.proposers, *rows, *late, *draft.used)

    # Possible actions

    def _voters(self) -> Iterator[tuple[int, ...]]:
        grows = all(command in ("replace", "cancel", "add") for command in self.bounds.commands)
        least = self.bounds.voters_min if grows else 1  # the new set may elect with fewer
        for size in range(least, self.bounds.acceptors + 1):
            yield from combinations(range(self.bounds.acceptors), size)

    def _actions(self, draft: Draft) -> Iterator[Action]:
        yield from super()._actions(draft)
        everybody = range(self.bounds.acceptors)
        for which, number in enumerate(draft.used[FIRST:-1]):
            if number == OVER:
                continue
            told = self._told[number]
            if told is None or told.is_idle:
                yield "look again", which
                continue
            requests = self._pending[number].requests
            asked = [a for a in everybody if a in requests and self._counts(a, requests[a])]
            for size in range(1, len(asked) + 1):
                for chosen in combinations(asked, size):
                    yield "command", which, chosen

        if self.bounds.late:
            nodes = [self.table.acceptor(number) for number in draft.acceptors]
            yield from (("fill", at) for at in everybody if begin_of(nodes[at].wal))

    def _fill(self, draft: Draft, acceptor: int) -> bool:
        """Fill a log that begins late from the first disk that holds what it lacks (M5)."""
        node = self.table.acceptor(draft.acceptors[acceptor]).clone()
        others = (self.table.acceptor(number) for number in draft.acceptors)
        if not any(node.fill(other) for other in others):
            return False
        draft.acceptors[acceptor] = self.table.number_of_acceptor(node)
        return True

    def _counts(self, acceptor: int, ask: Message) -> bool:
        """Return False for a newcomer that promises or accepts: the old members decide."""
        decides = isinstance(ask, PromiseMembers | AcceptMembers)
        return acceptor < self.bounds.members or not decides

    # Commands

    def _steps(self, which: int) -> Steps:
        bounds, places = self.bounds, range(self.bounds.acceptors)
        what, last = bounds.commands[which], bounds.members

        def draw() -> bytes:
            return bytes((which,)) * 16

        if what == "cancel":
            return cancel_change(CLUSTER, places, draw)
        joining = tuple(Newcomer(at + 1, f"new{at + 1}:1", at) for at in places if at >= last)
        late: dict[str, Any] = {}
        if bounds.late:
            late = {"addresses": tuple(f"h{at + 1}:1" for at in places), "fed_bytes_max": -1}
        match what:
            case "replace":
                goal = Goal(CLUSTER, (last,), joining, instead=True, **late)
            case "add":
                goal = Goal(CLUSTER, (), joining, bounds.next_ack, **late)
            case "remove":
                goal = Goal(CLUSTER, (last,), (), bounds.next_ack)
            case "set-ack-zones":
                goal = Goal(CLUSTER, ack_zones=bounds.next_zones, allow_zone_stop=True)
            case _:
                assert what == "set-ack-quorum", f"{what=}"
                goal = Goal(CLUSTER, ack_quorum=bounds.next_ack, allow_single_ack=True)
        return change_members(goal, places, draw)

    def _look_again(self, draft: Draft, which: int) -> bool:
        told = self._told[draft.used[FIRST + which]]
        return self._ask(draft, which, () if told is None else told.answers, None)

    def _go_on(self, draft: Draft, which: int, chosen: tuple[int, ...]) -> bool:
        """Deliver the pending requests to these safekeepers, and their answers to the command."""
        number = draft.used[FIRST + which]
        told, requests = self._told[number], self._pending[number].requests
        assert told is not None, f"{number=}"
        answers = self._answers(draft, {place: requests[place] for place in chosen})
        return self._ask(draft, which, told.answers, answers)

    def _ask(
        self, draft: Draft, which: int, before: tuple[Answers, ...], answers: Answers | None
    ) -> bool:
        """Run the command from `before` until it needs luck, waits or ends."""
        steps, history = self._steps(which), list[Answers]()
        starts = list[int]()  # where its last rounds begin in the history
        try:
            batch = next(steps)
            for said in [*before, *([answers] if answers is not None else [])]:
                starts += [len(history)] * _begins(batch)
                history.append(said)
                batch = steps.send(dict(said))
            if answers is None and before:
                history.append(())
                batch = steps.send({})  # it has waited
            while batch.requests and all(map(_changes_nothing, batch.requests.values())):
                starts += [len(history)] * _begins(batch)
                history.append(self._answers(draft, batch.requests))
                batch = steps.send(dict(history[-1]))
        except (StopIteration, Refused):
            draft.used[FIRST + which] = OVER
            return True
        rounds = [m.round.term for m in batch.requests.values() if isinstance(m, PromiseMembers)]
        if rounds and rounds[0] > self.bounds.rounds:
            draft.used[FIRST + which] = OVER  # it stands still
            return True
        is_idle = not batch.requests
        kept = starts[-1] if is_idle else starts[-2] if len(starts) > 1 else 0
        number = self._number(Told(which, tuple(history[kept:]), is_idle), batch)
        is_new = draft.used[FIRST + which] != number
        draft.used[FIRST + which] = number
        return is_new

    def _number(self, told: Told, batch: Batch) -> int:
        """Return the number of a command with these answers and these pending requests."""
        states = [m for said in told.answers for _, m in said if isinstance(m, MembersState)]
        known_lsn = max((state.commit_lsn for state in states), default=ZERO_LSN)
        seen = max(
            (s.configuration.generation for s in states if s.configuration.target), default=0
        )
        key = (told.which, told.is_idle, tuple(batch.requests.items()), known_lsn, seen)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._told)
            self._told.append(told)
            self._pending[number] = batch
        return number

    def _answers(self, draft: Draft, requests: Mapping[int, Message]) -> Answers:
        asked = ((place, self._answer(draft, place, ask)) for place, ask in requests.items())
        return tuple((place, answer) for place, answer in asked if answer is not None)

    def _answer(self, draft: Draft, acceptor: int, ask: Message) -> Message | None:
        node = self.table.acceptor(draft.acceptors[acceptor])
        durable = node.core.durable
        match ask:
            case LogQuery() | PrepareLog():
                return state_of(durable.acceptor_id, durable)
            case JoinLog():
                made = joined(durable, ask)
                if isinstance(made, str):
                    raise Violation("Joining", f"a newcomer cannot join: {made}")
                if made is not durable:
                    draft.acceptors[acceptor] = self._booted(made)
                return state_of(durable.acceptor_id, made)
        if durable.configuration is None:
            return None
        if isinstance(ask, InstallMembers):
            self._decide(draft, ask.configuration)
        message = self.queues.messages.number(ask)
        step = self.table.deliver(draft.acceptors[acceptor], COMMAND, message)
        self._accepted(draft, acceptor, step, deaf=COMMAND)
        said = [m for connection, m in step.sent if connection == COMMAND]
        return self.queues.messages.values[said[0]] if said else None

    def _decide(self, draft: Draft, configuration: Configuration) -> None:
        known = self._decided.values[draft.used[-1]]
        same = [c for c in known if c.generation == configuration.generation]
        if any(c != configuration for c in same):
            text = f"generation {configuration.generation} is {same[0]} and {configuration}"
            raise Violation("Successor", text)
        if not same:
            draft.used[-1] = self._decided.number((*known, configuration))

    def _forget_the_dead(self, draft: Draft) -> None:
        """Keep it all: see above."""


def _begins(batch: Batch) -> bool:
    """Return True if a round of the command begins with this batch."""
    return any(isinstance(ask, MembersQuery) for ask in batch.requests.values())


def _changes_nothing(ask: Message) -> bool:
    return isinstance(ask, MembersQuery | LogQuery | PrepareLog)


assert NOBODY < EMPTY < OVER + 1
