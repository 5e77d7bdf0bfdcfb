"""A range of commits that ends before it begins is an error, by times and by LSNs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_replay.changes.commit_range import CommitRange
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.wal_errors import HistoryError

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def test_a_range_that_ends_before_it_begins_is_an_error(tmp_path: Path) -> None:
    times = CommitTimes(open_files(str(tmp_path)), Plan(1, 1 << 20, None, ()))
    with pytest.raises(HistoryError, match="before its beginning 2024"):
        CommitRange.between(times, None, NOON, NOON - timedelta(seconds=1), (None, None))
    with pytest.raises(HistoryError, match="ends at 0/3, before its beginning 0/5"):
        CommitRange.between(times, None, None, None, (5, 3))
    assert CommitRange.between(times, None, None, None, (5, 5)) == CommitRange(5, 5)
