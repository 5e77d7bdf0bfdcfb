"""The simulator as a test: fixed seeds, kept seeds, determinism, and mutants that it must find.

A mutant is one rule taken out of a copy of the shipping source. It counts as found only if an
oracle says so (exit code 2: lost or forked WAL, a broken promise; 3: no progress) within the
fixed seeds, on all of which the shipping source is green; or, where the simulator needs luck, if
the scenario goes red that tells what the rule is for. The fastest seeds are another choice when
the simulator changes: `python -m tests.sim --from 1000 --minutes 2` in a mutated copy.
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
LATER_SEEDS = range(1025, 1028)


@dataclass(frozen=True)
class Mutant:
    """`rule` of PROTOCOL.md section 4, or a flaw of the seed document, put in by one edit.

    Found by the simulator within `seeds`, or, where it takes luck, by the scenario of this name.
    """

    rule: str
    file: str
    old: str
    new: str
    seeds: range = FIXED_SEEDS
    scenario: str | None = None


ACCEPTOR = "safekeeper/walkeeper_safekeeper/acceptor.py"
ANSWERS = "safekeeper/walkeeper_safekeeper/answers.py"
CONSENSUS = "proposer/walkeeper_proposer/consensus.py"
DRIVER = "safekeeper/walkeeper_safekeeper/driver.py"
LEADERSHIP = "proposer/walkeeper_proposer/leadership.py"
QUORUM = "common/walkeeper_common/quorum.py"

MUTANTS = (
    Mutant(
        "1: a vote that is not durable",
        ACCEPTOR,
        "        self._term_start_lsn = LSN_MAX\n        return [Persist(self.durable)]",
        "        self._term_start_lsn = LSN_MAX\n        return []",
    ),
    Mutant(
        "1: a vote for a smaller ballot",
        ACCEPTOR,
        "        if ask.ballot < self.durable.ballot:",
        "        if False:",
        scenario="stale_ballot_is_rejected_with_ours",
    ),
    Mutant(
        "2: a vote before everything received is flushed",
        ACCEPTOR,
        "        if self.flush_lsn < self.write_lsn:\n            return None\n"
        "        record_lsn = self._known",
        "        record_lsn = self._known",
        scenario="vote_reports_the_end_of_the_log",
    ),
    Mutant(
        "3: a history that runs past the WAL",
        ANSWERS,
        "history=cut(durable.history, acceptor.flush_lsn)",
        "history=durable.history",
        seeds=LATER_SEEDS,
    ),
    Mutant(
        "4: the donor is the longest log, whoever wrote it",
        CONSENSUS,
        "key=lambda v: (v[0].history[-1].ballot, v[0].flush_lsn)",
        "key=lambda v: v[0].flush_lsn",
        scenario="seed_example_s1_to_s3",
    ),
    Mutant(
        "5: the term starts at C",
        LEADERSHIP,
        "start_lsn=donor.record_lsn,",
        "start_lsn=donor.flush_lsn,",
    ),
    Mutant(
        "7: no truncation where the logs part",
        ACCEPTOR,
        "            effects += [Persist(self.durable), TruncateWal(start)]",
        "            effects += []",
        scenario="divergent_tail_is_cut_once",
    ),
    Mutant(
        "7: an older connection may go on appending",
        ACCEPTOR,
        "        if connection != self.appender or append.ballot != self.durable.ballot:",
        "        if self.appender is None:",
        scenario="append_before_election_is_refused",
    ),
    Mutant(
        "9: an ack before the fdatasync that covers it",
        DRIVER,
        "        self._is_writing = True\n        begin_lsn",
        "        self._is_writing = True\n"
        "        self.post(WalFlushed(group[0].begin_lsn + size))\n        begin_lsn",
    ),
    Mutant(
        "10: WAL below the term's start counts",
        LEADERSHIP,
        "if m is not None and m.flush_lsn >= self.start_lsn else ZERO_LSN",
        "if m is not None else ZERO_LSN",
        scenario="commit_needs_the_term_start",
    ),
    Mutant(
        "10, the seed's `else VCL`: who lags counts for WAL that it does not have",
        LEADERSHIP,
        "m.flush_lsn >= self.start_lsn else ZERO_LSN",
        "m.flush_lsn >= self.start_lsn else self.start_lsn",
    ),
    Mutant(
        "12: what was received is reported",
        LEADERSHIP,
        "        lsn = min(self.commit_lsn, self.window.end_lsn)",
        "        lsn = self.window.end_lsn",
    ),
    Mutant(
        "19: vote and ack quorums that need not meet",
        QUORUM,
        "return len(self.members) - self.ack_quorum + 1",
        "return max(1, len(self.members) - self.ack_quorum)",
    ),
    Mutant(
        "section 5: the primary's bytes are not compared",
        CONSENSUS,
        "        self.check = PrimaryCheck(",
        "        return self._check_passed()\n        self.check = PrimaryCheck(",
    ),
)


def kept_seeds() -> list[int]:
    lines = (line.split("#")[0].split() for line in KEPT.read_text().splitlines())
    return [int(words[0]) for words in lines if words]


@pytest.mark.parametrize("seed", sorted({*range(60), *FIXED_SEEDS, *LATER_SEEDS, *kept_seeds()}))
def test_nothing_is_lost_and_all_moves_on(seed: int) -> None:
    code, found, _ = run_seed(seed, is_shown=False)
    assert code == 0, f"{found}\npython -m tests.sim --seed {seed}"


def simulate(tree: Path, *options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """`python -m tests.sim` with the sources below `tree`."""
    return run_in(tree, "-m", "tests.sim", *options, hash_seed=hash_seed)


def run_in(tree: Path, *words: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Python with the packages below `tree`, and not with those that are installed."""
    path = os.pathsep.join(str(tree / package) for package in PACKAGES)
    return subprocess.run(
        [sys.executable, *words],
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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.rule.split(",")[0][:40])
def test_a_rule_taken_out_is_found(mutant: Mutant, tmp_path: Path) -> None:
    for folder in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.pyc"))
    source = tmp_path / mutant.file
    text = source.read_text()
    assert text.count(mutant.old) == 1, f"the mutant does not fit {mutant.file} any more"
    source.write_text(text.replace(mutant.old, mutant.new))
    if mutant.scenario is not None:
        result = play(tmp_path, mutant.scenario)
        assert f"FAILED tests/test_scenarios.py::test_scenario[{mutant.scenario}]" in result.stdout
        return
    first, count = str(mutant.seeds[0]), str(len(mutant.seeds))
    result = simulate(tmp_path, "--from", first, "--seeds", count, "--minutes", "3")
    assert result.returncode in (2, 3), result.stdout[-2000:] + result.stderr


def play(tree: Path, scenario: str) -> subprocess.CompletedProcess[str]:
    """One scenario with the sources below `tree`."""
    return run_in(
        tree, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(tree),
        "-p", "no:cacheprovider", "tests/test_scenarios.py", "-k", scenario,
    )  # fmt: skip
