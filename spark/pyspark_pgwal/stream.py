"""The streaming reader: segments as they become complete, each exactly once.

An offset is a place between segments: {"timeline": N, "lsn": "0/3000000"}; all segments below it
have been read. A segment is complete when the one behind it is there, with all that it announces
of a record that crosses over. Contract: between two offsets the same rows come again, since the
archive below them no longer changes; where it does (a new timeline left the log before what was
already read), that is an error and not a repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from pyspark_pgwal.batch import Segments, partitions_of, read_segments
from pyspark_pgwal.source import PgWalOptions
from walkeeper_common.lsn import Lsn
from walkeeper_history.errors import HistoryError
from walkeeper_history.plan import Plan
from walkeeper_history.spill import is_followed
from walkeeper_history.wal_files import open_files

Offset = dict[str, Any]


class PgWalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans anew for each micro-batch: one listing of the archive."""

    def __init__(self, options: PgWalOptions) -> None:
        self._options = options
        self._target: Offset | None = None

    def initialOffset(self) -> Offset:
        plan = self._options.plan()
        return _offset(plan.segments[0].timeline, plan.segments[0].first_lsn)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.max_files_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        plan = self._options.plan()
        self._target = self._end(plan, plan.segments[0].first_lsn, len(plan.segments))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        plan = self._options.plan()
        begin = _lsn_of(start)
        _refuse_rewritten(plan, start)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else len(plan.segments)
        end = self._end(plan, begin, most)
        if self._target is not None and _lsn_of(self._target) < _lsn_of(end):
            end = self._target
        return end if _lsn_of(end) > begin else start

    def reportLatestOffset(self) -> Offset:
        plan = self._options.plan()
        return self._end(plan, plan.segments[0].first_lsn, len(plan.segments))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        plan = self._options.plan()
        begin, limit = _lsn_of(start), _lsn_of(end)
        wanted = [n for n, s in enumerate(plan.segments) if begin <= s.first_lsn < limit]
        if not wanted:
            return []
        part = plan.part(wanted[0], wanted[-1] + 1)
        return partitions_of(part, self._options.segments_per_partition)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Segments), f"{partition=}"
        return read_segments(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Nothing is kept here: Spark's checkpoint has the offset."""

    def _end(self, plan: Plan, begin: int, most: int) -> Offset:
        """Behind the last of at most `most` complete segments from `begin` on."""
        files = open_files(self._options.path)
        at = next((n for n, s in enumerate(plan.segments) if s.first_lsn >= begin), None)
        if at is None:
            return _offset(plan.timeline, begin)
        end, timeline = begin, plan.segments[at].timeline
        # Only the last few can be incomplete, but gaps can be anywhere; looked at from the front,
        # a segment costs the first page of the one behind it.
        for index in range(at, min(at + most, len(plan.segments) - 1)):
            segment = plan.segments[index]
            if not is_followed(files, plan.segments, index):
                break
            end, timeline = segment.first_lsn + segment.segment_bytes, segment.timeline
        return _offset(timeline, end)


def _offset(timeline: int, lsn: int) -> Offset:
    return {"timeline": timeline, "lsn": str(Lsn(lsn))}


def _lsn_of(offset: Offset) -> int:
    return int(Lsn.parse(offset["lsn"]))


def _refuse_rewritten(plan: Plan, start: Offset) -> None:
    """A newer timeline may only begin behind what was read."""
    read_to = _lsn_of(start)
    for segment in plan.segments:
        if segment.first_lsn >= read_to:
            break
        if segment.timeline > start["timeline"]:
            raise HistoryError(
                f"timeline {segment.timeline} begins in {segment.name}, but WAL up to "
                f"{start['lsn']} was read of timeline {start['timeline']}: start a new checkpoint, "
                "or set the option timeline"
            )
