"""Random schemas, and sessions whose transactions overlap and change both rows and schemas.

    work = Work(server, seed); work.create(); work.step() again and again; work.close()

One statement runs after another, so that a seed's order is its own. A statement that would wait
for a lock longer than 20 ms fails, and rolls back its transaction.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import psycopg

from tests.proof.recoveries import rewrites
from tests.proof.recoveries.passing import of_passing
from tests.replay.schemas import COLUMNS, SINCE_14, TYPES
from tests.replay.sessions import PreparedTransactions, Session
from tests.support.postgres_server import PostgresServer

Table = tuple[str, list[tuple[str, str]]]
"""A table's name as it is written in SQL, and the names and types of its columns."""
SESSIONS = 5
SCHEMAS = ("public", '"Other one"')
TABLES_MAX = 9
# Besides schemas.COLUMNS: a type, and an expression for a value of row i.
MORE = (
    (
        "regclass",
        "(SELECT oid FROM pg_class WHERE relkind = 'r' ORDER BY oid DESC LIMIT 1)::regclass",
    ),
    ("regtype", "(ARRAY['mood', 'int', 'pair[]', 'positive'])[1 + i % 4]::regtype"),
    ("regnamespace", "(ARRAY['public', '\"Other one\"'])[1 + i % 2]::regnamespace"),
    *(
        (
            kind,
            f"(SELECT oid FROM {catalog} WHERE oid >= 16384 OR random() < 0.01 "
            f"ORDER BY oid >= 16384 AND random() < 0.9 DESC, random() LIMIT 1)::{kind}",
        )
        for kind, catalog in (
            ("regproc", "pg_proc"),
            ("regprocedure", "pg_proc"),
            ("regoper", "pg_operator"),
            ("regoperator", "pg_operator"),
            ("regcollation", "pg_collation"),
        )
    ),
    ("text", "repeat(md5(i::text), 50 + i % 400)"),
    ("mood", "(SELECT max(enumlabel) FROM pg_enum WHERE enumtypid = 'mood'::regtype)::mood"),
)
_LISTED = """
SELECT c.oid::regclass::text, a.attname::text, a.atttypid::regtype::text, c.oid::text
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relkind = 'r' AND a.attgenerated = '' AND c.oid >= 16384
  AND c.relnamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname LIKE 'pg\\_%')
ORDER BY c.oid, a.attnum
"""
_LOCKED = """
SELECT relation::regclass::text FROM pg_locks
WHERE pid IS DISTINCT FROM pg_backend_pid() AND relation IS NOT NULL
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class _Noted(Session):
    """A session whose statements are noted."""

    def __init__(self, server: PostgresServer, number: int, done: list[str]) -> None:
        super().__init__(server)
        self._number, self._done = number, done

    def run(self, statement: str) -> bool:
        went_well = super().run(statement)
        self._done.append(f"{self._number} {'done' if went_well else 'FAILED'} {statement}")
        return went_well


class Work:
    """A database's work; `done` has its statements, and whether they went well."""

    def __init__(self, server: PostgresServer, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.goes_deep = False
        """Not before a backup: see tests.replay.sessions."""
        self.logs_all = False
        """True if no table becomes unlogged (see `crash`)."""
        self.done: list[str] = []
        self._number = 0
        self._prepared = PreparedTransactions(self.random)
        self._values: dict[str, list[str]] = {}
        """Expressions over the row's number `i` by a type's name."""
        self._connect()

    def _connect(self) -> None:
        self.sessions = [_Noted(self.server, n, self.done) for n in range(SESSIONS)]
        self._asking = self.server.connect()
        for session in self.sessions:
            session.run(f"SELECT setseed({self.random.random()})")

    def create(self) -> None:
        """Make types, schemas and the first tables."""
        session = self.sessions[0]
        made = (*TYPES.strip().split("\n"), f"CREATE SCHEMA {SCHEMAS[1]}", rewrites.ELSEWHERE)
        for statement in made:
            assert session.run(statement), statement
        columns = [*COLUMNS, *SINCE_14] if self._major >= 14 else [*COLUMNS]
        for _, kind, value in columns[1:]:
            name = session.connection.execute(
                b"SELECT format_type(%s::regtype, NULL)", [kind.partition("(")[0]]
            ).fetchone()
            assert name is not None
            self._values.setdefault(str(name[0]), []).append(value)
        for kind, value in MORE:
            self._values.setdefault(kind, []).append(value)
        for _ in range(3):
            self._create_table(session)

    @property
    def _major(self) -> int:
        return self.sessions[0].connection.info.server_version // 10000

    def crash(self) -> None:
        """Kill the server and start it again; prepared transactions are there still."""
        assert self.logs_all, "PostgreSQL may fail to reset an unlogged table"
        self.server.kill()
        self._disconnect()
        self.server.start()
        self._connect()

    def restart(self) -> None:
        """Stop the server in order, and start it again; prepared transactions are there still."""
        self._disconnect()
        self.server.restart()
        self._connect()

    def load_without_wal(self) -> None:
        """Load rows with wal_level = minimal, which no server can be recovered through."""
        self._disconnect()
        level = self.server.sql("SHOW wal_level")
        self.server.configure({"wal_level": "minimal", "max_wal_senders": "0"})
        self.server.restart()
        self._connect()
        session = self.sessions[0]
        for statement in self.random.sample(rewrites.LOADS, 4):
            table = self._chosen(session)[0]
            for each in statement.format(t=table, n=self._next()).split("; "):
                session.run(each)
        self._disconnect()
        self.server.configure({"wal_level": level, "max_wal_senders": "10"})
        self.server.restart()
        self._connect()

    def close(self) -> None:
        """Commit every open and every prepared transaction."""
        for session in self.sessions:
            session.end("COMMIT")
        for gid in self._prepared.gids:
            assert self.sessions[0].run(f"COMMIT PREPARED '{gid}'"), gid
        self._disconnect()

    def _disconnect(self) -> None:
        for connection in (self._asking, *(session.connection for session in self.sessions)):
            connection.close()

    def step(self) -> None:
        """Run one more statement in one of the sessions."""
        session = self.random.choice(self.sessions)
        rows = [self._insert, self._insert, self._update, self._update, self._delete, self._lock]
        outside = (
            [Session.begin] * 4
            + [self._vacuum, self._prepared.end_one, self._schema, self._schema]
            + [self._rewrite] * 4
            + rows
        )
        inside = (
            [self._end] * 3
            + [self._savepoint] * 2
            + [self._back, self._schema, self._schema, self._rewrite, *rows, *rows]
        )
        self.random.choice(inside if session.is_open else outside)(session)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _tables(self, session: Session) -> dict[str, list[tuple[str, str]]]:
        """Return the columns of each table that the session sees, with their types."""
        found: dict[str, list[tuple[str, str]]] = {}
        for table, column, kind, _ in session.connection.execute(_LISTED.encode()).fetchall():
            found.setdefault(table, []).append((column, kind))
        return found

    def _chosen(self, session: Session) -> Table:
        tables = self._tables(session)
        if not tables:
            self._create_table(session)
            tables = self._tables(session) or {"absent": [("id", "integer")]}
        return self.random.choice(list(tables.items()))

    def _value(self, kind: str) -> str:
        if kind not in self._values or self.random.random() < 0.1:
            return "NULL"
        value = self.random.choice(self._values[kind])
        return f"CASE WHEN random() < 0.1 THEN NULL ELSE {value} END"

    def _rows(self) -> str:
        first = self.random.randint(1, 400)
        return f"id BETWEEN {first} AND {first + self.random.choice((0, 0, 2, 9, 60))}"

    def _insert(self, session: Session, chosen: Table | None = None) -> None:
        table, columns = chosen or self._chosen(session)
        first, count = self.random.randint(1, 400), self.random.choice((1, 1, 3, 10, 60))
        names = ", ".join(f'"{name}"' for name, _ in columns)
        values = ", ".join("i" if n == "id" else self._value(k) for n, k in columns)
        rows = f"generate_series({first}, {first + count - 1}) i"
        ending = self.random.choice(("", "", " ON CONFLICT DO NOTHING"))
        session.run(f"INSERT INTO {table} ({names}) SELECT {values} FROM {rows}{ending}")

    def _update(self, session: Session, chosen: Table | None = None) -> None:
        table, columns = chosen or self._chosen(session)
        name, kind = self.random.choice(columns)
        made = f"(SELECT {self._value(kind)} FROM (SELECT {self._next()} AS i) one)"
        made = self.random.choice(("-id", "id + 7")) if name == "id" else made
        session.run(f'UPDATE {table} SET "{name}" = {made} WHERE {self._rows()}')

    def _delete(self, session: Session, chosen: Table | None = None) -> None:
        table, _ = chosen or self._chosen(session)
        session.run(f"DELETE FROM {table} WHERE {self._rows()}")

    def _lock(self, session: Session) -> None:
        how = self.random.choice(("SHARE", "KEY SHARE", "NO KEY UPDATE", "UPDATE"))
        session.run(f"SELECT id FROM {self._chosen(session)[0]} WHERE {self._rows()} FOR {how}")

    def _vacuum(self, session: Session) -> None:
        table, how = self._chosen(session)[0], self.random.choice(("", "", "(FREEZE)", "(FULL)"))
        catalog = self.random.choice(("pg_class", "pg_attribute", "pg_type", "pg_enum"))
        full = self.random.choice(("VACUUM", "VACUUM FULL")) + " " + catalog
        statements = (f"VACUUM {how} {table}", f"VACUUM {how} {table}", "CHECKPOINT", full)
        session.run(self.random.choice(statements))

    def _end(self, session: Session) -> None:
        how = self.random.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "PREPARE"))
        if how == "PREPARE":
            self._prepared.prepare(session, self._next())
        else:
            session.end(how)

    def _savepoint(self, session: Session) -> None:
        for _ in range(70 if self.goes_deep and self.random.random() < 0.05 else 1):
            name = f"s{self._next()}"
            if session.run(f"SAVEPOINT {name}"):
                session.savepoints.append(name)
            self._delete(session)
            if not session.is_open:
                return

    def _back(self, session: Session) -> None:
        """Roll back to a savepoint, or release it."""
        if session.savepoints:
            number = self.random.randrange(len(session.savepoints))
            how = self.random.choice(("ROLLBACK TO", "RELEASE"))
            if session.run(f"{how} {session.savepoints[number]}"):
                del session.savepoints[number + (how == "ROLLBACK TO") :]

    def _create_table(self, session: Session) -> None:
        schema = self.random.choice((SCHEMAS[0], *SCHEMAS))
        kinds = self.random.sample(sorted(self._values), self.random.randint(1, 6))
        columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds))
        table = f'{schema}."t{self._next()}"'
        key = self.random.choice((" PRIMARY KEY", "", ""))
        room = self.random.choice(("", " WITH (fillfactor = 60)"))
        session.run(f"CREATE TABLE {table} (id int{key}, {columns}){room}")

    def _schema(self, session: Session) -> None:
        tables, number = self._tables(session), self._next()
        if self.random.random() < 0.15:
            session.run(self.random.choice(rewrites.of_objects(SCHEMAS, number)))
            return
        if len(tables) < 3 or (len(tables) < TABLES_MAX and self.random.random() < 0.15):
            self._create_table(session)
            return
        table, columns = self._chosen(session)
        if self.random.random() < 0.1:
            session.run(self.random.choice(of_passing(table, number)))
            return
        others = [name for name, _ in columns if name != "id"] or ["id"]
        column, kind = self.random.choice(others), self.random.choice(sorted(self._values))
        value = self.random.choice(self._values[kind]).replace("random()", "0.5")
        made = f"(SELECT {value} FROM (SELECT 5 AS i) one)::{kind}"
        try:
            answer = self._asking.execute(f"SELECT {made}::text".encode()).fetchone()
        except psycopg.Error:  # a label that its transaction has not committed
            answer = None
        default = "NULL" if answer is None else "'" + str(answer[0]).replace("'", "''") + "'"
        statements = (
            f"ALTER TABLE {table} ADD COLUMN x{number} {kind}",
            f"ALTER TABLE {table} ADD COLUMN x{number} {kind} DEFAULT {default}",
            f"ALTER TABLE {table} ADD COLUMN x{number} {kind} DEFAULT {default}",
            f"ALTER TABLE {table} ADD COLUMN x{number} float8 DEFAULT random()",
            f'ALTER TABLE {table} DROP COLUMN "{column}"',
            f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "n{number}"',
            f'ALTER TABLE {table} ALTER COLUMN "{column}" TYPE text',
            f'ALTER TABLE {table} ALTER COLUMN "{column}" SET STORAGE EXTERNAL',
            f'ALTER TABLE {table} RENAME TO "r{number}"',
            f"ALTER TABLE {table} SET SCHEMA {self.random.choice(SCHEMAS)}",
            f"TRUNCATE {table}", f"TRUNCATE {table}", f"DROP TABLE {table}",
            f"CREATE TABLE t{number} AS SELECT * FROM {table} WHERE id % 3 = 0",
            f"CREATE TABLE t{number} (LIKE {table} INCLUDING ALL)",
            f"CREATE INDEX i{number} ON {table} (id)",
            f"CLUSTER {table} USING i{self.random.randint(1, number)}",
            f"CREATE UNLOGGED TABLE u{number} AS SELECT * FROM {table}",
            f"ALTER TABLE {table} SET UNLOGGED", f"ALTER TABLE {table} SET LOGGED",
            f"ALTER TABLE {table} SET LOGGED",
            f"ALTER TABLE {table} ADD COLUMN g{number} int GENERATED ALWAYS AS (id * 2) STORED",
            f"CREATE TABLE h{number} (more text) INHERITS ({table})",
            f"CREATE TABLE p{number} (id int, c text, d mood) PARTITION BY RANGE (id); "
            f"CREATE TABLE p{number}a PARTITION OF p{number} FOR VALUES FROM (-9999) TO (200); "
            f"CREATE TABLE p{number}b PARTITION OF p{number} FOR VALUES FROM (200) TO (9999); "
            f"INSERT INTO p{number} SELECT i, md5(i::text), 'ok' FROM generate_series(150, 250) i",
            f"UPDATE p{self.random.randint(1, number)} SET id = 400 - id WHERE {self._rows()}",
            f"ALTER TYPE mood ADD VALUE 'value {number}'",
            f"ALTER TYPE mood RENAME VALUE 'value {self.random.randint(1, number)}' TO 'n{number}'",
            f"CREATE MATERIALIZED VIEW m{number} AS SELECT id, id * 2 AS n FROM {table}",
            f"ALTER TABLE {table} ALTER COLUMN \"{column}\" SET DEFAULT NULL",
        )  # fmt: skip
        session.run(self._allowed(statements))

    def _allowed(self, statements: Iterable[str]) -> str:
        return self.random.choice(
            [each for each in statements if not (self.logs_all and "LOGGED" in each)]
        )

    def _free_tables(self, session: Session) -> list[str]:
        """Return the tables that no other transaction has a lock on."""
        locked = session.connection.execute(_LOCKED.encode()).fetchall()
        return sorted(self._tables(session).keys() - {table for (table,) in locked})

    def _rewrite(self, session: Session) -> None:
        """Give a table other files and names, and change its rows before, between and after.

        Mostly all of it is one transaction, which mostly ends at once: no other could lock it.
        """
        begins = not session.is_open and self.random.random() < 0.8
        if begins:
            session.begin()
        was_open = session.is_open
        free = self._free_tables(session)
        if not free:
            return
        table = self.random.choice(free)
        for _ in range(self.random.randint(2, 7)):
            found = self._tables(session).get(table)
            if found is None or session.is_open != was_open:
                return  # A statement failed, or the name is another table's.
            chosen, kind = (table, found), self.random.random()
            if kind < 0.45:
                self.random.choice((self._insert, self._update, self._delete))(session, chosen)
            elif kind < 0.75:
                session.run(self._allowed(rewrites.of_files(table, self._next())))
            elif kind < 0.85:
                others = list(self._tables(session))
                names = rewrites.of_names(table, found, others, self._next())
                session.run(self.random.choice(names))
            elif kind < 0.93:
                heirs = session.connection.execute(rewrites.LISTED_HEIRS.encode()).fetchall()
                session.run(self.random.choice(rewrites.of_heirs(table, heirs, self._next())))
            elif session.is_open:
                self.random.choice((self._savepoint, self._back))(session)
        if begins and session.is_open and self.random.random() < 0.9:
            self._end(session)
