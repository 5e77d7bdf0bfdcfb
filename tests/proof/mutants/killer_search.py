"""Looks for the killers of mutants: seeds from the same first one on, then the explorations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from tests.proof.explore.runs import ALL, SMALL
from tests.proof.mutants import killers
from tests.proof.mutants.attack import ExplorationKill, SimulatorKill, explore, planted, simulate
from tests.proof.mutants.catalogue import MUTANTS
from tests.proof.mutants.killers import Killers
from tests.proof.mutants.mutant import Mutant
from tests.proof.mutants.table import row_of


def find(
    mutants: Sequence[Mutant],
    *,
    minutes: float,
    seeds: int,
    jobs: int,
    base: int,
    by: str | None,
    missing_only: bool,
    tell: Callable[[str], None],
) -> int:
    """Search for `minutes` for each mutant by each of both. Return 1 if one survives."""
    kept, lock = killers.load(), Lock()
    names = [mutant.name for mutant in MUTANTS]

    def attack(mutant: Mutant) -> bool:
        found = kept.get(mutant.name, Killers())
        if missing_only:
            found = _that_still_kill(mutant, found)
        if by != "explore" and not (missing_only and found.simulator):
            found = Killers(_by_seed(mutant, base, seeds, minutes * 60), found.exploration)
        if by != "sim" and mutant.is_explored and not (missing_only and found.exploration):
            found = Killers(found.simulator, _by_world(mutant, minutes * 60))
        with lock:
            killers.save(killers.load() | {mutant.name: found}, names)
        shown = "; ".join(f"{kill} after {kill.took}, {kill.seconds} s" for kill in found.all)
        tell(f"{mutant.name:36} {shown or 'SURVIVES'}")
        return bool(found.all)

    with ThreadPoolExecutor(jobs) as pool:
        return 0 if all(list(pool.map(attack, mutants))) else 1


def _that_still_kill(mutant: Mutant, found: Killers) -> Killers:
    """Return the killers that still kill, since a change of the product moves what a seed does."""
    again = {type(kill) for kill in row_of(mutant, found.all).kills}
    return Killers(
        found.simulator if SimulatorKill in again else None,
        found.exploration if ExplorationKill in again else None,
    )


def _by_seed(mutant: Mutant, base: int, count: int, seconds: float) -> SimulatorKill | None:
    """Return the first kill by the mutant's own programs."""
    programs = mutant.searched_by
    with planted(mutant) as tree:
        for program in programs:
            kill = simulate(
                tree, by=program, first=base, count=count, seconds=seconds / len(programs)
            )
            if kill is not None:
                return kill
    return None


def _by_world(mutant: Mutant, seconds: float) -> ExplorationKill | None:
    """Search the mutant's own worlds, else the small ones, and return the first kill."""
    worlds = mutant.worlds or tuple(SMALL)
    with planted(mutant) as tree:
        for world in worlds:
            assert world in ALL, f"{mutant.name}: {world}"
            kill = explore(tree, world, seconds=seconds / len(worlds))
            if kill is not None:
                return kill
    return None
