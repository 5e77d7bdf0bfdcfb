"""The rows that a query wants, as far as a reader can use the conditions. Pure.

The reader skips segments, or records before it makes columns of them. Contract: a condition that is
None excludes no row. No wanted row is skipped. For records and blocks, `rows` leaves exactly those
with a wanted resource manager and xid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import rmgr_names
from walkeeper_wal.sources.plan import Plan

Times = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """All conditions together: LSNs of records' starts, times in microseconds since 1970."""

    start_lsn: int | None = None
    end_lsn: int | None = None
    timelines: frozenset[int] | None = None
    resource_managers: frozenset[str] | None = None
    xids: frozenset[int] | None = None
    relfilenodes: frozenset[int] | None = None
    times: Times = (None, None)
    """The first and the last wanted time."""

    def lsns(self, start: int | None, end: int | None) -> Wanted:
        """Return a copy that is also limited to records that start in [start, end)."""
        low = [lsn for lsn in (start, self.start_lsn) if lsn is not None]
        high = [lsn for lsn in (end, self.end_lsn) if lsn is not None]
        return replace(self, start_lsn=max(low, default=None), end_lsn=min(high, default=None))

    def between(self, first: int | None, last: int | None) -> Wanted:
        """Return a copy that is also limited to these times."""
        low = [time for time in (first, self.times[0]) if time is not None]
        high = [time for time in (last, self.times[1]) if time is not None]
        return replace(self, times=(max(low, default=None), min(high, default=None)))

    @property
    def needs_index(self) -> bool:
        """True if an index could let a reader skip segments."""
        asked = (self.resource_managers, self.xids, self.relfilenodes, *self.times)
        return any(each is not None for each in asked)

    @property
    def chooses_rows(self) -> bool:
        return self.resource_managers is not None or self.xids is not None

    def rows(self, records: Column) -> Column:
        """Return a mask of the wanted records."""
        mask = np.ones(len(records), bool)
        if self.resource_managers is not None:
            known = np.array([name in self.resource_managers for name in rmgr_names()])
            mask &= known[records["rmid"]]
        if self.xids is not None:
            mask &= np.isin(records["xid"], np.array(sorted(self.xids), np.int64))
        return mask


def on_timelines(plan: Plan, timelines: frozenset[int]) -> tuple[int, int] | None:
    """Return the LSNs between which pages of these timelines are, or None if there are none.

    The page in which a timeline was left can have either timeline.
    """
    found, begin = [], 0
    for stretch in plan.path:
        if stretch.timeline in timelines:
            found.append((begin - begin % WAL_PAGE_BYTES, stretch.end_lsn + WAL_PAGE_BYTES))
        begin = stretch.end_lsn if stretch.end_lsn < 1 << 63 else begin
    return (found[0][0], found[-1][1]) if found else None
