"""Four bytes name the member of a multixact that updated. The last note of its number counts."""

from __future__ import annotations

import pickle

import numpy as np

from walkeeper_replay.tuples.updaters import CHUNK, Updaters

LAST = (1 << 32) - 1


def test_each_multixact_has_the_updater_that_was_noted_last() -> None:
    random, updaters, expected = np.random.default_rng(4), Updaters(), dict[int, int]()
    starts = [1, CHUNK - 50, 7 * CHUNK, LAST - 99]
    for _ in range(300):
        multixact = starts[random.integers(0, 4)] + int(random.integers(0, 100))
        xid = int(random.choice([0, 3, 700, LAST]))
        updaters.note(multixact, xid)
        expected[multixact] = xid
    found = pickle.loads(pickle.dumps(updaters))
    asked = [start + at for start in starts for at in range(100)]
    assert [found.of(each) for each in asked] == [expected.get(each) for each in asked]
    assert {*map(expected.get, asked)} == {None, 0, 3, 700, LAST}


def test_four_bytes_a_multixact() -> None:
    updaters = Updaters()
    for multixact in range(4 * CHUNK):
        updaters.note(multixact, 700 + multixact)
    assert len(pickle.dumps(updaters)) < 4 * 4 * CHUNK + 2000
