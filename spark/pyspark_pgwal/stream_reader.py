"""The streaming reader: every record exactly once, from an archive or from a live log.

An archive is read as its segments become complete, a live log (walkeeper://…) as it is committed.
An offset is `{"system": "7…", "timeline": N, "lsn": "0/3000000"}`. All records of this cluster's
log that start below the LSN have been read. In an archive it is a place between segments. A segment
is complete when the next one is there, with all that its header announces of a record that crosses
over. In a live log the offset is the end of the last record that is committed as a whole.

Contract: two readings between the same two offsets have the same rows, since the archive below them
no longer changes. If it does change, that is an error and not a repetition. It means that a new
timeline begins before the end of the WAL that was read.

Archivers that work in parallel put a segment before the one that precedes it. So a stream waits for
a segment that is missing, while at most LATER_MAX later ones are there. A query that ends with what
is there (availableNow) does not wait: it has no rows of the later ones, and must not seem complete.
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

from pyspark_pgwal.batch import partitions_of, read_partition
from pyspark_pgwal.pgwal_options import PgWalOptions, refuse_other_system
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_history.follow import log_end
from walkeeper_wal.sources.live import LiveFiles
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.spill import is_followed, is_torn
from walkeeper_wal.wal_errors import HistoryError

Offset = dict[str, Any]
LATER_MAX = 64


class PgWalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plan anew for each micro-batch: one listing of the archive."""

    def __init__(self, options: PgWalOptions) -> None:
        options.refuse_for_streams()
        self._options = options
        self._files = open_files(options.path)
        self._is_live = isinstance(self._files, LiveFiles)
        self._read_to = 0
        self._last_plan: Plan | None = None
        """The plan of a query that ends with what was there when it began (availableNow)."""

    def _plan(self) -> Plan:
        return self._options.plan(self._files)

    def initialOffset(self) -> Offset:
        plan = self._plan()
        first = plan.segments[0]
        return offset_of(plan, first.timeline, first.begin_lsn)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._options.max_files_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_plan = self._plan()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        plan = self._last_plan or self._plan()
        begin = self._read_to = lsn_of(start)
        refuse_other_system(self._options.path, start, plan.system_id)
        refuse_rewritten(plan, start)
        _refuse_removed(plan, begin)
        end = self._end(plan, begin, self._segments_max(plan, limit))
        if lsn_of(end) > begin:
            return end
        if not self._is_live:
            self._refuse_hole(plan, begin)
        return start

    def _refuse_hole(self, plan: Plan, read_to: int) -> None:
        """Raise HistoryError if WAL that was read up to does not go on, and later WAL is there."""
        size, segments = plan.segment_bytes, plan.segments
        at = next((n for n, s in enumerate(segments) if s.first_lsn + size > read_to), None)
        if at is None:
            return
        before, later = segments[at], plan.reachable[at + 1 :]
        if later and later[0].first_lsn == before.first_lsn + size:
            later = later[1:] if is_torn(self._files, later[0]) else ()
        if len(later) > (LATER_MAX if self._last_plan is None else 0):
            raise HistoryError(
                f"{self._files.shown(before.path)}: the segment after it is missing or damaged, "
                f"and later WAL is there, from {Lsn(later[0].first_lsn)} on: put the segment into "
                "the archive and start the query again, or begin a new checkpoint after it"
            )

    def reportLatestOffset(self) -> Offset:
        """Return the end of what is there after the last offset, behind which may be holes."""
        plan = self._plan()
        begin = self._read_to or plan.segments[0].first_lsn
        return self._end(plan, begin, len(plan.segments))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        plan = self._plan()
        refuse_other_system(self._options.path, end, plan.system_id)
        refuse_rewritten(plan, end)
        _refuse_removed(plan, lsn_of(start))
        part = plan.within(lsn_of(start), lsn_of(end))
        return partitions_of(part, self._options.segments_per_partition) if part else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_partition(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Keep nothing, since Spark's checkpoint has the offset."""

    def _segments_max(self, plan: Plan, limit: ReadLimit) -> int:
        return limit.max_files if isinstance(limit, ReadMaxFiles) else len(plan.segments)

    def _end(self, plan: Plan, begin: int, most: int) -> Offset:
        """Return the offset after at most `most` segments, from the one with `begin` on."""
        size = plan.segment_bytes
        at = next((n for n, s in enumerate(plan.segments) if s.first_lsn + size > begin), None)
        if at is None:
            return offset_of(plan, plan.timeline, begin)
        last = min(at + most, len(plan.segments)) - 1
        if self._is_live:
            return self._committed_end(plan.part(0, last + 1), begin)
        end, timeline = begin, plan.segments[at].timeline
        # Only the last few can be incomplete, but gaps can be anywhere. So the check begins at the
        # front. A segment costs the first page of the next one.
        for index in range(at, last + 1):
            segment = plan.segments[index]
            # The next segment may be after endLsn, too.
            if not is_followed(self._files, plan.reachable, index):
                break
            end, timeline = segment.first_lsn + size, segment.timeline
        return offset_of(plan, timeline, end)

    def _committed_end(self, plan: Plan, begin: int) -> Offset:
        """Return the last segment's end if its last record is whole, or the last record's end."""
        last = plan.segments[-1]
        is_whole = is_followed(self._files, plan.reachable, len(plan.segments) - 1)
        end = last.end_lsn if is_whole else log_end(self._files, plan)
        return offset_of(plan, last.timeline, max(begin, end))


def offset_of(plan: Plan, timeline: int, lsn: int) -> Offset:
    return {"system": str(plan.system_id), "timeline": timeline, "lsn": str(Lsn(lsn))}


def lsn_of(offset: Offset) -> int:
    return int(Lsn.parse(offset["lsn"]))


def _refuse_removed(plan: Plan, read_to: int) -> None:
    """Raise HistoryError if the WAL that comes next has been removed."""
    first = plan.segments[0]
    if first.begin_lsn > read_to:
        raise HistoryError(
            f"{first.name}: WAL before {Lsn(first.begin_lsn)} is gone, but it was read only up to "
            f"{Lsn(read_to)}: start a new checkpoint, or read an archive that has it"
        )


def refuse_rewritten(plan: Plan, offset: Offset) -> None:
    """Raise HistoryError if the log up to an offset is not the one that was read."""
    read_to, timeline = lsn_of(offset), offset["timeline"]
    is_guess = plan.timeline > 1 and all(s.end_lsn >= LSN_MAX for s in plan.path)
    if not is_guess and all(s.timeline != timeline for s in plan.path):
        raise HistoryError(
            f"WAL up to {offset['lsn']} was read on timeline {timeline}, and the log up to "
            f"timeline {plan.timeline} was never on it: start a new checkpoint, or set the option "
            "timeline"
        )
    left = [s for s in plan.path if s.timeline == timeline and s.end_lsn < read_to]
    # Without its history file, a timeline is known by its segments.
    newer = [s for s in plan.segments
             if s.first_lsn + plan.segment_bytes <= read_to and s.timeline > timeline]  # fmt: skip
    if left or newer:
        raise HistoryError(
            f"a newer timeline than {timeline} begins before {offset['lsn']}, up to where WAL of "
            f"timeline {timeline} was read: start a new checkpoint, or set the option timeline"
        )
