"""SQL that takes changes back: the last commit first, within it the last change first. Pure.

Contract: a later change of the same rows is detected and not overwritten. By all its values, each
row must be as the change left it. If columns were added since, the undo of an INSERT asks for its
xmin, too (born_rows). A statement raises an exception if it finds no such row, or if a trigger or a
rule keeps the row out. At the end the SQL checks that each row is as it was before (checked_rows),
and that no other rows went with them (other_rows). After an exception the transaction around all of
them does nothing. The rows of a TRUNCATE are not in its record. A caller that can replay them
provides them, and a comment says if they are not all. An unknown change is a comment in place of a
statement, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from walkeeper_common.operator_text.printable import printable
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.changes.born_rows import Writers
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.checked_rows import BEGIN_CHECK, CheckedRows, Names, Values
from walkeeper_replay.changes.found_rows import Conditions, Row, stored, written_by
from walkeeper_replay.changes.other_rows import OtherRows
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.columns.written_rows import (
    ROWS_PER_INSERT,
    SESSION,
    block,
    comment,
    inserts,
    literal,
    qualified,
    quoted_name,
)
from walkeeper_replay.table_at import coverage_of
from walkeeper_replay.text.value_text import Printer

RowsBefore = Callable[[Change], Any]
"""An Arrow table of `TableAt.whole`: what a truncated table held just before."""
NOT_LEFT, NOT_PUT_BACK = "is not as it was left", "was not put back"


def undo_lines(
    changes: Sequence[Change], rows_before: RowsBefore, printer: Printer
) -> Iterator[str]:
    """Yield the lines of one SQL transaction that takes the changes back, the last one first.

    `printer` knows the types of the database.
    """
    yield from SESSION
    undo = _Undo(changes, rows_before, printer)
    yield "BEGIN;"
    yield "SET LOCAL row_security = off;"  # An error, rather than rows that are not seen.
    yield BEGIN_CHECK
    yield from undo.others.first_lines()
    yield "SET CONSTRAINTS ALL DEFERRED;"
    truncated: set[tuple[int, int]] = set()
    for change in reversed(changes):
        own = (change.commit.end_lsn, change.table.oid)
        if own in truncated:
            continue  # The rows from before the transaction are back.
        if change.operation == "truncate":
            truncated.add(own)
        yield from undo.statements(change)
    # Triggers that wait for the commit come before the check.
    yield "SET CONSTRAINTS ALL IMMEDIATE;"
    yield from undo.others.of_foreign_keys()
    yield from undo.rows.lines(undo.others)
    yield from undo.others.removed_lines()
    yield "COMMIT;"


def not_undone(changes: Sequence[Change]) -> int:
    """Return the number of changes that are comments in the SQL, since they are not known."""
    return sum(not _is_known(change) for change in changes)


def _is_known(change: Change) -> bool:
    needs_old = change.operation in ("update", "delete")
    needs_new = change.operation in ("update", "insert")
    known = (change.old is not None or not needs_old) and (change.new is not None or not needs_new)
    return known and change.coverage.has_values


class _Undo:
    """The statements, and the rows that have to be there after them."""

    def __init__(
        self, changes: Sequence[Change], rows_before: RowsBefore, printer: Printer
    ) -> None:
        self._rows_before, self._conditions = rows_before, Conditions(printer)
        self.rows = CheckedRows(changes, self._conditions)
        self.others = OtherRows()
        self._writers = Writers(changes)
        self._columns: dict[int, tuple[Table, Names]] = {}
        """The stored columns by id(table)."""

    def statements(self, change: Change) -> Iterator[str]:
        """Yield the statements that take one change back, or a comment."""
        table = change.table
        if not _is_known(change):
            yield comment(f"not undone: {change.operation} of {table.shown}: {change.coverage}")
        elif change.operation == "truncate":
            yield from self._truncate(change)
        elif change.operation == "insert":
            assert change.new is not None, f"{change=}"
            yield self._found(change, f"DELETE FROM ONLY {qualified(table)}", change.new)
            self.rows.removed(table, self._stored(table), change.new)
            self.others.removed(table)
        elif change.operation == "delete":
            assert change.old is not None, f"{change=}"
            names = self._stored(table)
            yield from self._put_back(table, names, [tuple(change.old[n] for n in names)])
        else:
            yield from self._update(change)

    def _stored(self, table: Table) -> Names:
        if id(table) not in self._columns:  # The entry keeps the table, and so its id.
            self._columns[id(table)] = table, tuple(stored(table))
        return self._columns[id(table)][1]

    def _truncate(self, change: Change) -> Iterator[str]:
        table, rows = change.table, self._rows_before(change)
        if not (known := coverage_of(rows)).has_values:
            yield comment(f"not all of what truncate took from {table.shown}: {known}")
        names = tuple(name for name in self._stored(table) if name in rows.column_names)
        if known.has_values and len(names) < len(self._stored(table)):
            lost = "a column was dropped or has another type since"
            yield comment(f"not all of what truncate took from {table.shown}: {lost}")
        yield from self._put_back(table, names, rows_of_text(rows.select(names)))

    def _update(self, change: Change) -> Iterator[str]:
        table, old, new = change.table, change.old, change.new
        assert old is not None and new is not None, f"{change=}"
        names = self._stored(table)
        changed = [name for name in names if old[name] != new[name]]
        if changed:
            sets = ", ".join(f"{quoted_name(n)} = {literal(old[n])}" for n in changed)
            yield self._found(change, f"UPDATE ONLY {qualified(table)} SET {sets}", new)
            self.rows.removed(table, names, new)
            self.rows.put_back(table, names, [tuple(old[name] for name in names)])
            self.others.changed(table)

    def _found(self, change: Change, statement: str, row: Row) -> str:
        """Return a statement about the row that a change left, which raises if it is not there."""
        table, writers = change.table, self._writers.of(change)
        statement += f" WHERE {self._conditions.place(table, row, writers)}"
        if not writers:
            return _met(statement, table)
        where = f"SELECT FROM ONLY {qualified(table)} WHERE {self._conditions.left(table, row)}"
        later = literal(printable(", ".join(table.later_columns)))
        anew = (
            f"IF met = 0 AND EXISTS ({where}) "
            f"AND NOT EXISTS ({where} AND {written_by(writers)}) "
            "THEN RAISE EXCEPTION 'a row of % was written anew since, and has columns that were "
            "added since: %. Whether these were changed is not known', "
            f"{_shown(table)}, {later} "
            "USING HINT = 'Look at the row, and change it by hand.'; END IF; "
        )
        return _met(statement, table, otherwise=NOT_LEFT, first=anew)

    def _put_back(self, table: Table, names: Names, rows: list[Values]) -> Iterator[str]:
        for begin in range(0, len(rows), ROWS_PER_INSERT):
            some = rows[begin : begin + ROWS_PER_INSERT]
            for statement in inserts(qualified(table), names, some):
                yield _met(statement.removesuffix(";"), table, len(some), NOT_PUT_BACK)
        self.rows.put_back(table, names, rows)
        self.others.put_back(table, len(rows))


def _shown(table: Table) -> str:
    return literal(printable(table.shown))


def _met(
    statement: str, table: Table, rows: int = 1, otherwise: str = NOT_LEFT, first: str = ""
) -> str:
    """Return a statement that raises an exception unless it changes exactly `rows` rows.

    `first` comes before that, if the numbers differ.
    """
    return block(
        f"#variable_conflict use_column\n"
        f"DECLARE met bigint; BEGIN {statement}; GET DIAGNOSTICS met = ROW_COUNT; {first}"
        f"IF met <> {rows} THEN RAISE EXCEPTION 'a row of % {otherwise}', "
        f"{_shown(table)}; END IF; END"
    )
