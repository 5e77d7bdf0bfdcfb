"""The files of tables in which transactions changed rows, or may have. Pure."""

from __future__ import annotations

import numpy as np

from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_CUSTOM_MIN, RMGR_IDS
from walkeeper_wal.sources.reading import Batch

FIRST_NORMAL_OID = 16384
LARGE_OBJECTS = 2613
"""pg_largeobject, and its file unless it was rewritten: a catalog that has users' data."""
_HEAP, _HEAP2 = RMGR_IDS["Heap"], RMGR_IDS["Heap2"]
_INSERT, _DELETE, _UPDATE, _HOT_UPDATE, _MULTI_INSERT = 0, 1, 2, 4, 5


def heap_changes(batch: Batch) -> Column:
    """Return distinct rows of tablespace, database, relfilenode and xid.

    The files are those of users' tables, their TOAST, large objects, and catalogs that were
    rewritten. Records of an extension's resource manager add all files that they name, since these
    may have rows.
    """
    records, blocks = batch.records, batch.blocks
    rmid, operation = records["rmid"], records["info"] >> 4 & 7
    of_rows = (rmid == _HEAP) & np.isin(operation, (_INSERT, _DELETE, _UPDATE, _HOT_UPDATE))
    of_rows |= (rmid == _HEAP2) & (operation == _MULTI_INSERT)
    named = of_rows[blocks["record"]] & (blocks["block_id"] == 0)
    named |= (rmid >= RMGR_CUSTOM_MIN)[blocks["record"]]
    blocks = blocks[named]
    nodes = blocks["relfilenode"]
    blocks = blocks[(nodes >= FIRST_NORMAL_OID) | (nodes == LARGE_OBJECTS)]
    columns = [blocks[name].astype(np.int64) for name in ("tablespace", "database", "relfilenode")]
    columns.append(records["xid"][blocks["record"]].astype(np.int64))
    space, database, node, xid = columns
    # Two keys of 64 bits: numpy sorts rows of four columns many times slower.
    _, places = np.unique(space << 32 | database, return_inverse=True)
    _, files = np.unique(places.astype(np.int64) << 32 | node, return_inverse=True)
    _, firsts = np.unique(files.astype(np.int64) << 32 | xid, return_index=True)
    found: Column = np.stack([column[firsts] for column in columns], axis=1)
    return found
