"""Sessions whose transactions overlap, one statement after another in an order of a seed's.

They lock each other's rows (multixacts), go deep into subtransactions, are prepared and ended by
somebody else, and are cut off by a crash. None waits for long, and none locks readers out, so a
restore can read anywhere.
"""

from __future__ import annotations

import random
from typing import Any

import psycopg

from tests.support.postgres_server import PostgresServer

COUNT = 5
OPTIONS = "-c statement_timeout=60s -c lock_timeout=20ms"
CREATE = (
    "CREATE TABLE plain (id int, n int, t text) WITH (fillfactor = 70)",
    "CREATE UNIQUE INDEX ON plain (id)",
    "CREATE INDEX ON plain (n)",
    "INSERT INTO plain SELECT i, i % 7, md5(i::text) FROM generate_series(1, 300) i",
    "CREATE TABLE wide (id int, outside text, packed text)",
    "ALTER TABLE wide ALTER outside SET STORAGE EXTERNAL",
    "INSERT INTO wide SELECT i, repeat(md5(i::text), 200), repeat('packed ', 2000) "
    "FROM generate_series(1, 40) i",
)
TABLES = ("plain", "wide")


class Session:
    """One connection, and its transaction if it is in one."""

    def __init__(self, server: PostgresServer) -> None:
        self.connection: psycopg.Connection[Any] = server.connect(options=OPTIONS)
        self.is_open = False
        self.savepoints: list[str] = []

    def run(self, statement: str) -> bool:
        """Run a statement, and return True if it succeeds; a failure rolls the transaction back."""
        try:
            self.connection.execute(statement.encode())
        except psycopg.DatabaseError:
            if self.is_open:
                self.end("ROLLBACK")
            return False
        return True

    def begin(self) -> None:
        self.is_open = self.run("BEGIN")

    def end(self, how: str) -> bool:
        self.is_open, self.savepoints = False, []
        return self.run(how) or not self.run("ROLLBACK")


class PreparedTransactions:
    """The prepared transactions of a server, which outlive its crashes."""

    def __init__(self, random: random.Random) -> None:
        self.gids: list[str] = []
        self._random = random

    def prepare(self, session: Session, number: int) -> None:
        if session.end(f"PREPARE TRANSACTION 'g{number}'"):
            self.gids.append(f"g{number}")

    def end_one(self, session: Session) -> None:
        if self.gids:
            gid = self.gids.pop(self._random.randrange(len(self.gids)))
            session.run(f"{self._random.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'")


class Sessions:
    """`step` again and again; `crash` in between, `close` when all is done."""

    def __init__(self, server: PostgresServer, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.goes_deep = False
        """Not before a backup: a standby that finds more than 64 subtransactions of one transaction
        under way does not answer until it ends."""
        self._number = 1000  # the next number of a row, savepoint or prepared transaction
        self._prepared = PreparedTransactions(self.random)
        self._connect()

    def _connect(self) -> None:
        self.sessions = [Session(self.server) for _ in range(COUNT)]

    def create(self) -> None:
        for statement in CREATE:
            assert self.sessions[0].run(statement), statement

    def crash(self) -> None:
        """Crash the server; prepared transactions are there again."""
        self.server.kill()
        for session in self.sessions:
            session.connection.close()
        self.server.start()
        self._connect()

    def close(self) -> None:
        """End every open transaction with a commit, every prepared one as well."""
        for session in self.sessions:
            session.end("COMMIT")
        for gid in self._prepared.gids:
            assert self.sessions[0].run(f"COMMIT PREPARED '{gid}'")
        for session in self.sessions:
            session.connection.close()

    def step(self) -> None:
        session = self.random.choice(self.sessions)
        work, save = [self._work] * 5, [self._savepoint] * 2
        outside = [Session.begin, Session.begin, self._vacuum, self._prepared.end_one, *work[:2]]
        inside = [self._end, *save, self._back, self._deep, *work]
        self.random.choice(inside if session.is_open else outside)(session)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ids(self, last: int) -> str:
        first = self.random.randint(1, last)
        return f"id BETWEEN {first} AND {first + self.random.choice((0, 0, 1, 5, 20))}"

    def _work(self, session: Session) -> None:
        rows, few, new = self._ids(300), self._ids(40), self._next()
        text = self.random.choice(("''", "NULL", "md5(random()::text)", f"repeat('x', {new})"))
        lock = self.random.choice(("SHARE", "KEY SHARE", "NO KEY UPDATE", "UPDATE"))
        statements = (
            f"INSERT INTO plain SELECT {new}, 1, {text}",
            f"UPDATE plain SET n = n + 1 WHERE {rows}",
            f"UPDATE plain SET t = {text} WHERE {rows}",
            f"UPDATE plain SET id = -id WHERE {rows}",
            f"DELETE FROM plain WHERE {rows}",
            f"SELECT * FROM plain WHERE {rows} FOR {lock}",
            f"SELECT * FROM plain WHERE {rows} FOR KEY SHARE",
            f"INSERT INTO plain VALUES ({new % 300}, 5, 'c') "
            "ON CONFLICT (id) DO UPDATE SET n = plain.n + 100",
            f"UPDATE wide SET id = id + 1 WHERE {few}",
            f"UPDATE wide SET outside = outside || {text} WHERE {few}",
            f"UPDATE wide SET packed = {text} WHERE {few}",
            f"DELETE FROM wide WHERE {few}",
            f"INSERT INTO wide SELECT {new % 60}, repeat(md5('{new}'), 100), {text}",
        )
        session.run(self.random.choice(statements))

    def _vacuum(self, session: Session) -> None:
        options = self.random.choice(("", "FREEZE, "))
        session.run(f"VACUUM ({options}TRUNCATE off) {self.random.choice(TABLES)}")

    def _end(self, session: Session) -> None:
        how = self.random.choice(("COMMIT", "COMMIT", "ROLLBACK", "PREPARE"))
        if how == "PREPARE":
            self._prepared.prepare(session, self._next())
        else:
            session.end(how)

    def _savepoint(self, session: Session) -> None:
        name = f"s{self._next()}"
        if session.run(f"SAVEPOINT {name}"):
            session.savepoints.append(name)

    def _back(self, session: Session) -> None:
        """Go back or forward: to a savepoint, or without it."""
        if session.savepoints:
            number = self.random.randrange(len(session.savepoints))
            how = self.random.choice(("ROLLBACK TO", "RELEASE"))
            if session.run(f"{how} {session.savepoints[number]}"):
                del session.savepoints[number + (how == "ROLLBACK TO") :]

    def _deep(self, session: Session) -> None:
        """Open more savepoints than the 64 that a backend announces one by one."""
        for _ in range(self.random.choice((3, 70)) if self.goes_deep else 1):
            self._savepoint(session)
            session.run(f"INSERT INTO plain VALUES ({self._next()}, 9, 'deep')")
            if not session.is_open:
                return
