"""The stages of a soak: the command of each, and how much of the time it gets. Pure.

A stage with a share stops when its minutes are over. A stage without one takes as long as it takes,
and runs only if so many minutes are left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.support.forked import SWITCH

PYTHON = ".venv/bin/python"
REPEATS = re.compile(r"python -m tests\.\w+(?:\.\w+)* [^\n\"|'`]*?(?:--seed|--input|--from) \S+")
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
SIMULATED = (
    "",
    "--archive",
    "--switch",
    "--replace",
    "--busy",
    "--bulk",
    "--archive --replace --busy",
)
SUITE = "-n 3 --dist loadfile --no-loadscope-reorder"


@dataclass(frozen=True, slots=True)
class Stage:
    """A command of the soak. `{minutes}` in it is its time, `{seed}` is fresh."""

    name: str
    about: str
    command: str
    share: float = 0.0  # its part of the time, for a command that stops by itself
    needs_minutes: float = 0.0  # for one that does not
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_root: bool = False

    def words(self, *, seed: int, minutes: float) -> list[str]:
        """Return the command as the words of a process."""
        return self.command.format(seed=seed, minutes=f"{minutes:.2f}").split()

    def variables(self, *, seed: int) -> dict[str, str]:
        """Return what its environment has beside ours."""
        return {name: text.format(seed=seed) for name, text in self.environment.items()}


def simulator(flags: str) -> Stage:
    """Return the search of one of the simulator's worlds."""
    shown = flags.replace("--", "").replace(" ", ", ") or "plain"
    return Stage(
        f"simulator ({shown})",
        "cores, drivers and stores on simulated time, network and disks",
        f"{PYTHON} -m tests.proof.sim {flags} --from {{seed}} --minutes {{minutes}}",
        share=0.05,
    )


def suite(name: str, about: str, command: str, needs_minutes: float) -> Stage:
    """Return a run of all tests in a fresh order, and with fresh seeds for their random work.

    Each daemon is a new Python, as a user's is. In the gate they start by forks.
    """
    variables = {"WALKEEPER_TEST_SEED": "{seed}", "PYTEST_OPTIONS": SUITE_OPTIONS, SWITCH: "off"}
    return Stage(name, about, command, needs_minutes=needs_minutes, environment=variables)


SUITE_OPTIONS = f"{SUITE} -p no:cacheprovider --randomly-seed={{seed}}"
SEARCHES = (
    *(simulator(flags) for flags in SIMULATED),
    Stage(
        "logical simulator",
        "logical logs in the simulated world",
        f"{PYTHON} -m tests.proof.sim.logical --from {{seed}} --minutes {{minutes}}",
        share=0.06,
    ),
    Stage(
        "rivals",
        "two replace commands on one log, while safekeepers crash",
        f"{PYTHON} -m tests.proof.register_rivals --from {{seed}} --minutes {{minutes}}",
        share=0.03,
    ),
    Stage(
        "recoveries",
        "table-at, changes and undo beside servers that recover to random places",
        f"{PYTHON} -m tests.proof.recoveries --seed {{seed}} --minutes {{minutes}}",
        share=0.06,
    ),
    Stage(
        "fuzzing",
        "whatever reads bytes, on inputs that libFuzzer makes",
        f"{PYTHON} -m tests.proof.fuzz all --seed {{seed}} --minutes {{minutes}}",
        share=0.10,
    ),
    Stage(
        "chaos",
        "real processes, networks and disks, and faults in them",
        f"{PYTHON} -m tests.proof.chaos --seed {{seed}} --minutes {{minutes}}",
        share=0.17,
        needs_root=True,
    ),
    Stage(
        "floods",
        "connections without a certificate or a password, and the memory that they cost",
        f"{PYTHON} -m tests.proof.floods --seconds 5 --rounds 1 --seed {{seed}}",
        needs_minutes=4,
    ),
    Stage(
        "large transaction",
        "one transaction of two gigabytes, while proposer, safekeepers and primary fail in it",
        f"{PYTHON} -m tests.failover.large_transaction --gigabytes 2 --seed {{seed}}",
        needs_minutes=10,
    ),
)
# Their order changes with the seed, so that short soaks come to each of them in turn.
WHOLE = (
    suite("all tests", "the whole suite, the long tests too", "make test", 18),
    Stage(
        "mutants",
        "each rule taken out of the source once, and its killer",
        f"{PYTHON} -m tests.proof.mutants --jobs 2",
        needs_minutes=12,
    ),
    Stage(
        "drill",
        "32 incidents on real processes, and the answer of every view of an operator",
        f"{PYTHON} -m tests.proof.drill",
        needs_minutes=25,
        needs_root=True,
    ),
    suite("newest libraries", "the suite with the newest libraries", "make newest", 22),
    suite("oldest libraries", "the suite with the oldest libraries", "make oldest", 22),
)


def repetitions(stage: Stage, output: str, *, seed: int) -> list[str]:
    """Return the commands that repeat what this output of a failed stage shows, once each."""
    found = [f"{PYTHON.removesuffix('python')}{one}" for one in REPEATS.findall(output)]
    if tests := FAILED_TEST.findall(output):
        environment = f"WALKEEPER_TEST_SEED={seed} {SWITCH}=off"
        found += [f"{environment} {PYTHON} -m pytest -n 0 '{test}'" for test in tests]
    words = stage.words(seed=seed, minutes=1.0)
    whole = [*(f"{k}='{v}'" for k, v in stage.variables(seed=seed).items()), *words]
    return list(dict.fromkeys(found)) or [" ".join(whole)]


def rotated(stages: Sequence[Stage], by: int) -> list[Stage]:
    """Return the stages, with another one first for each number."""
    first = by % len(stages)
    return [*stages[first:], *stages[:first]]
