"""The tables that are mirrored, the work on them, and their rows on both sides.

make_tables(server, scale); script(folder) -> Path       for pgbench
rows_of(server, name), mirrored(folder, name)            the same lines, if the mirror is right
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from tests.support.postgres_server import PostgresServer

# By table: its columns. pgbench's own tables come first; its history has no primary key.
TABLES: dict[str, tuple[str, ...]] = {
    "pgbench_accounts": ("aid", "bid", "abalance"),
    "pgbench_tellers": ("tid", "bid", "tbalance"),
    "pgbench_branches": ("bid", "bbalance"),
    "orders": ("id", "customer", "amount", "note"),
    "pairs": ("a", "b", "n"),
    "docs": ("id", "body"),
    "counters": ("name", "value"),
    "events": ("id", "kind", "at_second"),
    "parts": ("id", "price", "stock"),
    "moving": ("id", "t"),
}
_MADE = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric, note text)",
    "CREATE TABLE pairs (a int, b text, n bigint, PRIMARY KEY (a, b))",
    "CREATE TABLE docs (id int PRIMARY KEY, body text)",
    "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL",
    "CREATE TABLE counters (name text PRIMARY KEY, value bigint)",
    "CREATE TABLE events (id bigint PRIMARY KEY, kind text, at_second int)",
    "CREATE TABLE parts (id int PRIMARY KEY, price float8, stock int)",
    "CREATE TABLE moving (id int PRIMARY KEY, t text)",
    "INSERT INTO orders SELECT i, i % 90, i / 7.0, NULL FROM generate_series(1, 2000) i",
    "INSERT INTO counters SELECT 'c' || i, 0 FROM generate_series(1, 20) i",
    "INSERT INTO parts SELECT i, i / 3.0, i FROM generate_series(1, 500) i",
    "INSERT INTO moving SELECT i, md5(i::text) FROM generate_series(1, 300) i",
)
_LONG = "(SELECT string_agg(md5((:id * n)::text), '') FROM generate_series(1, 120) n)"
_SCRIPT = f"""\
\\set aid random(1, 100000 * :scale)
\\set id random(1, 4000)
\\set delta random(-5000, 5000)
\\set which random(1, 20)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = 1 + :id % 10;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO orders VALUES (:id, :which, :delta, 'new') ON CONFLICT (id) DO UPDATE
    SET amount = orders.amount + 1, note = 'again';
DELETE FROM orders WHERE id = :id - 7 AND :which = 3;
INSERT INTO pairs VALUES (:id % 60, 'b' || :which, :delta) ON CONFLICT (a, b) DO UPDATE
    SET n = pairs.n + 1;
UPDATE counters SET value = value + 1 WHERE name = 'c' || :which;
UPDATE parts SET price = price * 1.01, stock = stock - 1 WHERE id = :id % 500;
COMMIT;
BEGIN;
SAVEPOINT s;
INSERT INTO docs VALUES (:id, {_LONG}) ON CONFLICT (id) DO UPDATE SET body = docs.body || :which;
ROLLBACK TO s;
INSERT INTO docs SELECT :id, {_LONG} WHERE :which < 5 ON CONFLICT (id) DO UPDATE
    SET body = left(docs.body, 3000) || :which;
DELETE FROM docs WHERE id = :id + 1 AND :which < 3;
DELETE FROM moving WHERE id = :id + 100000;
UPDATE moving SET id = id + 100000 WHERE id = :id AND :which < 10;
INSERT INTO moving SELECT :id, 'back' WHERE :which > 15 ON CONFLICT DO NOTHING;
INSERT INTO events SELECT coalesce(max(id), 0) + 1 + :which, 'k' || :which, :id FROM events
    ON CONFLICT DO NOTHING;
COMMIT;
"""


def make_tables(server: PostgresServer) -> None:
    """Make the tables that are not pgbench's own."""
    for statement in _MADE:
        server.sql(statement)


def script(folder: Path) -> Path:
    """Write the script of the work for pgbench, and return its place."""
    path = folder / "work.sql"
    path.write_text(_SCRIPT)
    path.chmod(0o644)
    folder.chmod(0o755)
    return path


def change_schema(server: PostgresServer, random: Random, number: int) -> str:
    """Make a change of the schema that a mirror follows; return it."""
    statement = random.choice(
        (
            "TRUNCATE counters; INSERT INTO counters SELECT 'c' || i, i "
            "FROM generate_series(1, 20) i",
            f"ALTER TABLE parts ADD added{number} int",
            "VACUUM docs",
            "CREATE INDEX ON orders (customer)",
        )
    )
    for one in statement.split("; "):
        server.sql(one)
    return statement


def rows_of(server: PostgresServer, name: str) -> list[str]:
    """Return a table's rows as lines, in their order."""
    columns = ", ".join(f"coalesce({column}::text, '~')" for column in TABLES[name])
    found = server.rows(f"SELECT concat_ws('|', {columns}) FROM {name}")
    return sorted(str(line) for (line,) in found)


def mirrored(folder: Path, name: str) -> list[str]:
    """Return the rows of the mirror of a table as lines, in their order."""
    import deltalake
    import pyarrow as pa

    table = deltalake.DeltaTable(str(folder / f"public.{name}"))
    query = deltalake.QueryBuilder().register("t", table)
    columns = ", ".join(f'"{column}"' for column in TABLES[name])
    rows = pa.table(query.execute(f"SELECT {columns} FROM t").read_all())
    return sorted(
        "|".join("~" if value is None else _text(value) for value in row)
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True)
    )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def digest(lines: Iterable[str]) -> str:
    """Return a short name of rows, for messages."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
