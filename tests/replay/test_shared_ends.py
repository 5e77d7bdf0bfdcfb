"""Each share gets the commits of its transactions, however tasks cut the WAL."""

from __future__ import annotations

import numpy as np
import pytest

from tests.replay.made_records import Abort, Change, Commit, Step, batch_of
from walkeeper_replay.changes.shared_ends import SharedEnds, WalBefore, newest_xid
from walkeeper_replay.redo.chosen_records import ChosenRecords, chosen_records
from walkeeper_replay.tuples.commits import Commits

MASK = (1 << 32) - 1
PARTS = range(3)
OPEN_MAX = 5
STEPS = 12
"""The records of a batch."""


class Story:
    """Random transactions, some of them long, and the commits that each share has to know."""

    def __init__(self, seed: int, first_xid: int) -> None:
        self.random, self.next_xid = np.random.default_rng(seed), first_xid
        self.running: dict[int, set[int]] = {}
        self.expected: dict[int, dict[int, int]] = {part: {} for part in PARTS}

    def batch(self, number: int) -> ChosenRecords:
        steps: list[Step] = []
        for place in range(STEPS):
            if (len(self.running) < OPEN_MAX and self.random.random() < 0.5) or not self.running:
                self.running[self.next_xid] = set()
                self.next_xid = max(3, self.next_xid + 1 & MASK)
            # Some xids are given out long before they have their first record.
            xid = [*self.running][min(self.random.geometric(0.5), len(self.running)) - 1]
            if self.random.random() < 0.35:
                changed = self.running.pop(xid)
                is_committed = self.random.random() < 0.7
                steps.append(Commit(xid) if is_committed else Abort(xid))
                for part in changed if is_committed else ():
                    self.expected[part][xid] = (number << 20) + 64 * (place + 1)
            else:
                part = int(self.random.integers(len(PARTS)))
                self.running[xid].add(part)
                steps.append(Change(xid, part))
        return batch_of(steps, number << 20)


def own(batch: ChosenRecords) -> list[tuple[int, ChosenRecords]]:
    """Return the records of each share's file."""
    found = []
    for part in PARTS:
        chosen = np.zeros(len(batch.records), bool)
        chosen[batch.blocks["record"][batch.blocks["relfilenode"] == part]] = True
        found.append((part, chosen_records(batch, chosen)))
    return found


@pytest.mark.parametrize("first_xid", [700, MASK - 40])
@pytest.mark.parametrize("segments_a_task", [1, 3])
@pytest.mark.parametrize("seed", range(6))
def test_each_share_gets_the_commits_of_its_transactions(
    seed: int, segments_a_task: int, first_xid: int
) -> None:
    story, before, states = Story(seed, first_xid), WalBefore(), [WalBefore()]
    batches = [story.batch(number) for number in range(1, 31)]
    for batch in batches:
        before = before.followed_by([newest_xid(batch)], has_gaps=False)
        states.append(before)
    found: dict[int, Commits] = {part: Commits() for part in PARTS}
    for at in range(0, len(batches), segments_a_task):
        ends = SharedEnds(PARTS, states[at])
        for batch in batches[at : at + segments_a_task]:
            for part, ended in ends.of(batch, own(batch)):
                found[part].take(ended)
    tasks = len(batches) // segments_a_task
    for part, expected in story.expected.items():
        known = {xid: commit.end_lsn for xid, commit in found[part].items()}
        assert expected.items() <= known.items() and len(expected) > 10
        assert len(known) - len(expected) <= tasks * OPEN_MAX


def test_after_damage_each_share_gets_all_commits() -> None:
    """The pass before has not seen each xid: a task may see a change in what it left out."""
    batch = batch_of([Change(720, 0), Commit(720), Commit(721)], 1 << 20)
    after = WalBefore(710).followed_by([None], has_gaps=True)
    for before, expected in ((WalBefore(710), [[720]]), (after, [[720, 721]] * 3)):
        of = SharedEnds(PARTS, before).of(batch, own(batch))
        assert [ended.xids.tolist() for _, ended in of] == expected


def test_a_task_knows_the_newest_xid_before_it() -> None:
    """An older xid that gets its first record later does not count as newer."""
    before = WalBefore().followed_by([None, 710, 705], has_gaps=False)
    assert before == WalBefore(710)
    assert before.may_have(np.array([709, 710, 711])).tolist() == [True, True, False]
    assert WalBefore().may_have(np.array([709])).tolist() == [False]
    wrapped = WalBefore(MASK).followed_by([4], has_gaps=False)
    assert wrapped == WalBefore(4)
    assert wrapped.may_have(np.array([MASK, 4, 5])).tolist() == [True, True, False]
    assert newest_xid(batch_of([Commit(MASK), Change(5, 0), Change(4, 0)], 1 << 20)) == 5
