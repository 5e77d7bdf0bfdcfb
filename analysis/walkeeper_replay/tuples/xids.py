"""How transactions ended, and where: from records of commits and aborts, a backup's pg_xact, hints.

    xids.add(batch)                          in the order of the log
    xids.commit_lsns(array of xids)          its commit's end LSN; 0 before the WAL; see below

Contract: a transaction counts as committed from the end of its commit record on, and so do its
subtransactions. Those of a prepared transaction count only with COMMIT PREPARED. A transaction that
aborted or never ended is NEVER. A transaction that ended before the WAL is ASSUMED to have
committed if no pg_xact says how it ended. Callers count those. A multixact's updater is known from
its CREATE_ID record or from the backup. Otherwise it is NOT_KNOWN, and ASSUMED to have committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy, deepcopy
from struct import unpack_from
from typing import Any, Protocol, Self

import numpy as np

from walkeeper_history.rows.ended import ROLLED_BACK, Ended, ended_of
from walkeeper_replay.tuples.commits import Commits
from walkeeper_replay.tuples.open_at_start import OpenAtStart, precedes
from walkeeper_replay.tuples.updaters import Updaters
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

NEVER = np.iinfo(np.int64).max
BEFORE, ASSUMED = 0, -1
_MULTIXACT, _XLOG, _CREATE_ID = RMGR_IDS["MultiXact"], RMGR_IDS["XLOG"], 0x20
_CHUNK_BITS = 16
_CHUNK = 1 << _CHUNK_BITS
_UPDATES_FROM = 4  # MultiXactStatusNoKeyUpdate
FIRST_NORMAL, FROZEN, BOOTSTRAP = 3, 2, 1
UNKNOWN = -2
NOT_KNOWN = -1
"""Instead of an xid: a transaction that ended before the WAL, or had begun before it."""


class Statuses(Protocol):
    """A backup's pg_xact and pg_multixact."""

    def is_committed(self, xid: int) -> bool | None: ...

    def updater(self, multixact: int) -> int | None: ...


class Xids:
    """The ends of transactions, and the updaters of multixacts."""

    _lookup: tuple[Column, Column] | None = None  # made of the chunks, and never saved

    def __init__(
        self,
        base: Statuses | None = None,
        *,
        keeps_commits: bool = False,
        redo_lsn: int | None = None,
    ) -> None:
        """Begin without transactions; `redo_lsn` is the backup's."""
        self._base, self._keeps, self._redo_lsn = base, keeps_commits, redo_lsn
        self._begun_below: int | None = None
        self._start = OpenAtStart()
        self._chunks: dict[int, Column] = {}
        self._updaters = Updaters()
        self.commits = Commits()
        """With `keeps_commits`: of every transaction and subtransaction."""
        self._first: int | None = None
        self._has_checkpoint = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lookup"}

    def add(self, batch: Batch) -> None:
        """Take the records of a batch, in the order of the log."""
        records = batch.records
        self._window(batch)
        if self._redo_lsn is None:
            self._start.add(batch)
        self.take(ended_of(batch))
        created = (records["rmid"] == _MULTIXACT) & (records["info"] & 0xF0 == _CREATE_ID)
        for row in np.flatnonzero(created).tolist():
            self._multixact(_main(batch, row))

    def take(self, ended: Ended) -> None:
        """Note ended transactions: those of a batch, or of a segment that an index describes."""
        rolled_back = ended.end_lsns == ROLLED_BACK
        self._set(ended.xids, np.where(rolled_back, NEVER, ended.end_lsns))
        if self._keeps:
            self.commits.take(ended)

    @property
    def is_settled(self) -> bool:
        """True if the first xid of the WAL, and the transactions open at its beginning, are known.

        From then on only ends of transactions and multixacts count.
        """
        return self._has_checkpoint and (self._redo_lsn is not None or self._start.is_decided)

    def _window(self, batch: Batch) -> None:
        """Find the oldest transaction that can have ended within the WAL."""
        records = batch.records
        if self._first is None and records["xid"].any():
            self._first = int(records["xid"][records["xid"] > 0][0])
            if self._redo_lsn is None:
                self._begun_below = self._first
        if self._has_checkpoint and (self._begun_below is not None or self._redo_lsn is None):
            return
        kinds = records["info"] & 0xF0
        rows = np.flatnonzero((records["rmid"] == _XLOG) & (kinds <= 0x10))
        for row in rows[records["main_length"][rows] >= 88].tolist():
            data = _main(batch, row)
            redo_lsn, next_xid = unpack_from("<Q16xI", data)
            if redo_lsn == self._redo_lsn:
                self._begun_below = next_xid
            if self._has_checkpoint:
                continue
            first = unpack_from("<I", data, 80)[0] or next_xid
            if self._first is None or precedes(first, self._first):
                self._first = first
            self._has_checkpoint = True

    def _multixact(self, data: bytes) -> None:
        number, _, count = unpack_from("<III", data)
        members = unpack_from(f"<{2 * min(count, (len(data) - 12) // 8)}I", data, 12)
        pairs = zip(members[::2], members[1::2], strict=True)
        updaters = [xid for xid, status in pairs if status >= _UPDATES_FROM]
        self._updaters.note(number, updaters[0] if updaters else 0)

    def have_ended(self, xids: Column) -> Column:
        """Return a mask of the transactions that a record has committed or rolled back."""
        values = xids.astype(np.int64)
        ended: Column = np.zeros(len(values), bool)
        for number in np.unique(values // _CHUNK).tolist():
            chunk = self._chunks.get(number)
            if chunk is not None:
                own = values // _CHUNK == number
                ended[own] = chunk[values[own] % _CHUNK] != UNKNOWN
        return ended

    def forget_commits(self, lsn: int) -> None:
        """Forget times of commits that end at `lsn` or before, but not that they committed."""
        self.commits.forget(lsn)

    def began_before(self, xids: Column) -> Column:
        """Return a mask of the transactions that had begun to write before the WAL or the backup.

        Their changes from before are not in the WAL. Without a backup the mask is True only for
        those that surely had.
        """
        before: Column = np.zeros(len(xids), bool)
        for bound in (self._begun_below, self._start.below):
            if bound is not None:
                before |= (xids.astype(np.int64) - bound) & 0xFFFFFFFF >= 0x80000000
        return before

    def may_have_begun_before(self, xids: Column) -> Column:
        """Return a mask of the transactions that did not surely begin within the WAL.

        With a backup `began_before` knows all of them.
        """
        if self._redo_lsn is not None:
            return np.zeros(len(xids), bool)
        later_from = self._start.later_from
        if later_from is None:
            return np.ones(len(xids), bool)
        mask: Column = (xids.astype(np.int64) - later_from) & 0xFFFFFFFF >= 0x80000000
        return mask

    def updater(self, multixact: int) -> int:
        """Return the member that updated or deleted, 0 if there is none, or NOT_KNOWN."""
        found = self._updaters.of(multixact)
        if found is None and self._base is not None:
            found = self._base.updater(multixact)
        return NOT_KNOWN if found is None else found

    def _set(self, xids: Column, values: Column) -> None:
        xids = xids.astype(np.int64)
        self._lookup = None
        for number in np.unique(xids // _CHUNK).tolist():
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = np.full(_CHUNK, UNKNOWN, np.int64)
            own = xids // _CHUNK == number
            chunk[xids[own] % _CHUNK] = values[own]

    def commit_lsns(self, xids: Column) -> Column:
        """Return int64 for each: the end of its commit record, BEFORE, ASSUMED or NEVER."""
        xids = xids.astype(np.int64)
        found = self._found(xids)
        found[xids == 0] = NEVER
        found[xids == NOT_KNOWN] = ASSUMED
        unknown = np.flatnonzero(found == UNKNOWN)
        if len(unknown):
            unique, back = np.unique(xids[unknown], return_inverse=True)
            answers = np.array([self._older(xid) for xid in unique.tolist()], np.int64)
            found[unknown] = answers[back]
        return found

    def ends_by_now(self, xids: Column) -> Column:
        """Return `commit_lsns`, for callers to whom any LSN up to here is as good as another."""
        return self.commit_lsns(xids)

    def commit_rows(self, xids: Column) -> Column:
        """Return the row of each transaction in `commits`, or -1 without a commit."""
        return self.commits.rows(xids)

    def with_commits(self, several: Iterable[Ended]) -> Self:
        """Return a copy whose `commits` have these, too."""
        made = copy(self)
        made.commits = deepcopy(self.commits)
        for ended in several:
            made.commits.take(ended)
        return made

    def _found(self, xids: Column) -> Column:
        if self._lookup is None:
            self._lookup = self._looked_up()
        rows, every = self._lookup
        found: Column = every[rows[xids >> _CHUNK_BITS], xids & _CHUNK - 1]
        return found

    def _looked_up(self) -> tuple[Column, Column]:
        """Return the row of each chunk's number, and the rows; 0 is that of all other chunks."""
        rows = np.zeros((1 << 32) // _CHUNK, np.int64)
        rows[list(self._chunks)] = np.arange(1, len(self._chunks) + 1)
        return rows, np.stack([np.full(_CHUNK, UNKNOWN, np.int64), *self._chunks.values()])

    def _older(self, xid: int) -> int:
        """Return the end of a transaction that no record ends."""
        if xid in (FROZEN, BOOTSTRAP):
            return BEFORE
        if xid < FIRST_NORMAL:
            return int(NEVER)
        if self._base is not None:
            committed = self._base.is_committed(xid)
            if committed is not None:
                return BEFORE if committed else int(NEVER)
        if self._redo_lsn is None:
            return int(NEVER) if self._start.shows_end(xid) else ASSUMED
        if self._first is not None and not precedes(xid, self._first):
            return int(NEVER)
        return ASSUMED


def _main(batch: Batch, row: int) -> bytes:
    record = batch.records[row]
    begin = int(record["main_offset"])
    return batch.payload[begin : begin + int(record["main_length"])].tobytes()
