"""The time from WAL's arrival until a quorum has it: a sample at a time, for /metrics.

    new_commit_times()        the compiled CommitClock, or CommitTimes where that is off

    on_wal(end_lsn)           WAL up to here has arrived
    on_commit(commit_lsn)     a quorum has WAL up to here

One sample is under way at a time, so a burst of small WAL costs two comparisons a call.
"""

from __future__ import annotations

from time import monotonic

from walkeeper_common.metrics import Times
from walkeeper_fastpath.ports import Commits
from walkeeper_fastpath.switch import commit_clock


def new_commit_times() -> Commits:
    """Make the histogram that the fast path of a primary's stream can fill."""
    make = commit_clock()
    return CommitTimes() if make is None else make()


class CommitTimes:
    """The histogram of one daemon, over all lives of its proposer."""

    __slots__ = ("_arrived_s", "_end_lsn", "times")

    def __init__(self) -> None:
        self.times = Times()
        self._end_lsn, self._arrived_s = 0, 0.0  # 0: no sample is under way

    def on_wal(self, end_lsn: int) -> None:
        """Begin a sample if none is under way."""
        if not self._end_lsn:
            self._end_lsn, self._arrived_s = end_lsn, monotonic()

    def on_commit(self, commit_lsn: int) -> None:
        """End the sample if the quorum has all of it."""
        if self._end_lsn and commit_lsn >= self._end_lsn:
            self.times.observe(monotonic() - self._arrived_s)
            self._end_lsn = 0

    def forget(self) -> None:
        """Drop the sample that is under way, as its connection is lost."""
        self._end_lsn = 0
