"""The kinds of records in columns, and their sums by numpy or a compiled loop. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS

KINDS = 4096  # 256 resource managers, 16 kinds of record each
_TRANSACTION = RMGR_IDS["Transaction"]
# By kind of record: how many, their bytes without page images, and the bytes of those.
Sums = dict[int, tuple[int, int, int]]


def sums_of(records: Column) -> Sums:
    """Return the sums of records by kind."""
    counts, sizes, fpi_sizes = np.zeros((3, KINDS), np.int64)
    _fastest()(records, _TRANSACTION, counts, sizes, fpi_sizes)
    return {
        kind: (int(counts[kind]), int(sizes[kind] - fpi_sizes[kind]), int(fpi_sizes[kind]))
        for kind in np.flatnonzero(counts).tolist()
    }


def record_kind(records: Column) -> Column:
    """Return resource manager * 16 + the kind within it, which is the high nibble of info."""
    kinds: Column = records["rmid"].astype(np.int64) << 4
    nibble = records["info"] >> 4
    # The highest bit of a transaction record's info means that more flags follow.
    nibble[records["rmid"] == _TRANSACTION] &= 7
    kinds += nibble
    return kinds


def add_kinds(
    records: Column, transaction: int, counts: Column, sizes: Column, fpi_sizes: Column
) -> None:
    """Add the records to the sums by kind; `sizes` are whole lengths here."""
    kinds = record_kind(records)
    counts += np.bincount(kinds, minlength=KINDS)
    # bincount adds in float64, which is exact, since no batch has 2**53 bytes.
    for name, sums in (("length", sizes), ("fpi_length", fpi_sizes)):
        sums += np.bincount(kinds, weights=records[name], minlength=KINDS).astype(np.int64)


@cache
def _fastest() -> Callable[..., None]:
    try:
        from walkeeper_wal.records._walk import add_kinds as made_before
    except ImportError:
        return add_kinds
    return made_before
