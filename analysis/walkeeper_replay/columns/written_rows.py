"""Rows as CSV, and as SQL that puts them into a table. Pure.

csv_lines(rows)              as COPY … (FORMAT csv, HEADER) writes them: null is empty, "" is not
insert_lines(table, rows, remark)    INSERTs, for psql
block(body)                          an anonymous block of PL/pgSQL

Contract: a name or a value cannot leave its place in SQL. It holds no raw line end or control
character, and means the same with standard_conforming_strings off. So psql finds no `\\!` in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from walkeeper_common.operator_text.printable import UNPRINTABLE, printable
from walkeeper_replay.catalogs.catalog import Table
from walkeeper_replay.columns.arrow_text import rows_of_text

ROWS_PER_INSERT = 100
# Settings that change how a value is read from its text, or how much of it a cast to text has.
SESSION = (
    "SET client_encoding = 'UTF8';",
    "SET timezone = 'UTC';",
    "SET datestyle = 'ISO';",
    "SET intervalstyle = 'postgres';",
    "SET standard_conforming_strings = on;",
    "SET lc_monetary = 'C';",
    "SET extra_float_digits = 1;",
    "SET array_nulls = on;",
    "SET xmloption = content;",
)


def quoted_name(name: str) -> str:
    """Return a name in quotes, also where it needs none. An unprintable one becomes U&"…"."""
    quoted = name.replace('"', '""')
    if UNPRINTABLE.search(name) is None:
        return f'"{quoted}"'
    escaped = quoted.replace("\\", "\\\\")
    return 'U&"' + UNPRINTABLE.sub(lambda m: f"\\{ord(m[0]):04X}", escaped) + '"'


def literal(value: str | None) -> str:
    """Return a literal of SQL. A backslash or an unprintable character makes it E'…'."""
    if value is None:
        return "NULL"
    quoted = value.replace("'", "''")
    if "\\" not in value and UNPRINTABLE.search(value) is None:
        return f"'{quoted}'"
    return "E'" + printable(quoted.replace("\\", "\\\\")) + "'"


def comment(text: str) -> str:
    """Return a comment of SQL that ends with its line."""
    return "-- " + printable(text)


def _csv_field(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or any(c in value for c in ',"\n\r') or value != value.strip() or value == "\\.":
        return '"' + value.replace('"', '""') + '"'
    return value


def csv_line(values: Iterable[str | None]) -> str:
    return ",".join(map(_csv_field, values))


def csv_lines(rows: Any) -> Iterator[str]:
    """Yield an Arrow table as lines of CSV, its header first."""
    yield csv_line(rows.column_names)
    yield from map(csv_line, rows_of_text(rows))


def qualified(table: Table) -> str:
    return f"{quoted_name(table.schema)}.{quoted_name(table.name)}"


def insert_lines(table: Table, rows: Any, remark: str) -> Iterator[str]:
    """Yield settings, a remark, and INSERTs into an existing table of these columns.

    Generated columns are left out.
    """
    stored = {a.name for a in table.columns if not a.generated}
    names = [name for name in rows.column_names if name in stored]
    yield from SESSION  # before the remark, which is in this encoding
    yield comment(remark)
    yield "BEGIN;"
    yield from inserts(qualified(table), names, rows_of_text(rows.select(names)))
    yield "COMMIT;"


def inserts(
    target: str, names: Sequence[str], rows: Iterable[tuple[str | None, ...]]
) -> Iterator[str]:
    """Yield INSERTs of these columns into `target`, a name of SQL.

    Rows of no columns are made by their count alone.
    """
    if not names:
        count = sum(1 for _ in rows)
        for begin in range(0, count, ROWS_PER_INSERT):
            some = min(ROWS_PER_INSERT, count - begin)
            yield f"INSERT INTO {target} SELECT FROM generate_series(1, {some});"
        return
    columns = ", ".join(map(quoted_name, names))
    head = f"INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE VALUES"
    waiting: list[str] = []
    for row in rows:
        waiting.append("(" + ", ".join(map(literal, row)) + ")")
        if len(waiting) == ROWS_PER_INSERT:
            yield f"{head}\n  " + ",\n  ".join(waiting) + ";"
            waiting = []
    if waiting:
        yield f"{head}\n  " + ",\n  ".join(waiting) + ";"


def block(body: str) -> str:
    """Return an anonymous block of PL/pgSQL in quotes that do not occur in it."""
    tag = "$walkeeper$"
    while tag in body:
        tag = tag[:-1] + "_$"
    return f"DO {tag} {body} {tag};"
