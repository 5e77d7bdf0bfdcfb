"""Changes of an archive to the driver, taken out: the simulator with an archive must notice.

As tests/proof/mutants, on seeds with an archive: the copy runs
`python -m tests.proof.sim --archive --seed N`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.mutants.attack import planted, run_in
from tests.proof.mutants.mutant import CONTROL, Edit, Mutant
from tests.proof.sim.search import PASSED, STUCK, VIOLATED

BEYOND = Mutant(
    "retention-beyond-the-archive",
    "R14",
    "with an archive no WAL goes that is not in it",
    (
        Edit(
            "remove_unwanted",
            "members_lsn = durable.restart_lsn if archived_lsn is None else archived_lsn",
            "members_lsn = durable.commit_lsn",
        ),
    ),
)
NOT_READ_BACK = Mutant(
    "what-has-gone-is-not-read-back",
    "R14",
    "a laggard whose WAL is on no disk is fed from the archive",
    (Edit("Driver._read_wal", "(self.older, others)", "(others,)"),),
)
# From which seed on to look: a change of the simulator's story may move the first that notices.
SEEDS_MAX = 40


def exit_code(tree: Path, seed: int) -> int:
    done = run_in(tree, "-m", "tests.proof.sim", "--archive", "--seed", str(seed), seconds=60)
    return done.returncode


def test_the_shipping_source_is_green() -> None:
    with planted(CONTROL) as tree:
        assert [exit_code(tree, seed) for seed in (1000, 1001)] == [PASSED, PASSED]


@pytest.mark.parametrize("mutant", [BEYOND, NOT_READ_BACK], ids=lambda each: each.name)
def test_each_change_fits_the_source(mutant: Mutant) -> None:
    with planted(mutant) as tree:
        assert tree.is_dir()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mutant", "code", "first"),
    [(BEYOND, VIOLATED, 1004), (NOT_READ_BACK, STUCK, 1086)],
    ids=[BEYOND.name, NOT_READ_BACK.name],
)
def test_the_simulator_notices(mutant: Mutant, code: int, first: int) -> None:
    with planted(mutant) as tree:
        assert any(exit_code(tree, seed) == code for seed in range(first, first + SEEDS_MAX))
