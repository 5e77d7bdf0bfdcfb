"""`changes` and `row_history` of a logical log, in batch and as a stream. No logic of its own.

    path                  a safekeeper's DIR/<cluster>/wal (at rest), or a live log:
                          walkeeper://host:port,…/cluster
    table                 changes, or row_history
    relation              names or OIDs, separated by commas (all)
    where                 of row_history: COLUMN=VALUE
    allowMissing          of row_history: true gives rows also if others may lack the value
    startLsn, endLsn      changes whose records start in [startLsn, endLsn)
    parts                 tasks, by default one a CPU
    maxFilesPerTrigger    of a stream: segments in a micro-batch, by default 64

An offset of a stream is `{"position": "0/3000000"}`, with the primary's system if safekeepers
report it. Every transaction below that position in the log has been read. The position is always
between two entries that a quorum has. So no entry is read twice or taken back, and any of
the safekeepers may answer. Contract: an unknown option is an error. It is also an error if the log
no longer goes back to an offset.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

from pyspark_pgwal.pgwal_options import (
    MAX_FILES_PER_TRIGGER,
    hidden_rows,
    known_options,
    lsn_option,
    number_option,
    one_of,
    refuse_other_system,
    refuse_row_history_without_key,
    relations_option,
    table_of,
    where_option,
)
from walkeeper_common.lsn import Lsn
from walkeeper_replay.changes.change_rows import Change, batches, is_of_row, may_be_of_row
from walkeeper_replay.changes.logged_changes import LoggedChanges, selected, stretches
from walkeeper_wal.sources.entry_files import EntryFiles
from walkeeper_wal.wal_errors import HistoryError

_OF_ALL = ("path", "table", "relation", "startLsn", "endLsn", "parts", "maxFilesPerTrigger")
OPTIONS = {"changes": _OF_ALL, "row_history": (*_OF_ALL, "where", "allowMissing")}
ROWS = 1 << 13
Offset = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LoggedOptions:
    """The checked options, which Spark sends to the workers."""

    values: dict[str, str]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> LoggedOptions:
        table = table_of(given)
        made = cls(known_options(given, OPTIONS[table], f"{table} of a logical log"))
        refuse_row_history_without_key(made.values)
        one_of(made.values, "allowMissing", "false", "true")
        return made

    @property
    def path(self) -> str:
        return self.values["path"]

    def lsn(self, name: str) -> int | None:
        return lsn_option(self.values, name)

    def number(self, name: str, default: int) -> int:
        return number_option(self.values, name) or default

    @property
    def parts(self) -> int:
        return self.number("parts", os.cpu_count() or 1)

    def log(self) -> LoggedChanges:
        return LoggedChanges(EntryFiles.open(self.path), relations_option(self.values))

    def is_asked_for(self, change: Change, log: LoggedChanges) -> bool:
        """Return whether the query is for a change.

        Raise HistoryError if row_history does not know it, unless allowMissing accepts that.
        """
        if self.values["table"] != "row_history":
            return True
        column, value = where_option(self.values)
        if is_of_row(change, [(column, value)]):
            return True
        is_hidden = log.has_column(change.table, column) and may_be_of_row(change, column)
        if is_hidden and one_of(self.values, "allowMissing", "false", "true") == "false":
            raise hidden_rows(change, column)
        return False


@dataclass
class Entries(InputPartition):
    """The entries that start at positions in [begin, end)."""

    begin: int
    end: int

    def __init__(self, begin: int, end: int) -> None:
        self.begin, self.end = begin, end


def rows(options: LoggedOptions, partition: InputPartition) -> Iterator[Any]:
    """Yield the record batches of one task, and none for PySpark's partition without a value."""
    if not isinstance(partition, Entries):
        assert partition.value is None, f"{partition=}"
        return
    log = options.log()
    _refuse_removed(log.files, partition.begin)
    _refuse_shorter(log.files, partition.end)
    found = log.read(partition.begin, partition.end)
    held: list[Change] = []
    for change in selected(found, options.lsn("startLsn"), options.lsn("endLsn")):
        if options.is_asked_for(change, log):
            held.append(change)
        if len(held) >= ROWS:
            yield from batches(held, log.database)
            held = []
    yield from batches(held, log.database)


class LoggedReader(DataSourceReader):
    """Read the entries of a logical log in batch."""

    def __init__(self, options: LoggedOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        files, start_lsn = EntryFiles.open(self._options.path), self._options.lsn("startLsn")
        begin = files.first if start_lsn is None else files.start_for(start_lsn)
        return [Entries(*each) for each in stretches(files, begin, files.end, self._options.parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows(self._options, partition)


class LoggedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Look up the log's end for each micro-batch."""

    def __init__(self, options: LoggedOptions) -> None:
        self._options = options
        self._segments_max = options.number("maxFilesPerTrigger", MAX_FILES_PER_TRIGGER)
        self._target: Lsn | None = None

    def initialOffset(self) -> Offset:
        files, start_lsn = EntryFiles.open(self._options.path), self._options.lsn("startLsn")
        return _offset(files, files.first if start_lsn is None else files.start_for(start_lsn))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxFiles(self._segments_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = _position(self.reportLatestOffset())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        files, begin = EntryFiles.open(self._options.path), _position(start)
        refuse_other_system(self._options.path, start, files.system_id)
        _refuse_removed(files, begin)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else self._segments_max
        end = min(files.end, (begin + most * files.segment_bytes).round_down(files.segment_bytes))
        if self._target is not None:
            end = min(end, self._target)
        return _offset(files, max(begin, end))

    def reportLatestOffset(self) -> Offset:
        files = EntryFiles.open(self._options.path)
        return _offset(files, files.end)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        files = EntryFiles.open(self._options.path)
        begin = _position(start)
        refuse_other_system(self._options.path, end, files.system_id)
        _refuse_removed(files, begin)
        pieces = stretches(files, begin, _position(end), self._options.parts)
        return [Entries(*each) for each in pieces]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows(self._options, partition)

    def commit(self, end: Offset) -> None:
        """Keep nothing, since Spark's checkpoint has the offset."""


def _offset(files: EntryFiles, position: int) -> Offset:
    known = {} if files.system_id is None else {"system": str(files.system_id)}
    return {"position": str(Lsn(position)), **known}


def _position(offset: Offset) -> Lsn:
    return Lsn.parse(offset["position"])


def _refuse_shorter(files: EntryFiles, end: int) -> None:
    """Raise HistoryError on an executor that does not see all that the driver saw.

    Its own copy of a directory may be older. A safekeeper that lags may be the one that answers.
    """
    if files.end < end:
        raise HistoryError(
            f"{files.shown(files.end)}: the log ends at position {files.end} here, and the driver "
            f"saw it up to {Lsn(end)}: name a path or safekeepers that all executors reach"
        )


def _refuse_removed(files: EntryFiles, begin: int) -> None:
    if begin < files.first:
        raise HistoryError(
            f"{files.shown(files.first)}: changes before position {files.first} are gone, but they "
            f"were read only up to {Lsn(begin)}: begin anew, from a new snapshot"
        )
