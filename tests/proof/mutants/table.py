"""The table of mutants: each with the killers that were kept for it, run again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from tests.proof.explore.__main__ import run_apart
from tests.proof.mutants.attack import (
    ExplorationKill,
    Kill,
    SimulatorKill,
    TestKill,
    explore,
    planted,
    simulate,
    turn_red,
)
from tests.proof.mutants.killers import Killers
from tests.proof.mutants.mutant import CONTROL, Mutant

RUN_S = 600.0
HEAD = f"{'rule':12} {'what was removed':76} {'killer':44} {'it took':>16} {'seconds':>8}"


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant and what killed it now."""

    mutant: Mutant
    kills: tuple[Kill | TestKill, ...]
    seconds: float

    @property
    def is_killed(self) -> bool:
        return bool(self.kills)

    def __str__(self) -> str:
        lines = [
            f"{'':12} {'':76} {kill!s:44} {kill.took:>16} {kill.seconds:8.1f}"
            for kill in self.kills
        ] or [f"{'':12} {'':76} SURVIVES"]
        lines[0] = f"{self.mutant.rule:12} {self.mutant.removed:76.76}" + lines[0][89:]
        return "\n".join(lines)

    def facts(self) -> dict[str, object]:
        mutant = self.mutant
        return {
            "name": mutant.name,
            "rule": mutant.rule,
            "removed": mutant.removed,
            "kills": [{"killer": str(kill), "took": kill.took} | asdict(kill)
                      for kill in self.kills],
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


def rows(mutants: Sequence[Mutant], kept: Mapping[str, Killers], *, jobs: int) -> Iterator[Row]:
    """Yield rows in order; the killers that do not kill any more are left out."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda m: row_of(m, kept.get(m.name, Killers()).all), mutants)


def row_of(mutant: Mutant, killers: Sequence[Kill]) -> Row:
    started = time.monotonic()
    with planted(mutant) as tree:
        kills: list[Kill | TestKill] = []
        red = turn_red(tree, mutant.turns_red) if mutant.turns_red is not None else None
        kills += [red] if red is not None else []
        for killer in killers:
            if isinstance(killer, SimulatorKill):
                kill: Kill | None = simulate(
                    tree, by=killer.program, first=killer.seed, count=1, seconds=RUN_S
                )
            else:
                kill = explore(tree, killer.world, seconds=RUN_S)
            if kill is not None:
                kills.append(_with_effort(kill, killer))
    return Row(mutant, tuple(kills), time.monotonic() - started)


def _with_effort(kill: Kill, killer: Kill) -> Kill:
    """Take from the search how many seeds it searched."""
    if isinstance(kill, SimulatorKill) and isinstance(killer, SimulatorKill):
        return replace(kill, searched=killer.searched)
    return kill


@dataclass(frozen=True, slots=True)
class Line:
    """The shipping source on the same seeds, or in the same world."""

    what: str
    found: str
    seconds: float

    @property
    def is_green(self) -> bool:
        return not self.found

    def __str__(self) -> str:
        return f"{'control':12} {self.what:76} {self.found or 'green':61} {self.seconds:8.1f}"

    def facts(self) -> dict[str, object]:
        return {"what": self.what, "found": self.found, "seconds": round(self.seconds, 1)}


def control(mutants: Sequence[Mutant], kept: Mapping[str, Killers]) -> list[Line]:
    """Run the shipping source on every seed and in every world that kills one of these."""
    kills = [kill for m in mutants for kill in kept.get(m.name, Killers()).all]
    seeds = seeds_of(kills)
    worlds = sorted({kill.world for kill in kills if isinstance(kill, ExplorationKill)})
    return [
        *(control_of_seeds(program, seeds[program]) for program in seeds),
        *(control_of_world(world) for world in worlds),
    ]


def seeds_of(kills: Iterable[Kill]) -> dict[str, list[int]]:
    """Return the seeds of these kills by program, both in order."""
    known = {(kill.program, kill.seed) for kill in kills if isinstance(kill, SimulatorKill)}
    seeds: dict[str, list[int]] = {}
    for program, seed in sorted(known):
        seeds.setdefault(program, []).append(seed)
    return seeds


def control_of_seeds(program: str, seeds: Sequence[int]) -> Line:
    started, found = time.monotonic(), []
    with planted(CONTROL) as tree:
        for first, count in _runs(seeds):
            kill = simulate(tree, by=program, first=first, count=count, seconds=RUN_S)
            if kill is not None:
                found.append(f"seed {kill.seed}: {kill.text}")
    what = f"{program}, {len(seeds)} seeds"
    return Line(what, "; ".join(found), time.monotonic() - started)


def _runs(seeds: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first, count) of seeds without a gap."""
    runs: list[tuple[int, int]] = []
    for seed in seeds:
        if runs and sum(runs[-1]) == seed:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((seed, 1))
    return runs


def control_of_world(world: str) -> Line:
    """Explore every state of a world."""
    started = time.monotonic()
    _, code, text = run_apart(world)
    return Line(f"exploration {world}", text if code else "", time.monotonic() - started)
