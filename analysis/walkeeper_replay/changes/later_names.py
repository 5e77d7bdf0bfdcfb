"""Changes in the later names of tables and columns, so that today's SQL means the same rows. Pure.

    in_later_names(changes, catalog, lives) -> the changes, their tables as `catalog` names them
    renamed(rows, before, after)     -> an Arrow table's columns of one in the names of the other
    rewritten_since(changes, rewriting) -> tables whose values may mean something else later

Contract: a table is its OID until another one gets it, and a column its number. Names may be
exchanged. A change of a table or column that is not there later has a coverage that says so, and
keeps its own names. So has a change before a column got another type, or fewer digits. ALTER TABLE
alone knew which values of that type stand for the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from walkeeper_common.lsn import Lsn
from walkeeper_replay.catalogs.catalog import Attribute, Catalog, Table
from walkeeper_replay.catalogs.table_lives import TableLives
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.undescribed import Undescribed
from walkeeper_replay.text.coverage import Coverage, reason, together

DROPPED = reason("the table was dropped since")
# Types whose typmod is a length, or a number of digits of a second.
_LENGTHS, _DIGITS, _NUMERIC = (1042, 1043, 1562), (1083, 1114, 1184, 1266), 1700
REWRITTEN = (
    "VACUUM FULL, CLUSTER or ALTER TABLE rewrote it at {}, after changes that are taken back; if "
    "it was ALTER TABLE … USING, values that come back may mean something else now"
)
_COLUMNS_DROPPED = "a column was dropped since: {}"
_COLUMNS_RETYPED = "a column has another type since: {}"


def in_later_names(changes: Sequence[Change], catalog: Catalog, lives: TableLives) -> list[Change]:
    """Return the changes, for statements to a server that has these catalogs."""
    later: dict[int, tuple[Table, Table, dict[str, str], Coverage]] = {}
    found = []
    for change in changes:
        key = id(change.table)  # The entry keeps the table, and so its id.
        if key not in later:
            is_there = lives.is_last(change.table.oid, change.commit.end_lsn)
            later[key] = (change.table, *_later(change.table, catalog, is_there=is_there))
        _, table, names, why = later[key]
        coverage = change.coverage if why.has_all else together([change.coverage, why])
        old, new = (_named(row, names) for row in (change.old, change.new))
        found.append(replace(change, table=table, old=old, new=new, coverage=coverage))
    return found


def _later(
    table: Table, catalog: Catalog, *, is_there: bool
) -> tuple[Table, dict[str, str], Coverage]:
    """Return a table in its later names, its later column names by the earlier, and a coverage."""
    same = {a.name: a.name for a in table.columns}
    known = catalog.classes.get(table.oid) if is_there else None
    if known is None:
        return table, same, DROPPED
    own = sorted(catalog.attributes.get(table.oid, []), key=lambda a: a.number)
    after = {a.number: a for a in own if not a.dropped}
    gone = [a.name for a in table.columns if a.number not in after]
    if gone:
        return table, same, reason(_COLUMNS_DROPPED.format(", ".join(gone)))
    named = tuple(_later_attribute(a, after) for a in table.attributes)
    retyped = [a.name for a in table.columns if _is_retyped(a, after[a.number])]
    if retyped:
        return table, same, reason(_COLUMNS_RETYPED.format(", ".join(retyped)))
    names = {a.name: after[a.number].name for a in table.columns}
    key = tuple(names[name] for name in table.key)
    numbers = {a.number for a in table.columns}
    added = tuple(a.name for a in after.values() if a.number not in numbers and not a.generated)
    made = replace(
        table, schema=known.schema, name=known.name, attributes=named, key=key, later_columns=added
    )
    return made, names, together(())


def _later_attribute(attribute: Attribute, after: dict[int, Attribute]) -> Attribute:
    found = after.get(attribute.number)
    if found is None:
        return attribute
    return replace(attribute, name=found.name, generated=found.generated)


def _is_retyped(before: Attribute, after: Attribute) -> bool:
    """Return True if a value of before may be another one in the later column.

    A longer text and more digits leave values as they are. A server rounds to fewer digits.
    """
    if before.type != after.type:
        return True
    if after.typmod in (-1, before.typmod):
        return False
    if before.typmod == -1 or before.type not in (*_LENGTHS, *_DIGITS, _NUMERIC):
        return True
    if before.type == _NUMERIC:
        return _scale(after) < _scale(before)
    return after.typmod < before.typmod


def _scale(attribute: Attribute) -> int:
    """Return a numeric's digits after the point, a number of 11 bits with its sign."""
    return ((attribute.typmod - 4 & 0x7FF) ^ 0x400) - 0x400


def _named(row: dict[str, str | None] | None, names: dict[str, str]) -> Any:
    return None if row is None else {names[name]: value for name, value in row.items()}


def rewritten_since(
    changes: Sequence[Change], rewriting: Callable[[int], Sequence[int]]
) -> list[Undescribed]:
    """Return the tables that a later commit rewrote, of changes with values that come back.

    WAL does not tell ALTER TABLE … USING from VACUUM FULL. `rewriting` has the commits of an OID.
    """
    first: dict[tuple[int, str], int] = {}
    for change in changes:
        if change.operation != "insert":
            place = (change.table.oid, change.table.shown)
            first[place] = min(first.get(place, change.commit.end_lsn), change.commit.end_lsn)
    return [
        Undescribed("table", shown, REWRITTEN.format(Lsn(later[0])))
        for (oid, shown), lsn in first.items()
        if (later := [each for each in rewriting(oid) if each >= lsn])
    ]


def renamed(rows: Any, before: Table, after: Table) -> tuple[Any, bool]:
    """Return the columns that both have, in the names of `after`, and True if these are all.

    Return no row if such a column has another type.
    """
    later = {a.number: a for a in after.columns}
    if any(_is_retyped(a, later.get(a.number, a)) for a in before.columns):
        return rows.slice(0, 0).select([]), False
    names = {a.number: a.name for a in after.columns}
    own = {a.name: names.get(a.number) for a in before.columns}
    kept = [name for name in rows.column_names if own.get(name, name) is not None]
    if not kept:  # With other metadata, a table without columns has no rows.
        return rows.select([]), not rows.column_names
    made = rows.select(kept).rename_columns([own.get(name, name) for name in kept])
    made = made.replace_schema_metadata(rows.schema.metadata)
    return made, len(kept) == len(rows.column_names)
