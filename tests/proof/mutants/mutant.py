"""A mutant: one rule taken out of a copy of the shipping source, by exact edits.

    plant(mutant, tree)         a copy of the source below `tree`, with the mutant in it

An edit names a definition, and syntax that stands in it exactly once (syntax.py); if it does not
any more, the mutant does not fit and is an error, never a mutant that was found.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.proof.mutants import syntax
from tests.proof.mutants.syntax import PACKAGES, DoesNotFit
from tests.support.folders import ROOT

# Programs that run stories by seed, and search: `python -m` these.
SIM = "tests.proof.sim"
BUSY, REPLACE, SWITCH, ARCHIVE, BULK = (
    f"{SIM} --{flag}" for flag in ("busy", "replace", "switch", "archive", "bulk")
)
RESIZE = f"{REPLACE} --resize"
LOGICAL_SIM = "tests.proof.sim.logical"
RIVALS = "tests.proof.register_rivals"

# Why no search finds a mutant.
REAL_FILES = "the simulated disks are no files"
NO_CONSUMERS = "the simulated logical logs have no consumers"
ONE_SERVER = "the simulated logical logs have one server, no copies of it, one set of publications"
ONLY_ROWS = "the simulated changes are rows of tables: no messages, no origins"
ONLY_MEMORY = "it costs memory and no byte of a log, so no oracle sees it"
BREAKS = "the code itself breaks on it: the search passes over that, the test does not"
WHOLE_FRAMES = "the simulated network damages no frame"
SEARCHED = "searched by its programs, and not met: too rare, or another guard holds"

# What the exploration runs of the shipping source.
EXPLORED = frozenset(
    (
        "acceptor", "answers", "readable", "durable", "history", "quorum",
        "proposer", "leadership", "progress", "feeding", "greetings", "primary_check", "gate",
        "campaign", "wal_window",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in the definition `where`: syntax.py has the rules."""

    where: str
    old: str
    new: str = ""

    @property
    def file(self) -> str:
        return syntax.place_of(self.where).file

    def made_in(self, text: str) -> str:
        """Return the file's text after the edit. DoesNotFit."""
        return syntax.edited(text, syntax.place_of(self.where).names, self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """name     for the command line and killers.json
    rule     in docs/protocol.md, `seed flaw N` of its deviations, or the module whose idea it is
    removed  what does not hold any more
    edits    all of them are made; a rule that is guarded twice needs two
    worlds   explorations that may find it (tests/proof/explore/runs.py), if not a small one
    turns_red  pytest's name of a test that turns red, where no search meets it soon
    searched_by  the programs whose seeds may find it, tried in turn
    why_named  why a named test has to turn red: the reason why no search finds it
    """

    name: str
    rule: str
    removed: str
    edits: tuple[Edit, ...]
    worlds: tuple[str, ...] = ()
    turns_red: str | None = None
    searched_by: tuple[str, ...] = (SIM,)
    why_named: str = ""

    @property
    def is_explored(self) -> bool:
        """Whether the exploration runs what was edited; drivers and storage it does not run."""
        return all(Path(edit.file).stem in EXPLORED for edit in self.edits)


CONTROL = Mutant("control", "", "nothing: the shipping source", ())


def plant(mutant: Mutant, tree: Path) -> None:
    """What simulator, exploration and the tests of the packages need, in the new folder `tree`;
    edited."""
    without = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=without, copy_function=_place)
    (tree / "tests/proof").mkdir(parents=True)
    for path in (*(ROOT / "tests").glob("*.py"), *(ROOT / "tests/proof").glob("*.py")):
        _place(path, tree / path.relative_to(ROOT))
    for name in (*PACKAGES, "support", "consensus", "proof/sim", "proof/explore"):
        shutil.copytree(
            ROOT / "tests" / name, tree / "tests" / name, ignore=without, copy_function=_place
        )
    shutil.copy(ROOT / "pyproject.toml", tree)
    for edit in mutant.edits:
        path = tree / edit.file
        try:
            text = edit.made_in(path.read_text())
        except DoesNotFit as error:
            raise DoesNotFit(f"{mutant.name}, in {edit.where}: {error}") from None
        path.unlink()
        path.write_text(text)


def _place(file: str | Path, path: str | Path) -> None:
    """Source, which no test writes, gets a second name: a tenth of a copy's cost."""
    with suppress(OSError):  # they are on two file systems
        if Path(file).suffix == ".py":
            os.link(file, path)
            return
    shutil.copy(file, path)
