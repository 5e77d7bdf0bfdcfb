"""Rows of a recovered server at a place of the log, and changes folded into them. Pure.

kept(before, after) -> [Kept, …]; rows = stable(table, before.rows[name])
apply(rows, changes, table)                    the rows of `after`, if no change is missing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from tests.proof.recoveries.recovered_server import Described, Row
from walkeeper_replay.changes.change_rows import Change

RENAMED = ("reg", "mood")  # types of names, and of labels


@dataclass
class Place:
    """The tables and rows of a server that was recovered to a place of the log."""

    lsn: int
    shown: str
    tables: dict[str, Described]
    rows: dict[str, list[Row]]


@dataclass(frozen=True)
class Kept:
    """A table with the same columns at two places, and its name at each of them."""

    before: str
    after: str
    table: Described


def kept(before: Place, after: Place) -> list[Kept]:
    """Return the tables that have the same columns at both places."""
    later = {table.oid: (name, table) for name, table in after.tables.items()}
    return [
        Kept(name, later[table.oid][0], table)
        for name, table in before.tables.items()
        if table.kind == "r" and later.get(table.oid, ("", None))[1] == table
    ]


def stable(table: Described, rows: Iterable[Row]) -> Counter[Row]:
    """Return the rows without values that another transaction's DDL renames, counted."""
    kept = [n for n, (_, kind) in enumerate(table.columns) if not kind.startswith(RENAMED)]
    return Counter(tuple(row[n] for n in kept) for row in rows)


def apply(rows: Counter[Row], found: list[Change], table: Described) -> None:
    """Fold changes into rows that are counted.

    A change has the names of its own commit, and columns may have exchanged theirs since.
    """
    for change in found:
        names = {each.number: each.name for each in change.table.attributes}
        own = [names.get(number, "") for number in table.numbers]
        if change.operation == "truncate":
            rows.clear()
        for values, count in ((change.old, -1), (change.new, 1)):
            if values is not None:
                (row,) = stable(table, [tuple(values.get(name, "absent") for name in own)])
                rows[row] += count
                if not rows[row]:
                    del rows[row]


def difference(rows: list[Row], expected: list[Row]) -> str:
    """Return the counts of rows, and the first values that differ."""
    text = f"{len(rows)} rows, expected {len(expected)}"
    for row, other in zip(rows, expected, strict=False):
        if row != other:
            pairs = [(a, b) for a, b in zip(row, other, strict=False) if a != b]
            return f"{text}; {brief(pairs)} of {row[:1]} {other[:1]}, {len(row)} {len(other)}"
    return text


def brief(found: Iterable[object]) -> list[str]:
    """Return the first of them, none of them long."""
    texts = [str(each) for each in islice(found, 3)]
    return [text if len(text) < 300 else f"{text[:200]} … {text[-60:]}" for text in texts]
