"""Where in the log a time is: LSNs of commits at and before it.

lsn_range(…)       halves: O(log n) segments, and those without a commit beside them
replayed_range(…)  the place where a recovery stops: every segment up to there

Contract: commit times follow the log but for small inversions, so segments are halved to find the
one where a time is reached, and looked at one by one from a few segments earlier. Where a clock
was set back, that finds a later place than a recovery does, which stops at the first record in the
order of the log: what replays all of it anyway looks for that one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

from walkeeper_history.errors import HistoryError
from walkeeper_history.records.segment import Column
from walkeeper_history.rows.events import commit_times
from walkeeper_history.rows.view import View
from walkeeper_history.wal.plan import Plan
from walkeeper_history.wal.reading import SegmentReader
from walkeeper_history.wal.wal_files import WalFiles

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
Bound = int | None
Found = tuple[int, int] | None
_ENDED = (0, 2, 3, 4)  # Not a PREPARE's, at which no recovery stops.
# Segments with commits, before the one that was found, that are looked at for an inversion.
INVERTED_SEGMENTS = 3


def lsn_range(
    files: WalFiles,
    plan: Plan,
    start: datetime | None,
    end: datetime | None,
    within: tuple[Bound, Bound] = (None, None),
) -> tuple[Bound, Bound]:
    """The LSNs between which commits of [start, end) lie, no wider than `within`."""
    return _range(_Search(files, plan).first_at, files, (start, end), within)


def replayed_range(
    files: WalFiles,
    plan: Plan,
    start: datetime | None,
    end: datetime | None,
    within: tuple[Bound, Bound] = (None, None),
) -> tuple[Bound, Bound]:
    """The same as a recovery has it (recovery_target_time, recovery_target_inclusive = off)."""
    return _range(_Search(files, plan).first_of_all_at, files, (start, end), within)


def _range(
    first_at: Callable[[int], Found],
    files: WalFiles,
    times: tuple[datetime | None, datetime | None],
    within: tuple[Bound, Bound],
) -> tuple[Bound, Bound]:
    (start, end), (low, high) = times, within
    if start is not None:
        found = first_at(_microseconds(start))
        if found is None:
            raise HistoryError(f"{files.shown('')}: no transaction ended at {start} or later")
        low = found[0] if low is None else max(low, found[0])
    if end is not None:
        found = first_at(_microseconds(end))
        if found is not None:
            high = found[0] if high is None else min(high, found[0])
    return low, high


def _microseconds(time: datetime) -> int:
    passed = time - _EPOCH
    return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds


class _Search:
    """Looks at segments once; keeps what it saw."""

    def __init__(self, files: WalFiles, plan: Plan) -> None:
        self._reader = SegmentReader(files)
        self._plan = plan
        self._seen: dict[int, tuple[Column, Column]] = {}

    def first_at(self, time: int) -> Found:
        """(start, time) of the first record that ends a transaction at `time` or later, where
        times follow the log."""
        low, high = 0, len(self._plan.segments)
        while low < high:
            middle = (low + high) // 2
            found = self._with_any(middle, high)
            if found is None or self._ended(found)[0].max() >= time:
                high = middle
            else:
                low = found + 1
        for _ in range(INVERTED_SEGMENTS):
            low = next((i for i in range(low - 1, -1, -1) if len(self._ended(i)[0])), 0)
        return self._first_from(low, time)

    def first_of_all_at(self, time: int) -> Found:
        """The same, in whatever order the times are."""
        return self._first_from(0, time)

    def _first_from(self, low: int, time: int) -> Found:
        for index in range(low, len(self._plan.segments)):
            times, lsns = self._ended(index)
            reached = np.flatnonzero(times >= time)
            if len(reached):
                return int(lsns[reached[0]]), int(times[reached[0]])
        return None

    def _with_any(self, index: int, end: int) -> int | None:
        """The first segment from `index` on, below `end`, in which a transaction ended."""
        return next((i for i in range(index, end) if len(self._ended(i)[0])), None)

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
