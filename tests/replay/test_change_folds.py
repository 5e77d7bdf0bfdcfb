"""Changes folded by key, against a twin that goes through them one by one."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.changes.change_rows import (
    CHANGE_ROW,
    DELETE,
    INSERT,
    TRUNCATE,
    UPDATE,
    Piece,
    covered,
)
from walkeeper_replay.changes.changed_values import UNKNOWN_VALUE, ChangedValues
from walkeeper_replay.lakes.change_folds import NO_END, folded, parts_of
from walkeeper_replay.lakes.large_folds import LargeFold, shares_of
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.wal_errors import HistoryError

COLUMNS = tuple(
    Attribute(name, number, 23, -1, 4, 4) for number, name in enumerate(("id", "part", "v"), 1)
)
TABLE = Table(20000, "public", "t", Relation(1663, 5, 20000), COLUMNS, None, ("id", "part"))
Row = tuple[int, int, int]


class History:
    """Random changes of a table of two keys, and what a reader of each commit saw."""

    def __init__(self, seed: int, commits: int = 60) -> None:
        self._random, self.rows = Random(seed), dict[tuple[int, int], int]()
        self.changes: list[tuple[Any, ...]] = []
        self.seen: list[tuple[int, dict[tuple[int, int], int]]] = []
        lsn = 100
        for _ in range(commits):
            starts = [lsn + step for step in range(self._random.randint(1, 4))]
            lsn += 100
            for start in starts:
                self._change(start, lsn)
            self.seen.append((lsn, dict(self.rows)))

    def _change(self, start: int, lsn: int) -> None:
        free = [(i, p) for i in range(4) for p in range(2) if (i, p) not in self.rows]
        taken, value = list(self.rows), start
        kind = self._random.choice(
            ["insert", "update", "update", "move", "delete", "delete", "cut"]
        )
        if kind == "cut" and self._random.random() < 0.2:
            self.rows.clear()
            self.changes.append((TRUNCATE, start, lsn, None, None))
        elif kind == "insert" and free:
            key = self._random.choice(free)
            self.rows[key] = value
            self.changes.append((INSERT, start, lsn, None, (*key, value)))
        elif kind in ("update", "move") and taken:
            old = self._random.choice(taken)
            key = self._random.choice(free) if kind == "move" and free else old
            before = (*old, self.rows.pop(old))
            self.rows[key] = value
            self.changes.append((UPDATE, start, lsn, before, (*key, value)))
        elif kind == "delete" and taken:
            old = self._random.choice(taken)
            self.changes.append((DELETE, start, lsn, (*old, self.rows.pop(old)), None))

    def pieces(self) -> list[Piece]:
        """Return the changes as of two files, and truncations, which have no values."""
        cuts = [change for change in self.changes if change[0] == TRUNCATE]
        others = [change for change in self.changes if change[0] != TRUNCATE]
        half = len(others) // 2
        return [piece_of(some) for some in (others[:half], others[half:], cuts) if some]


def piece_of(changes: list[tuple[Any, ...]]) -> Piece:
    rows, values = np.zeros(len(changes), CHANGE_ROW), list[Row]()
    for place, (operation, start, lsn, old, new) in enumerate(changes):
        sides = []
        for row in (old, new):
            sides.append(-1 if row is None else len(values))
            values += [] if row is None else [row]
        rows[place] = (start, lsn, lsn * 10, 7, 7, operation, *sides)
    if not values:
        return Piece(TABLE, rows, None, covered(len(rows), COMPLETE), True)
    arrays = [pa.array(column, pa.int32()) for column in zip(*values, strict=True)]
    places, doubts = np.arange(len(values)), np.zeros(len(values), np.uint8)
    texts = [array.cast(pa.string()) for array in arrays]
    made = ChangedValues(["id", "part", "v"], arrays, texts, places, None, doubts)
    return Piece(TABLE, rows, made, covered(len(rows), COMPLETE), True)


def tuples(rows: Any) -> list[Row]:
    return [(row["id"], row["part"], row["v"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("seed", range(12))
def test_the_rows_that_are_left_are_the_tables(seed: int) -> None:
    history, rows = History(seed), dict[tuple[int, int], int]()
    for part, _ in parts_of(history.pieces()):
        fold = folded(part, TABLE.key)
        if fold.emptied is not None:
            rows.clear()
        if fold.rows is not None:
            left, there = fold.left()
            for (*key, value), is_there in zip(tuples(left), there.tolist(), strict=True):
                rows.pop((key[0], key[1]), None)
                rows.update({(key[0], key[1]): value} if is_there else {})
    assert rows == history.rows


@pytest.mark.parametrize("seed", range(12))
def test_the_versions_of_each_commit_are_what_a_reader_saw(seed: int) -> None:
    history = History(seed)
    versions: list[list[Any]] = []  # row, begin, end
    for part, _ in parts_of(history.pieces()):
        fold = folded(part, TABLE.key)
        for version in versions:
            if fold.emptied is not None and version[2] is None:
                version[2] = fold.emptied[0]
        if fold.rows is None:
            continue
        firsts = fold.first_of_each()
        ended = {row[:2]: lsn for row, lsn in zip(
            tuples(fold.rows.take(pa.array(firsts))), fold.lsns[firsts].tolist(), strict=True
        )}  # fmt: skip
        for version in versions:
            if version[2] is None and version[0][:2] in ended:
                version[2] = ended[version[0][:2]]
        rows, steps, ends = fold.versions()
        for row, step, end in zip(tuples(rows), steps.tolist(), ends.tolist(), strict=True):
            versions.append([row, fold.lsns[step], None if end == NO_END else fold.lsns[end]])
    for lsn, expected in history.seen:
        seen = [row for row, begin, end in versions if begin <= lsn and (end is None or lsn < end)]
        assert len(seen) == len(expected)
        assert {row[:2]: row[2] for row in seen} == expected


def test_a_key_of_times_that_python_lacks_has_a_share() -> None:
    """They are infinity, -infinity and a time BC."""
    days = pa.array([1, (1 << 31) - 1, -1 << 31, -800_000, 1], pa.int32()).cast(pa.date32())
    times = pa.array([1, (1 << 63) - 1, -1 << 63, -(10**17), 1], pa.int64())
    for column in (days, times.cast(pa.timestamp("us")), times.cast(pa.timestamp("us", "UTC"))):
        found = shares_of(pa.table({"k": column}), ["k"], 1 << 20).tolist()
        assert found[0] == found[4] and len(set(found)) == 4, column.type


def test_a_change_that_is_not_known_whole_is_refused_with_its_remedy() -> None:
    piece = piece_of([(INSERT, 1, 2, None, (1, 1, 1))])
    piece.coverage[0] = UNKNOWN_VALUE
    with pytest.raises(HistoryError, match=r"public.t: its change at 0/1 .*--base"):
        folded([piece], TABLE.key)


def test_two_rows_of_one_key_are_refused_with_their_place(tmp_path: Path) -> None:
    """So it is before the key is made: the mirror would take the one for the other."""
    row, other = (1, 1, 5), (1, 1, 6)
    twice = [(INSERT, 1, 20, None, row), (INSERT, 2, 20, None, other), (DELETE, 3, 30, row, None)]
    gone_twice = [(DELETE, 1, 20, row, None), (DELETE, 2, 20, other, None)]
    for changes in (twice, gone_twice):
        pieces = [piece_of(changes)]
        with pytest.raises(HistoryError, match=r"public.t: at 0/14 two rows .* \(id, part\)"):
            folded(pieces, TABLE.key)
        with LargeFold(tmp_path, TABLE.key, 3) as large:
            large.take(pieces)
            with pytest.raises(HistoryError, match=r"public.t: at 0/14 two rows"):
                list(large.folds())
