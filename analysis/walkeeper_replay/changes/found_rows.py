"""Conditions of SQL for one row, as a change left it. Pure.

    conditions = Conditions(printer)
    conditions.place(table, row)             a row of these values, and one only of several alike
    conditions.place(table, row, [741])      the same, if transaction 741 or this one wrote it last
    conditions.compared('t."a"', attribute)  what tells two values of a column apart

Contract: a value is compared by its text, since not all types have an equality. Values of types
whose texts are not unique are compared by what a binary protocol sends of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from walkeeper_replay.catalogs.catalog import Attribute, Table
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.columns.written_rows import literal, qualified, quoted_name
from walkeeper_replay.text.value_text import (
    BPCHAR,
    NAMED,
    REGCOLLATION,
    REGOPER,
    REGPROC,
    Printer,
)

Row = dict[str, str | None]
OWN_XID = "pg_catalog.pg_current_xact_id()::pg_catalog.xid"
_FIRST_NOT_BUILT_IN = 10_000
_SAME_TEXTS = frozenset({REGPROC, REGOPER, REGCOLLATION})
"""Types that print overloads, or collations of several encodings, alike."""


def stored(table: Table) -> list[str]:
    """Return the columns that SQL can give values. Generated columns follow from the others."""
    return [a.name for a in table.columns if not a.generated]


def lasting_keys(changes: Iterable[Change]) -> dict[int, tuple[str, ...]]:
    """Return the primary key of each table by its OID, or () if not all changes have the same."""
    found: dict[int, tuple[str, ...]] = {}
    for table in (change.table for change in changes):
        found[table.oid] = table.key if found.get(table.oid, table.key) == table.key else ()
    return found


@dataclass(frozen=True, slots=True)
class Conditions:
    """See the module; `printer` knows the types of the database."""

    printer: Printer

    def compared(self, column: str, attribute: Attribute) -> str:
        """Return an expression that is equal for two values only if they are the same."""
        if self._has_unique_texts(attribute):
            return f'{column}::text COLLATE "C"'
        return f"pg_catalog.record_send(ROW({column}))"

    def _has_unique_texts(self, attribute: Attribute) -> bool:
        if attribute.typmod == -1 and self.printer.types.base_of(attribute.type) == BPCHAR:
            return False  # A cast to text takes off blanks at its end.
        return not self.printer.kinds_of_names(attribute.type) & _SAME_TEXTS

    def left(self, table: Table, row: Row) -> str:
        """Return a condition for rows with the values that a change left."""
        parts = [self._is_left(a, row[a.name]) for a in table.columns if not a.generated]
        types = {a.name: a.type for a in table.columns}
        keys = [_has_key(table, name, types[name], row[name]) for name in table.key]
        return " AND ".join(keys + parts) or "true"

    def place(self, table: Table, row: Row, writers: Sequence[int] = ()) -> str:
        """Return a condition for the row that a change left, and for one only of several alike.

        With `writers`, one of these transactions or the current one wrote the row last.
        """
        where = self.left(table, row)
        if writers:
            where += f" AND {written_by(writers)}"
        if table.key:
            return where
        chosen = f"ctid = (SELECT ctid FROM ONLY {qualified(table)} WHERE {where} LIMIT 1)"
        if table.later_columns:  # They may set apart rows that were alike.
            later = ", ".join(map(quoted_name, table.later_columns))
            kinds = f"SELECT count(DISTINCT ROW({later})::text) FROM ONLY {qualified(table)}"
            return f"{chosen} AND ({kinds} WHERE {where}) = 1"
        return chosen

    def _is_left(self, attribute: Attribute, value: str | None) -> str:
        """Return a condition that a column still has this value.

        A cast's text may differ from ours, so the literal is cast, too, and COALESCE makes it one
        of the column's type.
        """
        column = quoted_name(attribute.name)
        if value is None:
            return f"{column}::text IS NULL"
        meant = f"COALESCE({literal(value)}, {column})"
        if self._has_unique_texts(attribute):
            return f'{column}::text COLLATE "C" = {meant}::text'
        # Both sides have the type below a domain.
        found = self.compared(f"COALESCE(NULL, {column})", attribute)
        return f"{found} = {self.compared(meant, attribute)}"


def written_by(xids: Sequence[int]) -> str:
    """Return a condition that one of these transactions, or the current one, wrote a row last."""
    shown = ", ".join(f"'{xid & 0xFFFFFFFF}'::pg_catalog.xid" for xid in xids)
    return f"xmin IN ({shown}, {OWN_XID})"


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
