"""The fold of a large transaction's changes of one table, by shares of its keys.

    fold = LargeFold(folder, key, shares)
    fold.take(pieces)                   again and again, in the order of records
    fold.take_there(rows)               rows of the lake that the changes may concern
    for steps, there in fold.folds():   the Fold of a share, and the lake's rows of its keys

The share of a row follows from its key alone. Contract: the folds together are what `folded` gives
for all of the pieces. Memory has one share and one part. The rest is in a file without a name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkeeper_replay.changes.change_rows import TRUNCATE, Piece
from walkeeper_replay.lakes.change_folds import (
    STEP_ROW,
    Fold,
    fold_of,
    steps_of,
    without_minus_zero,
)
from walkeeper_replay.lakes.far_dates import far_dates
from walkeeper_replay.streams.unnamed_file import UnnamedFile
from walkeeper_wal.records.segment import Column

SHARES_MAX = 256
Place: TypeAlias = tuple[int, int]
"""Where a part begins in the file, and its bytes."""
Span = tuple[str, Any, Any]
"""A column of the key, and its least and greatest value."""
_PREFIX = "__walkeeper_step_"
_STEP_NAMES = [name for name in STEP_ROW.names or () if name != "row"]
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")
_ODD = np.uint64(0x9E3779B97F4A7C15)


class LargeFold(UnnamedFile):
    """The changes of one table in a file, by shares of its keys."""

    def __init__(self, folder: Path, key: Sequence[str], shares: int) -> None:
        super().__init__(folder, "the changes of a large transaction")
        self._key = tuple(key)
        count = max(1, min(shares, SHARES_MAX))
        self._changes: list[list[Place]] = [[] for _ in range(count)]
        self._there: list[list[Place]] = [[] for _ in range(count)]
        self._cut: tuple[int, int, int] | None = None
        self.emptied: tuple[int, int] | None = None
        """The commit and time of the last TRUNCATE."""
        self.schema: Any = None
        """The columns of the newest rows, or None without one."""
        self.span: Span | None = None
        """All keys are in it, or it is None for a key without a column of a plain type."""
        self.far_dates = set[str]()
        """The columns with a date of which delta-rs writes no statistics."""
        self.size = 0
        """The bytes of the steps in memory."""
        self._shown = ""

    def take(self, pieces: Sequence[Piece]) -> None:
        """Take the next changes of the table."""
        self._shown = pieces[-1].table.shown
        steps, rows = steps_of(pieces)
        is_cut = steps["operation"] == TRUNCATE
        for step in steps[is_cut]:
            at = int(step["commit_lsn"]), int(step["start_lsn"]), int(step["serial"])
            if self._cut is None or at > self._cut:
                self._cut, self.emptied = at, (at[0], int(step["commit_time"]))
        steps = steps[~is_cut]
        if rows is None or not len(steps):
            return
        rows = rows.take(pa.array(steps["row"].copy()))
        self.schema, self.span = rows.schema, self._widened(rows)
        self.far_dates |= far_dates(rows)
        for name in _STEP_NAMES:
            rows = rows.append_column(_PREFIX + name, pa.array(steps[name].copy()))
        self.size += rows.nbytes
        self._write(rows, self._changes)

    def take_there(self, rows: Any) -> None:
        """Take rows of the lake."""
        self._write(rows, self._there)

    def folds(self) -> Iterator[tuple[Fold, Any]]:
        """Yield each share: its fold, and the rows of the lake or None."""
        for changes, there in zip(self._changes, self._there, strict=True):
            if changes or there:
                yield self._fold(changes), self._read(there)

    def whole(self) -> Fold:
        """Return the fold of all shares, for changes that fit into memory."""
        return self._fold([place for share in self._changes for place in share])

    def _fold(self, places: list[Place]) -> Fold:
        rows = self._read(places)
        steps = np.zeros(0 if rows is None else len(rows), STEP_ROW)
        if rows is not None:
            for name in _STEP_NAMES:
                steps[name] = rows[_PREFIX + name].to_numpy()
            steps["row"] = np.arange(len(rows))
            rows = rows.drop_columns([_PREFIX + name for name in _STEP_NAMES])
            if self._cut is not None:
                steps = steps[_are_after(steps, self._cut)]
        fold = fold_of(steps, rows, self._key, self._shown)
        fold.emptied = self.emptied
        return fold

    def _widened(self, rows: Any) -> Span | None:
        for name in self._key:
            type_ = rows.schema.field(name).type
            if pa.types.is_integer(type_) or pa.types.is_string(type_):
                least, most = pc.min_max(rows[name]).as_py().values()
                if self.span is not None:
                    least, most = min(least, self.span[1]), max(most, self.span[2])
                return name, least, most
        return None

    def _write(self, rows: Any, places: list[list[Place]]) -> None:
        shares = shares_of(rows, self._key, len(places))
        order = np.argsort(shares, kind="stable")
        rows = rows.take(pa.array(order))
        bounds = np.searchsorted(shares[order], np.arange(len(places) + 1)).tolist()
        with self.end() as file:
            for own, begin, end in zip(places, bounds, bounds[1:], strict=False):
                if begin < end:
                    at = file.tell()
                    with pa.ipc.new_stream(file, rows.schema, options=_PACKED) as writer:
                        writer.write_table(rows.slice(begin, end - begin))
                    own.append((at, file.tell() - at))

    def _read(self, places: list[Place]) -> Any:
        tables = [
            pa.ipc.open_stream(self.at(begin).read(size)).read_all() for begin, size in places
        ]
        return pa.concat_tables(tables, promote_options="default") if tables else None


def _are_after(steps: Column, cut: tuple[int, int, int]) -> Column:
    commit, start, serial = cut
    is_later = steps["start_lsn"] > start
    is_later |= (steps["start_lsn"] == start) & (steps["serial"] > serial)
    found: Column = (steps["commit_lsn"] > commit) | ((steps["commit_lsn"] == commit) & is_later)
    return found


def shares_of(rows: Any, key: Sequence[str], count: int) -> Column:
    """Return a number below `count` for the key of each row, the same for the same key."""
    sums = np.zeros(len(rows), np.uint64)
    for name in key:
        sums = (sums + _sums(rows[name])) * _ODD
        sums ^= sums >> np.uint64(29)
    return (sums % np.uint64(count)).astype(np.int64)


def _sums(column: Any) -> Column:
    if pa.types.is_temporal(column.type):  # Python has no infinity of them, and none BC
        column = column.cast(pa.int32() if column.type == pa.date32() else pa.int64())
    type_ = column.type
    if pa.types.is_floating(type_):
        column = without_minus_zero(column)
    if pa.types.is_integer(type_):
        return np.asarray(column.cast(pa.int64())).astype(np.int64).view(np.uint64)
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        texts = column.cast(pa.binary()).to_pylist()
    else:
        texts = [repr(value).encode() for value in column.to_pylist()]
    return np.fromiter(map(crc32, texts), np.uint64, len(texts))
