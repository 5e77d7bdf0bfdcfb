"""The commits that each share of a request needs, from the tasks that decode its WAL side by side.

    ends = SharedEnds(parts, before)         in each task, before its first batch
    ends.of(batch, chosen)                   (part, Ended) of each share that needs some of them

A task sees the commits of its own segments, but may not see what their transactions changed before.
Contract: each share gets the commit of each transaction that has records of blocks among its own.
It gets others, too: those whose transaction may have begun before the task's segments. These are as
many as were open at one time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from walkeeper_history.rows.ended import Ended, ended_of
from walkeeper_replay.tuples.few_ends import named_in
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.reading import Batch

_HALF, _MASK = 1 << 31, (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class WalBefore:
    """A pass's knowledge of the WAL before a segment: its newest xid, or None if it has no xid."""

    newest_xid: int | None = None
    has_gaps: bool = False
    """True if the pass left out damaged WAL, so that an xid may be missing."""

    def may_have(self, xids: Column) -> Column:
        """Return which of the transactions may have records there. xids are given out in order."""
        if self.has_gaps or self.newest_xid is None:
            return np.full(len(xids), self.has_gaps)
        steps = (xids - self.newest_xid) & _MASK
        mask: Column = (steps == 0) | (steps >= _HALF)
        return mask

    def followed_by(self, newest_xids: Iterable[int | None], *, has_gaps: bool) -> WalBefore:
        """Return the state before the next segment, by the newest xids of this one's batches."""
        newest = self.newest_xid
        for xid in newest_xids:
            if xid is not None and not WalBefore(newest).may_have(np.array([xid]))[0]:
                newest = xid
        return WalBefore(newest, self.has_gaps or has_gaps)


def newest_xid(batch: Batch) -> int | None:
    """Return the transaction of a batch that was given out last, or None without one."""
    xids = batch.records["xid"].astype(np.int64)
    xids = xids[xids > 0]
    if not len(xids):
        return None
    steps = (xids - xids[0] + _HALF) & _MASK
    return int(xids[steps.argmax()])


class SharedEnds:
    """See the module. Memory is that of the transactions that are open at one time."""

    def __init__(self, parts: Iterable[int], before: WalBefore) -> None:
        self._before = before
        self._open: dict[int, Column] = {part: np.empty(0, np.int64) for part in parts}

    def of(self, batch: Batch, chosen: Iterable[tuple[int, Batch]]) -> Iterator[tuple[int, Ended]]:
        """Yield the commits of a batch for each share, of which `chosen` has the records."""
        for part, own in chosen:
            self._open[part] = np.union1d(self._open[part], named_in(own))
        ended = ended_of(batch)
        has_committed = ended.committed
        older = self._before.may_have(has_committed.xids)
        for part, changed in self._open.items():
            found = has_committed.chosen(older | np.isin(has_committed.xids, changed))
            self._open[part] = np.setdiff1d(changed, ended.xids)
            if len(found.xids):
                yield part, found
