"""`changes` of physical WAL as a stream, and their `problems` as another. No logic of its own.

    path, relation, database, base, timeline, allowMissing    as in batch
    startLsn              the stream begins with the commits that end after it
    state                 a folder of the driver's machine, for this stream alone (required)
    spool                 a folder or URL that driver and executors reach (`spool` in the state);
                          a relative one is below the folder where the driver runs
    maxBytesPerTrigger    bytes of WAL in a micro-batch, by default 1 GB, at least one segment
    memory, changeMemory  MB of pages, and of changes of open transactions (1024 and 64)

An offset is that of pyspark_pgwal.stream_reader, and always the end of a record. A micro-batch has
the commits between two offsets, whole and in their order. The driver replays them once, and writes
them into the spool. A task reads one file of the spool. The driver's log names what the changes
lack or do not show. A stream of `problems` gives the same as rows, with a state of its own.

Contract: two readings between the same two offsets have the same rows, until Spark has committed
the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes

from pyspark_pgwal.pgwal_options import PgWalOptions, number_option, refuse_other_system
from pyspark_pgwal.replayed_tables import PastOptions
from pyspark_pgwal.stream_reader import (
    Offset,
    PgWalStreamReader,
    lsn_of,
    offset_of,
    refuse_rewritten,
)
from walkeeper_history.follow import log_end
from walkeeper_history.tables import problem_rows
from walkeeper_replay.changes.undescribed import Undescribed
from walkeeper_replay.redo.base import NotConsistent
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.streams.change_ranges import ChangeRanges, read_spooled
from walkeeper_replay.streams.change_windows import PAGES_MAX, Scope
from walkeeper_replay.streams.open_changes import CHANGES_MAX_BYTES
from walkeeper_wal.sources.plan import Plan, Problem
from walkeeper_wal.wal_errors import HistoryError

logger = logging.getLogger("walkeeper.spark")

MAX_BYTES_PER_TRIGGER = 1 << 30
OF_BATCHES = ("endLsn", "startTime", "endTime", "onError", "parts")


@dataclass
class Spooled(InputPartition):
    """A file of the spool."""

    spool: str
    name: str

    def __init__(self, spool: str, name: str) -> None:
        self.spool, self.name = spool, name


@dataclass
class Met(InputPartition):
    """The problems of a micro-batch."""

    problems: list[Problem]

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems


class ChangesStreamReader(PgWalStreamReader):
    """Replay on the driver; give each task a file of the spool."""

    def __init__(self, options: PastOptions) -> None:
        where = {
            name: text for name, text in options.values.items() if name in ("path", "timeline")
        }
        super().__init__(PgWalOptions.parse(where))
        self._past = options
        self._state = Path(options.values["state"]).resolve()
        self._spool = _whole_path(options.values.get("spool") or str(self._state / "spool"))
        self._max_bytes = number_option(options.values, "maxBytesPerTrigger")
        self._ranges: ChangeRanges | None = None
        self._made: tuple[Offset, Offset, Sequence[InputPartition]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave the state on the driver: a task needs a partition alone."""
        return {**vars(self), "_ranges": None, "_made": None}

    def _plan(self) -> Plan:
        return self._past.plan()

    def initialOffset(self) -> Offset:
        plan = self._plan()
        first, start = plan.segments[0], self._past.lsn("startLsn") or 0
        return offset_of(plan, first.timeline, max(first.begin_lsn, start))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self._max_bytes or MAX_BYTES_PER_TRIGGER)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        if self._made is None or self._made[:2] != (start, end):
            plan = self._plan()
            refuse_other_system(self._options.path, end, plan.system_id)
            refuse_rewritten(plan, end)
            try:
                made = self._partitions(lsn_of(start), lsn_of(end), plan)
            except NotConsistent as error:
                raise HistoryError(
                    f"{error}: the first micro-batch ends at {end['lsn']}: begin with a new "
                    "checkpoint and a larger maxBytesPerTrigger, once that WAL is there"
                ) from error
            self._made = start, end, made
        return self._made[2]

    def _partitions(self, begin: int, end: int, plan: Plan) -> Sequence[InputPartition]:
        names = self._opened().write(begin, end, self._files, plan, self._tell)
        return [Spooled(self._spool, name) for name in names]

    def _tell(self, missing: Sequence[Undescribed], remarks: Sequence[Undescribed]) -> None:
        """Refuse missing changes, or name them in the driver's log, as `history stream` does."""
        self._past.refuse_missing(missing)
        for each in (*missing, *remarks):
            logger.warning("%s: %s %s: %s", self._past.path, each.kind, each.place, each.reason)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Spooled):
            assert partition.value is None, f"{partition=}"
            return iter(())
        return read_spooled(partition.spool, partition.name)

    def commit(self, end: Offset) -> None:
        """Save the state up to this offset: Spark will not ask for these changes again."""
        self._opened().finish(lsn_of(end))

    def stop(self) -> None:
        if self._ranges is not None:
            self._ranges.close()

    def _opened(self) -> ChangeRanges:
        if self._ranges is None:
            values = self._past.values
            scope = Scope(
                self._past.relations, values.get("database"), values.get("base"),
                self._past.lsn("startLsn") or 0,
            )  # fmt: skip
            memory, changes = (number_option(values, each) for each in ("memory", "changeMemory"))
            self._ranges = ChangeRanges(
                scope, self._state, self._spool,
                pages_max=PAGES_MAX if memory is None else (memory << 20) // PAGE_BYTES,
                changes_max_bytes=CHANGES_MAX_BYTES if changes is None else changes << 20,
            )  # fmt: skip
        return self._ranges

    def _segments_max(self, plan: Plan, limit: ReadLimit) -> int:
        if not isinstance(limit, ReadMaxBytes):
            return len(plan.segments)
        return max(limit.max_bytes // plan.segment_bytes, 1)

    def _end(self, plan: Plan, begin: int, most: int) -> Offset:
        found = super()._end(plan, begin, most)
        if self._is_live:
            return found
        part = plan.within(plan.segments[0].begin_lsn, lsn_of(found))
        return found if part is None else self._committed_end(part, begin)

    def _committed_end(self, plan: Plan, begin: int) -> Offset:
        """Return the end of the last whole record, as a commit ends with a record."""
        end = log_end(self._files, plan)
        return offset_of(plan, plan.segments[-1].timeline, max(begin, end))


class ProblemsStreamReader(ChangesStreamReader):
    """Replay on the driver; give one task the problems of the changes."""

    def _partitions(self, begin: int, end: int, plan: Plan) -> Sequence[InputPartition]:
        met = self._opened().problems(begin, end, self._files, plan)
        return [Met(met)] if met else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, Met):
            assert partition.value is None, f"{partition=}"
            return iter(())
        return iter([problem_rows(partition.problems)])


def _whole_path(spool: str) -> str:
    """Return the spool as executors name it, which run in folders of their own."""
    return spool if "://" in spool else str(Path(spool).resolve())


def changes_stream(given: Mapping[str, str]) -> ChangesStreamReader:
    """Return the reader of a stream of changes, or of their problems.

    Raise HistoryError for another table, and for an option that a stream does not have.
    """
    options = PastOptions.parse(given)
    readers = {"changes": ChangesStreamReader, "problems": ProblemsStreamReader}
    if options.table not in readers:
        raise HistoryError(f"table {options.table} of WAL can be read in batch only: name changes")
    options.refuse_others(OF_BATCHES, "as a stream")
    if not options.values.get("state"):
        raise HistoryError(
            f"a stream of {options.table} needs the option state: a folder of the driver's "
            "machine, for it alone"
        )
    return readers[options.table](options)
