"""The batch reader: a plan's segments in partitions, their rows as Arrow batches.

Contract: the driver plans partitions from names and a few headers alone. A partition also knows the
segments after it, which have the rest of its last record. It knows the segments before it, to check
that its first record follows the last one there. Damage raises an error with the file and the LSN,
or the rows leave it out, as the option onError says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from pyspark_pgwal.filters import take_filter
from pyspark_pgwal.pgwal_options import PgWalOptions
from walkeeper_common.lsn import LSN_MAX
from walkeeper_history.rows.row_filters import on_timelines
from walkeeper_history.segment_index import passed_over
from walkeeper_history.tables import problem_rows
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, Problem
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.threaded_reading import (
    in_one_chain,
    raise_fatal,
    read_each,
    summaries_before,
)

# A task costs 50 ms, so on one machine each CPU gets one. In partitions above the maximum, the
# others would wait too long for the last one.
PARTITION_BYTES_MIN, PARTITION_BYTES_MAX = 128 << 20, 1 << 30
BATCH_ROWS_MIN = 4096


@dataclass
class Segments(InputPartition):
    """Neighbouring segments, with those that the rest of their last record can reach."""

    plan: Plan
    skipped: frozenset[int]

    def __init__(self, plan: Plan, skipped: frozenset[int] = frozenset()) -> None:
        self.plan, self.skipped = plan, skipped


def partitions_of(
    plan: Plan, per_partition: int | None, skipped: frozenset[int] = frozenset()
) -> list[Segments]:
    """Return partitions of neighbouring segments, `per_partition` each.

    By default a partition has 128 MB to 1 GB. `skipped` has the first LSNs of the segments that
    are not read.
    """
    wanted = [n for n, segment in enumerate(plan.segments) if segment.first_lsn not in skipped]
    count, size = len(wanted), plan.segment_bytes
    if per_partition is None:
        even = -(-count // (os.cpu_count() or 1))
        least, most = (-(-limit // size) for limit in (PARTITION_BYTES_MIN, PARTITION_BYTES_MAX))
        per_partition = min(max(even, least), most)
    groups = [wanted[at : at + per_partition] for at in range(0, count, per_partition)]
    parts = [plan.part(group[0], group[-1] + 1) for group in groups]
    if skipped:  # no segments before it are read either, so that a few rows cost a few segments
        parts = [replace(part, before=()) for part in parts]
    return [Segments(part, skipped) for part in parts]


def read_segments(options: PgWalOptions, part: Segments) -> Iterator[Any]:
    """Return the record batches of a partition, in the order of the log."""
    held: list[Any] = []
    for batch in _batches(options, part):
        held.append(batch)
        if sum(each.num_rows for each in held) >= BATCH_ROWS_MIN:
            yield from _as_one(held)
            held = []
    yield from _as_one(held)


def read_partition(options: PgWalOptions, partition: InputPartition) -> Iterator[Any]:
    """Return the record batches of a partition.

    If `partitions()` returns an empty list, PySpark makes one partition without a value. It has no
    rows.
    """
    if not isinstance(partition, Segments):
        assert partition.value is None, f"{partition=}"
        return iter(())
    return read_segments(options, partition)


def _as_one(batches: list[Any]) -> list[Any]:
    """Return the batches merged into one.

    To send a batch to the JVM takes as long as thousands of rows.
    """
    if len(batches) <= 1:
        return batches
    merged: list[Any] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return merged


def _batches(options: PgWalOptions, part: Segments) -> Iterator[Any]:
    made = options.made_table()
    problems: list[Problem] = []
    collects = options.table == "problems"
    on_problem = raise_fatal if options.on_error == "fail" and not collects else problems.append

    def rows(reading: Reading) -> list[Any]:
        return list(made.batches(reading))

    files = open_files(options.path)
    how = replace(options.sweep_options(), skipped=part.skipped)
    before = summaries_before(files, part.plan, how)
    for batches, _ in in_one_chain(
        read_each(files, part.plan, rows, how), files, on_problem, before
    ):
        if not collects:
            yield from batches
    if problems and collects:
        yield problem_rows(problems).select(made.schema.names)


class PgWalReader(DataSourceReader):
    """Plan on the driver, read on the executors."""

    def __init__(self, options: PgWalOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self._options.wanted
        plan: Plan | None = options.plan()
        assert plan is not None, "options.plan() finds something or raises"
        if wanted.timelines is not None and (found := on_timelines(plan, wanted.timelines)):
            wanted = wanted.lsns(*found)
        span = wanted.start_lsn or 0, LSN_MAX if wanted.end_lsn is None else int(wanted.end_lsn)
        if options.on_error == "fail" and options.table != "problems":
            for gap in plan.gaps(*span):
                raise_fatal(gap)
        plan = plan.within(*span)
        if plan is None:
            return []
        skipped: frozenset[int] = frozenset()
        if options.index and wanted.needs_index:
            skipped = passed_over(options.index, open_files(options.path), plan, wanted)
            # A gap after a segment is reported by the task that reads the segment.
            skipped -= {s.first_lsn for s in plan.segments if any(p.fatal for p in s.problems)}
        return partitions_of(plan, options.segments_per_partition, skipped)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)


class PushdownReader(PgWalReader):
    """Take filters from the query. Spark refuses it unless pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        wanted = self._options.wanted
        for each in filters:
            wanted, is_done = take_filter(each, self._options.table, wanted)
            if not is_done:
                yield each
        self._options = replace(self._options, wanted=wanted)
