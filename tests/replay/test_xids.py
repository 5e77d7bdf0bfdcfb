"""Lookups of transactions see those that ended since the lookup before, also in a copy."""

from __future__ import annotations

import pickle

import numpy as np

from walkeeper_history.rows.ended import ROLLED_BACK, Ended
from walkeeper_replay.tuples.xids import ASSUMED, BEFORE, NEVER, Xids


def ended(pairs: list[tuple[int, int]]) -> Ended:
    xids, lsns = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    return Ended(xids, xids, lsns, np.zeros(len(xids), np.int64))


def test_a_lookup_sees_what_ended_since_the_last_one() -> None:
    xids = Xids()
    asked = np.array([0, 2, 700, 65535, 65536, (1 << 32) - 1, 700], np.uint32)
    xids.take(ended([(700, 5000), (65536, ROLLED_BACK)]))
    first = [NEVER, BEFORE, 5000, ASSUMED, NEVER, ASSUMED, 5000]
    assert xids.commit_lsns(asked).tolist() == first
    xids.take(ended([(65535, 6000), ((1 << 32) - 1, 7000)]))
    second = [NEVER, BEFORE, 5000, 6000, NEVER, 7000, 5000]
    assert xids.commit_lsns(asked).tolist() == second
    copy = pickle.loads(pickle.dumps(xids))
    assert "_lookup" not in vars(copy)
    assert copy.commit_lsns(asked).tolist() == second
