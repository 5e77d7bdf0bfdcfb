"""The batch reader: a plan's segments in partitions, their rows as Arrow batches.

Contract: partitions are planned from names and a few headers alone; a partition takes the segments
behind it along, for the rest of its last record, and those before it, to see that its first record
follows the last one there. What is damaged raises with file and LSN, or is
left out, as the option onError says.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from pyspark_pgwal.source import PgWalOptions
from walkeeper_history.plan import Plan, Problem
from walkeeper_history.reading import Reading
from walkeeper_history.sweep import in_one_chain, raise_fatal, read_each, summaries_before
from walkeeper_history.tables import problem_rows
from walkeeper_history.wal_files import open_files

# A task costs 50 ms, so on one machine a CPU gets one; more than the most would wait for the last.
PARTITION_BYTES_MIN, PARTITION_BYTES_MAX = 128 << 20, 1 << 30


@dataclass
class Segments(InputPartition):
    """Neighbouring segments, with those that the rest of their last record can reach."""

    plan: Plan

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def partitions_of(plan: Plan, per_partition: int | None) -> list[Segments]:
    """Neighbours together, 128 MB to 1 GB of them unless told otherwise."""
    count, size = len(plan.segments), plan.segment_bytes
    if per_partition is None:
        even = -(-count // (os.cpu_count() or 1))
        least, most = (-(-limit // size) for limit in (PARTITION_BYTES_MIN, PARTITION_BYTES_MAX))
        per_partition = min(max(even, least), most)
    starts = range(0, count, per_partition)
    return [Segments(plan.part(at, min(at + per_partition, count))) for at in starts]


def read_segments(options: PgWalOptions, part: Segments) -> Iterator[Any]:
    """Record batches of a partition, in the order of the log."""
    made = options.made_table()
    problems: list[Problem] = []
    collects = options.table == "problems"
    on_problem = raise_fatal if options.on_error == "fail" and not collects else problems.append

    def rows(reading: Reading) -> list[Any]:
        return list(made.batches(reading))

    files, how = open_files(options.path), options.sweep_options()
    before = summaries_before(files, part.plan, how)
    for batches, _ in in_one_chain(
        read_each(files, part.plan, rows, how), files, on_problem, before
    ):
        if not collects:
            yield from batches
    if problems and collects:
        yield problem_rows(problems).select(made.schema.names)


class PgWalReader(DataSourceReader):
    """Plans on the driver, reads on the executors."""

    def __init__(self, options: PgWalOptions) -> None:
        self._options = options
        self._start_lsn: int | None = None
        self._end_lsn: int | None = None

    def partitions(self) -> Sequence[InputPartition]:
        plan = self._options.plan(self._start_lsn, self._end_lsn)
        return partitions_of(plan, self._options.segments_per_partition)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Segments), f"{partition=}"
        return read_segments(self._options, partition)


class PushdownReader(PgWalReader):
    """Takes ranges of start_lsn from the query. Spark refuses it unless pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for each in filters:
            if getattr(each, "attribute", None) == ("start_lsn",) and self._takes(each):
                continue
            yield each

    def _takes(self, each: Filter) -> bool:
        match each:
            case EqualTo(_, value):
                self._narrow(value, value + 1)
            case GreaterThanOrEqual(_, value):
                self._narrow(value, None)
            case GreaterThan(_, value):
                self._narrow(value + 1, None)
            case LessThan(_, value):
                self._narrow(None, value)
            case LessThanOrEqual(_, value):
                self._narrow(None, value + 1)
            case _:
                return False
        return True

    def _narrow(self, start: int | None, end: int | None) -> None:
        if start is not None:
            self._start_lsn = max(start, self._start_lsn or 0)
        if end is not None:
            self._end_lsn = end if self._end_lsn is None else min(end, self._end_lsn)
