"""Tables of a lake that mirror tables by their keys: the rows of now, or every version of a row.

    sink = DeltaMirrors("s3://lake/shop", "mirror")      or "scd2"; IcebergMirrors is alike
    sink.load(table, rows, lsn)                          a table as of the stream's beginning
    sink.write(spooled, begin, end)                      the changes of commits in (begin, end]

Here are the rules of both. A window is one commit of each table that changed in it, with its end in
the same commit. A window with a TRUNCATE has one commit more. A window of many bytes has a commit
for each set of its changes. A large transaction is folded by shares of the keys (large_folds), so
that memory has one share. It is still one commit.

A position beside the tables says how far all of them are. A stream that dies between two tables
writes the window again, without the changes that a table has already. Contract: at `position` a
mirror's rows are the table's. In scd2 a version has the commits that began and ended it; the
current one has no end. The sink refuses a table without a primary key and a change that is not
known whole, by name. A DEFERRABLE key is none: two rows may have it until the commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from walkeeper_common.lsn import Lsn
from walkeeper_history.change_files import row_groups
from walkeeper_history.rows.columns import TIMESTAMP
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.changes.change_rows import FoundChanges, Piece
from walkeeper_replay.lakes.change_folds import (
    NO_END,
    Fold,
    folded,
    has_key_of,
    parts_of,
    place_of,
    refuse_new_key,
)
from walkeeper_replay.lakes.column_numbers import ColumnNumbers
from walkeeper_replay.lakes.column_types import ColumnTypes, differences
from walkeeper_replay.lakes.lake_names import NameRules, refuse_names
from walkeeper_replay.lakes.large_folds import LargeFold, Span
from walkeeper_replay.lakes.spooled_parts import ChangeSet, SpooledParts
from walkeeper_replay.lakes.table_maintenance import Maintained, Retention
from walkeeper_replay.table_at import coverage_of
from walkeeper_wal.records.gather import MICROSECONDS_1970_TO_2000
from walkeeper_wal.records.segment import Column
from walkeeper_wal.wal_errors import HistoryError

MIRROR, SCD2 = "mirror", "scd2"
BEGAN, BEGAN_AT, ENDED, ENDED_AT = "valid_from_lsn", "valid_from", "valid_to_lsn", "valid_to"
VALIDITY = {BEGAN: pa.int64(), BEGAN_AT: TIMESTAMP, ENDED: pa.int64(), ENDED_AT: TIMESTAMP}
STEP = "__walkeeper_step"
_OID = ".oid"
Load = Callable[[str], tuple[Table, Any, int]]
"""Return a table, its rows now with their coverage, and the LSN of now, by its name."""


class Notes(Protocol):
    """Text beside the tables: how far they are, whose they are, and their names."""

    def position(self) -> int: ...
    def claim(self, owner: str) -> None: ...
    def refuse_other(self, facts: dict[str, Any]) -> None: ...
    def beat(self, end: int, facts: dict[str, Any]) -> None: ...
    def keep(self, name: str, text: str) -> str: ...  # the text that was kept first
    def put(self, name: str, text: str) -> None: ...  # in place of an earlier one
    def kept(self, ending: str) -> list[str]: ...  # the names with this ending, without it


class Mirrors(ABC):
    """Mirrors in one place of a lake. A subclass knows the tables of one format."""

    beat_s = 10.0
    retention_s: int
    name_rules = NameRules()

    def __init__(self, shown: str, notes: Notes, mode: str, load: Load | None = None) -> None:
        """Begin with the notes of the tables; `load` reads a table again that was rewritten."""
        self._root, self.notes, self._mode = shown, notes, mode
        self.load_again = load
        self._noted: dict[int, tuple[str, tuple[str, ...]]] = {}
        self._numbers = ColumnNumbers(notes.keep, shown)
        self._types = ColumnTypes(notes, shown)

    def _lake_name(self, table: Table) -> str:
        """Return the table's name in the lake, which is that of one table alone."""
        return table.shown

    @abstractmethod
    def maintain(self, name: str, retention: Retention, now_s: float) -> Maintained:
        """Remove what no version of a table within the retention has."""

    @abstractmethod
    def _opened(self, table: Table) -> Any:
        """Return the lake's table, or None without one."""

    @abstractmethod
    def _done(self, target: Any) -> int:
        """Return the end of the last window that the lake's table has."""

    @abstractmethod
    def _schema(self, target: Any) -> Any:
        """Return the Arrow schema of the lake's table, with the types of rows."""

    def _stored(self, type_: Any) -> Any:
        """Return the type with which the lake's table has a column of rows."""
        return type_

    @abstractmethod
    def _overwrite(self, table: Table, rows: Any, end: int) -> None:
        """Put rows in place of all that are there, and make the table if there is none."""

    @abstractmethod
    def _merge_rows(self, table: Table, rows: Any, there: Column, target: Any, end: int) -> None:
        """Put the rows that are `there` in place of their keys' rows, and remove the others'."""

    @abstractmethod
    def _merge_versions(
        self, table: Table, added: Any, closed: Any, emptied: tuple[int, int] | None,
        target: Any, end: int,
    ) -> None:  # fmt: skip
        """Close the current versions of the keys in `closed`, and add versions.

        A TRUNCATE at `emptied` closes all current versions. Without a step both tables are None.
        """

    @abstractmethod
    def _scan(self, target: Any, span: Span | None) -> Iterator[Any]:
        """Yield record batches of the rows with a key in the span, or of all rows."""

    @abstractmethod
    def _replace(
        self, table: Table, schema: Any, rows: Iterator[Any], target: Any, span: Span | None,
        end: int,
    ) -> None:  # fmt: skip
        """Put rows in place of those with a key in the span, or of all, in one commit.

        Make the table if there is none. The rows are tables of this schema.
        """

    def _prepared(self, table: Table, schema: Any, far: set[str], target: Any) -> Any:
        """Return the lake's table, prepared for far dates in these columns."""
        return target

    def position(self) -> int:
        """Return the LSN up to which all tables have the changes."""
        return self.notes.position()

    def claim(self, owner: str) -> None:
        """Claim the tables for the stream `owner`; raise HistoryError if another one has them."""
        self.notes.claim(owner)

    def refuse_other(self, facts: dict[str, Any]) -> None:
        """Raise HistoryError if the tables are of another log, other tables or another mode."""
        self.notes.refuse_other({**facts, "mode": self._mode})

    def beat(self, end: int, facts: dict[str, Any]) -> None:
        """Record how far the log went, after all tables were written."""
        self.notes.beat(end, {**facts, "mode": self._mode})

    def tables(self) -> list[str]:
        """Return the names in the lake of all tables, also of those without changes in this run."""
        return self.notes.kept(_OID)

    def load(self, table: Table, rows: Any, lsn: int) -> None:
        """Write a table's rows as of `lsn`, in place of those that are there."""
        self._refuse_table(table)
        self._numbers.refuse_others(table)
        self._types.refuse_others(table)
        if not (known := coverage_of(rows)).has_all:
            raise HistoryError(
                f"{table.shown} at {Lsn(lsn)} is not known whole: {known}; give a base backup "
                "(--base), or use --mode append"
            )
        rows = rows.select([a.name for a in table.columns])
        if self._mode == SCD2:
            for name, type_ in VALIDITY.items():
                values = pa.repeat(lsn, len(rows)) if name == BEGAN else pa.nulls(len(rows), type_)
                rows = rows.append_column(pa.field(name, type_), values)
        self._overwrite(table, rows, lsn)

    def write(self, changes: SpooledParts, begin: int, end: int) -> None:
        """Write the changes of one window into each table, set after set, in bounded memory."""
        if self.position() > begin:
            raise HistoryError(f"{self._root}: another stream writes here")
        rewritten = changes.rewritten
        for each in changes.sets(end):
            if each.is_large:
                self._write_large(each, rewritten)
            else:
                found = FoundChanges.of_parts(list(each.parts()), rewritten)
                self._write_tables(found, each.end)
        for table in rewritten.values():
            self._write_rewritten(table)

    def _write_tables(self, found: FoundChanges, end: int) -> None:
        for oid, pieces in found.by_table().items():
            if oid not in found.rewritten:
                self._write_table(pieces, end)

    def _write_large(self, changes: ChangeSet, rewritten: Mapping[int, Table]) -> None:
        """Write one commit that comes in several parts: one commit of each of its tables."""
        bytes_max, folder = changes.spooled.bytes_max, changes.spooled.folder
        shares, tables = 2 * changes.size // bytes_max, dict[int, _Large]()
        with ExitStack() as opened:
            for part in changes.parts():
                for oid, pieces in part.by_table().items():
                    if oid in rewritten:
                        continue
                    if oid not in tables:
                        table = pieces[-1].table
                        self._refuse_table(table)
                        fold = LargeFold(folder, table.key, shares)
                        tables[oid] = _Large(opened.enter_context(fold), self._opened(table))
                    self._take_large(tables[oid], pieces)
            for each in tables.values():
                if each.table is not None:
                    self._commit_large(each, each.table, changes.end, bytes_max)

    def _take_large(self, large: _Large, pieces: list[Piece]) -> None:
        done = 0 if large.target is None else self._done(large.target)
        if pieces[0].rows["commit_lsn"][0] <= done:
            return
        if large.target is None:
            _refuse_older(pieces)
        large.known = self._refuse_schemas(pieces, large.target, large.known)
        large.table = pieces[-1].table
        large.fold.take(pieces)

    def _commit_large(self, large: _Large, table: Table, end: int, bytes_max: int) -> None:
        fold, target = large.fold, large.target
        if fold.size <= bytes_max:
            self._commit_fold(table, fold.whole(), target, end)
            return
        fields = [pa.field(each.name, self._stored(each.type)) for each in fold.schema]
        if self._mode == SCD2:
            fields += [pa.field(name, type_) for name, type_ in VALIDITY.items()]
        schema = pa.schema(fields)
        is_emptied = fold.emptied is not None
        span = None if is_emptied else fold.span
        if target is not None and not (is_emptied and self._mode == MIRROR):
            for group in row_groups(_Batches(self._scan(target, span), schema), bytes_max):
                fold.take_there(group)
        rows = self._large_rows(fold, table, schema)
        target = self._prepared(table, schema, fold.far_dates, target)
        self._replace(table, schema, rows, target, span, end)

    def _large_rows(self, fold: LargeFold, table: Table, schema: Any) -> Iterator[Any]:
        """Yield the rows of the lake's table after a large commit, share after share."""
        for steps, there in fold.folds():
            found = [] if there is None else [there]
            if self._mode == SCD2:
                added, closed = _versions(steps)
                closed = None if closed is None else _fitted(closed, schema)
                kept = [closed_versions(each, closed, steps.emptied, table.key) for each in found]
                new = [] if added is None else [_fitted(added, schema)]
            elif steps.rows is None:
                kept, new = found, []
            else:
                left, is_there = steps.left()
                left = _fitted(left, schema)
                kept = [e.filter(pa.array(~has_key_of(e, left, table.key))) for e in found]
                new = [left.filter(pa.array(is_there))]
            yield from (each for each in (*kept, *new) if len(each))

    def _write_rewritten(self, table: Table) -> None:
        """Read a table again that VACUUM FULL, CLUSTER or ALTER TABLE rewrote.

        WAL has no changes of its rows. Raise HistoryError if that is not possible.
        """
        if self._mode == SCD2 or self.load_again is None:
            self._refuse_table(table)
            raise HistoryError(
                f"{table.shown} was rewritten (VACUUM FULL, CLUSTER or ALTER TABLE), and WAL has "
                "no changes of its rows: begin anew with another --to"
            )
        self.load(*self.load_again(table.shown))

    def _write_table(self, pieces: list[Piece], end: int) -> None:
        last = pieces[-1].table
        self._refuse_table(last)
        target = self._opened(last)
        done = 0 if target is None else self._done(target)
        for part, part_end in parts_of(pieces):
            own = [piece.chosen(piece.rows["commit_lsn"] > done) for piece in part]
            own = [piece for piece in own if len(piece.rows)]
            if not own:
                continue
            if target is None:
                _refuse_older(own)
            self._refuse_schemas(own, target)
            self._commit(own, target, end if part_end is None else part_end)
            target = self._opened(last)

    def _commit(self, pieces: list[Piece], target: Any, end: int) -> None:
        """Write one part of a window in one commit."""
        table = pieces[-1].table
        self._commit_fold(table, folded(pieces, table.key), target, end)

    def _commit_fold(self, table: Table, fold: Fold, target: Any, end: int) -> None:
        if self._mode == MIRROR:
            self._commit_rows(table, fold, target, end)
        else:
            self._commit_versions(table, fold, target, end)

    def _commit_rows(self, table: Table, fold: Fold, target: Any, end: int) -> None:
        rows, there = fold.left() if fold.rows is not None else (None, np.empty(0, bool))
        if target is not None and fold.emptied is None:
            self._merge_rows(table, rows, there, target, end)
        elif rows is not None:
            self._overwrite(table, rows.filter(pa.array(there)), end)
        elif target is not None:
            self._overwrite(table, self._schema(target).empty_table(), end)

    def _commit_versions(self, table: Table, fold: Fold, target: Any, end: int) -> None:
        added, closed = _versions(fold)
        if target is not None:
            self._merge_versions(table, added, closed, fold.emptied, target, end)
        elif added is not None:
            self._overwrite(table, added, end)

    def _note(self, table: Table) -> None:
        """Record the table's name and key before its first row is there.

        Raise HistoryError if they were others before.
        """
        if self._noted.get(table.oid) == (table.shown, table.key):
            return
        key = f"primary key ({', '.join(table.key)})"
        for name, text, why in (
            (f"{table.oid}.table", table.shown, "a mirror does not follow the new name"),
            (
                f"{self._lake_name(table)}{_OID}",
                f"{table.oid} {key}",
                "a mirror is of one table and one key",
            ),
        ):
            if (before := self.notes.keep(name, text)) != text:
                raise HistoryError(
                    f"{table.shown}: {name} in {self._root} says {before}, and now it is {text}: "
                    f"{why}; begin anew with another --to"
                )
        self._noted[table.oid] = table.shown, table.key

    def _refuse_table(self, table: Table) -> None:
        if not table.key:
            raise HistoryError(
                f"{table.shown} has no primary key, or a DEFERRABLE one, and so a mirror finds "
                "no rows by it: add one without DEFERRABLE, name other tables (--table), or use "
                "--mode append"
            )
        added = {*VALIDITY, STEP} if self._mode == SCD2 else ()
        refuse_names(table, added, self.name_rules)
        self._note(table)

    def _refuse_schemas(
        self, pieces: Sequence[Piece], target: Any, known: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Follow a column that was added without a default; refuse all other changes by name.

        `known` has the columns of the pieces before. Return those after these pieces.
        """
        if known is None and target is not None:
            known = {f.name: f.type for f in self._schema(target) if f.name not in VALIDITY}
        for piece in pieces:
            if target is not None:  # the key that tells its rows apart, at each change
                self._refuse_table(piece.table)
                refuse_new_key(piece)
            if piece.values is None:
                continue
            schema = piece.values.typed(np.empty(0, np.int64)).schema
            own = {f.name: self._stored(f.type) for f in schema}
            attributes = {a.name: a for a in piece.table.columns}
            wrong = [] if known is None else differences(known, own, attributes)
            if wrong:
                raise HistoryError(
                    f"{piece.table.shown}: {'; '.join(wrong)}: a mirror does not follow this; "
                    "begin anew with another --to"
                )
            self._numbers.refuse_others(piece.table)
            self._types.refuse_others(piece.table)
            known = own
        return known


@dataclass(slots=True)
class _Large:
    """A table that a large transaction changes."""

    fold: LargeFold
    target: Any
    """The lake's table, or None."""
    table: Table | None = None
    """As the newest change has it, or None without a change that the lake does not have."""
    known: dict[str, Any] | None = None


class _Batches:
    """Record batches that have all columns of a schema, for row_groups."""

    def __init__(self, batches: Iterator[Any], schema: Any) -> None:
        self._batches, self.schema = batches, schema

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield from _fitted(pa.Table.from_batches([batch]), self.schema).to_batches()


def _fitted(rows: Any, schema: Any) -> Any:
    """Return rows with the columns of a schema, which are null where the rows have none."""
    arrays = [
        rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _refuse_older(pieces: Sequence[Piece]) -> None:
    """Raise HistoryError if a table that the lake does not have is older than the WAL."""
    if not all(piece.is_whole for piece in pieces):
        raise HistoryError(
            f"{pieces[-1].table.shown} is older than this WAL, which has not all of its rows: give "
            "a base backup (--base), name other tables (--table), or use --mode append"
        )


def plain(field: Any) -> Any:
    """Return a field of a lake with the type that rows have: no views, no large ones."""
    type_ = field.type
    if type_ in (pa.string_view(), pa.large_string()):
        type_ = pa.string()
    elif type_ in (pa.binary_view(), pa.large_binary()):
        type_ = pa.binary()
    return pa.field(field.name, type_)


def _versions(fold: Fold) -> tuple[Any, Any]:
    """Return (the versions that a fold adds, the ends of earlier ones), or Nones without a step."""
    if fold.rows is None:
        return None, None
    firsts = fold.first_of_each()
    rows, shown, ends = fold.versions()
    added = _with_validity(rows, fold, shown, ends)
    return added, _with_validity(fold.rows.take(pa.array(firsts)), fold, firsts, firsts)


def closed_versions(
    found: Any, closed: Any, emptied: tuple[int, int] | None, key: Sequence[str]
) -> Any:
    """Return versions of the lake, of which the current ones end as `closed` or `emptied` says."""
    is_closed = found[ENDED].is_null().to_numpy(zero_copy_only=False)
    if emptied is not None:
        lsn, time = emptied  # The TRUNCATE ended them all, before any step.
        lsns = pa.repeat(lsn, len(found))
        times = pa.repeat(time + MICROSECONDS_1970_TO_2000, len(found))
    elif closed is None or not len(closed):
        return found
    else:
        is_closed = is_closed & has_key_of(found, closed, key)
        at = pa.array(place_of(found, closed, key))
        lsns, times = closed[ENDED].take(at), closed[ENDED_AT].take(at)
    for name, values, type_ in ((ENDED, lsns, pa.int64()), (ENDED_AT, times, TIMESTAMP)):
        ended = pc.if_else(pa.array(is_closed), values.cast(type_), found[name].cast(type_))
        found = found.set_column(found.schema.get_field_index(name), name, ended)
    return found


def _with_validity(rows: Any, fold: Fold, begins: Column, ends: Column) -> Any:
    """Add the commits of the steps that began and ended each row."""
    is_open = ends == NO_END
    for lsn, at, steps, absent in (
        (BEGAN, BEGAN_AT, begins, np.zeros(len(begins), bool)), (ENDED, ENDED_AT, ends, is_open),
    ):  # fmt: skip
        times = fold.times[steps] + MICROSECONDS_1970_TO_2000
        rows = rows.append_column(lsn, pa.array(fold.lsns[steps], mask=absent))
        rows = rows.append_column(at, pa.array(times, mask=absent).cast(TIMESTAMP))
    return rows
