"""Where in the log a time is: LSNs of commits at and before it.

    CommitTimes(files, plan).range(start, end)     LSNs of the commits between two times
    CommitTimes(files, plan).reaches_back_to(t)    True if a commit from before `t` is in the plan

Contract: the place of a time is the first record of the log with that time or a later one. A
recovery with that recovery_target_time and recovery_target_inclusive = off stops there. A clock
that was set back does not move that place. Cost: the search reads each segment up to there once,
apart from `passed_over`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from walkeeper_history.rows.events import commit_times
from walkeeper_history.rows.view import View
from walkeeper_wal.records.gather import MICROSECONDS_1970_TO_2000
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import SegmentReader
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
Bound = int | None
_ENDED = (0, 2, 3, 4)  # without PREPARE, at which no recovery stops
PassedOver = Callable[[int], frozenset[int]]
"""The first LSNs of segments without a commit at that time or later, in microseconds since 1970."""


def _none(time: int) -> frozenset[int]:
    """Return no segment: the search reads each of them."""
    return frozenset()


class CommitTimes:
    """The times of the commits of a plan. It reads a segment once, and keeps the times."""

    def __init__(self, files: WalFiles, plan: Plan, passed_over: PassedOver = _none) -> None:
        self._reader, self._files, self._plan = SegmentReader(files), files, plan
        self._passed_over = passed_over
        self._seen: dict[int, tuple[Column, Column]] = {}

    def range(
        self,
        start: datetime | None,
        end: datetime | None,
        within: tuple[Bound, Bound] = (None, None),
    ) -> tuple[Bound, Bound]:
        """Return the LSNs between which commits of [start, end) lie, no wider than `within`.

        Raise HistoryError if no commit reaches `start`.
        """
        low, high = within
        if start is not None:
            found = self._first_at(start)
            if found is None:
                shown = self._files.shown("")
                raise HistoryError(f"{shown}: no transaction ended at {start} or later")
            low = found if low is None else max(low, found)
        if end is not None:
            found = self._first_at(end)
            if found is not None:
                high = found if high is None else min(high, found)
        return low, high

    def reaches_back_to(self, time: datetime) -> bool:
        """Return True if the first commit of the plan is from before `time`.

        Otherwise commits at `time` or later may be before the plan.
        """
        ended = (self._ended(index)[0] for index in range(len(self._plan.segments)))
        first = next((times for times in ended if len(times)), None)
        return first is not None and int(first[0]) < _microseconds(time)

    def _first_at(self, moment: datetime) -> int | None:
        """Return the start of the first record that ends a transaction at `moment` or later."""
        time = _microseconds(moment)
        passed_over = self._passed_over(time + MICROSECONDS_1970_TO_2000)
        for index, segment in enumerate(self._plan.segments):
            if segment.first_lsn in passed_over:
                continue
            times, lsns = self._ended(index)
            reached = np.flatnonzero(times >= time)
            if len(reached):
                return int(lsns[reached[0]])
        return None

    def _ended(self, index: int) -> tuple[Any, Any]:
        if index not in self._seen:
            times, lsns = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for batch in self._reader.read(self._plan.reachable, index):
                view = View(batch).of_kind("Transaction", *_ENDED)
                values, known = commit_times(view)
                times.append(values[known])
                lsns.append(view.start_lsn[known])
            self._seen[index] = np.concatenate(times), np.concatenate(lsns)
        return self._seen[index]


def _microseconds(time: datetime) -> int:
    passed = time - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
