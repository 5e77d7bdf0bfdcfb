"""Rows as CSV, and as SQL that puts them into a table. Pure.

csv_lines(rows)              as COPY … (FORMAT csv, HEADER) writes them: null is empty, "" is not
insert_lines(table, rows)    INSERTs, for psql
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.columns.arrow_text import rows_of_text

ROWS_PER_INSERT = 100
SESSION = (
    "SET client_encoding = 'UTF8';",
    "SET timezone = 'UTC';",
    "SET datestyle = 'ISO';",
    "SET intervalstyle = 'postgres';",
    "SET standard_conforming_strings = on;",
)


def quoted_name(name: str) -> str:
    """Always quoted: no word list decides it."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str | None) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def _csv_field(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or any(c in value for c in ',"\n\r') or value != value.strip() or value == "\\.":
        return '"' + value.replace('"', '""') + '"'
    return value


def csv_line(values: Iterable[str | None]) -> str:
    return ",".join(map(_csv_field, values))


def csv_lines(rows: Any) -> Iterator[str]:
    """Of an Arrow table."""
    yield csv_line(rows.column_names)
    yield from map(csv_line, rows_of_text(rows))


def qualified(table: Table) -> str:
    return f"{quoted_name(table.schema)}.{quoted_name(table.name)}"


def insert_lines(table: Table, rows: Any) -> Iterator[str]:
    """For a table of these columns that is there; generated columns are left out."""
    stored = {a.name for a in table.columns if not a.generated}
    names = [name for name in rows.column_names if name in stored]
    yield from SESSION
    yield "BEGIN;"
    yield from inserts(table, names, rows_of_text(rows.select(names)))
    yield "COMMIT;"


def inserts(
    table: Table, names: list[str], rows: Iterable[tuple[str | None, ...]]
) -> Iterator[str]:
    columns = ", ".join(map(quoted_name, names))
    head = f"INSERT INTO {qualified(table)} ({columns}) OVERRIDING SYSTEM VALUE VALUES"
    waiting: list[str] = []
    for row in rows:
        waiting.append("(" + ", ".join(map(literal, row)) + ")")
        if len(waiting) == ROWS_PER_INSERT:
            yield f"{head}\n  " + ",\n  ".join(waiting) + ";"
            waiting = []
    if waiting:
        yield f"{head}\n  " + ",\n  ".join(waiting) + ";"
