"""The sampled times of commits, compiled and not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from walkeeper_fastpath.ports import Commits
from walkeeper_fastpath.switch import commit_clock
from walkeeper_proposer.postgres.commit_times import CommitTimes

KINDS = [kind for kind in (CommitTimes, commit_clock()) if kind is not None]

pytestmark = pytest.mark.parametrize("make", KINDS)


def count(commits: Commits) -> float:
    return commits.times.buckets()[-1][1]


def test_one_sample_is_under_way_at_a_time_and_ends_with_the_quorum(
    make: Callable[[], Commits],
) -> None:
    commits = make()
    commits.on_commit(100)
    commits.on_wal(200)
    commits.on_wal(300)
    commits.on_commit(199)
    assert count(commits) == 0
    commits.on_commit(250)
    commits.on_commit(300)
    assert count(commits) == 1


def test_a_lost_connection_ends_a_sample_without_a_figure(make: Callable[[], Commits]) -> None:
    commits = make()
    commits.on_wal(200)
    commits.forget()
    commits.on_commit(500)
    assert count(commits) == 0


def test_each_sample_is_counted_with_its_time(make: Callable[[], Commits]) -> None:
    commits = make()
    for at in range(1, 201):
        commits.on_wal(at)
        commits.on_commit(at)
        if at in (1, 70):
            assert count(commits) == at
    assert count(commits) == 200 == count(commits)
    assert 0 < commits.times.sum_s < 20
