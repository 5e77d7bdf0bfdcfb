"""`stats`: number and bytes of records by kind, the same digits as pg_waldump --stats.

Sizes are counted as in pg_waldump (xlogstats.c). A record's size is its length without the page
images in it. FPI size is those images as stored. Combined size is both. The module does not import
numpy at once: to load it takes a fifth of the time in which a gigabyte is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from walkeeper_common.lsn import Lsn
from walkeeper_wal.records.versions import RMGR_NAMES, WalVersion, rmgr_names

if TYPE_CHECKING:
    from walkeeper_history.rows.record_kinds import Sums
    from walkeeper_wal.sources.reading import Batch


@dataclass(frozen=True, slots=True)
class StatsRow:
    """One line of the table, without its percentages."""

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
        self.sums: Sums = {}
        self.start_lsn: int | None = None
        self.end_lsn: int | None = None
        self._version: WalVersion | None = None

    def add_batch(self, batch: Batch) -> None:
        """Add the records of one batch, which takes a tenth of a millisecond."""
        from walkeeper_history.rows.record_kinds import sums_of

        self.add_sums(sums_of(batch.records), batch.version, *batch.span())

    def add_sums(self, sums: Sums, version: WalVersion, start_lsn: int, end_lsn: int) -> None:
        """Add the sums of records in a range."""
        self._add(sums)
        self._version = version
        self._widen(start_lsn, end_lsn)

    def add(self, other: Stats) -> None:
        self._add(other.sums)
        self._version = other._version or self._version
        if other.start_lsn is not None and other.end_lsn is not None:
            self._widen(other.start_lsn, other.end_lsn)

    def _add(self, sums: Sums) -> None:
        for kind, (count, size, fpi_size) in sums.items():
            had = self.sums.get(kind, (0, 0, 0))
            self.sums[kind] = had[0] + count, had[1] + size, had[2] + fpi_size

    def _widen(self, start: int, end: int) -> None:
        self.start_lsn = start if self.start_lsn is None else min(self.start_lsn, start)
        self.end_lsn = end if self.end_lsn is None else max(self.end_lsn, end)

    def totals(self) -> tuple[int, int, int]:
        """Return the number of all records, their bytes without images, and those of images."""
        count, size, fpi_size = (
            sum(column) for column in zip((0, 0, 0), *self.sums.values(), strict=True)
        )
        return count, size, fpi_size

    def by_rmgr(self) -> list[StatsRow]:
        """Return a row for every built-in resource manager, and for custom ones with records."""
        sums = [[0, 0, 0] for _ in rmgr_names()]
        for kind, numbers in self.sums.items():
            of = sums[kind >> 4]
            of[:] = map(sum, zip(of, numbers, strict=True))
        rows = [StatsRow(name, *of) for name, of in zip(rmgr_names(), sums, strict=True)]
        built_in = rows[: len(RMGR_NAMES)]
        return built_in + [row for row in rows[len(RMGR_NAMES) :] if row.count]

    def by_record(self) -> list[StatsRow]:
        """Return a row for every kind of record that there is, in pg_waldump's order."""
        if self._version is None:
            return []
        names, rmgrs = self._version.record_names(), rmgr_names()
        return [
            StatsRow(f"{rmgrs[kind >> 4]}/{names[kind]}", *numbers)
            for kind, numbers in sorted(self.sums.items())
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
