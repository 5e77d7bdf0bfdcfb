"""A few members whose registers are stepped here, without disks and sockets, and their commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random

from tests.support.replaced_members import durable_of
from tests.support.scenario_words import CREATION_LSN, incarnation_of
from walkeeper_common.errors import Refused
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    AcceptMembers,
    InstallMembers,
    JoinLog,
    MembersQuery,
    MembersState,
    PromiseMembers,
)
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.requests import LogQuery, PrepareLog
from walkeeper_proposer.consensus.members.deciding import Answers, Batch, Steps
from walkeeper_proposer.consensus.members.replacing import Replacement, replace_member
from walkeeper_safekeeper.consensus.creation import prepared, state_of
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.member_register import changed, joined


class Few:
    """Safekeepers that are nothing but their control files; place 9 is the newcomer's."""

    def __init__(
        self,
        *,
        has_leader: bool = True,
        oldest_lsn: Lsn = CREATION_LSN,
        restart: int = 4000,
        whole: int | None = None,
    ) -> None:
        """Put the last whole record at `restart` on the disks, which ends there or at `whole`."""
        self.held: dict[int, Durable | None] = {n: durable_of(n) for n in (1, 2, 3)}
        self.held |= {4: None, 5: None}
        self.has_leader, self.oldest_lsn = has_leader, oldest_lsn
        self.restart_lsn = CREATION_LSN + restart
        self.whole_lsn = self.restart_lsn if whole is None else Lsn(whole and CREATION_LSN + whole)
        self.decided: dict[int, set[Configuration]] = {}
        self.down: set[int] = set()

    def answer(self, number: int, ask: Message) -> Message | None:
        durable = self.held[number]
        if number in self.down:
            return None
        match ask:
            case LogQuery():
                pass
            case PrepareLog():
                name = incarnation_of(number)
                self.held[number] = prepared(durable, ask, acceptor_id=number, incarnation=name)
            case JoinLog() if durable is not None:
                made = joined(durable, ask)
                assert isinstance(made, Durable), made
                self.held[number] = made
            case MembersQuery() | PromiseMembers() | AcceptMembers() | InstallMembers():
                if durable is None or durable.configuration is None:
                    return Reject(RejectCode.UNKNOWN_LOG, "no log", NO_BALLOT)
                made_ = changed(durable, ask)
                self.held[number] = made_ or durable
                if isinstance(ask, InstallMembers):
                    known = self.decided.setdefault(ask.configuration.generation, set())
                    known.add(ask.configuration)
                return self._state(number, granted=made_ is not None)
        return state_of(number, self.held[number])

    def _state(self, number: int, *, granted: bool) -> MembersState:
        durable = self.held[number]
        assert durable is not None and durable.configuration is not None
        return MembersState(
            member_name(durable.acceptor_id, durable.incarnation),
            granted,
            durable.configuration,
            durable.change_round,
            durable.accepted_round,
            durable.accepted,
            self.has_leader,
            CREATION_LSN if number == 4 and not self.has_leader else self.restart_lsn + 1000,
            self.restart_lsn + 1000,
            self.restart_lsn,
            durable.history,
            self.oldest_lsn,
            self.whole_lsn,
        )

    def answers(self, batch: Batch, lost: Random | None = None) -> Answers:
        found = {}
        for number, ask in batch.requests.items():
            if lost is not None and lost.random() < 0.15:
                continue
            answer = self.answer(number, ask)
            if answer is not None and (lost is None or lost.random() > 0.15):
                found[number] = answer
        return found

    def newest(self) -> Configuration:
        held = [d.configuration for d in self.held.values() if d is not None and d.configuration]
        return max(held, key=lambda configuration: configuration.generation)

    def generations(self) -> list[int]:
        held = [self.held[n] for n in self.held]
        return [d.configuration.generation for d in held if d is not None and d.configuration]


def command(few: Few, goal: Replacement, numbers: count[int]) -> Steps:
    places = sorted({1, 2, 3, goal.at})
    return replace_member(goal, places, lambda: next(numbers).to_bytes(16))


def goal_of(leaving: int, joining: int, *, instead: bool = False) -> Replacement:
    return Replacement("main", leaving, joining, f"h{joining}:1", joining, instead=instead)


def run(few: Few, steps: Steps, *, rounds: int = 60) -> Configuration:
    batch = next(steps)
    for _ in range(rounds):
        try:
            batch = steps.send(few.answers(batch))
        except StopIteration as done:
            made = done.value
            assert isinstance(made, Configuration)
            return made
    raise AssertionError(f"no end: {batch}")


def run_side_by_side(few: Few, random: Random, commands: Sequence[Callable[[], Steps]]) -> None:
    """Run the commands side by side: steps in any order, with questions and answers lost.

    Each command is killed again and again."""
    running: dict[int, tuple[Steps, Batch]] = {}
    for _ in range(150):
        which = random.randrange(len(commands))
        if which not in running or random.random() < 0.05:
            steps = commands[which]()
            running[which] = (steps, next(steps))
        steps, batch = running.pop(which)
        try:
            running[which] = (steps, steps.send(few.answers(batch, random)))
        except (StopIteration, Refused):
            continue
        few.down = {random.choice((1, 2, 3))} if random.random() < 0.3 else set()


def assert_one_for_each_generation(rivals: Callable[[Random], Few]) -> None:
    generations = 0
    for seed in range(400):
        decided = rivals(Random(seed)).decided
        assert all(len(known) == 1 for known in decided.values()), f"{seed=} {decided}"
        generations += len(decided)
    assert generations > 800, "they got somewhere"
