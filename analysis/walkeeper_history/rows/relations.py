"""`relations`: how much of a segment's WAL each relation made.

A page image and a block's data count for the block's own relation. The rest of a record (its
headers and main data) counts for the relation of its first block. So the sums over all relations
are the WAL less the records without blocks. INSERT, UPDATE and DELETE count rows of heaps. A
MULTI_INSERT counts as one record, since the number of its tuples is in its data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.reading import Batch

RELATION_SCHEMA = pa.schema(
    [
        ("reltablespace", pa.int64()),
        ("reldatabase", pa.int64()),
        ("relfilenode", pa.int64()),
        ("records", pa.int64()),
        ("blocks", pa.int64()),
        ("fpi", pa.int64()),
        ("fpi_bytes", pa.int64()),
        ("wal_bytes", pa.int64()),
        ("inserts", pa.int64()),
        ("updates", pa.int64()),
        ("hot_updates", pa.int64()),
        ("deletes", pa.int64()),
        ("start_lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("timeline", pa.int32()),
        ("segment", pa.string()),
    ]
)
_SUMS = RELATION_SCHEMA.names[3:12]
_HEAP = RMGR_IDS["Heap"]
_KINDS = {"inserts": (0,), "updates": (2, 4), "hot_updates": (4,), "deletes": (1,)}


class RelationSums:
    """Sums over one segment; a relation is (tablespace, database, relfilenode)."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, int, int], list[int]] = {}
        self._lsns: dict[tuple[int, int, int], tuple[int, int]] = {}

    def add_batch(self, batch: Batch) -> None:
        blocks, records = batch.blocks, batch.records
        if not len(blocks):
            return
        keys = np.empty((len(blocks), 3), np.uint32)
        for number, name in enumerate(("tablespace", "database", "relfilenode")):
            keys[:, number] = blocks[name]
        order = np.lexsort(keys.T[::-1])
        ordered = keys[order]
        is_new = np.ones(len(order), bool)
        is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        codes = np.empty(len(order), np.int64)
        codes[order] = np.cumsum(is_new) - 1
        relations = ordered[is_new]
        columns = _block_sums(batch)
        sums = [
            np.bincount(codes, weights=columns[name], minlength=len(relations)).astype(np.int64)
            for name in _SUMS
        ]
        of_record = blocks["record"]
        first = np.full(len(relations), len(records), np.int64)
        last = np.zeros(len(relations), np.int64)
        np.minimum.at(first, codes, of_record)
        np.maximum.at(last, codes, of_record)
        starts, ends = batch.start_lsn()[first].tolist(), batch.end_lsn()[last].tolist()
        rows = np.stack(sums, axis=1).tolist()
        for row, key in enumerate(map(tuple, relations.tolist())):
            self._add(key, rows[row], starts[row], ends[row])

    def _add(self, key: tuple[int, ...], sums: list[int], start: int, end: int) -> None:
        relation = (key[0], key[1], key[2])
        if relation not in self._sums:
            self._sums[relation], self._lsns[relation] = sums, (start, end)
            return
        self._sums[relation] = [a + b for a, b in zip(self._sums[relation], sums, strict=True)]
        self._lsns[relation] = (self._lsns[relation][0], end)

    def add(self, other: RelationSums) -> None:
        """Add the sums of WAL that follows the WAL of these sums."""
        for key, sums in other._sums.items():
            self._add(key, sums, *other._lsns[key])

    def totals(self) -> list[tuple[tuple[int, int, int], dict[str, int]]]:
        """Return every relation with its sums, the largest first."""
        found = [(key, dict(zip(_SUMS, sums, strict=True))) for key, sums in self._sums.items()]
        return sorted(found, key=lambda each: -each[1]["wal_bytes"])

    def rows(self, segment: str, timeline: int) -> Any:
        """Return a record batch of RELATION_SCHEMA."""
        rows = [
            (*key, *self._sums[key], *self._lsns[key], timeline, segment)
            for key in sorted(self._sums)
        ]
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(RELATION_SCHEMA)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, RELATION_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=RELATION_SCHEMA)


def _block_sums(batch: Batch) -> dict[str, Column]:
    """Return each block reference's share in its relation's sums."""
    blocks, records = batch.blocks, batch.records
    of_record = blocks["record"]
    is_first = np.ones(len(blocks), bool)
    is_first[1:] = of_record[1:] != of_record[:-1]
    own = blocks["image_length"].astype(np.int64) + blocks["data_length"]
    before = np.zeros(len(records), np.int64)
    np.add.at(before, of_record, own)
    rest = records["length"].astype(np.int64) - before
    kinds = (records["info"] >> 4 & 7)[of_record]
    heap = is_first & (records["rmid"][of_record] == _HEAP)
    # A record counts for each relation once, also if the relation has several of its blocks.
    again = np.zeros(len(blocks), bool)
    for name in ("tablespace", "database", "relfilenode"):
        again[1:] |= blocks[name][1:] != blocks[name][:-1]
    again[1:] = ~again[1:] & ~is_first[1:]
    return {
        "records": ~again,
        "blocks": np.ones(len(blocks), bool),
        "fpi": blocks["flags"] & 0x10 != 0,
        "fpi_bytes": blocks["image_length"],
        "wal_bytes": own + np.where(is_first, rest[of_record], 0),
        **{name: heap & np.isin(kinds, kinds_of) for name, kinds_of in _KINDS.items()},
    }
