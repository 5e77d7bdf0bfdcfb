"""The simulator as a test: fixed seeds, kept seeds, and the same seed again in another process.

The mutants (test_mutants.py) show that these seeds find what they should.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import cast

import pytest

from tests.proof.sim.search import ASKED, PASSED, run
from tests.proof.sim.troubles import AskedOptions
from tests.support.folders import ROOT

KEPT = ROOT / "tests/proof/sim/kept_seeds.txt"
# How many seeds of each world, from 0 on: in the gate, and in the soak.
WORLDS = {
    "": (8, 16),
    "--archive": (5, 10),
    "--switch": (3, 6),
    "--close": (3, 6),
    "--replace": (3, 6),
    "--replace --cancel": (2, 4),
    "--replace --resize": (3, 4),
    "--replace --cancel --resize": (2, 3),
    "--replace --repair": (2, 4),
    "--replace --late": (2, 4),
    "--zones": (3, 6),
    "--zones --replace --resize": (2, 4),
    "--busy": (3, 6),
    "--bulk": (2, 4),
}


def kept_seeds() -> list[tuple[str, int]]:
    """Return (flags, seed) of each line: the simulator's flags, a seed, and the find in words."""
    found = []
    for line in KEPT.read_text().splitlines():
        words = line.split("#")[0].split()
        flags = [word for word in words if word.startswith("--")]
        if words:
            found.append((" ".join(flags), int(words[len(flags)])))
    return found


IN_THE_GATE = {
    *((flags, seed) for flags, (few, _) in WORLDS.items() for seed in range(few)),
    *kept_seeds(),
}
IN_THE_SOAK = {(flags, seed) for flags, (_, many) in WORLDS.items() for seed in range(many)}


@pytest.mark.parametrize(
    ("flags", "seed"),
    [
        pytest.param(*each, marks=[] if each in IN_THE_GATE else [pytest.mark.soak])
        for each in sorted(IN_THE_GATE | IN_THE_SOAK)
    ],
)
def test_no_commit_is_lost_and_all_moves_on(flags: str, seed: int) -> None:
    asked = cast(AskedOptions, {ASKED[flag].option: True for flag in flags.split()})
    done = run(seed, **asked)
    assert done.code == PASSED == 0, f"{done.text}\npython -m tests.proof.sim {flags} --seed {seed}"


def simulate(seed: int, *, hash_seed: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.proof.sim", "--seed", str(seed)],
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
