"""`walkeeper history stats`: the figures, and a document of them for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_common.lsn import Lsn
from walkeeper_history.rows.segment_sums import stats_of, stats_parts
from walkeeper_history.rows.stats import Stats, StatsRow
from walkeeper_wal.sources.threaded_reading import Part, SweepOptions

BATCH_RECORDS_MAX = 4096  # 350 kB of rows, which are counted while they are in the cache
_SUMS = ("count", "record_size", "fpi_size", "combined_size")


def gather(archive: Archive) -> Stats:
    total = Stats()
    options = replace(archive.options, records_max=BATCH_RECORDS_MAX)
    for stats, _ in archive.checked(_parts(archive, options)):
        total.add(stats)
    return total


def _parts(archive: Archive, options: SweepOptions) -> Iterable[Part[Stats]]:
    if not archive.source.spark:
        return stats_parts(archive.files, archive.plan, options)
    return archive.read_each(archive.files, archive.plan, stats_of, options)


def document(stats: Stats, rows: list[StatsRow], archive: Archive) -> dict[str, Any]:
    """Return the columns of pg_get_wal_stats, with LSNs in PostgreSQL's form."""
    totals = {name: sum(getattr(row, name) for row in rows) for name in _SUMS}
    return {
        "start_lsn": None if stats.start_lsn is None else str(Lsn(stats.start_lsn)),
        "end_lsn": None if stats.end_lsn is None else str(Lsn(stats.end_lsn)),
        "timeline": archive.plan.timeline,
        "rows": [_row(row, totals) for row in rows],
        "total": totals,
        "problems": [
            {"file": problem.file, "reason": problem.reason, "fatal": problem.fatal}
            for problem in archive.problems
        ],
    }


def _row(row: StatsRow, totals: dict[str, int]) -> dict[str, Any]:
    found: dict[str, Any] = {"resource_manager/record_type": row.name}
    for name in _SUMS:
        value = getattr(row, name)
        found[name] = value
        found[f"{name}_percentage"] = 100.0 * value / totals[name] if totals[name] else 0.0
    return found
