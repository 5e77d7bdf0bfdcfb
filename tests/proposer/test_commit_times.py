"""The sampled times of commits."""

from __future__ import annotations

from walkeeper_proposer.postgres.commit_times import CommitTimes


def test_one_sample_is_under_way_at_a_time_and_ends_with_the_quorum() -> None:
    commits = CommitTimes()
    commits.on_commit(100)
    commits.on_wal(200)
    commits.on_wal(300)
    commits.on_commit(199)
    assert commits.times.buckets()[-1][1] == 0
    commits.on_commit(250)
    commits.on_commit(300)
    assert commits.times.buckets()[-1][1] == 1


def test_a_lost_connection_ends_a_sample_without_a_figure() -> None:
    commits = CommitTimes()
    commits.on_wal(200)
    commits.forget()
    commits.on_commit(500)
    assert commits.times.buckets()[-1][1] == 0
