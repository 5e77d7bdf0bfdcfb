"""Changes of one table folded by its key: the rows that are left, and the versions in between.

    fold = folded(pieces, key)
    fold.left()        the last row of each key, and the keys whose row is gone
    fold.versions()    each row with the commits between which it was visible

Contract: changes come in the order of commits. A fold refuses a change whose key or row is not
known: it never guesses. It also refuses changes in which two rows had one key, as before the key
was made. Rows have the types of `table-at`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkeeper_common.lsn import Lsn
from walkeeper_replay.changes.change_rows import DELETE, TRUNCATE, UPDATE, Piece
from walkeeper_replay.changes.changed_values import UNKNOWN_TYPE
from walkeeper_replay.columns.columns_of_rows import AS_OIDS
from walkeeper_wal.records.segment import Column
from walkeeper_wal.wal_errors import HistoryError

KNOWN_WHOLE = frozenset({UNKNOWN_TYPE, AS_OIDS})
NO_END = -1
_REMEDY = "give a base backup of a later place (--base), or use --mode append"


@dataclass(slots=True)
class Fold:
    """Steps of one table: each takes a key's row away, and perhaps puts another one there."""

    rows: Any
    """An Arrow table: the row before the step where it takes one away, else the row after it.

    A fold without a step has none."""
    codes: Column
    """The key of each step, as a number."""
    puts: Column
    """True for a step that leaves a row."""
    lsns: Column
    times: Column
    emptied: tuple[int, int] | None
    """The commit and time of the last TRUNCATE, which came before all steps."""

    def left(self) -> tuple[Any, Column]:
        """Return the last step of each key: its row, and whether the row is there."""
        last = _last_of_each(self.codes)
        return self.rows.take(pa.array(last)), self.puts[last]

    def versions(self) -> tuple[Any, Column, Column]:
        """Return the rows that were visible: their steps, and the step that ended each or NO_END.

        A step of a key that another step of the same commit follows was never visible.
        """
        order = np.lexsort((np.arange(len(self.codes)), self.codes))
        same = self.codes[order][1:] == self.codes[order][:-1]
        following = np.full(len(order), NO_END, np.int64)
        following[order[:-1][same]] = order[1:][same]
        ends = np.where(following == NO_END, -1, self.lsns[following])
        shown = np.flatnonzero(self.puts & (ends != self.lsns))
        return self.rows.take(pa.array(shown)), shown, following[shown]

    def first_of_each(self) -> Column:
        """Return the first step of each key, which ends the row that was there before."""
        _, firsts = np.unique(self.codes, return_index=True)
        found: Column = firsts
        return found


def _last_of_each(codes: Column) -> Column:
    _, behind = np.unique(codes[::-1], return_index=True)
    found: Column = np.sort(len(codes) - 1 - behind)
    return found


def refuse_unknown(piece: Piece) -> None:
    """Raise HistoryError if a change of a table is not known whole."""
    for why in dict.fromkeys(piece.coverage.tolist()):
        if not set(why.reasons) <= KNOWN_WHOLE:
            row = piece.rows[np.flatnonzero(piece.coverage == why)[0]]
            raise HistoryError(
                f"{piece.table.shown}: its change at {Lsn(int(row['start_lsn']))} is not known "
                f"whole: {why}; give a base backup (--base), or use --mode append"
            )


def refuse_new_key(piece: Piece) -> None:
    """Raise HistoryError if a transaction changed rows of a mirror and made its key anew."""
    if piece.has_new_key:
        raise HistoryError(
            f"{piece.table.shown}: a transaction changed rows and gave the table another primary "
            "key. Two rows may have had one value of it before, and then a mirror takes one for "
            f"the other; {_REMEDY}"
        )


def folded(pieces: Sequence[Piece], key: Sequence[str]) -> Fold:
    """Return the steps after the last TRUNCATE. The pieces are of one table, in order."""
    return fold_of(*steps_of(pieces), key, pieces[-1].table.shown)


def steps_of(pieces: Sequence[Piece]) -> tuple[Column, Any]:
    """Return steps in any order, and the Arrow table that has their rows, or None without one."""
    made, tables, taken = [], [], 0
    for piece in pieces:
        steps = _steps(piece)
        if piece.values is not None:
            tables.append(piece.values.typed(steps["row"]))
            steps["row"] = np.arange(taken, taken + len(steps))
            taken += len(steps)
        made.append(steps)
    if not tables:
        return np.concatenate(made), None
    rows = pa.concat_tables(tables, promote_options="default").combine_chunks()
    return np.concatenate(made), rows


def fold_of(steps: Column, rows: Any, key: Sequence[str], shown: str) -> Fold:
    """Return the fold of steps of the table `shown`, after the last TRUNCATE among them."""
    order = np.lexsort((steps["serial"], steps["start_lsn"], steps["commit_lsn"]))
    steps = steps[order]
    emptied, begin = None, 0
    cuts = np.flatnonzero(steps["operation"] == TRUNCATE)
    if len(cuts):
        begin = int(cuts[-1]) + 1
        cut = steps[begin - 1]
        emptied = int(cut["commit_lsn"]), int(cut["commit_time"])
    steps = steps[begin:]
    if not len(steps):
        none = np.empty(0, np.int64)
        return Fold(None, none, none.astype(bool), none, none, emptied)
    rows = rows.take(pa.array(steps["row"].copy()))
    codes = codes_of(rows, key)
    _refuse_two_rows(codes, steps, key, shown)
    return Fold(rows, codes, steps["puts"], steps["commit_lsn"], steps["commit_time"], emptied)


def _refuse_two_rows(codes: Column, steps: Column, key: Sequence[str], shown: str) -> None:
    """Raise HistoryError if a key got a row while it had one, or lost one while it had none.

    A mirror would take the one for the other. It was no key then, or a DEFERRABLE one.
    """
    order = np.argsort(codes, kind="stable")
    codes, puts = codes[order], steps["puts"][order]
    again = np.flatnonzero((codes[1:] == codes[:-1]) & (puts[1:] == puts[:-1]))
    if len(again):
        lsn = Lsn(int(steps["commit_lsn"][order[again[0] + 1]]))
        raise HistoryError(
            f"{shown}: at {lsn} two rows had one value of ({', '.join(key)}), which was not the "
            f"primary key then, and a mirror finds no row by it; {_REMEDY}"
        )


STEP_ROW = np.dtype(
    [
        ("start_lsn", np.int64), ("serial", np.int8), ("commit_lsn", np.int64),
        ("commit_time", np.int64), ("operation", np.uint8), ("puts", bool), ("row", np.int32),
    ]
)  # fmt: skip


def _steps(piece: Piece) -> Column:
    """Return the steps of one piece: an update is two, the old row and the new one."""
    refuse_unknown(piece)
    changes = piece.rows
    takes = np.isin(changes["operation"], (UPDATE, DELETE, TRUNCATE))
    gives = ~np.isin(changes["operation"], (DELETE, TRUNCATE))
    made = []
    for serial, (chosen, name) in enumerate(((takes, "old"), (gives, "new"))):
        own = changes[chosen]
        steps = np.zeros(len(own), STEP_ROW)
        for each in ("start_lsn", "commit_lsn", "commit_time", "operation"):
            steps[each] = own[each]
        steps["serial"], steps["puts"], steps["row"] = serial, name == "new", own[name]
        made.append(steps)
    return np.concatenate(made)


def parts_of(pieces: Sequence[Piece]) -> list[tuple[list[Piece], int | None]]:
    """Cut a table's changes before each commit with a TRUNCATE; each part has its end, or None."""
    commits = [p.rows["commit_lsn"] for p in pieces]
    cuts = [
        lsns[piece.rows["operation"] == TRUNCATE]
        for lsns, piece in zip(commits, pieces, strict=True)
    ]
    bounds = [0, *np.unique(np.concatenate(cuts)).tolist()]
    found = []
    for begin, end in zip(bounds, [*bounds[1:], None], strict=True):
        own = []
        for lsns, piece in zip(commits, pieces, strict=True):
            mask = (lsns >= begin) & (lsns < (end or lsns.max(initial=0) + 1))
            if mask.any():
                own.append(piece.chosen(mask))
        if own:
            found.append((own, None if end is None else end - 1))
    return found


def codes_of(rows: Any, key: Sequence[str]) -> Column:
    """Return a number for each row: two rows have the same if their keys are the same."""
    codes = np.zeros(rows.num_rows, np.int64)
    for name in key:
        column = pc.dictionary_encode(without_minus_zero(rows[name]).combine_chunks())
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        own = pc.fill_null(column.indices, len(column.dictionary)).to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes * (len(column.dictionary) + 1) + own, return_inverse=True)
    return codes


def without_minus_zero(column: Any) -> Any:
    """Return a column of a key in which -0 is 0: PostgreSQL and the lakes take them for one key."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.add(column, pa.scalar(0.0, column.type))


def has_key_of(rows: Any, others: Any, key: Sequence[str]) -> Column:
    """Return, for each row, True if the others have its key."""
    own, theirs = _codes(rows, others, key)
    found: Column = np.isin(own, theirs)
    return found


def place_of(rows: Any, others: Any, key: Sequence[str]) -> Column:
    """Return, for each row, the place of its key in the others, or any place without one."""
    own, theirs = _codes(rows, others, key)
    order = np.argsort(theirs)
    found: Column = order[np.minimum(np.searchsorted(theirs[order], own), len(order) - 1)]
    return found


def _codes(rows: Any, others: Any, key: Sequence[str]) -> tuple[Column, Column]:
    """Return a number for the key of each row, the same in both tables."""
    both = pa.concat_tables([rows.select(list(key)), others.select(list(key))])
    codes = codes_of(both, key)
    return codes[: len(rows)], codes[len(rows) :]
