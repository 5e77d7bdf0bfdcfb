"""What an archive changes in the driver, taken out: the simulator with an archive must notice.

As tests/mutants, on seeds with an archive: `python -m tests.sim --archive --seed N` in the copy.
"""

from __future__ import annotations

import pytest

from tests.mutants.attack import planted, run_in
from tests.mutants.mutant import CONTROL, SAFEKEEPER, Edit, Mutant
from tests.sim.search import PASSED, STUCK, VIOLATED

DRIVER = SAFEKEEPER + "driver.py"

BEYOND = Mutant(
    "retention-beyond-the-archive",
    "14",
    "with an archive no WAL goes that is not in it",
    (
        Edit(
            DRIVER,
            "members_lsn = durable.restart_lsn if archived_lsn is None else archived_lsn",
            "members_lsn = durable.commit_lsn",
        ),
    ),
)
NOT_READ_BACK = Mutant(
    "what-has-gone-is-not-read-back",
    "14",
    "a laggard whose WAL is on no disk is fed from the archive",
    (
        Edit(
            DRIVER,
            "isinstance(result, WalRemoved) and self.older is not None",
            "False",
        ),
    ),
)
SEEDS = {
    CONTROL.name: ((PASSED, 1002), (PASSED, 1010)),
    BEYOND.name: ((VIOLATED, 1002),),
    NOT_READ_BACK.name: ((STUCK, 1010),),
}


@pytest.mark.parametrize("mutant", [CONTROL, BEYOND, NOT_READ_BACK], ids=lambda m: m.name)
def test_the_simulator_notices(mutant: Mutant) -> None:
    with planted(mutant) as tree:
        for code, seed in SEEDS[mutant.name]:
            done = run_in(tree, "-m", "tests.sim", "--archive", "--seed", str(seed), seconds=60)
            assert done.returncode == code, done.stdout[-1000:] + done.stderr[-1000:]
