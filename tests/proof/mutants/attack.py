"""Lets a killer loose on a planted mutant: a simulator on seeds, one exploration, or a test.

    with planted(mutant) as tree:
        simulate(tree, by="tests.proof.sim --busy", first=0, count=60, seconds=30)
                                                      -> SimulatorKill | None
        explore(tree, world, seconds=60)              -> ExplorationKill | None
    turn_red(tree, test)                          -> TestKill | None

These are commands that anybody can run in the planted tree, in a process of their own. Only their
exit codes 2 and 3 count. Code 2 means that an oracle saw lost, forked or uncommitted bytes, two
leaders or a broken promise. Code 3 means no progress. A seed on which the code breaks (1) is
passed over.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.proof.mutants.mutant import SIM, Mutant, plant
from tests.proof.mutants.syntax import SOURCES
from tests.proof.sim.search import STUCK, VIOLATED
from tests.support.waiting import LIMIT_NAME

KILLED = (VIOLATED, STUCK)
TEST_S = 120.0
WAIT_S = 30.0  # so long a test may wait for what the mutant has taken away
PYTEST = ("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider")
GRACE_S = 60.0  # a command's own limit comes first
NO_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # hypothesis alone takes a second to load
ROW = re.compile(r"([\d,]+) states .* depth +(\d+) +([\d.]+) s")


@dataclass(frozen=True, slots=True)
class SimulatorKill:
    """A find of `program` after `searched` seeds: its exit code, 2 or 3, and the oracle's text."""

    seed: int
    searched: int
    code: int
    oracle: str
    text: str
    seconds: float
    program: str = SIM

    def __str__(self) -> str:
        return f"{self.program.removeprefix('tests.')} seed {self.seed}: {self.oracle}"

    @property
    def took(self) -> str:
        return f"{self.searched} seed{'s' * (self.searched > 1)}"


@dataclass(frozen=True, slots=True)
class ExplorationKill:
    """`states` until the shortest story, `depth` steps long, was found in this world."""

    world: str
    states: int
    depth: int
    text: str
    seconds: float

    def __str__(self) -> str:
        return f"exploration {self.world}"

    @property
    def took(self) -> str:
        return f"{self.states:,} states"


@dataclass(frozen=True, slots=True)
class TestKill:
    """A test of pytest that failed."""

    test: str
    seconds: float
    took = "the test"

    def __str__(self) -> str:
        return self.test


Kill = SimulatorKill | ExplorationKill


@contextmanager
def planted(mutant: Mutant) -> Iterator[Path]:
    """Make the mutant's tree, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        plant(mutant, tree)
        yield tree


def run_in(
    tree: Path, *words: str, seconds: float, more: Mapping[str, str] = NO_PLUGINS
) -> subprocess.CompletedProcess[str]:
    """Run Python with the packages below `tree`, and not with the installed ones.

    `more` are variables of its environment."""
    path = os.pathsep.join(str(tree / package) for package in SOURCES)
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", **more},
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_S,
    )


def simulate(
    tree: Path, *, first: int, count: int, seconds: float, by: str = SIM
) -> SimulatorKill | None:
    """Run seeds in order, until an oracle fails. Raise RuntimeError if the command is broken."""
    started, seed = time.monotonic(), first
    facts_path = tree / "facts.json"
    while seed < first + count and time.monotonic() - started < seconds:
        facts_path.unlink(missing_ok=True)
        left = seconds - (time.monotonic() - started)
        done = run_in(
            tree, "-m", *by.split(), "--from", str(seed), "--seeds", str(first + count - seed),
            "--minutes", str(left / 60), "--json", str(facts_path), seconds=left,
        )  # fmt: skip
        if not facts_path.exists():
            raise RuntimeError(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
        failed = json.loads(facts_path.read_text())["failed"]
        if failed is None:
            return None
        if failed["exit_code"] in KILLED:
            return SimulatorKill(
                failed["seed"], failed["seed"] - first + 1, failed["exit_code"],
                failed["oracle"], failed["text"][:200], round(time.monotonic() - started, 1), by,
            )  # fmt: skip
        seed = failed["seed"] + 1
    return None


def explore(tree: Path, world: str, *, seconds: float) -> ExplorationKill | None:
    """Explore breadth first until the first violation."""
    started = time.monotonic()
    words = ("-m", "tests.proof.explore", "--run", world, "--seconds", str(seconds))
    try:
        done = run_in(tree, *words, seconds=seconds)
    except subprocess.TimeoutExpired:
        return None  # the mutant loops for ever
    lines = done.stdout.splitlines()
    row = ROW.search(lines[-1]) if lines else None
    if row is None or done.returncode not in KILLED:
        return None  # no violation, or the code broke, which is no kill
    text = next((line for line in lines if line.startswith("VIOLATION")), "")
    states, depth = int(row[1].replace(",", "")), int(row[2]) + 1
    seconds_spent = round(time.monotonic() - started, 1)
    return ExplorationKill(world, states, depth, text[:200], seconds_spent)


def turn_red(tree: Path, test: str) -> TestKill | None:
    """Run the test, which has to fail.

    An error is no kill, and neither is a test without end, or of another name."""
    started, more = time.monotonic(), {**NO_PLUGINS, LIMIT_NAME: str(WAIT_S)}
    try:
        done = run_in(tree, *PYTEST, test, seconds=TEST_S, more=more)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode != 1 or "FAILED" not in done.stdout:
        return None
    return TestKill(test, round(time.monotonic() - started, 1))
