"""An index file beside an archive: for each segment, the facts by which a query passes over it.

    update_index(files, plan, path)          read what is new, write all of it, whole or not at all
    passed_over(path, plan, wanted)          the segments that a query need not read

It is one Parquet file. It has a row for each segment that was complete and sound when it was read.
The row has the xids in it, also those of subtransactions and of prepared transactions that end in
it. It has relations' files, resource managers, and the first and last time of its ends of
transactions and checkpoints. So a query for an xid, a relation or a time reads a few segments of
thousands. Contract: only segments with a row are passed over, by name and cluster. A segment's row
is made once, as archives do not change their files.
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

from walkeeper_history.errors import HistoryError
from walkeeper_history.records.gather import names
from walkeeper_history.records.versions import rmgr_names
from walkeeper_history.rows.columns import TIMESTAMP, list_of
from walkeeper_history.rows.events import (
    CHECKPOINT_COLUMNS,
    XACT_COLUMNS,
    checkpoints_of,
    locks_of,
    transactions_of,
)
from walkeeper_history.rows.view import View
from walkeeper_history.rows.wanted import Wanted
from walkeeper_history.wal.plan import Plan
from walkeeper_history.wal.reading import Batch, Reading
from walkeeper_history.wal.sweep import DEFAULT, OnProblem, SweepOptions, raise_fatal, sweep
from walkeeper_history.wal.wal_files import WalFiles
from walkeeper_history.whole_file import whole_file

SCHEMA = pa.schema(
    [
        ("segment", pa.string()),
        ("first_lsn", pa.int64()),
        ("records", pa.int64()),
        ("first_time", TIMESTAMP),
        ("last_time", TIMESTAMP),
        ("resource_managers", list_of(pa.string())),
        ("xids", list_of(pa.int64())),
        ("relfilenodes", list_of(pa.int64())),
    ]
)
_SYSTEM_ID = b"walkeeper.system_identifier"
_SETS = ("resource_managers", "xids", "relfilenodes")


@dataclass(frozen=True, slots=True)
class Updated:
    """The number of segments in the index, and how many of them are new."""

    segments: int
    added: int


class _Row:
    """The row of one segment, made batch after batch."""

    def __init__(self) -> None:
        self.sets: dict[str, set[Any]] = {name: set() for name in _SETS}
        self.times: list[Any] = []

    def add(self, batch: Batch) -> None:
        view, sets = View(batch), self.sets
        rmids = np.unique(batch.records["rmid"])
        sets["resource_managers"].update(names(rmgr_names(), rmids).to_pylist())
        sets["relfilenodes"].update(np.unique(batch.blocks["relfilenode"]).tolist())
        sets["xids"].update(np.unique(batch.records["xid"]).tolist())
        ended, checkpoints = transactions_of(view), checkpoints_of(view)
        sets["xids"].update(XACT_COLUMNS["xid"].make(ended).to_pylist())
        for subxacts in XACT_COLUMNS["subxacts"].make(ended).to_pylist():
            sets["xids"].update(subxacts)
        locks, rows, places = locks_of(view)
        sets["xids"].update(locks.narrowed(rows).main(places, 4).tolist())
        for column, of in ((XACT_COLUMNS["time"], ended),
                           (CHECKPOINT_COLUMNS["checkpoint_time"], checkpoints)):  # fmt: skip
            self.times += [time for time in column.make(of).to_pylist() if time is not None]

    def values(self, reading: Reading) -> list[Any]:
        segment = reading.segment
        return [
            segment.name, segment.first_lsn, reading.summary.record_count,
            min(self.times, default=None), max(self.times, default=None),
            *(sorted(self.sets[name]) for name in _SETS),
        ]  # fmt: skip


def _row_of(reading: Reading) -> list[Any] | None:
    """Return the segment's row, or None if it may change or not all its records are known."""
    row = _Row()
    for batch in reading:
        row.add(batch)
    is_whole = reading.summary.status in ("complete", "switched") and not reading.problems
    return row.values(reading) if is_whole and not reading.segment.is_partial else None


def update_index(
    files: WalFiles,
    plan: Plan,
    path: Path,
    *,
    on_problem: OnProblem = raise_fatal,
    options: SweepOptions = DEFAULT,
) -> Updated:
    """Update the index of a whole archive: `plan` must not be cut."""
    before = _read(path, plan.system_id) if path.is_file() else SCHEMA.empty_table()
    known = set(before.column("segment").to_pylist())
    skipped = frozenset(s.first_lsn for s in plan.segments if s.name in known)
    rows = list(_rows(files, plan, on_problem, replace(options, skipped=skipped)))
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(SCHEMA)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    table = pa.concat_tables([before, pa.table(arrays, schema=SCHEMA)]).sort_by("segment")
    table = table.replace_schema_metadata({_SYSTEM_ID: str(plan.system_id).encode()})
    with whole_file(path) as file:  # pyarrow would take a name with a colon for a URL
        pq.write_table(table, file, compression="zstd")
    return Updated(table.num_rows, len(rows))


def _rows(
    files: WalFiles, plan: Plan, on_problem: OnProblem, options: SweepOptions
) -> Iterator[list[Any]]:
    for row, _ in sweep(files, plan, _row_of, on_problem=on_problem, options=options):
        if row is not None:
            yield row


def _read(path: Path, system_id: int | None, columns: list[str] | None = None) -> Any:
    try:
        table = pq.read_table(path, columns=columns, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise HistoryError(f"{path}: not an index of WAL: {error}") from error
    of = (table.schema.metadata or {}).get(_SYSTEM_ID, b"").decode()
    if not of or set(table.schema.names) != set(columns or SCHEMA.names):
        raise HistoryError(f"{path}: not an index that `walkeeper history index` wrote")
    if system_id is not None and of not in ("None", str(system_id)):
        raise HistoryError(f"{path}: an index of cluster {of}, but the WAL is of {system_id}")
    return table.replace_schema_metadata(None)


def passed_over(path: str, plan: Plan, wanted: Wanted) -> frozenset[int]:
    """Return first LSNs of the segments without a wanted row. Reads only the columns it needs."""
    sets = {"resource_managers": wanted.resource_managers, "xids": wanted.xids,
            "relfilenodes": wanted.relfilenodes}  # fmt: skip
    asked = {name: values for name, values in sets.items() if values is not None}
    table = _read(Path(path), plan.system_id, ["segment", "first_time", "last_time", *asked])
    without = np.zeros(table.num_rows, bool)
    for name, values in asked.items():
        without |= ~_have_any(table.column(name), values)
    low, high = wanted.times
    for name, limit, too_far in (("last_time", low, np.less), ("first_time", high, np.greater)):
        if limit is not None:
            times = table.column(name).cast(pa.int64())
            # A segment without any time has no row that could be wanted for its time.
            beyond = too_far(times.fill_null(0).to_numpy(), limit)
            without |= beyond | times.is_null().to_numpy()
    passed = set(table.column("segment").filter(pa.array(without)).to_pylist())
    return frozenset(s.first_lsn for s in plan.segments if s.name in passed and not s.problems)


def _have_any(lists: Any, values: frozenset[Any]) -> Any:
    """Return a mask of the lists that have one of the values."""
    lists = lists.combine_chunks()
    flat = lists.flatten()
    found = pc.is_in(flat, value_set=pa.array(sorted(values), flat.type)).to_numpy(False)
    lengths = pc.list_value_length(lists).to_numpy(False)
    of_list = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(of_list, weights=found, minlength=len(lengths)) > 0
