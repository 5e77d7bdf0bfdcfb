"""The commits that a range of LSNs and times means, for all that reads changes.

CommitRange.between(times, base, start_time, end_time, within)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_replay.redo.base import BaseDirectory


@dataclass(frozen=True, slots=True)
class CommitRange:
    """Commits that end in (start, end]; `is_cut_off` if some from before the WAL may be missing."""

    start: int
    end: int | None
    is_cut_off: bool = False

    @classmethod
    def between(
        cls,
        times: CommitTimes,
        base: BaseDirectory | None,
        start_time: datetime | None,
        end_time: datetime | None,
        within: tuple[int | None, int | None],
    ) -> Self:
        """Return the commits of [start_time, end_time), no more than `within`."""
        if start_time is None and end_time is None:
            return cls(within[0] or 0, within[1])
        low, high = times.range(start_time, end_time, within)
        is_cut_off = start_time is not None and (
            not times.reaches_back_to(start_time)
            if base is None
            else start_time < base.checkpoint_time
        )
        return cls(low or 0, high, is_cut_off)
