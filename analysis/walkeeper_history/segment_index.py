"""An index file beside an archive: for each segment, the facts by which a query passes over it.

    update_index(files, plan, path)          read what is new, write all of it, whole or not at all
    ProvenIndex.open(path, files, plan)      the facts of segments, each proven before its use
    passed_over(path, files, plan, wanted)   the segments that a query need not read

It is one Parquet file with the columns of segment_facts.SCHEMA. It has a row for each segment that
was complete and sound when it was read. So a query for an xid, a relation or a time reads a few
segments of thousands. Contract: a query passes over a segment only if the row has the proof of its
file. It reads a segment that was replaced since, and one without a row. So an index never changes
an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from walkeeper_history.rows.ended import Ended
from walkeeper_history.rows.heap_changes import LARGE_OBJECTS
from walkeeper_history.rows.row_filters import Wanted
from walkeeper_history.segment_facts import SCHEMA, facts_of, is_uncut, place_of_last, proof_of
from walkeeper_history.whole_file import whole_file
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.plan import Plan, PlannedSegment
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.summary import Summary
from walkeeper_wal.sources.threaded_reading import (
    DEFAULT,
    OnProblem,
    SweepOptions,
    raise_fatal,
    sweep,
)
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

_SYSTEM_ID = b"walkeeper.system_identifier"


_FORMAT, _THIS_FORMAT = b"walkeeper.index_format", b"4"
_MISFITS = "remove it, or write it anew with `walkeeper history index`"


@dataclass(frozen=True, slots=True)
class Updated:
    """The number of segments in the index, and how many of them are new."""

    segments: int
    added: int


class Misfit(HistoryError):
    """A file that is no index, a damaged one, or one of another format."""


class Facts:
    """One segment's row of an index."""

    def __init__(self, table: Any, row: int) -> None:
        self._table, self._row = table, row

    @property
    def end_lsn(self) -> int:
        """The end of the last record that starts in the segment."""
        return int(self._table.column("end_lsn")[self._row].as_py())

    @property
    def is_special(self) -> bool:
        """True if a record of it changes more than blocks and the state of a transaction."""
        return bool(self._table.column("is_special")[self._row].as_py())

    @property
    def files(self) -> Column:
        """Rows of tablespace, database, relfilenode: of every block reference."""
        return self._numbers("files").reshape(-1, 3)

    @property
    def heap_files(self) -> Column:
        """The same for files in which transactions changed rows (heap_changes).

        An index of an earlier version has the file of large objects among `files` alone.
        """
        own, files = self._numbers("heap_files").reshape(-1, 3), self.files
        return np.concatenate([own, files[files[:, 2] == LARGE_OBJECTS]])

    @property
    def ended(self) -> Ended:
        """The transactions that end in it."""
        names = ("ended_xids", "ended_lsns", "ended_times")
        xids, lsns, times = map(self._numbers, names)
        return Ended(xids, self._numbers("ended_tops"), lsns, times)

    @property
    def deed_xids(self) -> list[int]:
        """The transactions in the segment with an action that `find` looks for, or a part of it."""
        numbers: list[int] = self._numbers("deed_xids").tolist()
        return numbers

    def summary(self, segment: PlannedSegment) -> Summary:
        """Return what a sweep needs to check that the segments' records are one chain."""
        names = ("start_lsn", "prev_lsn", "last_lsn", "end_lsn")
        lsns = {name: self._table.column(name)[self._row].as_py() for name in names}
        return Summary(segment, **lsns)

    def _numbers(self, name: str) -> Column:
        values = self._table.column(name)[self._row].values
        numbers: Column = values.to_numpy(zero_copy_only=False)
        return numbers


class ProvenIndex:
    """An index whose rows count only for the files that they were made of."""

    def __init__(self, files: WalFiles, table: Any) -> None:
        self._files, self.table = files, table
        names = table.column("segment").to_pylist()
        self._rows = {name: row for row, name in enumerate(names)}
        self._proofs = table.column("proof").to_pylist()
        self._lasts = table.column("last_lsn").to_pylist()
        self._proven: dict[int, bool] = {}

    @classmethod
    def open(cls, path: str, files: WalFiles, plan: Plan) -> ProvenIndex:
        """Return the index at a path.

        Raise Misfit if the file is no index, HistoryError if it is another cluster's.
        """
        return cls(files, _read(Path(path), plan.system_id))

    def facts(self, segment: PlannedSegment) -> Facts | None:
        """Return the facts of a segment, or None if they are not those of all its records."""
        row = self.row(segment)
        if row is None or not is_uncut(segment) or segment.problems:
            return None
        facts = Facts(self.table, row)
        return facts if self.table.column("end_lsn")[row].is_valid else None

    def row(self, segment: PlannedSegment) -> int | None:
        """Return the number of the segment's row, or None if no row has the proof of its file."""
        row = self._rows.get(segment.name)
        if row is None:
            return None
        if row not in self._proven:
            last = place_of_last(self._lasts[row], segment)
            self._proven[row] = proof_of(self._files, segment.path, last) == self._proofs[row]
        return row if self._proven[row] else None

    def skipped(self, plan: Plan, without: Column) -> frozenset[int]:
        """Return first LSNs of segments whose rows are in a mask, and are proven."""
        rows = set(np.flatnonzero(without).tolist())
        named = (s for s in plan.segments if self._rows.get(s.name) in rows and not s.problems)
        return frozenset(s.first_lsn for s in named if self.row(s) is not None)

    def lacking(self, plan: Plan, column: str, values: frozenset[int]) -> frozenset[int]:
        """Return first LSNs of the proven segments that have none of the values in a column."""
        return self.skipped(plan, ~have_any(self.table.column(column), values))

    def ending_before(self, plan: Plan, time: int) -> frozenset[int]:
        """Return first LSNs of the segments without a commit at `time`, or later.

        The time is in microseconds since 1970.
        """
        return self.skipped(plan, _without(self.table, {}, Wanted(times=(time, None))))


def update_index(
    files: WalFiles,
    plan: Plan,
    path: Path,
    *,
    on_problem: OnProblem = raise_fatal,
    options: SweepOptions = DEFAULT,
) -> Updated:
    """Update the index of a whole archive: `plan` must not be cut. Replace a Misfit.

    Raise HistoryError if the index is another cluster's, or cannot be written.
    """
    try:
        before = _read(path, plan.system_id) if path.is_file() else SCHEMA.empty_table()
    except Misfit:
        before = SCHEMA.empty_table()
    proven = ProvenIndex(files, before)
    skipped = frozenset(s.first_lsn for s in plan.segments if proven.row(s) is not None)
    stale = {s.name for s in plan.segments if s.first_lsn not in skipped}
    kept = [name not in stale for name in before.column("segment").to_pylist()]
    before = before.filter(pa.array(kept, pa.bool_()))
    rows = list(_rows(files, plan, on_problem, replace(options, skipped=skipped)))
    added = pa.Table.from_batches(rows, schema=SCHEMA)
    table = pa.concat_tables([before, added]).sort_by("segment")
    metadata = {_SYSTEM_ID: str(plan.system_id).encode(), _FORMAT: _THIS_FORMAT}
    table = table.replace_schema_metadata(metadata)
    with whole_file(path) as file:  # pyarrow would take a name with a colon for a URL
        pq.write_table(table, file, compression="zstd", write_page_checksum=True)
    return Updated(table.num_rows, len(rows))


def _rows(
    files: WalFiles, plan: Plan, on_problem: OnProblem, options: SweepOptions
) -> Iterator[Any]:
    """Yield the row of each segment as a record batch, which takes little memory."""

    def made(reading: Reading) -> Any:
        facts = facts_of(reading, files)
        if facts is None:
            return None
        columns = [pa.array([fact], each.type) for fact, each in zip(facts, SCHEMA, strict=True)]
        return pa.record_batch(columns, schema=SCHEMA)

    for row, _ in sweep(files, plan, made, on_problem=on_problem, options=options):
        if row is not None:
            yield row


def _read(path: Path, system_id: int | None, columns: list[str] | None = None) -> Any:
    try:
        table = pq.read_table(
            path, columns=columns, partitioning=None, page_checksum_verification=True
        )
    except FileNotFoundError as error:
        raise HistoryError(f"{path}: {error.strerror}") from error
    except (OSError, pa.ArrowException) as error:
        raise Misfit(
            f"{path}: not an index of WAL, or a damaged one: {error}; {_MISFITS}"
        ) from error
    metadata = table.schema.metadata or {}
    of = metadata.get(_SYSTEM_ID, b"").decode()
    if not of or metadata.get(_FORMAT) != _THIS_FORMAT:
        raise Misfit(f"{path}: not an index that `walkeeper history index` wrote; {_MISFITS}")
    if system_id is not None and of not in ("None", str(system_id)):
        raise HistoryError(f"{path}: an index of cluster {of}, but the WAL is of {system_id}")
    return table.replace_schema_metadata(None)


def passed_over(path: str, files: WalFiles, plan: Plan, wanted: Wanted) -> frozenset[int]:
    """Return first LSNs of the segments without a wanted row. Read only the columns it needs."""
    sets = {"resource_managers": wanted.resource_managers, "xids": wanted.xids,
            "relfilenodes": wanted.relfilenodes}  # fmt: skip
    asked = {name: values for name, values in sets.items() if values is not None}
    columns = ["segment", "proof", "last_lsn", "first_time", "last_time", *asked]
    index = ProvenIndex(files, _read(Path(path), plan.system_id, columns))
    return index.skipped(plan, _without(index.table, asked, wanted))


def _without(table: Any, asked: dict[str, frozenset[Any]], wanted: Wanted) -> Column:
    """Return a mask of the rows whose segments have no wanted row."""
    without = np.zeros(table.num_rows, bool)
    for name, values in asked.items():
        without |= ~have_any(table.column(name), values)
    low, high = wanted.times
    for name, limit, too_far in (("last_time", low, np.less), ("first_time", high, np.greater)):
        if limit is not None:
            times = table.column(name).cast(pa.int64())
            # A segment without any time has no row that could be wanted for its time.
            beyond = too_far(times.fill_null(0).to_numpy(), limit)
            without |= beyond | times.is_null().to_numpy()
    return without


def have_any(lists: Any, values: frozenset[Any]) -> Any:
    """Return a mask of the lists that have one of the values."""
    lists = lists.combine_chunks()
    flat = lists.flatten()
    found = pc.is_in(flat, value_set=pa.array(sorted(values), flat.type)).to_numpy(False)
    lengths = pc.list_value_length(lists).to_numpy(False)
    of_list = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(of_list, weights=found, minlength=len(lengths)) > 0
