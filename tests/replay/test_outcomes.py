"""Two bits tell how a transaction ended, and the last end of its number counts."""

from __future__ import annotations

import pickle

import numpy as np

from walkeeper_replay.tuples.outcomes import CHUNK, ELSEWHERE, UNKNOWN, Outcomes


def test_each_transaction_has_the_outcome_that_was_noted_last() -> None:
    random, outcomes, expected = np.random.default_rng(3), Outcomes(), dict[int, int]()
    starts = np.array([0, CHUNK - 50, 7 * CHUNK, (1 << 32) - 200])
    for _ in range(30):
        xids = np.unique(random.choice(starts) + random.integers(0, 200, 60))
        codes = random.integers(UNKNOWN + 1, ELSEWHERE + 1, len(xids))
        outcomes.note(xids, codes)
        expected |= dict(zip(xids.tolist(), codes.tolist(), strict=True))
    asked = np.concatenate([start + np.arange(200) for start in starts])
    found = pickle.loads(pickle.dumps(outcomes)).of(asked).tolist()
    assert found == [expected.get(xid, UNKNOWN) for xid in asked.tolist()]
    assert set(found) == set(range(4))


def test_two_bits_a_transaction() -> None:
    outcomes = Outcomes()
    outcomes.note(np.arange(10 * CHUNK), np.ones(10 * CHUNK, np.int64))
    assert len(pickle.dumps(outcomes)) < 10 * CHUNK / 4 + 2000
