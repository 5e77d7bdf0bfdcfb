"""Work whose WAL has every kind of Heap and Heap2 record, in plain SQL that 13 to 18 run.

The work has HOT chains that are pruned on access, rows moved between partitions, and speculative
insertions that lose. It has COPY FREEZE, multixacts of several sessions, aborted subtransactions,
freezing, truncation by vacuum, and new databases. tests.history.workload adds DDL, TOAST and two
phases.
"""

from __future__ import annotations

from typing import Any

import psycopg

from tests.history import workload as history
from tests.history.workload import Step, Workload

SETTINGS = {
    "wal_level": "replica",
    "wal_consistency_checking": "all",
    "max_prepared_transactions": "10",
    "wal_keep_size": "8GB",
    "fsync": "off",
}


def hot_chains(load: Workload) -> None:
    table = load.name("hot")
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int, t text) WITH (fillfactor = 60)",
        f"INSERT INTO {table} SELECT i, 0, repeat('h', i % 90) "
        f"FROM generate_series(1, {load.rows() // 4}) i",
    )
    for turn in range(6):
        load.run(
            f"UPDATE {table} SET n = n + 1 WHERE id % 3 <> {turn % 3}",
            f"SELECT count(*) FROM {table} WHERE n > 1",
        )
    load.run(
        f"BEGIN; UPDATE {table} SET t = 'lost' || t; ROLLBACK",
        f"SELECT sum(n) FROM {table}",
        f"UPDATE {table} SET t = 'front' || t || 'behind' WHERE id % 5 = 0",
        f"DELETE FROM {table} WHERE id > 40",
        f"VACUUM {table}",  # truncates
        f"INSERT INTO {table} SELECT i, 0, 'again' FROM generate_series(1000, 1400) i",
    )


def partitions(load: Workload) -> None:
    table = load.name("part")
    load.run(
        f"CREATE TABLE {table} (id int, k int) PARTITION BY LIST (k)",
        f"CREATE TABLE {table}_1 PARTITION OF {table} FOR VALUES IN (1)",
        f"CREATE TABLE {table}_2 PARTITION OF {table} FOR VALUES IN (2)",
        f"INSERT INTO {table} SELECT i, 1 + i % 2 FROM generate_series(1, 300) i",
        f"UPDATE {table} SET k = 3 - k WHERE id % 3 = 0",
    )


def speculative(load: Workload) -> None:
    table = load.name("spec")
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int)",
        f"INSERT INTO {table} SELECT i % 40, i FROM generate_series(1, 200) i "
        f"ON CONFLICT DO NOTHING",
        f"INSERT INTO {table} SELECT i, 0 FROM generate_series(20, 60) i "
        f"ON CONFLICT (id) DO UPDATE SET n = {table}.n + 1",
    )


def copies(load: Workload) -> None:
    table = load.name("copy")
    load.run(f"CREATE TABLE {table} (id int, t text)")
    for options, before in (("", "TRUNCATE"), (" (FREEZE)", "TRUNCATE"), ("", "ANALYZE")):
        load.run("BEGIN", f"{before} {table}")
        with (
            load.connection.cursor() as cursor,
            cursor.copy(f"COPY {table} FROM STDIN{options}".encode()) as copy,
        ):
            for row in range(load.rows()):
                copy.write_row((row, "c" * (row % 70)))
        load.run("COMMIT")
    load.run(f"VACUUM {table}", f"UPDATE {table} SET t = 'x' WHERE id % 9 = 0")


def multixacts(load: Workload) -> None:
    """Lock the same rows in two sessions, and update them in one in the end."""
    table = load.name("multi")
    load.run(
        f"CREATE TABLE {table} (id int PRIMARY KEY, n int)",
        f"CREATE TABLE {table}_child (id int REFERENCES {table})",
        f"INSERT INTO {table} SELECT i, i FROM generate_series(1, 200) i",
    )
    schema = load.one("SELECT current_schema()")
    with psycopg.connect(load.connection.info.dsn, autocommit=True) as other:
        other.execute(f"SET search_path = {schema}, public".encode())
        for turn in range(3):
            load.run(f"BEGIN; INSERT INTO {table}_child SELECT i FROM generate_series(1, 99) i")
            other.execute(b"BEGIN")
            other.execute(f"SELECT * FROM {table} WHERE id < 60 FOR KEY SHARE".encode())
            load.run(f"UPDATE {table} SET n = n + 1 WHERE id < 90")
            # If a row is just being updated, its new version is locked too.
            other.execute(
                f"SELECT * FROM {table} WHERE id BETWEEN 70 AND 80 FOR KEY SHARE".encode()
            )
            other.execute(b"COMMIT" if turn else b"ROLLBACK")
            load.run("ROLLBACK" if turn == 1 else "COMMIT")
    load.run(
        f"BEGIN; SELECT * FROM {table} FOR SHARE; SAVEPOINT s; "
        f"DELETE FROM {table} WHERE id > 150; RELEASE s; COMMIT",
        f"VACUUM FREEZE {table}",
    )


def subtransactions_lost(load: Workload) -> None:
    table = load.name("lost")
    load.run(f"CREATE TABLE {table} (id int PRIMARY KEY, t text)", "BEGIN")
    for turn in range(12):
        load.run(
            f"SAVEPOINT s; INSERT INTO {table} SELECT {turn} * 100 + i, 'k' "
            f"FROM generate_series(1, 30) i; UPDATE {table} SET t = t || 'u' WHERE id % 2 = 0",
            "ROLLBACK TO s" if turn % 3 == 1 else "RELEASE s",
        )
    load.run("COMMIT", f"DELETE FROM {table} WHERE id % 4 = 0", f"VACUUM FREEZE {table}")


def databases(load: Workload) -> None:
    name = load.name(f"db{load.random.randrange(1 << 30)}")
    load.run(f"CREATE DATABASE {name}")
    with psycopg.connect(load.connection.info.dsn, dbname=name, autocommit=True) as other:
        other.execute(b"CREATE TABLE inside AS SELECT i FROM generate_series(1, 500) i")
        other.execute(b"VACUUM FULL pg_class")
        other.execute(b"INSERT INTO inside SELECT 1")
    load.run("CHECKPOINT")


HEAP_STEPS: tuple[Step, ...] = (
    history.ddl,
    history.toast,
    history.two_phase,
    history.subtransactions,
    history.updates_and_vacuum,
    history.compressions,
    hot_chains,
    partitions,
    speculative,
    copies,
    multixacts,
    subtransactions_lost,
    databases,
)


def fill(connection: psycopg.Connection[Any], seed: int, scale: int) -> list[str]:
    """Run every step once, in an order of the seed's; return the steps that this server lacks."""
    connection.execute(f"CREATE SCHEMA w{seed}".encode())
    connection.execute(f"SET search_path = w{seed}, public".encode())
    load = Workload(connection, seed, scale)
    load.play(HEAP_STEPS)
    return load.absent
