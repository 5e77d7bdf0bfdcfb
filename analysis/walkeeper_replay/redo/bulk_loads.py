"""Find where WAL lacks bulk loads: from a change to wal_level = minimal on.

    loads = BulkLoads(); loads.add(batch); loads.unlogged_since -> LSN, or None
    loads.unlogged_until -> where the server had another wal_level again, or None

A server that starts with other settings than before logs those that a standby depends on
(xl_parameter_change). With minimal, COPY into a table of the same transaction, CREATE TABLE AS and
similar commands write files and no WAL. PostgreSQL's own recovery refuses to go on there.

WAL may begin with minimal, and then nothing says so. But the commit of a bulk load has changed
catalogs. It lists invalidations for standbys, and with minimal alone it leaves them out
(RecordTransactionCommit in xact.c). Prepared transactions and initdb's first one say nothing.
"""

from __future__ import annotations

import numpy as np

from walkeeper_history.rows.ended import detailed_endings
from walkeeper_history.rows.transactions import FLAGS_AT, FLAGS_BYTES, HAS_INFO, INVALS
from walkeeper_replay.redo.wal_pass import xlog_records
from walkeeper_wal.records.gather import integers
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

_PARAMETER_CHANGE = 0x60
_WAL_LEVEL_OFFSET = 20  # after five other integers, in 13 to 18
_MINIMAL = 0
_XACT, _COMMIT = RMGR_IDS["Transaction"], 0x00
_STORAGE, _CREATE = RMGR_IDS["Storage"], 0x10
_HEAP, _INSERT, _HEAP2, _MULTI_INSERT = RMGR_IDS["Heap"], 0x00, RMGR_IDS["Heap2"], 0x50
_FIRST_NORMAL_XID = 3
_CATALOGS = (1247, 1249, 1259)  # pg_type, pg_attribute, pg_class


class BulkLoads:
    """A consumer of `pass_over`."""

    # A state that an older version saved has none of these.
    unlogged_until: int | None = None
    _begin_lsn: int | None = None
    _is_level_known: bool = False
    _makers: frozenset[int] = frozenset()
    """Transactions that made files or rows of catalogs, until the level is known."""

    def __init__(self, since: int | None = None, until: int | None = None) -> None:
        self.unlogged_since, self.unlogged_until = since, until

    def add(self, batch: Batch) -> None:
        if self._begin_lsn is None:
            self._begin_lsn = int(batch.start_lsn()[0])
        changes = xlog_records(batch, _PARAMETER_CHANGE)
        if not self._is_level_known and changes != [0]:
            self._infer_level(batch.head(changes[0]) if changes else batch)
        for row in changes:
            self._is_level_known = True
            begin = int(batch.records["main_offset"][row]) + _WAL_LEVEL_OFFSET
            end = int(batch.end_lsn()[row])
            if int(batch.payload[begin : begin + 4].view(np.uint32)[0]) == _MINIMAL:
                self.unlogged_since = end if self.unlogged_since is None else self.unlogged_since
                self.unlogged_until = None
            elif self.unlogged_since is not None and self.unlogged_until is None:
                self.unlogged_until = end

    def _infer_level(self, batch: Batch) -> None:
        """Take the level from the first commit that changed catalogs; see the module."""
        records, blocks = batch.records, batch.blocks
        makes = (records["rmid"] == _STORAGE) & (records["info"] & 0xF0 == _CREATE)
        # The first file of a transaction is older than its xid, which its rows of catalogs have.
        ops = records["info"] & 0x70
        puts = (records["rmid"] == _HEAP) & (ops == _INSERT)
        puts |= (records["rmid"] == _HEAP2) & (ops == _MULTI_INSERT)
        rows = blocks["record"][np.isin(blocks["relfilenode"], _CATALOGS)]
        found = {*records["xid"][makes].tolist(), *records["xid"][rows[puts[rows]]].tolist()}
        self._makers |= {xid for xid in found if xid >= _FIRST_NORMAL_XID}
        if not self._makers:
            return
        are_listed = _list_invalidations(batch)
        own = np.isin(records["xid"], list(self._makers))
        for row, _, ending in detailed_endings(batch):
            own[row] |= not self._makers.isdisjoint(ending.subxacts)
        is_commit = (records["rmid"] == _XACT) & (ops == _COMMIT)
        rows = np.flatnonzero(is_commit & own)
        if not len(rows):
            return
        self._is_level_known, self._makers = True, frozenset()
        if not are_listed[rows[0]]:
            self.unlogged_since = self._begin_lsn


def _list_invalidations(batch: Batch) -> Column:
    """Return a mask of the records that list invalidations, if they are commits."""
    records = batch.records
    found: Column = records["info"] & HAS_INFO != 0
    found &= records["main_length"] >= FLAGS_AT + FLAGS_BYTES
    rows = np.flatnonzero(found)
    flags = integers(batch.payload, records["main_offset"][rows].astype(np.int64) + FLAGS_AT, 4)
    found[rows] = flags & INVALS != 0
    return found
