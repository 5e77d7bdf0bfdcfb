"""DDL that gives tables an unusual past, a statement at a time, for each major version.

steps(15) -> [Steps(table, statements), …]        `{t}` in a statement is the table's name
"""

from __future__ import annotations

from dataclasses import dataclass

ROWS = "INSERT INTO {t} (id, v) SELECT g, repeat(md5(g::text), 100) FROM generate_series(1, 9) g"
CREATED = "CREATE TABLE {t} (id int, v text)"
KEYED = "CREATE TABLE {t} (id int PRIMARY KEY, v text)"
TOAST = (
    "DO $$ BEGIN EXECUTE 'REINDEX TABLE ' || (SELECT reltoastrelid::regclass FROM pg_class "
    "WHERE oid = '{t}'::regclass); END $$"
)


@dataclass(frozen=True, slots=True)
class Steps:
    """Statements, each a transaction, that work on one table of this name."""

    table: str
    statements: tuple[str, ...]
    since: int = 13


_ALL = (
    Steps("defaults", (
        CREATED, ROWS,
        "ALTER TABLE {t} ADD COLUMN d text DEFAULT 'd', ADD COLUMN a int[] DEFAULT '{{1,2}}'",
        "UPDATE {t} SET id = id + 100 WHERE id < 4",
        "BEGIN; ALTER TABLE {t} ADD COLUMN e timestamptz DEFAULT '2020-01-01'; "
        "DELETE FROM {t} WHERE id = 5; INSERT INTO {t} (id) VALUES (3); "
        "ALTER TABLE {t} ADD COLUMN f int DEFAULT 9; UPDATE {t} SET f = 10 WHERE id = 6; COMMIT",
        "ALTER TABLE {t} DROP COLUMN d", "DELETE FROM {t} WHERE id = 7",
        "ALTER TABLE {t} ADD COLUMN big text DEFAULT repeat('x', 5000)",
        "DELETE FROM {t} WHERE id = 8",
    )),
    Steps("retyped", (
        CREATED, ROWS, "ALTER TABLE {t} ALTER id TYPE bigint", "DELETE FROM {t} WHERE id = 3",
        "BEGIN; ALTER TABLE {t} ALTER id TYPE numeric; DELETE FROM {t} WHERE id = 5; "
        "INSERT INTO {t} VALUES (60, 'k'); UPDATE {t} SET v = repeat('w', 5000) WHERE id = 6; "
        "COMMIT",
        "BEGIN; SAVEPOINT a; ALTER TABLE {t} ALTER id TYPE text; ROLLBACK TO a; "
        "DELETE FROM {t} WHERE id = 7; SAVEPOINT b; ALTER TABLE {t} ALTER id TYPE int; "
        "DELETE FROM {t} WHERE id = 8; RELEASE b; COMMIT",
        "DELETE FROM {t} WHERE id = 9",
    )),
    Steps("clustered", (
        KEYED, ROWS, "DELETE FROM {t} WHERE id = 3", "CLUSTER {t} USING {t}_pkey",
        "UPDATE {t} SET v = repeat('y', 9000) WHERE id = 5", "VACUUM FULL {t}",
        "BEGIN; DELETE FROM {t} WHERE id = 6; CLUSTER {t}; INSERT INTO {t} VALUES (6, 'again'); "
        "COMMIT",
        "DELETE FROM {t} WHERE id = 5",
    )),
    Steps("truncated", (
        CREATED, ROWS,
        "BEGIN; DELETE FROM {t} WHERE id = 1; SAVEPOINT a; TRUNCATE {t}; "
        "INSERT INTO {t} VALUES (1, 'in'); ROLLBACK TO a; INSERT INTO {t} VALUES (21, 'a'); COMMIT",
        "BEGIN; SAVEPOINT a; TRUNCATE {t}; SAVEPOINT b; INSERT INTO {t} VALUES (2, 'in'); "
        "ROLLBACK TO b; INSERT INTO {t} VALUES (3, 'kept'); RELEASE a; COMMIT",
        "BEGIN; TRUNCATE {t}; INSERT INTO {t} VALUES (8, 'x'); SAVEPOINT s; TRUNCATE {t}; "
        "INSERT INTO {t} VALUES (9, 'y'); ROLLBACK TO s; INSERT INTO {t} VALUES (10, 'z'); COMMIT",
        "BEGIN; ALTER TABLE {t} ALTER id TYPE bigint; TRUNCATE {t}; "
        "INSERT INTO {t} VALUES (1, 'a'); COMMIT",
        "BEGIN; TRUNCATE {t}; ROLLBACK", "DELETE FROM {t}",
    )),
    Steps("in_one", (
        "BEGIN; " + CREATED + "; " + ROWS + "; ALTER TABLE {t} ADD COLUMN r float DEFAULT "
        "random(); DELETE FROM {t} WHERE id = 3; INSERT INTO {t} VALUES (50, 'x', 1); COMMIT",
        "DELETE FROM {t} WHERE id = 4",
        "BEGIN; DELETE FROM {t} WHERE id = 5; ALTER TABLE {t} ADD COLUMN b int; "
        "UPDATE {t} SET b = 5 WHERE id = 6; ALTER TABLE {t} DROP COLUMN v; "
        "INSERT INTO {t} VALUES (51, 1, 1); ALTER TABLE {t} RENAME b TO bb; COMMIT",
        "DELETE FROM {t} WHERE id = 51",
    )),
    Steps("logged", (
        "BEGIN; " + CREATED.replace("TABLE", "UNLOGGED TABLE") + "; " + ROWS
        + "; ALTER TABLE {t} SET LOGGED; INSERT INTO {t} VALUES (70); COMMIT",
        "DELETE FROM {t} WHERE id < 4",
        "ALTER TABLE {t} SET UNLOGGED", "INSERT INTO {t} VALUES (77, 'u')",
        "ALTER TABLE {t} SET LOGGED", "DELETE FROM {t} WHERE id = 77",
    )),
    Steps("reindexed", (
        CREATED, "ALTER TABLE {t} ALTER v SET STORAGE EXTERNAL", ROWS, TOAST,
        "UPDATE {t} SET id = 30 WHERE id = 3", "VACUUM FULL {t}",
        "UPDATE {t} SET v = repeat('b', 3000) WHERE id = 4", "DELETE FROM {t} WHERE id = 5",
    )),
    Steps("spaced", (
        CREATED, ROWS, "ALTER TABLE {t} SET TABLESPACE elsewhere", "DELETE FROM {t} WHERE id = 3",
        "BEGIN; DELETE FROM {t} WHERE id = 4; ALTER TABLE {t} SET TABLESPACE pg_default; "
        "DELETE FROM {t} WHERE id = 5; COMMIT",
        "BEGIN; TRUNCATE {t}; INSERT INTO {t} VALUES (1, 'n'); "
        "ALTER TABLE {t} SET TABLESPACE elsewhere; INSERT INTO {t} VALUES (2, 'n'); COMMIT",
        "DELETE FROM {t} WHERE id = 2",
    )),
    Steps("part", (
        "CREATE TABLE {t}_root (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE {t} (v text, gone int, id int)", "INSERT INTO {t} VALUES ('a', 1, 12)",
        "ALTER TABLE {t} DROP COLUMN gone",
        "ALTER TABLE {t}_root ATTACH PARTITION {t} FOR VALUES FROM (10) TO (20)",
        "INSERT INTO {t}_root VALUES (13, 'b')",
        "BEGIN; ALTER TABLE {t}_root DETACH PARTITION {t}; DELETE FROM {t} WHERE id = 12; "
        "ALTER TABLE {t}_root ATTACH PARTITION {t} FOR VALUES FROM (10) TO (30); "
        "INSERT INTO {t}_root VALUES (22, 'c'); COMMIT",
    )),
    Steps("generated", (
        "CREATE TABLE {t} (id int, v text, g int GENERATED ALWAYS AS (id * 2) STORED)", ROWS,
        "UPDATE {t} SET id = 30 WHERE id = 3", "ALTER TABLE {t} ALTER g DROP EXPRESSION",
        "UPDATE {t} SET g = 1 WHERE id = 5",
    )),
    Steps("virtual", (
        "CREATE TABLE {t} (id int, g int GENERATED ALWAYS AS (id * 2) VIRTUAL, v text)", ROWS,
        "ALTER TABLE {t} ALTER g SET EXPRESSION AS (id * 3)", "UPDATE {t} SET id = 30 WHERE id = 2",
        "ALTER TABLE {t} DROP COLUMN g", "DELETE FROM {t} WHERE id = 30",
    ), 18),
)  # fmt: skip


def steps(major: int) -> list[Steps]:
    """Return what a server of this major version can do, with the table's name put in."""
    return [
        Steps(each.table, tuple(text.format(t=each.table) for text in each.statements))
        for each in _ALL
        if each.since <= major
    ]
