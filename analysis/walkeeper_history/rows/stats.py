"""`stats`: number and bytes of records by kind, the same digits as pg_waldump --stats.

Sizes are counted as in pg_waldump (xlogstats.c). A record's size is its length without the page
images in it. FPI size is those images as stored. Combined size is both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from walkeeper_common.lsn import Lsn
from walkeeper_wal.records.segment import Column
from walkeeper_wal.records.versions import RMGR_IDS, RMGR_NAMES, rmgr_names
from walkeeper_wal.sources.reading import Batch

KINDS = 4096  # 256 resource managers, 16 kinds of record each
_TRANSACTION = RMGR_IDS["Transaction"]


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


@dataclass(frozen=True, slots=True)
class StatsRow:
    """One line of the table; percentages are of all records."""

    name: str
    count: int
    record_size: int
    fpi_size: int

    @property
    def combined_size(self) -> int:
        return self.record_size + self.fpi_size


class Stats:
    """Sums by kind of record, which can be added exactly and in any order."""

    def __init__(self) -> None:
        self.counts, self.record_sizes, self.fpi_sizes = np.zeros((3, KINDS), np.int64)
        self.start_lsn: int | None = None
        self.end_lsn: int | None = None
        self._names: tuple[str, ...] | None = None

    def add_batch(self, batch: Batch) -> None:
        """Add the records of one batch, which takes a tenth of a millisecond."""
        sizes, fpi = np.zeros((2, KINDS), np.int64)
        _fastest()(batch.records, _TRANSACTION, self.counts, sizes, fpi)
        self.fpi_sizes += fpi
        self.record_sizes += sizes - fpi
        self._names = batch.version.record_names()
        self._widen(*batch.span())

    def add(self, other: Stats) -> None:
        self.counts += other.counts
        self.record_sizes += other.record_sizes
        self.fpi_sizes += other.fpi_sizes
        self._names = other._names or self._names
        if other.start_lsn is not None and other.end_lsn is not None:
            self._widen(other.start_lsn, other.end_lsn)

    def _widen(self, start: int, end: int) -> None:
        self.start_lsn = start if self.start_lsn is None else min(self.start_lsn, start)
        self.end_lsn = end if self.end_lsn is None else max(self.end_lsn, end)

    def by_rmgr(self) -> list[StatsRow]:
        """Return a row for every built-in resource manager, and for custom ones with records."""
        sums = [
            column.reshape(256, 16).sum(axis=1).tolist()
            for column in (self.counts, self.record_sizes, self.fpi_sizes)
        ]
        rows = [StatsRow(*row) for row in zip(rmgr_names(), *sums, strict=True)]
        built_in = rows[: len(RMGR_NAMES)]
        return built_in + [row for row in rows[len(RMGR_NAMES) :] if row.count]

    def by_record(self) -> list[StatsRow]:
        """Return a row for every kind of record that there is, in pg_waldump's order."""
        names, rmgrs = self._names or ("",) * KINDS, rmgr_names()
        return [
            StatsRow(
                f"{rmgrs[kind >> 4]}/{names[kind]}",
                int(self.counts[kind]),
                int(self.record_sizes[kind]),
                int(self.fpi_sizes[kind]),
            )
            for kind in np.flatnonzero(self.counts).tolist()
        ]


def format_stats(stats: Stats, rows: list[StatsRow]) -> Iterator[str]:
    """Yield the lines that pg_waldump prints (XLogDumpDisplayStats)."""
    start, end = Lsn(stats.start_lsn or 0), Lsn(stats.end_lsn or 0)
    total = StatsRow(
        "Total", sum(r.count for r in rows), sum(r.record_size for r in rows),
        sum(r.fpi_size for r in rows),
    )  # fmt: skip
    sizes = (total.count, total.record_size, total.fpi_size, total.combined_size)
    yield f"WAL statistics between {start} and {end}:"
    heads = ("N", "(%)", "Record size", "(%)", "FPI size", "(%)", "Combined size", "(%)")
    rules = ("-", "---", "-----------", "---", "--------", "---", "-------------", "---")
    for first, cells in (("Type", heads), ("----", rules)):
        yield f"{first:<27} " + " ".join(
            f"{cell:>{8 if number % 2 else 20}}" for number, cell in enumerate(cells)
        )
    for row in rows:
        cells_of = (row.count, row.record_size, row.fpi_size, row.combined_size)
        yield f"{row.name:<27} " + " ".join(
            f"{value:>20} ({_percent(value, whole):6.2f})"
            for value, whole in zip(cells_of, sizes, strict=True)
        )
    yield f"{'':<27} " + f" {'':>8} ".join([f"{'--------':>20}"] * 4)
    marks = [f"[{_percent(size, total.combined_size):.2f}%]" for size in sizes[1:3]]
    yield (
        f"{'Total':<27} {sizes[0]:>20} {'':<9}{sizes[1]:>20} {marks[0]:<9}"
        f"{sizes[2]:>20} {marks[1]:<9}{sizes[3]:>20} [100%]"
    )


def _percent(value: int, whole: int) -> float:
    return 100.0 * value / whole if whole else 0.0
