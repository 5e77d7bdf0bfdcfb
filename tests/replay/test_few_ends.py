"""FewEnds knows of some transactions when they ended, and of all others how."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.replay.made_records import Abort, Change, Commit, Step, batch_of
from tests.replay.test_open_at_start import batch as bare_batch
from tests.replay.test_open_at_start import snapshot
from walkeeper_history.rows.ended import ROLLED_BACK, Ended
from walkeeper_replay.tuples.few_ends import WITHIN, FewEnds
from walkeeper_replay.tuples.xids import ASSUMED, NEVER, Xids

CATALOG = 1259
FIRST = 700


def ended(*rows: tuple[int, int, int]) -> Ended:
    """Return transactions of these xids, tops and LSNs."""
    xids, tops, lsns = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Ended(xids, tops, lsns, lsns * 2)


def begun(*, keeps_commits: bool = True) -> FewEnds:
    """Return xids that know the WAL's beginning: from FIRST on, no transaction was open there."""
    made = FewEnds(keeps_commits=keeps_commits)
    made.add(bare_batch(snapshot(next_xid=FIRST), FIRST))
    return made


def test_the_place_is_known_of_a_transaction_that_records_name() -> None:
    """The others take two bits. A lookup never takes such a commit for an earlier or later one."""
    xids = begun()
    steps: list[Step] = [Change(701, CATALOG), Change(703, CATALOG)]
    xids.add(batch_of(steps, 1 << 20))
    xids.add(batch_of([Commit(700), Commit(701), Abort(702), Abort(703)], 2 << 20))
    known = np.array([701, 703, 702, 704])
    commit_lsn = (2 << 20) + 2 * 64
    assert xids.commit_lsns(known).tolist() == [commit_lsn, NEVER, NEVER, NEVER]
    assert xids.ends_by_now(np.array([700, 701])).tolist() == [WITHIN, commit_lsn]
    assert list(xids.commits) == [701] and xids.commits[701].time == commit_lsn - 64
    for lookup in (xids.commit_lsns, xids.commit_rows):
        with pytest.raises(AssertionError, match=r"\[700\] was not kept"):
            lookup(np.array([701, 700]))
    assert xids.commit_rows(np.array([701, 702])).tolist() == [0, -1]


def test_families_are_kept_whole() -> None:
    """A DROP in a subtransaction is its top-level transaction's, which names no catalog itself."""
    xids = begun()
    xids.add(batch_of([Change(712, CATALOG)], 1 << 20))
    xids.take(ended((710, 710, 5000), (711, 710, 5000), (712, 710, 5000), (713, 713, 6000)))
    assert xids.commit_lsns(np.array([710, 711, 712])).tolist() == [5000] * 3
    assert sorted(xids.commits) == [710, 711, 712]


def test_transactions_of_the_start_are_kept() -> None:
    """Their changes may be in pages that the WAL begins with, without a record of their own."""
    xids = FewEnds(keeps_commits=True)
    xids.take(ended((698, 698, 4000)))  # before the first record with the next xid
    xids.add(bare_batch(snapshot(699, next_xid=FIRST)))
    xids.take(ended((699, 699, 5000), (700, 700, 6000)))
    assert xids.commit_lsns(np.array([698, 699])).tolist() == [4000, 5000]
    assert sorted(xids.commits) == [698, 699]
    backup = FewEnds(keeps_commits=True, redo_lsn=1000)
    backup.take(ended((690, 690, 4000)))  # until the backup's checkpoint has come, all may count
    assert backup.commit_lsns(np.array([690])).tolist() == [4000]
    backup._begun_below = FIRST
    backup.take(ended((699, 699, 5000), (700, 700, 6000)))
    assert sorted(backup.commits) == [690, 699]


def test_each_lookup_by_now_has_the_answer_of_all_ends() -> None:
    random, all_ends, few = np.random.default_rng(5), Xids(), begun(keeps_commits=False)
    all_ends.add(bare_batch(snapshot(next_xid=FIRST), FIRST))
    for number in range(40):
        named = FIRST + random.integers(0, 600, 3)
        steps: list[Step] = [Change(int(xid), CATALOG) for xid in named]
        few.add(batch_of(steps, number << 20))
        xids = np.unique(FIRST + random.integers(0, 600, 20))
        lsns = np.where(random.random(len(xids)) < 0.3, ROLLED_BACK, 5000 + number)
        for one in (all_ends, few):
            one.take(Ended(xids, xids, lsns, lsns))
    copy = pickle.loads(pickle.dumps(few))
    asked = np.concatenate([FIRST + np.arange(600), [0, 2, 5, 600, 1 << 31]])
    expected = all_ends.commit_lsns(asked)
    for one in (few, copy):
        found = one.ends_by_now(asked)
        exact = found != WITHIN
        assert found[exact].tolist() == expected[exact].tolist()
        assert ((expected[~exact] > WITHIN) & (expected[~exact] != NEVER)).all()
        assert 0 < exact.sum() < len(asked) and ASSUMED in found


def test_a_hundred_thousand_transactions_take_few_bytes(tmp_path: Path) -> None:
    """All of them with their places took 8 bytes each for table_at, and 40 for changes."""
    xids, count = begun(), 100_000
    numbers = FIRST + np.arange(count)
    lsns = 8 * numbers
    xids.take(Ended(numbers, numbers, lsns, lsns))
    assert len(pickle.dumps(xids)) < count / 4 + 40_000
