"""The kept killers: for each mutant what has found it, in killers.json.

Seeds mean something else whenever the simulator draws its options in another order; then
`python -m tests.proof.mutants --find` writes the file again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.proof.mutants.attack import ExplorationKill, Kill, SimulatorKill
from tests.proof.mutants.mutant import SIM

PATH = Path(__file__).parent / "killers.json"


@dataclass(slots=True)
class Killers:
    """The killers of one mutant; either may be missing, a mutant without both survives."""

    simulator: SimulatorKill | None = None
    exploration: ExplorationKill | None = None

    @property
    def all(self) -> list[Kill]:
        return [kill for kill in (self.simulator, self.exploration) if kill is not None]

    @property
    def quickest(self) -> Kill | None:
        """A seed is found again in the time of one seed, a state only after all before it."""
        return min(self.all, key=_again_s, default=None)


def _again_s(kill: Kill) -> float:
    if isinstance(kill, ExplorationKill):
        return kill.seconds
    return kill.seconds / kill.searched + 1.0 * (kill.code == 3)


def load() -> dict[str, Killers]:
    """Return the killers by the mutant's name."""
    kept: dict[str, dict[str, dict[str, object]]] = {}
    if PATH.exists():
        kept = json.loads(PATH.read_text())
    return {name: _decoded(both) for name, both in kept.items()}


def _decoded(both: dict[str, dict[str, object]]) -> Killers:
    seed, world = both.get("simulator"), both.get("exploration")
    return Killers(
        None if seed is None else SimulatorKill(**seed),  # type: ignore[arg-type]
        None if world is None else ExplorationKill(**world),  # type: ignore[arg-type]
    )


def save(killers: dict[str, Killers], names: list[str]) -> None:
    """Save the killers of `names`, in that order, and no others."""
    kept = {}
    for name in names:
        if name in killers and killers[name].all:
            found = asdict(killers[name])
            kept[name] = {kind: kill for kind, kill in found.items() if kill is not None}
            if found["simulator"] is not None and found["simulator"]["program"] == SIM:
                del found["simulator"]["program"]  # the usual one is not written down
    PATH.write_text(json.dumps(kept, indent=1) + "\n")
