"""Members are replaced while everything else goes wrong (`python -m tests.proof.sim --replace`).

An operator runs the shipping `replace_member`, is killed, and runs it again. Questions and answers
are lost on their way. Two operators may want two things at once. With --cancel, half of them change
their mind. A newcomer is a new node: its process answers for an empty disk until it has joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tests.proof.sim.network import Connection
from tests.proof.sim.oracle import Standing
from tests.proof.sim.safekeeper_node import SafekeeperNode
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.quorum import Configuration, member_id
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import JoinLog
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import LogQuery, PrepareLog
from walkeeper_proposer.consensus.deciding import Answers, Batch, Steps
from walkeeper_proposer.consensus.replacing import Goal, cancel_replacement, replace_member
from walkeeper_safekeeper.consensus.creation import prepared, state_of
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import joined

if TYPE_CHECKING:
    from tests.proof.sim.story import Story

NEWCOMER = -1
ANSWER_MS = 1500
CANCEL_MS_MAX = 8000
PAUSE_MS = 400
WAITS_MAX = 40  # then the operator starts the command again: others have replaced members, too
GOALS_A_MINUTE = 6
KILLED, LOST = 0.06, 0.06
CANCELS = 0.5  # the share of operators that change their mind, with --cancel


def newest(story: Story) -> Configuration:
    """Return the configuration with the greatest generation that any safekeeper holds."""
    held = [node.configuration for node in story.safekeepers if node.loss is None]
    return max(held, key=lambda configuration: configuration.generation)


@dataclass
class Newcomer:
    """A safekeeper's process without this log, until it joins."""

    story: Story
    acceptor_id: int
    durable: Durable | None = None
    node: SafekeeperNode | None = None

    def answer(self, ask: Message) -> Message | None:
        """Answer as log_catalog.py does."""
        random = self.story.world.random
        match ask:
            case LogQuery():
                pass
            case PrepareLog():
                acceptor_id, incarnation = self.acceptor_id, random.randbytes(16)
                self.durable = prepared(
                    self.durable, ask, acceptor_id=acceptor_id, incarnation=incarnation
                )
            case JoinLog() if self.durable is not None:
                self._join(self.durable, ask)
            case _:
                return Reject(RejectCode.UNKNOWN_LOG, "no such log", NO_BALLOT)
        known = self.node.driver.acceptor.durable if self.node and self.node.driver else None
        return state_of(self.acceptor_id, known or self.durable)

    def _join(self, durable: Durable, ask: JoinLog) -> None:
        begun = joined(durable, ask)
        if isinstance(begun, str):
            self.story.oracles.recovery.fail(f"a newcomer cannot join: {begun}")
        if begun is not durable:
            self.durable = begun
            self.node = self.story.add_safekeeper(begun)


class Operator:
    """Wants one member replaced, and repeats the command until it is or was refused."""

    def __init__(self, story: Story, goal: Goal, newcomer: Newcomer) -> None:
        self.story, self.world = story, story.world
        self.goal, self.newcomer = goal, newcomer
        self.is_over = self.cancels = False
        self._serial = self._waits = 0
        self._steps: Steps
        self.world.trouble("replacements", "op", f"replace {goal.leaving} by {goal.joining}")
        self._run()

    def _run(self) -> None:
        """Start the command, with the addresses of now."""
        self._serial += 1
        self._waits = 0
        places = [NEWCOMER, *(p for p, n in enumerate(self._nodes()) if n is not None)]
        draw, leaving = (lambda: self.world.random.randbytes(16)), self.goal.leaving
        if self.cancels:
            self._steps = cancel_replacement(self.goal.cluster, leaving, places, draw)
        else:
            self._steps = replace_member(self.goal, places, draw)
        self._step(None)

    def cancel(self) -> None:
        """Change the mind: take the replacement back with a new command."""
        if not self.is_over and not self.cancels and newest(self.story).joining:
            self.cancels = True
            self.world.trouble("cancels", "op", f"cancel the replacement of {self.goal.leaving}")
            self._serial += 1
            self._run()

    def _nodes(self) -> list[SafekeeperNode | None]:
        mine = self.newcomer.node
        return [None if node is mine else node for node in self.story.safekeepers]

    def _step(self, answers: Answers | None) -> None:
        if answers is not None and self.world.chance(KILLED):
            self.world.trouble("replace killed", "op", "KILL replace")
            self._serial += 1
            self.world.later(self.world.random.uniform(0, 5000), self._run)
            return
        try:
            batch = next(self._steps) if answers is None else self._steps.send(answers)
        except StopIteration as done:
            self.is_over = True
            what = "replacements cancelled" if self.cancels else "members replaced"
            self.world.facts[what] += 1
            self.world.say("op", f"{what}, {self.goal.leaving}: {done.value.members}")
            return
        except Refused as error:
            self.is_over = True
            self.world.facts["replacements refused"] += 1
            self.world.say("op", f"refused: {error}")
            return
        self._waits += not batch.requests
        if self._waits > WAITS_MAX:
            self._run()
        else:
            self._ask(batch)

    def _ask(self, batch: Batch) -> None:
        serial, answers, waiting = self._serial, dict[int, Message](), set(batch.requests)

        def finish() -> None:
            if serial == self._serial:
                self._serial += 1
                self._step(answers)

        def answered(place: int, answer: Message | None) -> None:
            if serial != self._serial or place not in waiting:
                return
            waiting.discard(place)
            if answer is not None:
                answers[place] = answer
            if not waiting:
                finish()

        self.world.later(PAUSE_MS if not waiting else ANSWER_MS, finish)
        for place, ask in batch.requests.items():
            self._send(place, ask, partial(answered, place))

    def _send(self, place: int, ask: Message, done: Callable[[Message | None], None]) -> None:
        if self.world.chance(LOST):
            return
        node = self.newcomer.node if place == NEWCOMER else self.story.safekeepers[place]
        if place == NEWCOMER and (node is None or isinstance(ask, LogQuery | PrepareLog | JoinLog)):
            answer = self.newcomer.answer(ask)
            if not self.world.chance(LOST):
                self.world.later(2 * self.world.delay_ms(), lambda: done(answer))
            return
        assert node is not None
        connection = Connection(self.story.network, "op", node.name)
        if not node.accept(connection):
            return

        def heard(answer: Message) -> None:
            connection.close()
            done(answer)

        connection.client.on_message = heard
        connection.client.send(ask)


def judge_survival(story: Story, what: str, standings: Sequence[Standing]) -> None:
    """Judge that no safekeeper which lacks the WAL could win an election now.

    The election is held with the members of any configuration that a safekeeper holds.
    A safekeeper without newer members may vote with older ones, or learns of the newer ones. A
    safekeeper with newer members never votes with the older ones.
    """
    nodes = {node.name: node for node in story.safekeepers}
    held = {s.who: nodes[s.who].configuration for s in standings}
    for configuration in {c.generation: c for c in held.values()}.values():
        able = [s for s in standings if held[s.who].generation <= configuration.generation]
        for lacking in able:
            voters = [nodes[s.who].member for s in able if s.rank <= lacking.rank]
            is_one = nodes[lacking.who].member in configuration.everyone
            if is_one and not lacking.has_it and configuration.elects(voters):
                story.oracles.survival.fail(
                    f"{what}, but {lacking.who} lacks some of it and would win an election of "
                    f"generation {configuration.generation} with {sorted(voters)}"
                )


def is_finished(story: Story) -> bool:
    """Return True if no replacement is under way; finish one that was, when all healed."""
    if any(not operator.is_over for operator in story.operators):
        return False
    if not story.operators or not newest(story).joining:
        return True
    joining = newest(story).joining
    for operator in story.operators:
        node = operator.newcomer.node
        if node is not None and node.member == joining:
            goal = replace(operator.goal, leaving=member_id(newest(story).leaving))
            story.operators.append(Operator(story, goal, operator.newcomer))
            return False
    return False


def schedule(story: Story) -> None:
    """Start an operator now and then, rarely two at once."""
    world, random = story.world, story.world.random

    def want() -> None:
        at_work = [o for o in story.operators if not o.is_over]
        if len(at_work) > 1 or (at_work and random.random() < 0.8):
            return
        current = newest(story)
        lost = [n.member for n in story.safekeepers if n.loss and n.member in current.members]
        leaving = random.choice(lost or current.members)
        number = len(story.safekeepers) + 10
        same = random.random() < 0.5
        joining = member_id(leaving) if same else number
        goal = Goal("main", member_id(leaving), joining, f"n{number}:1", NEWCOMER,
                    instead=random.random() < 0.3)  # fmt: skip
        operator = Operator(story, goal, Newcomer(story, joining))
        story.operators.append(operator)
        if world.options.cancels and random.random() < CANCELS:
            world.later(random.uniform(0, CANCEL_MS_MAX), operator.cancel)

    world.every(GOALS_A_MINUTE, want)
