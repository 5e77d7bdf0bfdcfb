"""The tables of an archive: their columns, and their rows for one segment.

    table(name, columns).batches(reading) -> record batches of one segment

    records, blocks                          pg_walinspect's two views of single records
    xacts, checkpoints, locks, messages      records of one kind, taken apart
    stats, relations                         sums over a segment, to be added up
    segments, problems                       the archive itself

Contract: every batch of a table has the table's schema, which holds only types that Spark has.
Memory is that of one segment. Rows come in the order of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from walkeeper_history.rows import events
from walkeeper_history.rows.columns import (
    BLOCK_COLUMNS,
    NAME_COLUMNS,
    RECORD_COLUMNS,
    ColumnOf,
    name_arrays,
    name_columns,
)
from walkeeper_history.rows.relation_names import RelationNames
from walkeeper_history.rows.relations import RELATION_SCHEMA, RelationSums
from walkeeper_history.rows.row_filters import Wanted
from walkeeper_history.rows.stats import Stats
from walkeeper_history.rows.view import View
from walkeeper_wal.records.versions import rmgr_names
from walkeeper_wal.sources.plan import Problem
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.wal_errors import HistoryError

Make = Callable[[Reading, tuple[str, ...]], Iterator[Any]]
# Copies of WAL itself, which a caller has to name.
PAYLOAD_COLUMNS = frozenset({"main_data", "block_data", "block_fpi_data"})

_LOCK_SCHEMA = pa.schema(
    [
        ("start_lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("timeline", pa.int32()),
        ("xid", pa.int64()),
        ("database", pa.int64()),
        ("relation", pa.int64()),
        ("segment", pa.string()),
    ]
)
STATS_SCHEMA = pa.schema(
    [
        ("resource_manager", pa.string()),
        ("record_type", pa.string()),
        ("count", pa.int64()),
        ("record_size", pa.int64()),
        ("fpi_size", pa.int64()),
        ("combined_size", pa.int64()),
        ("segment", pa.string()),
    ]
)
SEGMENT_SCHEMA = pa.schema(
    [
        ("segment", pa.string()),
        ("file", pa.string()),
        ("timeline", pa.int32()),
        ("status", pa.string()),
        ("first_lsn", pa.int64()),
        ("start_lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("records", pa.int64()),
        ("record_bytes", pa.int64()),
        ("fpi_bytes", pa.int64()),
        ("file_bytes", pa.int64()),
        ("segment_size", pa.int64()),
        ("system_identifier", pa.string()),
        ("server_version", pa.int32()),
    ]
)
PROBLEM_SCHEMA = pa.schema(
    [
        ("file", pa.string()),
        ("start_lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("reason", pa.string()),
        ("fatal", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the columns that the caller named, in their order."""

    name: str
    schema: Any
    _make: Callable[[Reading], Iterator[Any]]

    def batches(self, reading: Reading) -> Iterator[Any]:
        """Yield non-empty record batches of one segment; afterwards its problems are complete."""
        for batch in self._make(reading):
            if batch.num_rows:
                yield batch.select(self.schema.names)


def table(
    name: str,
    columns: Iterable[str] | None = None,
    names: RelationNames | None = None,
    wanted: Wanted | None = None,
) -> Table:
    """Return a table; raise HistoryError if there is no such table, or column in it.

    With `names`, the tables `blocks` and `relations` have two more columns for them. `records` and
    `blocks` have only `wanted` rows.
    """
    kept = column_names(name, with_payload=False, names=names)
    schema, make = _made(name, names, wanted)
    if columns is not None:
        kept = list(columns)
        if unknown := [column for column in kept if column not in schema.names]:
            raise HistoryError(
                f"table {name} has no column {unknown[0]!r}; it has: {', '.join(schema.names)}"
            )
    narrowed = pa.schema([schema.field(column) for column in kept])
    return Table(name, narrowed, lambda reading: make(reading, tuple(kept)))


def column_names(name: str, *, with_payload: bool, names: RelationNames | None = None) -> list[str]:
    """Return all columns of a table; copies of WAL itself only `with_payload`."""
    if name not in _TABLES:
        raise HistoryError(f"no table {name!r}; there are: {', '.join(_TABLES)}")
    return [n for n in _made(name, names)[0].names if with_payload or n not in PAYLOAD_COLUMNS]


def _made(name: str, names: RelationNames | None, wanted: Wanted | None = None) -> tuple[Any, Make]:
    if name in ("records", "blocks"):
        columns = RECORD_COLUMNS if name == "records" else BLOCK_COLUMNS
        named = name_columns(names) if names and name == "blocks" else {}

        def choose(view: View) -> View:
            return view.narrowed(wanted.rows(view.records)) if wanted else view

        return _from_columns({**columns, **named}, choose if _chooses(wanted) else None)
    if not names or name != "relations":
        return _TABLES[name]
    schema = pa.schema([*RELATION_SCHEMA, *((column, pa.string()) for column in NAME_COLUMNS)])

    def make(reading: Reading, columns: tuple[str, ...]) -> Iterator[Any]:
        for batch in _relations(reading, columns):
            keys = [batch.column(n).to_numpy() for n in RELATION_SCHEMA.names[:3]]
            arrays = [*batch.columns, *name_arrays(names, *keys)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return schema, make


def _chooses(wanted: Wanted | None) -> bool:
    return wanted is not None and wanted.chooses_rows


def _from_columns(
    columns: dict[str, ColumnOf], choose: Callable[[View], View] | None = None
) -> tuple[Any, Make]:
    schema = pa.schema([(name, column.type) for name, column in columns.items()])

    def make(reading: Reading, names: tuple[str, ...]) -> Iterator[Any]:
        for batch in reading:
            view = choose(View(batch)) if choose else View(batch)
            if len(view):
                arrays = [columns[name].make(view) for name in names]
                fields = [schema.field(name) for name in names]
                yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    return schema, make


def _locks(reading: Reading, names: tuple[str, ...]) -> Iterator[Any]:
    for batch in reading:
        arrays = events.lock_arrays(View(batch))
        fields = [_LOCK_SCHEMA.field(name) for name in names]
        taken = [arrays[name] for name in names]
        yield pa.RecordBatch.from_arrays(taken, schema=pa.schema(fields))


def stats_rows(stats: Stats, segment: str) -> Any:
    """Return a row for each kind of record in a segment."""
    rows = stats.by_record()
    rmgrs = [rmgr_names()[kind >> 4] for kind in sorted(stats.sums)]
    columns: list[list[Any]] = [
        rmgrs,
        [row.name[len(rmgr) + 1 :] for row, rmgr in zip(rows, rmgrs, strict=True)],
        [row.count for row in rows],
        [row.record_size for row in rows],
        [row.fpi_size for row in rows],
        [row.combined_size for row in rows],
        [segment] * len(rows),
    ]
    return _batch_of(STATS_SCHEMA, columns)


def _batch_of(schema: Any, columns: list[list[Any]]) -> Any:
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _stats(reading: Reading, names: tuple[str, ...]) -> Iterator[Any]:
    stats = Stats()
    for batch in reading:
        stats.add_batch(batch)
    yield stats_rows(stats, reading.segment.name)


def _relations(reading: Reading, names: tuple[str, ...]) -> Iterator[Any]:
    sums = RelationSums()
    for batch in reading:
        sums.add_batch(batch)
    yield sums.rows(reading.segment.name, reading.segment.timeline)


def segment_rows(summaries: list[tuple[Summary, str]]) -> Any:
    """Return a row for each segment that was read, with the file it came from."""
    rows = [
        [
            summary.segment.name, file, summary.segment.timeline, summary.status,
            summary.segment.first_lsn, summary.start_lsn, summary.end_lsn, summary.record_count,
            summary.record_bytes, summary.fpi_bytes, summary.file_bytes,
            summary.segment.segment_bytes,
            None if summary.segment.system_id is None else str(summary.segment.system_id),
            summary.version.layout if summary.version else None,
        ]
        for summary, file in summaries
    ]  # fmt: skip
    return _batch_of(SEGMENT_SCHEMA, [list(column) for column in zip(*rows, strict=True)])


def problem_rows(problems: Iterable[Problem]) -> Any:
    """Return a row for each problem."""
    columns: list[list[Any]] = [
        [getattr(problem, name) for problem in problems] for name in PROBLEM_SCHEMA.names
    ]
    return _batch_of(PROBLEM_SCHEMA, columns)


def _segments(reading: Reading, names: tuple[str, ...]) -> Iterator[Any]:
    for _ in reading:
        pass
    yield segment_rows([(reading.summary, reading.shown)])


def _problems(reading: Reading, names: tuple[str, ...]) -> Iterator[Any]:
    for _ in reading:
        pass
    yield problem_rows(reading.problems)


_TABLES: dict[str, tuple[Any, Make]] = {
    "records": _from_columns(RECORD_COLUMNS),
    "blocks": _from_columns(BLOCK_COLUMNS),
    "stats": (STATS_SCHEMA, _stats),
    "xacts": _from_columns(events.XACT_COLUMNS, events.transactions_of),
    "checkpoints": _from_columns(events.CHECKPOINT_COLUMNS, events.checkpoints_of),
    "locks": (_LOCK_SCHEMA, _locks),
    "relations": (RELATION_SCHEMA, _relations),
    "messages": _from_columns(events.MESSAGE_COLUMNS, events.messages_of),
    "segments": (SEGMENT_SCHEMA, _segments),
    "problems": (PROBLEM_SCHEMA, _problems),
}
TABLE_NAMES = tuple(_TABLES)
