"""The simulator as a test: fixed seeds, kept seeds, and the same seed again in another process.

What finds the rules that are taken out of the source stands in test_mutants.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.search import PASSED, run

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "tests/sim/kept_seeds.txt"
FIXED_SEEDS = range(40)


def kept_seeds() -> list[int]:
    lines = (line.split("#")[0].split() for line in KEPT.read_text().splitlines())
    return [int(words[0]) for words in lines if words]


@pytest.mark.parametrize("seed", sorted({*FIXED_SEEDS, *kept_seeds()}))
def test_nothing_is_lost_and_all_moves_on(seed: int) -> None:
    done = run(seed)
    assert done.code == PASSED == 0, f"{done.text}\npython -m tests.sim --seed {seed}"


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_when_wal_goes_to_an_archive_and_comes_back(seed: int) -> None:
    done = run(seed, has_archive=True)
    assert done.code == PASSED, f"{done.text}\npython -m tests.sim --archive --seed {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_when_servers_die_inside_a_segment_switch(seed: int) -> None:
    done = run(seed, switches=True)
    assert done.code == PASSED, f"{done.text}\npython -m tests.sim --switch --seed {seed}"


# The last: a member that has just replaced another one is replaced after a crash.
@pytest.mark.parametrize("seed", [*range(10), 7060083])
def test_nothing_is_lost_when_members_are_replaced(seed: int) -> None:
    done = run(seed, replaces=True)
    assert done.code == PASSED, f"{done.text}\npython -m tests.sim --replace --seed {seed}"


# The last: where one vote elects, a primary may be refused once and not the next time.
@pytest.mark.parametrize("seed", [*range(20), 164315607, 195234600])
def test_nothing_is_lost_when_much_is_received_at_once(seed: int) -> None:
    done = run(seed, is_busy=True)
    assert done.code == PASSED, f"{done.text}\npython -m tests.sim --busy --seed {seed}"


# Primaries that crash between their check and their stream; then power that fails just after a
# newcomer has joined.
@pytest.mark.parametrize("seed", [128947278, 145349962, 7080225])
def test_nothing_is_lost_when_all_of_that_happens_together(seed: int) -> None:
    done = run(seed, has_archive=True, replaces=True, is_busy=True)
    shown = f"python -m tests.sim --archive --replace --busy --seed {seed}"
    assert done.code == PASSED, f"{done.text}\n{shown}"


def simulate(seed: int, *, hash_seed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", "--seed", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_the_same_seed_is_the_same_story_in_another_process() -> None:
    one, two = (simulate(3, hash_seed=salt) for salt in "12")
    assert one.returncode == 0, one.stdout[-2000:] + one.stderr
    assert one.stdout == two.stdout
    assert len(one.stdout.splitlines()) > 100
