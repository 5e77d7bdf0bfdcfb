"""Commits of transactions by columns: when each of them was, and whose it was.

    commits.add(xids, end_lsns, times, tops)     again and again, in the order of the log
    commits.rows(array of xids) -> rows of `commits.columns`, or -1

Contract: a later commit of the same xid replaces the earlier one. As a mapping, Commits has a
Commit for each transaction and subtransaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from walkeeper_history.rows.ended import Ended
from walkeeper_wal.records.segment import Column


@dataclass(frozen=True, slots=True)
class Commit:
    """When a transaction was committed: its record's end, and its time (µs since 2000)."""

    end_lsn: int
    time: int
    top_xid: int


class CommitColumns(NamedTuple):
    """All int64 and of one length, in the order of xids, each of them once."""

    xid: Column
    end_lsn: Column
    time: Column
    top_xid: Column


class Commits(Mapping[int, Commit]):
    """The commits of transactions and subtransactions, by xid."""

    def __init__(self) -> None:
        self._added: list[tuple[Column, ...]] = []
        self._columns = CommitColumns(*(np.empty(0, np.int64) for _ in range(4)))

    def add(self, *columns: Column) -> None:
        """Note commits by the columns of CommitColumns, in the order of the log."""
        if len(columns[0]):
            self._added.append(columns)

    def take(self, ended: Ended) -> None:
        """Note the commits among transactions that have ended."""
        found = ended.committed
        self.add(found.xids, found.end_lsns, found.times, found.tops)

    @property
    def columns(self) -> CommitColumns:
        if self._added:
            pieces = [self._columns, *self._added]
            xid, *others = (np.concatenate(column) for column in zip(*pieces, strict=True))
            order = np.argsort(xid, kind="stable")
            xid = xid[order]
            is_last = np.append(xid[1:] != xid[:-1], True)
            kept = order[is_last]
            self._columns = CommitColumns(xid[is_last], *(column[kept] for column in others))
            self._added = []
        return self._columns

    def rows(self, xids: Column) -> Column:
        """Return the row of each transaction in `columns`, or -1 without a commit."""
        known, wanted = self.columns.xid, xids.astype(np.int64)
        if not len(known):
            return np.full(len(wanted), -1, np.int64)
        places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        found: Column = np.where(known[places] == wanted, places, -1)
        return found

    def at(self, end_lsn: int) -> Commit | None:
        """Return the commit whose record ends there, if one does."""
        found = np.flatnonzero(self.columns.end_lsn == end_lsn)
        return self._commit(int(found[0])) if len(found) else None

    def forget(self, lsn: int) -> None:
        """Forget the commits that end at `lsn` or before."""
        late = self.columns.end_lsn > lsn
        self._columns = CommitColumns(*(column[late] for column in self.columns))

    def _commit(self, row: int) -> Commit:
        columns = self.columns
        return Commit(int(columns.end_lsn[row]), int(columns.time[row]), int(columns.top_xid[row]))

    def __getitem__(self, xid: int) -> Commit:
        row = int(self.rows(np.array([xid]))[0])
        if row < 0:
            raise KeyError(xid)
        return self._commit(row)

    def __iter__(self) -> Iterator[int]:
        return iter(self.columns.xid.tolist())

    def __len__(self) -> int:
        return len(self.columns.xid)
