"""WAL of every kind, made anew from a seed by a real server: what `stats` is compared on.

The statements cover DDL, TOAST, two-phase commit, subtransactions, vacuum, each index method,
sequences and logical messages. There are page images in each compression the server has, and
records for wal_consistency_checking. There is a crash with an overwritten contrecord, and a new
timeline. Statements are plain SQL, so that any server from 13 on runs them. Features that one lacks
(lz4, zstd, contrib's bloom) are left out and named.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

SETTINGS = {
    "wal_level": "logical",
    "max_prepared_transactions": "10",
    "wal_keep_size": "8GB",
    "fsync": "off",
    "track_commit_timestamp": "on",
}
COMPRESSIONS = ("pglz", "lz4", "zstd")
INDEX_METHODS = ("btree", "hash", "gin", "gist", "spgist", "brin", "bloom")

Step = Callable[["Workload"], None]


class Workload:
    """Steps over one connection; `absent` collects what this server cannot do."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int, scale: int) -> None:
        self.connection, self.random, self.scale = connection, random.Random(seed), scale
        self.absent: list[str] = []
        self._names = 0

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def one(self, statement: str) -> Any:
        row = self.connection.execute(statement.encode()).fetchone()
        return row[0] if row else None

    def attempt(self, what: str, *statements: str) -> bool:
        try:
            self.run(*statements)
        except psycopg.Error as error:
            self.connection.rollback()
            self.absent.append(f"{what}: {str(error).splitlines()[0]}")
            return False
        return True

    def name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}_{self._names}"

    def rows(self) -> int:
        return self.random.randint(self.scale // 4, self.scale)

    def play(self, steps: Sequence[Step]) -> None:
        for step in self.random.sample(steps, len(steps)):
            step(self)


def ddl(load: Workload) -> None:
    table, other = load.name("ddl"), load.name("ddl")
    load.run(
        f"CREATE TABLE {table} (id serial PRIMARY KEY, t text, n numeric DEFAULT random())",
        f"INSERT INTO {table} (t) SELECT md5(i::text) FROM generate_series(1, {load.rows()}) i",
        f"ALTER TABLE {table} ADD COLUMN more int DEFAULT 7, ALTER COLUMN t SET NOT NULL",
        f"CREATE TABLE {other} AS TABLE {table}",
        f"TRUNCATE {other}",
        f"CREATE MATERIALIZED VIEW v{table} AS SELECT count(*) FROM {table}",
        f"REFRESH MATERIALIZED VIEW v{table}",
        f"CLUSTER {table} USING {table}_pkey",
        f"VACUUM FULL {table}",
        f"DROP TABLE {other}",
        f"CREATE DATABASE d{table}",
        f"DROP DATABASE d{table}",
    )


def toast(load: Workload) -> None:
    table = load.name("toast")
    wide = "(SELECT string_agg(md5(random()::text || g), '') FROM generate_series(1, 300) g)"
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, body text)",
        f"INSERT INTO {table} SELECT i, {wide} || i FROM generate_series(1, 60) i",
        f"UPDATE {table} SET body = body || 'x' WHERE id % 3 = 0",
        f"DELETE FROM {table} WHERE id % 5 = 0",
    )


def two_phase(load: Workload) -> None:
    table = load.name("twophase")
    load.run(f"CREATE TABLE {table} (id int)")
    for ending in ("COMMIT PREPARED", "ROLLBACK PREPARED"):
        gid = load.name("gid")
        load.run(
            "BEGIN",
            f"INSERT INTO {table} VALUES (1)",
            f"SAVEPOINT s; INSERT INTO {table} VALUES (2); RELEASE s",
            f"PREPARE TRANSACTION '{gid}'",
            f"{ending} '{gid}'",
        )


def subtransactions(load: Workload) -> None:
    table = load.name("sub")
    count = load.random.randint(70, 200)  # over 64, where an ASSIGNMENT is written
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY)",
        "BEGIN",
        *(f"SAVEPOINT s{i}; INSERT INTO {table} VALUES ({i})" for i in range(count)),
        "ROLLBACK TO s9" if load.random.random() < 0.5 else "RELEASE s9",
        "COMMIT",
        f"BEGIN; INSERT INTO {table} VALUES (-1); ROLLBACK",
    )


def updates_and_vacuum(load: Workload) -> None:
    table = load.name("heap")
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b text) WITH (fillfactor = 70)",
        f"INSERT INTO {table} SELECT i, i, repeat('y', 50) "
        f"FROM generate_series(1, {load.rows()}) i",
        f"UPDATE {table} SET a = a + 1 WHERE id % 2 = 0",
        f"UPDATE {table} SET id = -id WHERE id % 7 = 0",
        f"BEGIN; SELECT * FROM {table} WHERE a < 20 FOR UPDATE; COMMIT",
        # Two lockers of a row, the transaction and its subtransaction, are a multixact.
        f"BEGIN; SELECT * FROM {table} WHERE a < 20 FOR SHARE; SAVEPOINT s; "
        f"SELECT * FROM {table} WHERE a < 20 FOR UPDATE; RELEASE s; COMMIT",
        f"DELETE FROM {table} WHERE a % 3 = 0",
        f"VACUUM {table}",
        f"VACUUM (FREEZE, ANALYZE) {table}",
        f"DELETE FROM {table} WHERE a > {load.scale // 8}",
        f"VACUUM {table}",
    )


def indexes(load: Workload) -> None:
    columns = {
        "btree": "(n, t)",
        "hash": "(t)",
        "gin": "(a)",
        "gist": "(p)",
        "spgist": "(p)",
        "brin": "(n) WITH (pages_per_range = 1, autosummarize = off)",
        "bloom": "(n)",
    }
    for method in load.random.sample(INDEX_METHODS, len(INDEX_METHODS)):
        if method == "bloom" and not load.attempt("bloom", "CREATE EXTENSION IF NOT EXISTS bloom"):
            continue
        table = load.name(method)
        fill = (
            f"INSERT INTO {table} SELECT i, md5(i::text), ARRAY[i % 50, i % 7, i], "
            f"point(random() * 100, i % 100) FROM generate_series(1, {load.rows()}) i"
        )
        load.run(
            f"CREATE TABLE {table} (n int, t text, a int[], p point)",
            fill,
            f"CREATE INDEX ON {table} USING {method} {columns[method]}",
            fill,
            f"DELETE FROM {table} WHERE n % 4 = 0",
            f"VACUUM {table}",
            fill,
            f"DELETE FROM {table} WHERE n % 4 < 3",
            f"VACUUM {table}",
        )
        if method == "brin":
            load.run(f"SELECT brin_summarize_new_values('{table}_n_idx')")
            load.run(f"SELECT brin_desummarize_range('{table}_n_idx', 0)")


def sequences_and_messages(load: Workload) -> None:
    name = load.name("seq")
    text = "m" * load.random.choice((1, 200, 255, 256, 70_000))
    load.run(
        f"CREATE SEQUENCE {name}",
        f"SELECT nextval('{name}') FROM generate_series(1, 100)",
        f"SELECT pg_logical_emit_message(false, 'test', '{text}')",
        f"SELECT pg_logical_emit_message(true, 'test', '{text}')",
        "SELECT pg_create_restore_point('here')",
        f"SELECT pg_replication_origin_create('{name}')",
        f"SELECT pg_replication_origin_advance('{name}', '0/1000')",
        f"SELECT pg_replication_origin_drop('{name}')",
    )


def compressions(load: Workload) -> None:
    table = load.name("fpi")
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, b text)",
        f"INSERT INTO {table} SELECT i, repeat('z', 90) FROM generate_series(1, {load.rows()}) i",
    )
    for method in (*COMPRESSIONS, "off"):
        usable = load.attempt(f"wal_compression {method}", f"SET wal_compression = {method}")
        if not usable and method == "pglz":  # 13 and 14: on and off
            load.run("SET wal_compression = on")
        load.run("CHECKPOINT", f"UPDATE {table} SET b = b || '{method[0]}'")
    load.run("RESET wal_compression")


def consistency_checking(load: Workload) -> None:
    table = load.name("consistency")
    load.run(
        "SET wal_consistency_checking = 'all'",
        f"CREATE TABLE {table} (id int PRIMARY KEY, a int[])",
        f"CREATE INDEX ON {table} USING gin (a)",
        f"INSERT INTO {table} SELECT i, ARRAY[i] FROM generate_series(1, 300) i",
        f"UPDATE {table} SET id = id + 1000",
        "RESET wal_consistency_checking",
    )


def switches(load: Workload) -> None:
    load.run("SELECT pg_switch_wal()", "SELECT txid_current()", "CHECKPOINT")


STEPS: tuple[Step, ...] = (
    ddl,
    toast,
    two_phase,
    subtransactions,
    updates_and_vacuum,
    indexes,
    sequences_and_messages,
    compressions,
    consistency_checking,
    switches,
)
