"""Breadth first through every state within the bounds; the first violation has the shortest story.

States are kept as 64-bit fingerprints with that of the state before, as TLC does it. A violation's
story is played again from the initial state.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.proof.explore.bounds import Bounds
from tests.proof.explore.explored_world import Action, State, World
from tests.proof.explore.member_world import MemberWorld
from tests.proof.sim.oracle import Violation


@dataclass(slots=True)
class Result:
    """`story` leads to `violation`. collision: how likely a fingerprint hid a state."""

    bounds: Bounds
    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    is_exhausted: bool = False
    violation: str | None = None
    story: list[Action] = field(default_factory=list)
    broken: dict[str, int] = field(default_factory=dict)
    sizes: str = ""

    @property
    def collision(self) -> float:
        return self.states * (self.steps - self.states) / 2.0**64


def explore(
    bounds: Bounds,
    *,
    states_max: int | None = None,
    seconds_max: float | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Result:
    world = MemberWorld(bounds) if bounds.commands else World(bounds)
    result = Result(bounds)
    started = time.monotonic()
    before: dict[int, int] = {hash(world.initial): 0}
    level: list[State] = [world.initial]
    gc.disable()
    try:
        while level:
            following: list[State] = []
            for number, state in enumerate(level):
                if seconds_max is not None and number % 1024 == 0:
                    spent = time.monotonic() - started
                    if spent > seconds_max:
                        return result
                origin = hash(state)
                for action, after in world.successors(state):
                    result.steps += 1
                    if isinstance(after, Violation):
                        result.violation = str(after)
                        result.story = [*story(world, before, origin), action]
                        return result
                    fingerprint = hash(after)
                    if fingerprint not in before:
                        before[fingerprint] = origin
                        following.append(after)
                if states_max is not None and len(before) > states_max:
                    return result
            level = following
            result.depth += bool(level)
            spent = time.monotonic() - started
            tell(
                f"depth {result.depth}: {len(before)} states, {len(level)} new, "
                f"{result.steps / spent:.0f} steps/s; {world.table.sizes}"
            )
        result.is_exhausted = True
        return result
    finally:
        gc.enable()
        result.states = len(before)
        result.seconds = time.monotonic() - started
        result.broken, result.sizes = world.table.broken, world.table.sizes


def story(world: World, before: dict[int, int], fingerprint: int) -> list[Action]:
    """Return the actions that lead there from the initial state."""
    path = [fingerprint]
    while before[path[-1]]:
        path.append(before[path[-1]])
    state, actions = world.initial, []
    for wanted in reversed(path[:-1]):
        for action, after in world.successors(state):
            if not isinstance(after, Violation) and hash(after) == wanted:
                state = after
                actions.append(action)
                break
    return actions
