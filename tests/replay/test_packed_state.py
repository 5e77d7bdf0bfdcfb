"""A packed state is the same afterwards, whatever its columns hold, and takes little room."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyspark import cloudpickle

from pyspark_pgwal.packed_state import Sent, packed, unpacked
from pyspark_pgwal.read_once import _changes_of, _redo_of
from walkeeper_replay.tuples.xids import Xids

TRANSACTIONS = 200_000


def test_columns_of_any_kind_are_the_same_afterwards() -> None:
    made = np.random.default_rng(7)
    columns = [
        made.integers(0, 2**64, 1000, np.uint64),
        made.integers(-(2**63), 2**63 - 1, 1000, np.int64),
        np.array([2**64 - 1, 0, 2**64 - 1], np.uint64),
        made.integers(0, 2**32, 999, np.uint32),
        made.random(77),
        made.integers(0, 2, 13).astype(bool),
        np.empty(0, np.int64),
        made.integers(0, 9, (4, 6), np.int64),
    ]
    found = unpacked(packed({"columns": columns, "name": "x"}))
    assert found["name"] == "x" and len(found["columns"]) == len(columns)
    for before, after in zip(columns, found["columns"], strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert (before == after).all()
        after[...] = 0  # may be changed


def test_a_transaction_takes_a_few_bytes() -> None:
    """Unpacked it takes 40, if its commit is kept."""
    made, xids = np.random.default_rng(8), Xids(keeps_commits=True)
    numbers = np.arange(1000, 1000 + TRANSACTIONS)
    ends = np.cumsum(made.integers(100, 900, TRANSACTIONS) & ~7)
    times = np.cumsum(made.integers(50, 400, TRANSACTIONS))
    xids.commits.add(numbers, ends, times, numbers)
    xids._set(numbers, ends)
    state = packed(xids)
    assert len(state[0]) + sum(len(data) for _, data in state[1]) < 8 * TRANSACTIONS
    found = pickle.loads(pickle.dumps(Sent(xids))).state
    assert (found.commit_lsns(numbers) == ends).all()
    assert (found.commits.columns.time == times).all()


OPTIONS: Any = None


@pytest.mark.parametrize(
    "stage", [lambda state: _redo_of(state, 2), lambda state: _changes_of(state, OPTIONS)]
)
def test_the_second_stage_travels_packed(stage: Callable[[object], type]) -> None:
    """Each task gets it: unpacked it has 8 bytes a transaction, and Java holds copies."""
    state = SimpleNamespace(ends=np.arange(0, 8 * TRANSACTIONS, 8))
    dumps: Any = cloudpickle.dumps
    assert len(dumps(stage(state))) < TRANSACTIONS
