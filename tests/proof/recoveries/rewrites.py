"""Statements that give a table another file, its name to another one, or other heirs. Pure.

    of_files(table, number)         TRUNCATE, ALTER TABLE with a rewrite, CLUSTER, other tablespaces
    of_names(table, columns, others, number)        exchanges of names
    of_objects(schemas, number)     functions, operators, collations: made, renamed, moved, dropped
    of_heirs(table, heirs, number)  tables that begin or cease to inherit, or to be a partition

Each text may have several statements. One may fail, since other sessions lock and change tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

ELSEWHERE = "CREATE TABLESPACE elsewhere LOCATION ''"
"""An in-place tablespace: a recovered copy of the server has its own."""
LISTED_HEIRS = """
SELECT inhrelid::regclass::text, inhparent::regclass::text, c.relkind::text
FROM pg_inherits JOIN pg_class c ON c.oid = inhparent WHERE c.relkind IN ('r', 'p')
ORDER BY inhrelid
"""
LOADS = (
    "BEGIN; TRUNCATE {t}; COPY {t} (id) FROM PROGRAM 'seq 1 300'; COMMIT",
    "CREATE TABLE loaded{n} AS SELECT g AS id, md5(g::text) AS c FROM generate_series(1, 300) g",
    "BEGIN; CREATE TABLE filled{n} (id int, c text); INSERT INTO filled{n} SELECT g, 'f' "
    "FROM generate_series(1, 300) g; COMMIT; DELETE FROM filled{n} WHERE id % 3 = 0",
    "ALTER TABLE {t} ADD COLUMN w{n} float8 DEFAULT random()",
    "VACUUM FULL {t}",
    "CREATE MATERIALIZED VIEW viewed{n} AS SELECT id FROM {t}",
)
"""Bulk loads, of which WAL of wal_level = minimal has no rows."""


def of_files(table: str, number: int) -> list[str]:
    """Return what gives a table other files."""
    return [
        f"TRUNCATE {table}", f"TRUNCATE {table}", f"TRUNCATE ONLY {table}",
        f"ALTER TABLE {table} ALTER id TYPE bigint", f"ALTER TABLE {table} ALTER id TYPE int",
        f"ALTER TABLE {table} ALTER id TYPE bigint", f"ALTER TABLE {table} ALTER id TYPE int",
        f"ALTER TABLE {table} ALTER id TYPE int USING id::int + 1",
        f"ALTER TABLE {table} ADD COLUMN f{number} float8 DEFAULT random()",
        f"CREATE INDEX k{number} ON {table} (id); CLUSTER {table} USING k{number}",
        f"CREATE INDEX k{number} ON {table} (id); CLUSTER {table} USING k{number}",
        f"CLUSTER {table}",
        f"ALTER TABLE {table} SET TABLESPACE elsewhere",
        f"ALTER TABLE {table} SET TABLESPACE pg_default",
        f"ALTER TABLE {table} SET UNLOGGED", f"ALTER TABLE {table} SET LOGGED",
        f"ALTER TABLE {table} SET LOGGED",
    ]  # fmt: skip


def of_names(
    table: str, columns: Sequence[tuple[str, str]], others: Iterable[str], number: int
) -> list[str]:
    """Return exchanges of a table's name, and of the names of two of its columns."""
    schema, dot, name = table.rpartition(".")
    found = [
        f"CREATE TABLE {schema}{dot}y{number} (LIKE {table} INCLUDING ALL); "
        f"INSERT INTO {schema}{dot}y{number} SELECT * FROM ONLY {table}; "
        f"ALTER TABLE {table} RENAME TO z{number}; "
        f"ALTER TABLE {schema}{dot}y{number} RENAME TO {name}"
    ]
    for other in others:
        if other != table and other.rpartition(".")[0] == schema:
            found.append(
                f"ALTER TABLE {table} RENAME TO y{number}; "
                f"ALTER TABLE {other} RENAME TO {name}; "
                f"ALTER TABLE {schema}{dot}y{number} RENAME TO {other.rpartition('.')[2]}"
            )
    own = [column for column, _ in columns if column != "id"]
    for first, second in pairwise(own):
        found.append(
            f'ALTER TABLE {table} RENAME COLUMN "{first}" TO y{number}; '
            f'ALTER TABLE {table} RENAME COLUMN "{second}" TO "{first}"; '
            f'ALTER TABLE {table} RENAME COLUMN y{number} TO "{second}"'
        )
    return found


def of_objects(schemas: Sequence[str], number: int) -> list[str]:
    """Return what makes objects that rows name, and what takes their names. Names come again."""
    schema, other = schemas[number % 2], schemas[number % 3 % 2]
    name, kind = f"fn{number % 4}", ("int", "text", "mood", "pair[]")[number % 5 % 4]
    function, sign = f"{schema}.{name}", ("##", "#%", "=")[number % 3]
    made = "RETURNS int LANGUAGE sql AS 'SELECT 1'"
    operator, collation = f"{schema}.{sign} (int, {kind})", f"{schema}.{name}"
    return [
        f"CREATE FUNCTION {function}({kind}) {made}",
        f"CREATE FUNCTION {function}({kind}) {made}",
        f"CREATE FUNCTION {function}() {made}", f"CREATE FUNCTION {schema}.length(text) {made}",
        f"ALTER FUNCTION {function}({kind}) RENAME TO fn{(number + 1) % 4}",
        f"ALTER FUNCTION {function}({kind}) SET SCHEMA {other}",
        f"DROP FUNCTION {function}({kind})", f"DROP FUNCTION IF EXISTS {function}() CASCADE",
        f"CREATE FUNCTION {schema}.both(int, {kind}) {made}; CREATE OPERATOR {schema}.{sign} "
        f"(LEFTARG = int, RIGHTARG = {kind}, FUNCTION = {schema}.both)",
        f"CREATE FUNCTION {schema}.both(int, {kind}) {made}; CREATE OPERATOR {schema}.{sign} "
        f"(LEFTARG = int, RIGHTARG = {kind}, FUNCTION = {schema}.both)",
        f"ALTER OPERATOR {operator} SET SCHEMA {other}", f"DROP OPERATOR {operator}",
        f'CREATE COLLATION {collation} FROM "C"', f'CREATE COLLATION {schema}."POSIX" FROM "C"',
        f"ALTER COLLATION {collation} RENAME TO fn{(number + 1) % 4}",
        f"ALTER COLLATION {collation} SET SCHEMA {other}", f"DROP COLLATION {collation}",
        "VACUUM FULL pg_proc", "VACUUM FULL pg_operator",
    ]  # fmt: skip


def of_heirs(table: str, heirs: Iterable[tuple[str, str, str]], number: int) -> list[str]:
    """Return what makes heirs and partitions of tables, and what lets them go."""
    found = [
        f"CREATE TABLE v{number} (LIKE {table}); INSERT INTO v{number} SELECT * FROM ONLY {table} "
        f"WHERE id % 5 = 0; ALTER TABLE v{number} INHERIT {table}"
    ]
    for heir, parent, kind in heirs:
        bounds = f"FOR VALUES FROM ({number * 10000}) TO ({number * 10000 + 9999})"
        if kind == "r":
            found.append(f"ALTER TABLE {heir} NO INHERIT {parent}")
            continue
        found += [
            f"ALTER TABLE {parent} DETACH PARTITION {heir}",
            f"ALTER TABLE {parent} DETACH PARTITION {heir}; "
            f"UPDATE {heir} SET id = abs(id) % 9999 + {number * 10000}; "
            f"ALTER TABLE {parent} ATTACH PARTITION {heir} {bounds}",
            f"CREATE TABLE w{number} (LIKE {parent}); "
            f"INSERT INTO w{number} (id) VALUES ({number * 10000}); "
            f"ALTER TABLE {parent} ATTACH PARTITION w{number} {bounds}; "
            f"INSERT INTO {parent} (id) VALUES ({number * 10000 + 1})",
        ]
    return found
