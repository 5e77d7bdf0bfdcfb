"""A mutant: one rule taken out of a copy of the shipping source, by exact edits.

    plant(mutant, tree)         a copy of the source below `tree`, with the mutant in it

An edit names a definition, and syntax that stands in it exactly once (syntax.py). If it is not
there any more, the mutant does not fit. That is an error, never a mutant that was found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.proof.mutants import syntax
from tests.proof.mutants.syntax import PACKAGES, SOURCES, DoesNotFit
from tests.support.folders import ROOT

# Programs that run stories by seed, and search: `python -m` these.
SIM = "tests.proof.sim"
BUSY, REPLACE, SWITCH, ARCHIVE, BULK, CLOSE = (
    f"{SIM} --{flag}" for flag in ("busy", "replace", "switch", "archive", "bulk", "close")
)
RESIZE = f"{REPLACE} --resize"
LOGICAL_SIM = "tests.proof.sim.logical"
RIVALS = "tests.proof.register_rivals"

FAST_PATH = "fastpath/walkeeper_fastpath/_fastpath.pyx"
FAST_FRAMES = "fastpath/walkeeper_fastpath/_frames.pxi"
FAST_FILES = "fastpath/walkeeper_fastpath/_files.pxi"
FAST_CHANNEL = "fastpath/walkeeper_fastpath/_channel.pxi"
APPEND_PATH = "fastpath/walkeeper_fastpath/_appends.pxi"
STREAM_PATH = "fastpath/walkeeper_fastpath/_stream.pxi"
PRIMARY_PATH = "fastpath/walkeeper_fastpath/_primary.pxi"
WALK = "analysis/walkeeper_wal/records/_walk.pyx"
SEGMENT_SUMS = "analysis/walkeeper_wal/records/_sums.pxi"
REDO = "analysis/walkeeper_replay/redo/_redo.pyx"
HEAP_PAGE = "analysis/walkeeper_replay/redo/heap_page.pxd"
APPLY = "analysis/walkeeper_replay/redo/apply.pxi"
PAGE_RESETS = "analysis/walkeeper_replay/redo/page_resets.pxi"
WHOLE_PAGES = "analysis/walkeeper_replay/redo/whole_pages.pxi"
REDO_CALLS = "analysis/walkeeper_replay/redo/redo_calls.pxi"
# By what compiles it.
COMPILED = {
    FAST_FRAMES: FAST_PATH,
    FAST_FILES: FAST_PATH,
    FAST_CHANNEL: FAST_PATH,
    APPEND_PATH: FAST_PATH,
    STREAM_PATH: FAST_PATH,
    PRIMARY_PATH: FAST_PATH,
    WALK: WALK,
    SEGMENT_SUMS: WALK,
    HEAP_PAGE: REDO,
    APPLY: REDO,
    PAGE_RESETS: REDO,
    WHOLE_PAGES: REDO,
    REDO_CALLS: REDO,
}

# Why no search finds a mutant.
REAL_FILES = "the simulated disks are no files"
NO_CONSUMERS = "the simulated logical logs have no consumers"
ONE_SERVER = "the simulated logical logs have one server, no copies of it, one set of publications"
ONLY_ROWS = "the simulated changes are rows of tables: no messages, no origins"
ONLY_MEMORY = "it costs memory and no byte of a log, so no oracle sees it"
BREAKS = "the code itself breaks on it: the search passes over that, the test does not"
WHOLE_FRAMES = "the simulated network damages no frame"
REAL_DESCRIPTORS = "the simulated disks have no descriptors and run no system call"
SEED_MOVES = "a search meets it, by a seed that each change of the product moves"
SEARCHED = "searched by its programs, and not met: too rare, or another guard holds"

# Folders of tests that are named after no package that is searched.
TESTED = ("archive", "cli", "history", "pager", "replay")

# The shipping source that the exploration runs: both cores, and the arithmetic that they share. The
# compiled fast path has to end where they do.
EXPLORED = (
    FAST_FRAMES,
    APPEND_PATH,
    STREAM_PATH,
    PRIMARY_PATH,
    "safekeeper/walkeeper_safekeeper/consensus/",
    "proposer/walkeeper_proposer/consensus/",
    "common/walkeeper_common/history.py",
    "common/walkeeper_common/quorum.py",
)


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
class FastEdit:
    """`old`, which stands there once as text, becomes `new` in a file of COMPILED.

    `plant` compiles it again."""

    old: str
    new: str
    file: str

    @property
    def where(self) -> str:
        return self.file

    def made_in(self, text: str) -> str:
        """Return the file's text after the edit. DoesNotFit."""
        if text.count(self.old) != 1:
            raise DoesNotFit(f"{self.old!r} stands there {text.count(self.old)} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """name     for the command line and killers.json
    rule     in docs/protocol.md, `seed flaw N` of its deviations, or the module whose idea it is
    removed  the rule that does not hold any more
    edits    all of them are made; a rule that is guarded twice needs two
    worlds   explorations that may find it (tests/proof/explore/runs.py), if not a small one
    turns_red  pytest's name of a test that turns red, where no search meets it soon
    searched_by  the programs whose seeds may find it, tried in turn
    why_named  why a named test has to turn red: the reason why no search finds it
    """

    name: str
    rule: str
    removed: str
    edits: tuple[Edit | FastEdit, ...]
    worlds: tuple[str, ...] = ()
    turns_red: str | None = None
    searched_by: tuple[str, ...] = (SIM,)
    why_named: str = ""

    @property
    def is_explored(self) -> bool:
        """True if the exploration runs what was edited; drivers and storage it does not run."""
        return all(edit.file.startswith(EXPLORED) for edit in self.edits)


CONTROL = Mutant("control", "", "nothing: the shipping source", ())


def plant(mutant: Mutant, tree: Path) -> None:
    """Copy the source and all that its proofs need to the new folder `tree`, and make the edits."""
    without = shutil.ignore_patterns("__pycache__", "*.pyc", "*.egg-info")
    for package in SOURCES:
        shutil.copytree(ROOT / package, tree / package, ignore=without, copy_function=_place)
    (tree / "tests/proof").mkdir(parents=True)
    for path in (*(ROOT / "tests").glob("*.py"), *(ROOT / "tests/proof").glob("*.py")):
        _place(path, tree / path.relative_to(ROOT))
    for name in (*PACKAGES, *TESTED, "support", "consensus", "proof/sim", "proof/explore"):
        shutil.copytree(
            ROOT / "tests" / name, tree / "tests" / name, ignore=without, copy_function=_place
        )
    shutil.copytree(ROOT / "docs/systemd", tree / "docs/systemd")  # A test reads the units.
    shutil.copy(ROOT / "pyproject.toml", tree)
    for edit in mutant.edits:
        path = tree / edit.file
        try:
            text = edit.made_in(path.read_text())
        except DoesNotFit as error:
            raise DoesNotFit(f"{mutant.name}, in {edit.where}: {error}") from None
        path.unlink()
        path.write_text(text)
    for compiled in {COMPILED[e.file] for e in mutant.edits if e.file in COMPILED}:
        _compile(tree / compiled)


def _compile(path: Path) -> None:
    for made in (*path.parent.glob("*.c"), *path.parent.glob("*.so")):
        made.unlink()
    command = [sys.executable, "-m", "Cython.Build.Cythonize", "-q", "-i", path.name]
    done = subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DoesNotFit(f"it cannot be compiled: {done.stderr}")


def _place(file: str | Path, path: str | Path) -> None:
    """Give source, which no test writes, a second name: a tenth of a copy's cost."""
    with suppress(OSError):  # they are on two file systems
        if Path(file).suffix == ".py":
            os.link(file, path)
            return
    shutil.copy(file, path)
