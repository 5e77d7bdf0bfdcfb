"""SQL that takes changes back: the last commit first, within it the last change first. Pure.

Contract: a later change of the same rows is detected and not overwritten. By all its values, each
row must be as the change left it. A statement raises an exception if it finds no such row, or if a
trigger or a rule keeps the row out. Then the transaction around all of them does nothing. The rows
of a TRUNCATE are not in its record. A caller that can replay them provides them, and a comment says
if they are not all. An unknown change is a comment in place of a statement, and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from walkeeper_common.operator_text.printable import printable
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.columns.written_rows import (
    ROWS_PER_INSERT,
    SESSION,
    comment,
    inserts,
    literal,
    qualified,
    quoted_name,
)
from walkeeper_replay.table_at import coverage_of
from walkeeper_replay.text.value_text import NAMED

RowsBefore = Callable[[Change], Any]
"""An Arrow table of `TableAt.whole`: what a truncated table held just before."""
Row = dict[str, str | None]
_FIRST_NOT_BUILT_IN = 10_000


def undo_lines(changes: Sequence[Change], rows_before: RowsBefore) -> Iterator[str]:
    """Yield the lines of one SQL transaction that takes the changes back, the last one first."""
    yield from SESSION
    yield "BEGIN;"
    yield "SET CONSTRAINTS ALL DEFERRED;"
    truncated: set[tuple[int, int]] = set()
    for change in reversed(changes):
        own = (change.commit.end_lsn, change.table.oid)
        if own in truncated:
            continue  # The rows from before the transaction are back.
        if change.operation == "truncate":
            truncated.add(own)
        yield from _undone(change, rows_before)
    yield "COMMIT;"


def not_undone(changes: Sequence[Change]) -> int:
    """Return the number of changes that are comments in the SQL, since they are not known."""
    return sum(not _is_known(change) for change in changes)


def _is_known(change: Change) -> bool:
    needs_old = change.operation in ("update", "delete")
    needs_new = change.operation in ("update", "insert")
    known = (change.old is not None or not needs_old) and (change.new is not None or not needs_new)
    return known and change.coverage.has_values


def _undone(change: Change, rows_before: RowsBefore) -> Iterator[str]:
    table = change.table
    if not _is_known(change):
        yield comment(f"not undone: {change.operation} of {table.shown}: {change.coverage}")
        return
    stored = [a.name for a in table.columns if not a.generated]
    if change.operation == "truncate":
        rows = rows_before(change)
        if not (known := coverage_of(rows)).has_values:
            yield comment(f"not all of what truncate took from {table.shown}: {known}")
        names = [name for name in stored if name in rows.column_names]
        if known.has_values and len(names) < len(stored):
            lost = "a column was dropped or has another type since"
            yield comment(f"not all of what truncate took from {table.shown}: {lost}")
        yield from _put_back(table, names, rows_of_text(rows.select(names)))
    elif change.operation == "insert":
        assert change.new is not None, f"{change=}"
        yield _met(f"DELETE FROM ONLY {qualified(table)} WHERE {_place(table, change.new)}", table)
    elif change.operation == "delete":
        assert change.old is not None, f"{change=}"
        yield from _put_back(table, stored, [tuple(change.old[name] for name in stored)])
    else:
        assert change.old is not None and change.new is not None, f"{change=}"
        old, new = change.old, change.new
        changed = [name for name in stored if old[name] != new[name]]
        if changed:
            sets = ", ".join(f"{quoted_name(n)} = {literal(old[n])}" for n in changed)
            yield _met(
                f"UPDATE ONLY {qualified(table)} SET {sets} WHERE {_place(table, new)}", table
            )


def _place(table: Table, row: Row) -> str:
    """Return a condition for the row that a change left, and for one only of several alike."""
    # Generated columns follow from the others, and are not always known.
    parts = [_is_left(a.name, row[a.name]) for a in table.columns if not a.generated]
    if table.key:  # for its index
        types = {a.name: a.type for a in table.columns}
        parts = [_has_key(table, name, types[name], row[name]) for name in table.key] + parts
        return " AND ".join(parts)
    where = " AND ".join(parts) or "true"
    chosen = f"ctid = (SELECT ctid FROM ONLY {qualified(table)} WHERE {where} LIMIT 1)"
    if table.later_columns:  # They may set apart rows that were alike.
        later = ", ".join(map(quoted_name, table.later_columns))
        kinds = f"SELECT count(DISTINCT ROW({later})::text) FROM ONLY {qualified(table)}"
        return f"{chosen} AND ({kinds} WHERE {where}) = 1"
    return chosen


def _has_key(table: Table, name: str, type_: int, value: str | None) -> str:
    """Return a condition that an index serves: a column of the key has this value.

    The server takes a bare literal for the operator's type: an anonymous record for a composite,
    and a number for regclass. A UNION gives the literal the column's own type.
    """
    column, text = quoted_name(name), literal(value)
    if type_ < _FIRST_NOT_BUILT_IN and type_ not in NAMED:
        return f"{column} = {text}"
    own = f"SELECT {column} FROM ONLY {qualified(table)} WHERE false"
    return f"{column} = ({own} UNION ALL SELECT {text})"


def _is_left(name: str, value: str | None) -> str:
    """Return a condition that a column still has this value.

    Not all types have an equality, but all have a text. A cast's text may differ from ours, so the
    literal is cast, too, and COALESCE makes it one of the column's type.
    """
    column = quoted_name(name)
    if value is None:
        return f"{column}::text IS NULL"
    return f'{column}::text COLLATE "C" = COALESCE({literal(value)}, {column})::text'


def _put_back(table: Table, names: list[str], rows: list[tuple[str | None, ...]]) -> Iterator[str]:
    for begin in range(0, len(rows), ROWS_PER_INSERT):
        some = rows[begin : begin + ROWS_PER_INSERT]
        for statement in inserts(table, names, some):
            yield _met(statement.removesuffix(";"), table, len(some), "was not put back")


def _met(
    statement: str, table: Table, rows: int = 1, otherwise: str = "is not as it was left"
) -> str:
    """Return a statement that raises an exception unless it changes exactly `rows` rows."""
    body = (
        f"#variable_conflict use_column\n"
        f"DECLARE met bigint; BEGIN {statement}; GET DIAGNOSTICS met = ROW_COUNT; "
        f"IF met <> {rows} THEN RAISE EXCEPTION 'a row of % {otherwise}', "
        f"{literal(printable(table.shown))}; END IF; END"
    )
    tag = "$walkeeper$"
    while tag in body:
        tag = tag[:-1] + "_$"
    return f"DO {tag} {body} {tag};"
