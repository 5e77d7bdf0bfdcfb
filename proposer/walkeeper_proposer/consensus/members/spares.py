"""`walkeeper spare`: which safekeepers may take the place of a silent member (M6). Pure.

The configuration lists them, so the register decides on the list as on members: the next
generation has the same members and another list. Any proposer that is elected knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from walkeeper_common.errors import Refused
from walkeeper_common.quorum import Configuration, member_id, shown_spare, spare_id
from walkeeper_common.wire.member_change import InstallMembers, with_spares
from walkeeper_common.wire.requests import LogQuery
from walkeeper_proposer.consensus.members.deciding import (
    Answers,
    Batch,
    Steps,
    decide,
    holds_quorum,
    install,
    look,
    states_of,
    under_way,
    way_back,
)
from walkeeper_proposer.consensus.members.newcomers import Newcomer, log_of


@dataclass(frozen=True, slots=True)
class SpareGoal:
    """The safekeepers `adding` become spares, and those with an id in `removing` are none then."""

    cluster: str
    adding: tuple[Newcomer, ...] = ()
    removing: tuple[int, ...] = ()

    def spares(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """Return the wanted list: those that stay, then the new ones, each id once."""
        added = [shown_spare(each.number, each.address, each.zone) for each in self.adding]
        going = {*self.removing, *map(spare_id, added)}
        kept = [spare for spare in present if spare in added or spare_id(spare) not in going]
        return (*kept, *(spare for spare in added if spare not in kept))


def change_spares(goal: SpareGoal, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
    """Return the configuration with the wanted spares; raise Refused if it is impossible.

    `places` are the numbers of all known safekeepers, with the new spares. `draw` returns 16 random
    bytes.
    """
    while True:
        current, answers = yield from look(goal.cluster, places)
        if current is None:
            continue
        states = states_of(answers)
        yield from install(goal.cluster, current, states)
        wanted = goal.spares(current.spares)
        if wanted == current.spares:
            if holds_quorum(current, [s for s in states.values() if s.configuration == current]):
                return current
            yield Batch(text="waiting until a quorum of the members knows of it", current=current)
            continue
        if current.target is not None:
            raise Refused(
                f"{under_way(current)}: repeat this command when that has ended, or take it back "
                f"with {way_back(current)} first"
            )
        absent = yield from _check_new(goal, current)
        if absent is not None:
            yield Batch(text=absent.absence, current=current)
            continue
        following = with_spares(current, wanted)
        decided = yield from decide(goal.cluster, current, following, places, states, draw)
        if decided is not None:
            yield Batch(dict.fromkeys(places, InstallMembers(goal.cluster, decided)))


def _check_new(
    goal: SpareGoal, current: Configuration
) -> Generator[Batch, Answers, Newcomer | None]:
    """Return a new spare that does not answer, or None. Raise Refused for one that cannot join."""
    members = set(map(member_id, current.members))
    for spare in goal.adding:
        if spare.number in members:
            raise Refused(f"safekeeper {spare.number} is a member; name one that is not")
    if not goal.adding:
        return None
    query = LogQuery(goal.cluster)
    answers = yield Batch({spare.at: query for spare in goal.adding})
    for spare in goal.adding:
        if log_of(goal.cluster, current, spare, answers) is None:
            return spare
    return None
