"""Loads that run while things break; each load keeps account of its acknowledgements.

    with Loads(server, directory) as loads:
        loads.times_s(since, until), loads.journals

The loads are rows by single inserts (the journal), transfers between accounts, records of
megabytes over many segments, and tables made and dropped. The sum of all accounts must hold in
every snapshot.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer

ACCOUNTS = 20
BALANCE = 1000
LARGE_BYTES_MAX = 3 << 20
TABLES_KEPT = 3
SNAPSHOT_EVERY_S = 0.5
CREATE_BANK = f"""
CREATE TABLE IF NOT EXISTS transfers (id bigint PRIMARY KEY, source int, target int, amount int);
CREATE TABLE IF NOT EXISTS accounts (id int PRIMARY KEY, balance bigint);
INSERT INTO accounts SELECT n, {BALANCE} FROM generate_series(0, {ACCOUNTS - 1}) n
    ON CONFLICT DO NOTHING
"""
TRANSFER = """
INSERT INTO transfers VALUES ({id}, {source}, {target}, {amount});
UPDATE accounts SET balance = balance + CASE id WHEN {source} THEN -{amount} ELSE {amount} END
    WHERE id = {first};
UPDATE accounts SET balance = balance + CASE id WHEN {source} THEN -{amount} ELSE {amount} END
    WHERE id = {second}
"""
LARGE = """
SELECT pg_logical_emit_message({transactional}, 'large', repeat('x', {size}));
INSERT INTO large_records VALUES ({id})
"""
TABLES = """
CREATE TABLE made_{id} AS SELECT n FROM generate_series(1, 100) n;
DROP TABLE IF EXISTS made_{old};
INSERT INTO made_tables VALUES ({id})
"""
SNAPSHOT = "SELECT count(*), sum(balance) FROM accounts"
BALANCES = f"""
SELECT id, balance, {BALANCE} + (SELECT coalesce(sum(amount), 0) FROM transfers WHERE target = a.id)
    - (SELECT coalesce(sum(amount), 0) FROM transfers WHERE source = a.id) FROM accounts a
"""


class Transfers(Journal):
    """A transaction of three statements. It locks accounts in order, so that no ring can form."""

    table, create = "transfers", CREATE_BANK

    def transact(self, connection: psycopg.Connection[Any], new_id: int) -> None:
        source, target = random.Random(new_id).sample(range(ACCOUNTS), 2)
        first, second = sorted((source, target))
        values = {"id": new_id, "source": source, "target": target, "amount": 1 + new_id % 50}
        # One message, so one transaction: what returns is its commit.
        connection.execute(TRANSFER.format(first=first, second=second, **values).encode())


class LargeRecords(Journal):
    """A record of up to LARGE_BYTES_MAX, now and then in front of its own transaction."""

    table = "large_records"
    create = "CREATE TABLE IF NOT EXISTS large_records (id bigint PRIMARY KEY)"

    def transact(self, connection: psycopg.Connection[Any], new_id: int) -> None:
        chance = random.Random(new_id)
        size, transactional = chance.randrange(LARGE_BYTES_MAX), chance.random() < 0.5
        text = LARGE.format(id=new_id, size=size, transactional=transactional)
        connection.execute(text.encode())


class MadeTables(Journal):
    """DDL: a table is made, an older one is dropped."""

    table = "made_tables"
    create = "CREATE TABLE IF NOT EXISTS made_tables (id bigint PRIMARY KEY)"

    def transact(self, connection: psycopg.Connection[Any], new_id: int) -> None:
        connection.execute(TABLES.format(id=new_id, old=new_id - TABLES_KEPT).encode())


class Snapshots:
    """A thread that reads the accounts again and again, on a server that may be gone at times."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._stopping = server, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.taken = 0
        self.wrong: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(20)

    def _look(self) -> None:
        while not self._stopping.wait(SNAPSHOT_EVERY_S):
            # While it starts, recovers, is frozen or cancels a query there is no snapshot.
            with contextlib.suppress(psycopg.Error):
                self._take()

    def _take(self) -> None:
        with self._server.connect(connect_timeout=3) as connection:
            row = connection.execute(SNAPSHOT).fetchone()
        self.taken += 1
        if row != (ACCOUNTS, ACCOUNTS * BALANCE):
            self.wrong.append(f"{self._server.data}: {row}")


class Loads:
    """All loads. The tables are made at once; use `start` and `stop`, or a with statement."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, directory: Path) -> None:
        def file(name: str) -> Path:
            return directory / f"acknowledged_{name}"

        # Some hundred commits a second: what is looked for is order and loss, not speed.
        self.journals: list[Journal] = [
            Journal(primary, writers=4, pause_s=0.015, file=file("journal")),
            Transfers(primary, writers=3, pause_s=0.03, file=file("transfers")),
            LargeRecords(primary, writers=1, pause_s=1.5, file=file("large_records")),
            MadeTables(primary, writers=1, pause_s=1.0, file=file("made_tables")),
        ]
        self.snapshots = [Snapshots(primary), Snapshots(standby)]
        primary.sql("CREATE EXTENSION IF NOT EXISTS amcheck")

    def __enter__(self) -> Self:
        for journal in self.journals:
            journal.start()
        for snapshots in self.snapshots:
            snapshots.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        for journal in self.journals:
            journal.stop()
        for snapshots in self.snapshots:
            snapshots.stop()

    @property
    def acknowledged(self) -> int:
        return sum(len(journal.entries) for journal in self.journals)

    @property
    def unknown(self) -> int:
        return sum(len(journal.unknown) + len(journal.cancelled) for journal in self.journals)

    def times_s(self, since_s: float, until_s: float) -> list[float]:
        """Return the times in this interval at which commits of any load returned."""
        return sorted(
            at_s for journal in self.journals for at_s in journal.times_s(since_s, until_s)
        )

    def begun_and_returned(self, since_s: float, until_s: float) -> int:
        """Return how many commits of any load began and returned within this interval."""
        return sum(journal.begun_and_returned(since_s, until_s) for journal in self.journals)

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        times = [since_s, *self.times_s(since_s, until_s), until_s]
        return max(later - earlier for earlier, later in itertools.pairwise(times))
