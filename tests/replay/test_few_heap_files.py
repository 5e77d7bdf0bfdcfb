"""Two of the transactions that changed a file answer for all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replay.made_records import DATABASE, SPACE, Abort, Change, Commit, Step, batch_of
from walkeeper_history.rows.ended import ended_of
from walkeeper_history.rows.heap_changes import FIRST_NORMAL_OID
from walkeeper_replay.redo.few_heap_files import FewHeapFiles
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.tuples.commits import Commits

NODES = [FIRST_NORMAL_OID + number for number in range(6)]


@pytest.mark.parametrize("seed", range(8))
def test_two_transactions_of_a_file_answer_for_all(seed: int) -> None:
    """Was a file changed after an LSN, and by one transaction alone?"""
    random, next_xid = np.random.default_rng(seed), 700
    every, few, commits = HeapFiles(), FewHeapFiles(), Commits()
    running: list[int] = []
    for number in range(1, 12):
        steps: list[Step] = []
        for _ in range(12):
            if len(running) < 4:
                running.append(next_xid)
                next_xid += 1
            xid = running[random.integers(len(running))]
            if random.random() < 0.3:
                running.remove(xid)
                steps.append(Commit(xid) if random.random() < 0.6 else Abort(xid))
            else:
                steps.append(Change(xid, NODES[min(random.geometric(0.4), len(NODES)) - 1]))
        batch = batch_of(steps, number << 20)
        for one in (every, few):
            one.add(batch)
        few.settle(ended_of(batch))
        commits.take(ended_of(batch))
    kept = Commits()
    for ended in few.commits():
        kept.take(ended)
    assert set(few.changed) == set(every.changed) and len(few.changed) >= 4
    for relation, xids in every.touched().items():
        asked = few.touched()[relation]
        assert asked <= xids and len(asked & commits.keys()) <= 2
        lsns = {xid: commits[xid].end_lsn for xid in xids & commits.keys()}
        found = {xid: kept[xid].end_lsn for xid in asked & kept.keys()}
        assert found.items() <= lsns.items()
        assert max(found.values(), default=0) == max(lsns.values(), default=0)
        assert (len(found) == 1) == (len(lsns) == 1)


def test_a_transaction_that_is_open_stays_open() -> None:
    files = FewHeapFiles()
    story: list[list[Step]] = [[Change(700, NODES[0]), Change(701, NODES[0])], [Commit(701)]]
    for number, steps in enumerate(story):
        files.add(batch_of(steps, (number + 1) << 20))
        files.settle(ended_of(batch_of(steps, (number + 1) << 20)))
    assert files.touched() == {Relation(SPACE, DATABASE, NODES[0]): {700, 701}}
    assert [ended.xids.tolist() for ended in files.commits()] == [[701]]
