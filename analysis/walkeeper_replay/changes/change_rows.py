"""Changes of rows: by columns, as a stream of them needs, or one by one.

found = FoundChanges(pieces)              a piece has one table and one catalog
found.batches(database)                   record batches of SCHEMA, in the order of commits
found.changes()                           a Change for each, in the same order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_history.rows.columns import TIMESTAMP
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.changes.changed_values import DOUBTS, ChangedValues, TextMaps
from walkeeper_replay.changes.incomplete_changes import Incomplete, incomplete
from walkeeper_replay.text.coverage import COMPLETE, Coverage, together
from walkeeper_replay.tuples.commits import Commit, Commits
from walkeeper_wal.records.gather import MICROSECONDS_1970_TO_2000
from walkeeper_wal.records.segment import Column

VALUES = pa.map_(pa.string(), pa.string())
SCHEMA = pa.schema(
    [
        ("start_lsn", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_time", TIMESTAMP),
        ("xid", pa.int64()),
        ("subxid", pa.int64()),
        ("database", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("operation", pa.string()),
        ("old", VALUES),
        ("new", VALUES),
        ("coverage", pa.string()),
    ]
)
BATCH_ROWS = 1 << 14


@dataclass(slots=True)
class Change:
    """A change of one row; `old` and `new` have its values by column."""

    start_lsn: int
    commit: Commit
    xid: int | None  # the subtransaction's, or None if it is not known
    table: Table
    operation: str
    old: dict[str, str | None] | None = None
    new: dict[str, str | None] | None = None
    coverage: Coverage = COMPLETE
    as_oids: frozenset[str] = frozenset()  # columns that may have an OID for a name not known


CHANGE_ROW = np.dtype(
    [
        ("start_lsn", np.int64),
        ("commit_lsn", np.int64),
        ("commit_time", np.int64),
        ("top_xid", np.int64),
        ("xid", np.int64),
        ("operation", np.uint8),  # a place in OPERATIONS
        ("old", np.int32),  # a row of the values, or -1
        ("new", np.int32),
    ]
)
OPERATIONS = ("insert", "update", "delete", "truncate")
INSERT, UPDATE, DELETE, TRUNCATE = range(4)


@dataclass(slots=True)
class Piece:
    """Changes of one table, as one catalog describes it."""

    table: Table
    rows: Column
    """Rows of CHANGE_ROW."""
    values: ChangedValues | None
    coverage: Column
    """A Coverage for each row."""
    is_whole: bool = False
    """Every row of the table is known: its file was made within the WAL, or is in the base."""
    has_new_key: bool = False
    """A commit of these gave the table, which was there before, another primary key."""

    def chosen(self, mask: Column) -> Piece:
        """Return the changes that a mask names."""
        return replace(self, rows=self.rows[mask], coverage=self.coverage[mask])

    def changes(self) -> list[Change]:
        """Return a Change for each row."""
        values = [None, *(self.values.dicts() if self.values is not None else ())]
        as_oids = frozenset[str]() if self.values is None else self.values.as_oids
        return [
            Change(
                start, Commit(lsn, time, top), xid, self.table, OPERATIONS[operation],
                values[old + 1], values[new + 1], why, as_oids,
            )
            for (start, lsn, time, top, xid, operation, old, new), why in zip(
                self.rows.tolist(), self.coverage.tolist(), strict=True
            )
        ]  # fmt: skip


def covered(count: int, coverage: Coverage) -> Column:
    """Return a column with this coverage for `count` changes."""
    column = np.empty(count, object)
    column.fill(coverage)  # np.full makes a plain str of it, without its facts
    return column


def coverage_of_pairs(values: ChangedValues, rows: Column, olds: Column) -> Column:
    """Return the coverage of each change: that of its row and of its old row, which may be -1."""
    doubts = np.append(values.doubts, 0)
    coverage = covered(len(rows), COMPLETE)
    pairs = np.stack([doubts[rows], doubts[olds]], axis=1)
    for row in np.flatnonzero(pairs.any(axis=1)).tolist():
        coverage[row] = together(sorted(DOUBTS[code] for code in pairs[row].tolist()))
    return coverage


def rows_at(commits: Commits, xids: Column, start_lsns: Column, operations: Column) -> Column:
    """Return rows of CHANGE_ROW of committed transactions, without values."""
    places, columns = commits.rows(xids), commits.columns
    assert (places >= 0).all(), "each of them has committed"
    rows = np.zeros(len(places), CHANGE_ROW)
    rows["start_lsn"], rows["xid"], rows["operation"] = start_lsns, xids, operations
    rows["commit_lsn"], rows["commit_time"] = columns.end_lsn[places], columns.time[places]
    rows["top_xid"] = columns.top_xid[places]
    rows["old"] = rows["new"] = -1
    return rows


class FoundChanges:
    """Changes of some tables in a range, in pieces; a piece has one table and one catalog."""

    def __init__(
        self, pieces: Sequence[Piece], rewritten: Mapping[int, Table] = MappingProxyType({})
    ) -> None:
        self.rewritten = rewritten
        """By OID: tables that a commit gave a new file with the same rows, or with others."""
        self._pieces = [piece for piece in pieces if len(piece.rows)]
        sizes = [len(piece.rows) for piece in self._pieces]
        self._rows = np.concatenate([np.empty(0, CHANGE_ROW), *(p.rows for p in self._pieces)])
        self._of_piece = np.repeat(np.arange(len(sizes)), sizes)
        self._within = np.concatenate([np.empty(0, np.int64), *map(np.arange, sizes)])
        self._order = np.lexsort((self._rows["start_lsn"], self._rows["commit_lsn"]))

    def __len__(self) -> int:
        return len(self._order)

    def after(self, lsn: int) -> FoundChanges:
        """Return the changes of commits that end after `lsn`."""
        late = (piece.chosen(piece.rows["commit_lsn"] > lsn) for piece in self._pieces)
        return FoundChanges(list(late), self.rewritten)

    def within(self, first_lsn: int, until_lsn: int) -> FoundChanges:
        """Return the changes of records that start in [first, until)."""
        starts = (piece.rows["start_lsn"] for piece in self._pieces)
        masks = ((start >= first_lsn) & (start < until_lsn) for start in starts)
        own = (piece.chosen(mask) for piece, mask in zip(self._pieces, masks, strict=True))
        return FoundChanges(list(own), self.rewritten)

    def commits(self) -> tuple[int, int]:
        """Return the ends of the first and the last commit; there must be a change."""
        ends = self._rows["commit_lsn"]
        return int(ends.min()), int(ends.max())

    def transactions(self) -> set[int]:
        """Return the transactions of the changes, without subtransactions."""
        return set(self._rows["top_xid"].tolist())

    def typed_bytes(self) -> int:
        """Return the bytes of the rows and their values, without the texts of these."""
        arrays = (a for piece in self._pieces if piece.values for a in piece.values.arrays)
        return int(self._rows.nbytes + sum(array.nbytes for array in arrays))

    def without_texts(self) -> FoundChanges:
        """Return the same changes for a mirror, which needs no text of a value."""
        bare = (
            piece if piece.values is None else replace(piece, values=piece.values.without_texts())
            for piece in self._pieces
        )
        return FoundChanges(list(bare), dict(self.rewritten))

    @classmethod
    def of_parts(
        cls, parts: Sequence[FoundChanges], rewritten: Mapping[int, Table]
    ) -> FoundChanges:
        """Return the changes of several parts of a range as one."""
        return cls([piece for part in parts for piece in part._pieces], rewritten)

    def by_table(self) -> dict[int, list[Piece]]:
        """Return the changes of each table by its OID."""
        found: dict[int, list[Piece]] = {}
        for piece in self._pieces:
            found.setdefault(piece.table.oid, []).append(piece)
        return found

    def doubt(self, is_doubtful: Callable[[Column], Column], why: Coverage) -> None:
        """Add a reason to the coverage of the rows that a mask names."""
        for piece in self._pieces:
            for row in np.flatnonzero(is_doubtful(piece.rows)).tolist():
                piece.coverage[row] = together(sorted((piece.coverage[row], why)))

    def incomplete(self) -> list[Incomplete]:
        """Return the changes that are not known whole, counted by table and reason."""
        return incomplete(
            (piece.table.shown, int(piece.rows["start_lsn"][row]), piece.coverage[row])
            for piece in self._pieces
            for row in np.flatnonzero(piece.coverage != COMPLETE).tolist()
        )

    def changes(self) -> list[Change]:
        """Return a Change for each, in the order of commits."""
        made = [piece.changes() for piece in self._pieces]
        places = zip(
            self._of_piece[self._order].tolist(), self._within[self._order].tolist(), strict=True
        )
        return [made[piece][row] for piece, row in places]

    def batches(self, database: str, size: int = BATCH_ROWS) -> Iterator[Any]:
        """Yield record batches of SCHEMA."""
        texts = TextMaps([piece.values for piece in self._pieces])
        parts = [piece.coverage for piece in self._pieces]
        coverage = np.concatenate([np.empty(0, object), *parts])
        for begin in range(0, len(self), size):
            chosen = self._order[begin : begin + size]
            yield self._batch(chosen, texts, coverage[chosen], database)

    def _batch(self, chosen: Column, texts: TextMaps, coverage: Column, database: str) -> Any:
        rows, of_piece = self._rows[chosen], self._of_piece[chosen]
        times = pa.array(rows["commit_time"] + MICROSECONDS_1970_TO_2000).cast(TIMESTAMP)
        numbers_of = (rows[name].copy() for name in ("start_lsn", "commit_lsn"))
        xids = (rows[name].copy() for name in ("top_xid", "xid"))
        tables, of_table = [piece.table for piece in self._pieces], pa.array(of_piece)
        return pa.RecordBatch.from_arrays(
            [
                *map(pa.array, numbers_of), times, *map(pa.array, xids),
                pa.repeat(database, len(rows)),
                pa.array([table.schema for table in tables], pa.string()).take(of_table),
                pa.array([table.name for table in tables], pa.string()).take(of_table),
                pa.array(OPERATIONS, pa.string()).take(pa.array(rows["operation"].copy())),
                texts.maps(of_piece, rows["old"]), texts.maps(of_piece, rows["new"]),
                pa.array(coverage.tolist(), pa.string()),
            ],
            schema=SCHEMA,
        )  # fmt: skip


def is_of_row(change: Change, wanted: Sequence[tuple[str, str]]) -> bool:
    """Return True if the row before or after a change has all these values."""
    rows = [row for row in (change.old, change.new) if row is not None]
    return not wanted or any(all(row.get(c) == v for c, v in wanted) for row in rows)


def may_be_of_row(change: Change, column: str) -> bool:
    """Return True if the row before or after a change has a value of the column that is not known.

    Such a value is absent, it is the bytes of a type that is not known, or an OID in it stands for
    a name.
    """
    if change.coverage == COMPLETE or change.operation == "truncate":
        return False
    sides = {"insert": [change.new], "delete": [change.old]}
    for side in sides.get(change.operation, [change.old, change.new]):
        if side is None or column not in side:
            return True
        value = side[column]
        if value is not None and (column in change.as_oids or value.startswith("\\x")):
            return True
    return False


def batches(changes: Sequence[Change], database: str, size: int = BATCH_ROWS) -> Iterator[Any]:
    """Yield record batches of SCHEMA, of at most `size` rows."""
    for begin in range(0, len(changes), size):
        part = changes[begin : begin + size]
        columns: list[list[Any]] = [
            [c.start_lsn for c in part],
            [c.commit.end_lsn for c in part],
            [c.commit.time + MICROSECONDS_1970_TO_2000 for c in part],
            [c.commit.top_xid for c in part],
            [c.xid for c in part],
            [database] * len(part),
            [c.table.schema for c in part],
            [c.table.name for c in part],
            [c.operation for c in part],
            [None if c.old is None else list(c.old.items()) for c in part],
            [None if c.new is None else list(c.new.items()) for c in part],
            [c.coverage for c in part],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
