"""Fixed seeds of rival `replace` commands and crashing safekeepers, for several quorums.

The mutants of the register show that these seeds can fail: tests/proof/mutants/replacing.py.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.proof.register_rivals import QUORUMS, run
from tests.proof.sim.search import PASSED

STORIES = 40  # for each quorum


@pytest.mark.parametrize("place", range(len(QUORUMS)), ids=[f"{n}/{a}" for n, a in QUORUMS])
def test_rivals_and_crashes_never_make_two_configurations_of_one_generation(place: int) -> None:
    facts = Counter[str]()
    for seed in range(place, STORIES * len(QUORUMS), len(QUORUMS)):
        done = run(seed)
        assert done.code == PASSED, (
            f"{done.text}\npython -m tests.proof.register_rivals --seed {seed}"
        )
        facts.update(done.facts)
    assert facts["generations"] > 2 * STORIES, "members were replaced"
    assert facts["commands finished"] > 10 * STORIES and facts["commands refused"] > 10 * STORIES
    assert facts["crashes"] > 10 * STORIES
    assert facts["cancels"] > STORIES / 2


def test_the_same_seed_tells_the_same_story_twice() -> None:
    told: list[list[str]] = [[], []]
    for lines in told:
        assert run(3, show=lines.append).code == PASSED
    assert told[0] == told[1] and len(told[0]) > 100
