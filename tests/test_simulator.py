"""The simulator as a test: fixed seeds, kept seeds, determinism, and mutants that it must find.

A mutant is one rule taken out of a copy of the shipping source. It counts as found only if an
oracle says so (exit code 2: lost or forked WAL, a broken promise; 3: no progress) within the
fixed seeds, on all of which the shipping source is green.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sim.__main__ import run_seed

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests/sim/kept_seeds.txt"
PACKAGES = ("common", "proposer", "safekeeper")
FIXED_SEEDS = range(1000, 1012)


@dataclass(frozen=True)
class Mutant:
    """`rule` of PROTOCOL.md section 4, or a flaw of the seed document, put in by one edit."""

    rule: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "9: an ack before the fdatasync that covers it",
        "safekeeper/walkeeper_safekeeper/driver.py",
        "        self._is_writing = True\n        begin_lsn",
        "        self._is_writing = True\n"
        "        self.post(WalFlushed(group[0].begin_lsn + size))\n        begin_lsn",
    ),
    Mutant(
        "1: a vote that is not durable",
        "safekeeper/walkeeper_safekeeper/acceptor.py",
        "        self._term_start_lsn = LSN_MAX\n        return [Persist(self.durable)]",
        "        self._term_start_lsn = LSN_MAX\n        return []",
    ),
    Mutant(
        "seed: feedback `else VCL`, an acceptor counts for WAL that it does not have",
        "proposer/walkeeper_proposer/leadership.py",
        "m.flush_lsn >= self.start_lsn else ZERO_LSN",
        "m.flush_lsn >= self.start_lsn else self.start_lsn",
    ),
)


def kept_seeds() -> list[int]:
    lines = (line.split("#")[0].split() for line in KEPT.read_text().splitlines())
    return [int(words[0]) for words in lines if words]


@pytest.mark.parametrize("seed", sorted({*FIXED_SEEDS, *kept_seeds()}))
def test_nothing_is_lost_and_all_moves_on(seed: int) -> None:
    code, found, _ = run_seed(seed, is_shown=False)
    assert code == 0, f"{found}\npython -m tests.sim --seed {seed}"


def simulate(tree: Path, *options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """`python -m tests.sim` with the sources below `tree`."""
    path = os.pathsep.join(str(tree / package) for package in PACKAGES)
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *options],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_same_seed_is_the_same_story_in_another_process() -> None:
    one, two = (simulate(ROOT, "--seed", "3", hash_seed=salt) for salt in "12")
    assert one.returncode == 0, one.stdout[-2000:] + one.stderr
    assert one.stdout == two.stdout
    assert len(one.stdout.splitlines()) > 100


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule.split(":")[0])
def test_a_rule_taken_out_is_found(mutant: Mutant, tmp_path: Path) -> None:
    for folder in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    source = tmp_path / mutant.file
    text = source.read_text()
    assert text.count(mutant.old) == 1, f"the mutant does not fit {mutant.file} any more"
    source.write_text(text.replace(mutant.old, mutant.new))
    first, count = str(FIXED_SEEDS[0]), str(len(FIXED_SEEDS))
    result = simulate(tmp_path, "--from", first, "--seeds", count, "--minutes", "3")
    assert result.returncode in (2, 3), result.stdout[-2000:] + result.stderr
