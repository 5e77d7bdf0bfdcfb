"""Two `replace` commands and a cancel rival for the register of members, and safekeepers crash.

    python -m tests.proof.register_rivals --seeds 1000           a search
    python -m tests.proof.register_rivals --from 7 --seeds 1     one story

The shipping steps of the command and the shipping acceptor run without sockets and without WAL.
Questions and answers get lost. Commands are killed and begin anew. A crash leaves a safekeeper
what a Persist made durable. A leader that commits is taken for granted: tests.proof.sim --replace
has real ones.

    Successor   one configuration follows each generation
    Vow         a safekeeper never goes back to a smaller round or an older generation

In the end nothing goes wrong any more, and each command has to come to its end.

Exit codes are those of tests.proof.sim.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from random import Random

from tests.proof.sim.command_line import main
from tests.proof.sim.oracle import NoProgress, Oracle
from tests.proof.sim.search import Run, outcome_of
from tests.support.scenario_words import CREATION_LSN, LOG_UUID, configuration_of, incarnation_of
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT, Ballot, Fragment
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
)
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import LogQuery, PrepareLog
from walkeeper_proposer.consensus.members.deciding import Batch, Steps
from walkeeper_proposer.consensus.members.replacing import (
    Replacement,
    cancel_replacement,
    replace_member,
)
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import Persist, Received, Send
from walkeeper_safekeeper.consensus.creation import prepared, state_of
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import joined

CLUSTER = "main"
QUORUMS = ((3, 2), (4, 3), (5, 3), (5, 4), (5, 2), (2, 2))  # a seed's members and ack quorum
NEWCOMERS = (8, 9)  # one of each command
CANCEL = len(NEWCOMERS)  # the third command
STEPS = 200
STEPS_TO_END = 60  # for one command that runs undisturbed
COMMITTED_LSN = CREATION_LSN + 1000
CONNECTION = 1


class Successor(Oracle):
    """A configuration is decided once an ack quorum accepted it in one round, or it is installed.

    It counts for itself what a quorum is: both `elects` and `commits` may be wrong.
    """

    def __init__(self, first: Configuration) -> None:
        self.decided = {first.generation: first}
        self._acceptances: dict[tuple[Ballot, Configuration], set[int]] = defaultdict(set)

    def on_durable(self, number: int, durable: Durable) -> None:
        """Note that `durable` is on the disk of safekeeper `number` from now on."""
        configuration, following = durable.configuration, durable.accepted
        if configuration is None or following is None:
            return
        accepted = self._acceptances[durable.accepted_round, following]
        if f"{number}#{durable.incarnation.hex()}" in configuration.members:
            accepted.add(number)
        if len(accepted) >= configuration.ack_quorum:
            self.on_decided(following)

    def on_decided(self, configuration: Configuration) -> None:
        other = self.decided.setdefault(configuration.generation, configuration)
        if other != configuration:
            self.fail(f"generation {configuration.generation} is {_shown(other)} and "
                      f"{_shown(configuration)}")  # fmt: skip


class Vow(Oracle):
    """A round that was granted binds its safekeeper until it leaves the generation."""

    def __init__(self) -> None:
        self._granted: dict[int, tuple[int, Ballot]] = {}

    def on_granted(self, number: int, state: MembersState) -> None:
        """Note that the command learned `state`, which holds for good."""
        self._check(number, state.configuration, state.round)
        self._granted[number] = (state.configuration.generation, state.round)

    def on_restart(self, number: int, durable: Durable) -> None:
        assert durable.configuration is not None, f"{number=}"
        self._check(number, durable.configuration, durable.change_round)

    def _check(self, number: int, configuration: Configuration, round_: Ballot) -> None:
        found, granted = (configuration.generation, round_), self._granted.get(number)
        if granted is not None and found < granted:
            self.fail("safekeeper {} granted generation {} round {}, has generation {} round {}"
                      .format(number, *granted, *found))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chances:
    """Drawn from the seed; some of them are zero."""

    loss: float
    kill: float
    crash: float
    # the chance of a step that cuts a command off from some safekeepers, until the next
    partition: float

    @classmethod
    def draw(cls, random: Random) -> Chances:
        return cls(
            loss=random.choice((0.0, 0.1, 0.25)),
            kill=random.choice((0.0, 0.05, 0.15)),
            crash=random.choice((0.0, 0.03, 0.1)),
            partition=random.choice((0.0, 0.1, 0.3)),
        )


class Keeper:
    """A safekeeper that has a control file and an acceptor, and no WAL."""

    def __init__(self, number: int, successor: Successor, vow: Vow) -> None:
        self.number, self._successor, self._vow = number, successor, vow
        self.disk: Durable | None = None
        self._acceptor: Acceptor | None = None

    def found(self, configuration: Configuration) -> None:
        """Make this safekeeper a member of a new log."""
        members, quorum = configuration.members, configuration.ack_quorum
        self._write(
            Durable(
                self.number,
                incarnation_of(self.number),
                LOG_UUID,
                configuration,
                history=(Fragment(NO_BALLOT, CREATION_LSN, 1, False, members, quorum),),
                commit_lsn=CREATION_LSN,
                restart_lsn=CREATION_LSN,
                reached_lsn=CREATION_LSN,
            )
        )
        self.restart()

    def restart(self) -> None:
        """Forget what the disk does not have."""
        if self.disk is not None and self.disk.configuration is not None:
            self._vow.on_restart(self.number, self.disk)
            at = CREATION_LSN
            self._acceptor = Acceptor(self.disk, oldest_lsn=at, flush_lsn=at, record_lsn=at)

    def _write(self, durable: Durable) -> None:
        self.disk = durable
        self._successor.on_durable(self.number, durable)

    def answer(self, ask: Message) -> Message:
        match ask:
            case LogQuery():
                pass
            case PrepareLog():
                name = incarnation_of(self.number)
                self._write(prepared(self.disk, ask, acceptor_id=self.number, incarnation=name))
            case JoinLog() if self.disk is not None:
                made = joined(self.disk, ask)
                if isinstance(made, Durable) and made is not self.disk:
                    self._write(made)
                    self.restart()
            case _:
                return self._acceptors_answer(ask)
        return state_of(self.number, self._acceptor.durable if self._acceptor else self.disk)

    def _acceptors_answer(self, ask: Message) -> Message:
        if self._acceptor is None:
            return Reject(RejectCode.UNKNOWN_LOG, "no log", NO_BALLOT)
        answers = []
        for effect in self._acceptor.step(Received(CONNECTION, ask)):
            if isinstance(effect, Persist):
                self._write(effect.state)
            if isinstance(effect, Send) and isinstance(effect.message, MembersState):
                answers.append(effect.message)
        (state,) = answers
        if state.granted and not isinstance(ask, MembersQuery):
            self._vow.on_granted(self.number, state)
        lsn = COMMITTED_LSN
        return replace(state, has_committed=True, commit_lsn=lsn, flush_lsn=lsn)


class Story:
    """Three commands, each step of which may come next."""

    def __init__(self, seed: int, show: Callable[[str], None] | None = None) -> None:
        self._random, self._show = Random(seed), show
        self.facts: Counter[str] = Counter()
        self.configuration = configuration_of(*QUORUMS[seed % len(QUORUMS)])
        self.successor, vow = Successor(self.configuration), Vow()
        size = len(self.configuration.members)
        self._keepers = {
            n: Keeper(n, self.successor, vow) for n in (*range(1, size + 1), *NEWCOMERS)
        }
        self._old = range(1, size + 1)
        for number in self._old:
            self._keepers[number].found(self.configuration)
        self._chances = Chances.draw(self._random)
        leaving = (size, self._random.choice((size, size - 1)))
        self._goals = [
            Replacement(CLUSTER, old, new, f"h{new}:1", new, instead=True)
            for old, new in zip(leaving, NEWCOMERS, strict=True)
        ]
        self._rounds = count(1)
        self._running: dict[int, tuple[Steps, Batch]] = {}
        self._cut_off = [set[int]() for _ in (*self._goals, CANCEL)]

    def run(self) -> None:
        for _ in range(STEPS):
            self._step(self._random.randrange(len(self._cut_off)))
            self._trouble()
        self._demand_progress()
        decided = self.successor.decided
        self.facts["generations"] += len(decided)
        self.facts["cancels"] += sum(
            bool(c.joining) and g + 1 in decided and decided[g + 1].members == c.members
            and not decided[g + 1].joining
            for g, c in decided.items()
        )  # fmt: skip

    def _demand_progress(self) -> None:
        self._chances = Chances(loss=0.0, kill=0.0, crash=0.0, partition=0.0)
        for which, cut_off in enumerate(self._cut_off):
            cut_off.clear()
            self._start(which, list(self._keepers))  # the other one may have replaced a member
            for _ in range(STEPS_TO_END):
                if which in self._running:
                    self._step(which)
            if which in self._running:
                raise NoProgress(f"command {which}: {self._running[which][1].text}")

    def _step(self, which: int) -> None:
        if which not in self._running or self._happens(self._chances.kill):
            newcomer = [] if which == CANCEL else [self._goals[which].at]
            self._start(which, [*self._old, *newcomer])
        steps, batch = self._running.pop(which)
        try:
            self._running[which] = (steps, steps.send(self._answers(which, batch.requests)))
        except StopIteration:
            self.facts["commands finished"] += 1
        except Refused:
            self.facts["commands refused"] += 1

    def _start(self, which: int, places: list[int]) -> None:
        if which == CANCEL:
            steps = cancel_replacement(CLUSTER, None, places, self._draw)
        else:
            steps = replace_member(self._goals[which], places, self._draw)
        self._running[which] = (steps, next(steps))
        self.facts["commands started"] += 1

    def _draw(self) -> bytes:
        return next(self._rounds).to_bytes(16)

    def _happens(self, chance: float) -> bool:
        return self._random.random() < chance

    def _answers(self, which: int, requests: Mapping[int, Message]) -> dict[int, Message]:
        answers = {}
        for number, ask in requests.items():
            if isinstance(ask, InstallMembers):
                self.successor.on_decided(ask.configuration)
            if number in self._cut_off[which] or self._happens(self._chances.loss):
                continue
            answer = self._keepers[number].answer(ask)
            is_lost = self._happens(self._chances.loss)
            if not is_lost:
                answers[number] = answer
            self._say(f"{which} to sk{number}: {ask}\n    {'LOST ' * is_lost}{answer}")
        return answers

    def _trouble(self) -> None:
        for keeper in self._keepers.values():
            if self._happens(self._chances.crash):
                keeper.restart()
                self.facts["crashes"] += 1
                self._say(f"sk{keeper.number} CRASH")
        for which, cut_off in enumerate(self._cut_off):
            if self._happens(self._chances.partition):
                cut_off.clear()
                how_many = self._random.randrange(len(self._old)) if self._happens(0.7) else 0
                cut_off.update(self._random.sample(self._old, how_many))
                self._say(f"command {which} reaches all but {sorted(cut_off)}")

    def _say(self, line: str) -> None:
        if self._show is not None:
            self._show(line)


def _shown(configuration: Configuration) -> str:
    if configuration.joining:
        return f"{configuration.leaving[:1]} by {configuration.joining[:1]}"
    return "of " + ", ".join(member.partition("#")[0] for member in configuration.members)


def run(seed: int, *, show: Callable[[str], None] | None = None, **asked: bool) -> Run:
    """Return the seed's outcome; `show` is called with a line for each message."""
    assert not asked, f"{asked=}"
    story = Story(seed, show)
    code, oracle, text = outcome_of(story.run)
    return Run(
        seed=seed,
        code=code,
        oracle=oracle,
        text=text or f"{len(story.successor.decided)} generations",
        events=STEPS,
        acknowledged_bytes=0,
        simulated_s=0.0,
        faults=Counter(crashes=story.facts["crashes"]),
        facts=story.facts,
    )


if __name__ == "__main__":
    sys.exit(main("tests.proof.register_rivals", __doc__, run, {}))
