"""Xids in little memory: when some transactions ended, and how all others did.

    xids.add(batch)                          as Xids, of batches with the control records
    xids.ends_by_now(array of xids)          as commit_lsns, but WITHIN for a commit without a place

Contract: the place and the time are known of a transaction that has records of blocks or of whole
files in the batches. They are also known of one that may have begun before the WAL, and of their
families. All others take two bits. A lookup that needs more of these is a defect, and raises
AssertionError.
"""

from __future__ import annotations

import numpy as np

from walkeeper_history.rows.ended import ROLLED_BACK, Ended
from walkeeper_replay.redo.chosen_records import WHOLE_FILES
from walkeeper_replay.tuples import outcomes
from walkeeper_replay.tuples.commits import Commits
from walkeeper_replay.tuples.xids import NEVER, UNKNOWN, Statuses, Xids
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.reading import Batch

WITHIN = 1
"""Instead of an LSN: the transaction committed somewhere in the WAL up to here."""


class FewEnds(Xids):
    """See the module."""

    def __init__(
        self,
        base: Statuses | None = None,
        *,
        keeps_commits: bool = False,
        redo_lsn: int | None = None,
    ) -> None:
        super().__init__(base, keeps_commits=keeps_commits, redo_lsn=redo_lsn)
        self._named: Column = np.empty(0, np.int64)
        self._few, self._outcomes = Commits(), outcomes.Outcomes()

    def add(self, batch: Batch) -> None:
        """Take the records of a batch, in the order of the log."""
        self._named = np.union1d(self._named, named_in(batch))
        super().add(batch)

    def take(self, ended: Ended) -> None:
        """Note ended transactions, each by what is to be known of it."""
        kept = np.isin(ended.xids, self._named) | self._may_be_of_start(ended.xids)
        kept |= np.isin(ended.tops, ended.tops[kept])
        self._named = np.setdiff1d(self._named, ended.xids)
        others = np.where(ended.end_lsns != ROLLED_BACK, outcomes.COMMITTED, outcomes.ROLLED_BACK)
        self._outcomes.note(ended.xids, np.where(kept, outcomes.ELSEWHERE, others))
        super().take(ended.chosen(kept))

    def ends_by_now(self, xids: Column) -> Column:
        """Return what `commit_lsns` does, but WITHIN for a commit whose place is not known."""
        return super().commit_lsns(xids)

    def commit_lsns(self, xids: Column) -> Column:
        """Return int64 for each: the end of its commit record, BEFORE, ASSUMED or NEVER."""
        found = self.ends_by_now(xids)
        self._require(xids, found == WITHIN)
        return found

    def commit_rows(self, xids: Column) -> Column:
        """Return the row of each transaction in `commits`, or -1 without a commit."""
        rows = super().commit_rows(xids)
        codes = self._outcomes.of(xids.astype(np.int64))
        self._require(xids, (rows < 0) & (codes == outcomes.COMMITTED))
        return rows

    def _may_be_of_start(self, xids: Column) -> Column:
        """Return a mask of the transactions that may have begun before the WAL or the backup."""
        if self._redo_lsn is not None and self._begun_below is None:
            return np.ones(len(xids), bool)
        mask: Column = self.may_have_begun_before(xids) | self.began_before(xids)
        return mask

    def _set(self, xids: Column, values: Column) -> None:
        self._few.add(xids, values, values, xids)

    def _found(self, xids: Column) -> Column:
        known = self._few.columns.end_lsn
        rows, codes = self._few.rows(xids), self._outcomes.of(xids)
        others = np.array([UNKNOWN, WITHIN, NEVER, UNKNOWN], np.int64)[codes]
        found: Column = np.where(codes == outcomes.ELSEWHERE, np.append(known, 0)[rows], others)
        return found

    def _require(self, xids: Column, lacking: Column) -> None:
        assert not lacking.any(), f"the place of the end of {xids[lacking][:5]} was not kept"


def named_in(batch: Batch) -> Column:
    """Return the transactions with records of blocks or of whole files, each once."""
    records = batch.records
    named = np.isin(records["rmid"], WHOLE_FILES)
    named[batch.blocks["record"]] = True
    xids = np.unique(records["xid"][named]).astype(np.int64)
    found: Column = xids[xids > 0]
    return found
