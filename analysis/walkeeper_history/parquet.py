"""Tables as Parquet, one file a segment: a second run gives the same files, and is cheap.

    write_table(files, plan, table, directory) -> Iterator[Written]

    directory/<table>/<segment>.parquet      the name begins with the timeline

Contract: a file appears whole under its name or not at all. Its metadata name its source: columns,
range, and whether the segment was complete. A file from a complete segment with the same columns
and range is kept. So a second run over a growing archive reads only new segments. A segment in
which the log ended, or with a problem, is read again, and its problems are reported each time. Kept
files have no problems.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from walkeeper_history.tables import Table
from walkeeper_wal.sources.plan import Plan, PlannedSegment
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.threaded_reading import (
    DEFAULT,
    OnProblem,
    ReadEach,
    SweepOptions,
    in_one_chain,
    raise_fatal,
    read_each,
)
from walkeeper_wal.sources.wal_files import WalFiles

FORMAT = 1  # raised when the same WAL gives other rows than before
_METADATA = b"walkeeper"
COMPRESSION = "zstd"


@dataclass(frozen=True, slots=True)
class Written:
    """One segment's file. With `kept`, it was there already, with the same source."""

    segment: PlannedSegment
    path: Path
    rows: int
    kept: bool


def parquet_path(directory: Path, table: Table, segment: PlannedSegment) -> Path:
    return directory / table.name / f"{segment.name}.parquet"


def write_table(
    files: WalFiles,
    plan: Plan,
    table: Table,
    directory: Path,
    *,
    again: bool = False,
    on_problem: OnProblem = raise_fatal,
    options: SweepOptions = DEFAULT,
    read: ReadEach = read_each,
) -> Iterator[Written]:
    """Write a file in each step of the iteration, after the files that are kept.

    With `again`, none is kept. `read` may run on other machines if `directory` is one place for all
    of them.
    """

    def write(reading: Reading) -> Written:
        segment = reading.segment
        path = parquet_path(directory, table, segment)
        rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        batches = list(table.batches(reading))
        complete = reading.summary.status in ("complete", "switched") and not reading.problems
        made_of = _made_of(table, segment, complete=complete)
        schema = table.schema.with_metadata({_METADATA: json.dumps(made_of).encode()})
        try:
            with (
                partial.open("wb") as file,  # a name with a colon would be taken for a URL
                pq.ParquetWriter(file, schema, **_encodings(table)) as writer,
            ):
                if batches:  # one group of rows: the last record, which spills, is a batch
                    whole = pa.Table.from_batches(batches)
                    rows = whole.num_rows
                    writer.write_table(whole.replace_schema_metadata(schema.metadata))
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return Written(segment, path, rows, kept=False)

    kept = [] if again else [s for s in plan.segments if _is_made(directory, table, s)]
    for segment in kept:
        path = parquet_path(directory, table, segment)
        yield Written(segment, path, pq.read_metadata(path).num_rows, kept=True)
    # The sweep still has the kept segments, since the rest of a last record is in the next one.
    skipped = frozenset(segment.first_lsn for segment in kept)
    parts = read(files, plan, write, replace(options, skipped=skipped))
    for written, _ in in_one_chain(parts, files, on_problem):
        yield written


def _encodings(table: Table) -> dict[str, Any]:
    """Return the encodings of the columns.

    LSNs are written as differences, which takes a third of their size. Columns of few values have a
    dictionary, all others are plain. To try a dictionary first takes a third of the time of
    writing.
    """
    lsns = [field.name for field in table.schema if field.name.endswith("_lsn")]
    leaves = [leaf for field in table.schema for leaf in _leaves(field.name, field.type)]
    few = [path for path, type_ in leaves if path not in lsns and _has_few_values(path, type_)]
    encodings = dict.fromkeys(lsns, "DELTA_BINARY_PACKED")
    return {"compression": COMPRESSION, "use_dictionary": few, "column_encoding": encodings}


def _leaves(path: str, type_: Any) -> Iterator[tuple[str, Any]]:
    """Yield the columns that Parquet makes of an Arrow column, by their paths."""
    if pa.types.is_list(type_):
        yield from _leaves(f"{path}.list.element", type_.value_type)
    elif pa.types.is_struct(type_):
        for field in type_:
            yield from _leaves(f"{path}.{field.name}", field.type)
    else:
        yield path, type_


def _has_few_values(path: str, type_: Any) -> bool:
    oid = path.rpartition(".")[2] in ("reltablespace", "reldatabase", "relfilenode", "database")
    return oid or type_ in (pa.string(), pa.int16(), pa.int32())


def _made_of(table: Table, segment: PlannedSegment, *, complete: bool) -> dict[str, object]:
    return {
        "format": FORMAT,
        "columns": table.schema.names,
        "system_id": segment.system_id,
        "segment_bytes": segment.segment_bytes,
        "begin_lsn": segment.begin_lsn,
        "end_lsn": segment.end_lsn,
        "complete": complete,
    }


def _is_made(directory: Path, table: Table, segment: PlannedSegment) -> bool:
    """Return True if the file is there, and was made of this segment when it was complete."""
    if segment.is_partial:
        return False
    try:
        metadata = pq.read_metadata(parquet_path(directory, table, segment)).metadata or {}
        made_of = json.loads(metadata.get(_METADATA, b"{}"))
    except (OSError, pa.ArrowException, ValueError):
        return False
    return bool(made_of == _made_of(table, segment, complete=True))
