"""The commits that a range of LSNs and times means, for all that reads changes.

CommitRange.between(times, base, start_time, end_time, within)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from walkeeper_common.lsn import Lsn
from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_wal.wal_errors import HistoryError


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
        """Return the commits of [start_time, end_time), no more than `within`.

        Raise HistoryError if the range ends before it begins: an empty answer would hide that.
        """
        if start_time is not None and end_time is not None and end_time < start_time:
            raise HistoryError(f"the range ends at {end_time}, before its beginning {start_time}")
        low, high = within
        if start_time is not None or end_time is not None:
            low, high = times.range(start_time, end_time, within)
        if low is not None and high is not None and high < low:
            raise HistoryError(f"the range ends at {Lsn(high)}, before its beginning {Lsn(low)}")
        is_cut_off = start_time is not None and (
            not times.reaches_back_to(start_time)
            if base is None
            else start_time < base.checkpoint_time
        )
        return cls(low or 0, high, is_cut_off)
