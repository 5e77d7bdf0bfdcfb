"""Members change while everything else goes wrong (`python -m tests.proof.sim --replace`).

An operator runs the shipping `change_members`, is killed, and runs it again. Questions and answers
are lost on their way. Two operators may want two things at once. With --resize they add
and remove members, and set the ack quorum, and do not only replace. With --cancel, half
of them change their mind. A newcomer is a new node: its
process answers for an empty disk until it has joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tests.proof.sim.late_newcomers import goal_facts, is_contested, unseen
from tests.proof.sim.network import Connection
from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.proof.sim.scene import Scene
from tests.proof.sim.zones import LABELS, zone_of
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.quorum import Configuration, majority, member_id
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import JoinLog
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import LogQuery, PrepareLog
from walkeeper_proposer.consensus.members import newcomers
from walkeeper_proposer.consensus.members.changing import Goal, cancel_change, change_members
from walkeeper_proposer.consensus.members.deciding import Answers, Batch, Steps
from walkeeper_safekeeper.consensus.creation import prepared, state_of
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import joined

NEWCOMER = -1  # the place of the first; the next ones are below
ANSWER_MS = 1500
CANCEL_MS_MAX = 8000
PAUSE_MS = 400
WAITS_MAX = 40  # then the operator starts the command again: others have replaced members, too
GOALS_A_MINUTE = 6
KILLED, LOST = 0.06, 0.06
CANCELS = 0.5  # the share of operators that change their mind, with --cancel
ZONES = 0.4  # the share of changes with --resize that set zones, in a world with zones
RESIZES = 0.7  # the share of operators that do not replace a member, with --resize
MEMBERS_MAX = 6


@dataclass
class Newcomer:
    """A safekeeper's process without this log, until it joins."""

    scene: Scene
    acceptor_id: int
    durable: Durable | None = None
    node: SafekeeperNode | None = None

    def answer(self, ask: Message) -> Message | None:
        """Answer as log_catalog.py does."""
        random = self.scene.world.random
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
            self.scene.oracles.recovery.fail(f"a newcomer cannot join: {begun}")
        if begun is not durable:
            self.durable = begun
            self.node = self.scene.add_safekeeper(begun)


class Operator:
    """Wants other members, and repeats the command until they are or it was refused.

    `coming` are the newcomers in the order of the goal; the first has place NEWCOMER."""

    kind = done = ""  # the names of its figures; empty if the goal has them

    def __init__(self, scene: Scene, goal: Goal, coming: Sequence[Newcomer]) -> None:
        self.scene, self.world = scene, scene.world
        self.goal, self.coming = goal, {NEWCOMER - n: each for n, each in enumerate(coming)}
        self.is_over = self.cancels = False
        self._serial = self._waits = 0
        self._steps: Steps
        self.text = _shown(goal)
        self.world.trouble(self.kind or _kind(goal), "op", self.text)
        self._run()

    def _run(self) -> None:
        """Start the command, with the addresses of now."""
        self._serial += 1
        self._waits = 0
        places = [*self.coming, *(p for p, n in enumerate(self._nodes()) if n is not None)]

        def draw() -> bytes:
            return self.world.random.randbytes(16)

        if self.cancels:
            kept = self.goal.leaving[0] if self.goal.is_replacement else None
            self._steps = cancel_change(self.goal.cluster, places, draw, kept)
        else:
            self._steps = self.begin(places, draw)
        self._step(None)

    def begin(self, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
        """Return the steps of the command."""
        return change_members(self.goal, places, draw)

    def is_dead(self) -> bool:
        """Return True if the process ends now, and nobody starts it again."""
        return False

    def gave_up(self) -> bool:
        """Return True if it has waited for so long that its process ends for good."""
        return False

    def cancel(self) -> None:
        """Change the mind: take the replacement back with a new command."""
        if not self.is_over and not self.cancels and self.scene.newest_members().target:
            self.cancels = True
            self.world.trouble("cancels", "op", f"cancel: {self.text}")
            self._serial += 1
            self._run()

    def _nodes(self) -> list[SafekeeperNode | None]:
        mine = [each.node for each in self.coming.values()]
        return [None if node in mine else node for node in self.scene.safekeepers]

    def _step(self, answers: Answers | None) -> None:
        if self.is_dead():
            self.is_over = True
            return
        if answers is not None and self.world.chance(KILLED):
            self.world.trouble("replace killed", "op", "KILL replace")
            self._serial += 1
            self.world.later(self.world.random.uniform(0, 5000), self._run)
            return
        try:
            batch = next(self._steps) if answers is None else self._steps.send(answers)
        except StopIteration as done:
            self.is_over = True
            what = "changes of members cancelled" if self.cancels else self.done or _done(self.goal)
            self.world.facts[what] += 1
            self.world.say("op", f"{what}, {self.text}: {done.value.members}")
            return
        except Refused as error:
            self.is_over = True
            self.world.facts["replacements refused"] += 1
            self.world.say("op", f"refused: {error}")
            return
        self._waits += not batch.requests
        if self._waits > WAITS_MAX and self.gave_up():
            self.is_over = True
        elif self._waits > WAITS_MAX:
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
        newcomer = self.coming.get(place)
        node = newcomer.node if newcomer is not None else self.scene.safekeepers[place]
        if newcomer is not None and (
            node is None or isinstance(ask, LogQuery | PrepareLog | JoinLog)
        ):
            answer = newcomer.answer(ask)
            if not self.world.chance(LOST):
                self.world.later(2 * self.world.delay_ms(), lambda: done(answer))
            return
        assert node is not None
        connection = Connection(self.scene.network, "op", node.name)
        if not node.accept(connection):
            return

        def heard(answer: Message) -> None:
            connection.close()
            done(answer)

        connection.client.on_message = heard
        connection.client.send(ask)


def _kind(goal: Goal) -> str:
    if goal.is_replacement:
        return "replacements"
    if goal.joining:
        return "additions"
    if goal.zones:
        return "zones"
    return "removals" if goal.leaving else "ack quorums"


def _done(goal: Goal) -> str:
    return "members replaced" if goal.is_replacement else f"{_kind(goal)} done"


def _shown(goal: Goal) -> str:
    coming = ", ".join(str(newcomer.number) for newcomer in goal.joining)
    going = ", ".join(map(str, goal.leaving))
    if goal.is_replacement:
        return f"replace {going} by {coming}"
    quorum = f", ack quorum {goal.ack_quorum}"
    if goal.zones:
        quorum += f", {goal.ack_zones} of zones {dict(goal.zones)}"
    return f"add {coming}{quorum}" if coming else f"remove {going or 'none'}{quorum}"


def is_finished(scene: Scene) -> bool:
    """Return True if no change is under way; finish one that was, when all healed."""
    if any(not operator.is_over for operator in scene.operators):
        return False
    current = scene.newest_members()
    if not scene.operators or current.target is None:
        return True
    begun = {each.node.member: each for operator in scene.operators
             for each in operator.coming.values() if each.node is not None}  # fmt: skip
    coming = [begun[name] for name in current.newcomers if name in begun]
    if len(coming) < len(current.newcomers):
        return False
    joining = tuple(
        newcomers.Newcomer(each.acceptor_id, f"n{each.acceptor_id}:1", NEWCOMER - n)
        for n, each in enumerate(coming)
    )
    leaving = tuple(map(member_id, current.leavers))
    wanted = current.target
    labels = tuple((member_id(m), wanted.zone_of(m)) for m in wanted.members if wanted.zone_of(m))
    late = goal_facts(scene)
    goal = Goal("main", leaving, joining, wanted.ack_quorum, allow_single_ack=True,
                ack_zones=wanted.ack_zones, zones=labels, allow_zone_stop=True, **late)  # fmt: skip
    scene.operators.append(Operator(scene, goal, coming))
    return False


def schedule(scene: Scene) -> None:
    """Start an operator now and then, rarely two at once."""
    world, random = scene.world, scene.world.random

    def want() -> None:
        at_work = [o for o in scene.operators if not o.is_over]
        if len(at_work) > 1 or (at_work and random.random() < 0.8):
            return
        current = scene.newest_members()
        lost = [n.member for n in scene.safekeepers if n.loss and n.member in current.members]
        goal, coming = None, list[Newcomer]()
        if world.options.resizes and not lost and random.random() < RESIZES:
            goal, coming = _resized(scene, current)
        if goal is None:
            goal, coming = _replaced(scene, current, lost)
        operator = Operator(scene, goal, coming)
        scene.operators.append(operator)
        if world.options.cancels and random.random() < CANCELS:
            world.later(random.uniform(0, CANCEL_MS_MAX), operator.cancel)

    world.every(GOALS_A_MINUTE, want)


def _replaced(
    scene: Scene, current: Configuration, lost: Sequence[str]
) -> tuple[Goal, list[Newcomer]]:
    random = scene.world.random
    leaving = random.choice(lost or current.members)
    number = len(scene.safekeepers) + 10 + unseen(scene)
    same = random.random() < 0.5 and not is_contested(scene)
    joining = member_id(leaving) if same else number
    zone = zone_of(joining, is_used=scene.world.options.has_zones)
    arriving = newcomers.Newcomer(joining, f"n{number}:1", NEWCOMER, zone)
    instead = random.random() < 0.3 and not is_contested(scene)
    late = goal_facts(scene)
    whom = ("main", (member_id(leaving),), (arriving,))
    goal = Goal(*whom, instead=instead, allow_zone_stop=True, **late)
    return goal, [Newcomer(scene, joining)]


def _zoned(scene: Scene, current: Configuration) -> Goal:
    """Return a goal that gives members other zones, and counts more or fewer of them."""
    random = scene.world.random
    zones = tuple((member_id(m), random.choice(LABELS)) for m in current.members)
    counted = [0, *(z for z in (2, 3) if z <= len({zone for _, zone in zones}))]
    return Goal("main", ack_zones=random.choice(counted), zones=zones, allow_zone_stop=True)


def _resized(scene: Scene, current: Configuration) -> tuple[Goal | None, list[Newcomer]]:
    """Return a goal of another size or ack quorum, or None if there is none just now."""
    random, size = scene.world.random, len(current.members)
    if scene.world.options.has_zones and random.random() < ZONES:
        return _zoned(scene, current), []
    change = random.choice((-2, -1, 0, 1, 2))
    later = size + change
    if not 1 <= later <= MEMBERS_MAX:
        return None, []
    quorum = random.choice(range(majority(later) if random.random() < 0.7 else 1, later + 1))
    leaving = tuple(map(member_id, random.sample(current.members, max(0, -change))))
    number = len(scene.safekeepers) + 10 + unseen(scene)
    coming = [Newcomer(scene, number + n) for n in range(max(0, change))]
    joining = tuple(
        newcomers.Newcomer(
            each.acceptor_id, f"n{each.acceptor_id}:1", NEWCOMER - n,
            zone_of(each.acceptor_id, is_used=scene.world.options.has_zones),
        )
        for n, each in enumerate(coming)
    )  # fmt: skip
    late = goal_facts(scene)
    goal = Goal(
        "main", leaving, joining, quorum, allow_single_ack=True, allow_zone_stop=True, **late
    )
    return goal, coming
