"""Tables of every type, changed by every kind of DDL and work, in an order of a seed's.

`play` runs one step after another over one connection and hands the LSN behind each to `note`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import psycopg

TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a int, b text);
CREATE TYPE floats AS RANGE (subtype = float8);
CREATE TYPE words AS RANGE (subtype = text);
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
"""
TABLES = ("every_type", "plain", "doomed")
# Column, type, an expression for a value of row i.
COLUMNS = (
    ("id", "int PRIMARY KEY", "i"),
    ("i2", "int2", "(random() * 60000 - 30000)::int2"),
    ("i8", "int8", "(random() * 1e18 - 5e17)::int8"),
    ("f4", "float4", "(random() * 10 ^ (i % 40 - 20))::float4"),
    ("f8", "float8", "CASE i % 9 WHEN 0 THEN 'NaN' WHEN 1 THEN '-Infinity' "
     "ELSE random() * 10 ^ (i % 60 - 30) - 0.5 END::float8"),
    ("n", "numeric", "CASE i % 11 WHEN 0 THEN 'NaN' WHEN 1 THEN 0 WHEN 2 THEN 1e30 "
     "WHEN 3 THEN 0.000000012 ELSE (random() * 10 ^ (i % 14) - 5)::numeric END"),
    ("n2", "numeric(14,3)", "(random() * 2e6 - 1e6)::numeric(14,3)"),
    ("t", "text", "CASE i % 7 WHEN 0 THEN '' WHEN 1 THEN repeat('läng, ', 900) "
     "WHEN 2 THEN (SELECT string_agg(md5(g::text || i), '') FROM generate_series(1, 200) g) "
     "ELSE md5(i::text) END"),
    ("v", "varchar(30)", "left(md5(i::text), i % 30)"),
    ("c", "char(8)", "'c' || i % 999"),
    ("ts", "timestamp", "CASE i % 13 WHEN 0 THEN 'infinity' WHEN 1 THEN '0044-03-15 BC' "
     "ELSE '2001-02-03 04:05:06.789'::timestamp + i * interval '7 d 3.5 s' END::timestamp"),
    ("tz", "timestamptz", "'2020-05-06 07:08:09+02'::timestamptz - i * interval '999 hours'"),
    ("d", "date", "CASE i % 17 WHEN 0 THEN '-infinity' ELSE '1999-12-31'::date + i END::date"),
    ("tm", "time", "('00:00:00.25'::time + i * interval '97 seconds')::time"),
    ("ttz", "timetz", "('12:00:00+05:30'::timetz + i * interval '1 minute')"),
    ("iv", "interval", "(i - 50) * interval '1 year 2 months -3 days 04:05:06.7'"),
    ("u", "uuid", "md5(i::text)::uuid"),
    ("j", "json", "json_build_object('i', i, 'a', ARRAY[i, i + 1])"),
    ("jb", "jsonb", "jsonb_build_object('i', i, 'x', 1.50, 'a', ARRAY[i, NULL], 's', E'q\"\\n', "
     "'o', jsonb_build_object('e', '{}'::jsonb, 't', true, 'z', null))"),
    ("ia", "int[]", "CASE i % 4 WHEN 0 THEN '{}' ELSE ARRAY[i, NULL, -i] END::int[]"),
    ("ta", "text[]", "ARRAY['a b', 'NULL', '', 'q\"', NULL, repeat('x', i % 300)]"),
    ("ia2", "int8[][]", "ARRAY[[1, 2], [i, 4]]::int8[]"),
    ("ba", "bytea", "decode(repeat(md5(i::text), i % 5), 'hex')"),
    ("m", "mood", "(ARRAY['sad', 'ok', 'happy'])[1 + i % 3]::mood"),
    ("ma", "mood[]", "ARRAY['ok', 'sad']::mood[]"),
    ("r4", "int4range", "CASE i % 3 WHEN 0 THEN 'empty' ELSE int4range(i, i + 5) END::int4range"),
    ("tr", "tstzrange", "tstzrange('2020-01-01Z', CASE i % 2 WHEN 0 THEN NULL "
     "ELSE '2020-01-01Z'::timestamptz + i * interval '1 h' END, '[]')"),
    ("nr", "numrange", "numrange(i + 0.5, i + 1.25, '(]')"),
    ("fr", "floats", "floats(i, i + 0.5)"),
    ("ip", "inet", "('10.0.' || i % 255 || '.7/' || 8 + i % 25)::inet"),
    ("ip6", "inet", "'2001:db8::1'::inet + i"),
    ("cd", "cidr", "'192.168.0.0/16'::cidr"),
    ("mac", "macaddr", "'08:00:2b:01:02:03'::macaddr"),
    ("p", "pair", "ROW(i, 'a \"b\" ' || i)::pair"),
    ("pa", "pair[]", "ARRAY[ROW(i, NULL)::pair, ROW(NULL, 'x,y')::pair]"),
    ("b", "bool", "i % 2 = 0"),
    ("o", "oid", "i::oid"),
    ("bv", "varbit", "substr(i::bit(32)::text, 1 + i % 31)::varbit"),
    ("nm", "name", "('n' || i)::name"),
    ("ps", "positive", "1 + i % 1000"),
    ("pt", "point", "point(i, i / 3.0)"),
    ("lsn", "pg_lsn", "(i || '/2A')::pg_lsn"),
    ("bx", "box", "box(point(i, i + 2), point(-i / 7.0, 1e30))"),
    ("bxa", "box[]", "ARRAY[box(point(i, 1), point(2, 3)), NULL, box(point(0, 0), point(1, 1))]"),
    ("sg", "lseg", "lseg(point(i, 1.5), point(-2, i))"),
    ("ln", "line", "line(point(i, 1), point(2, i + 0.3))"),
    ("pth", "path", "CASE i % 2 WHEN 0 THEN '[(1,2),(3.5,4)]' "
     "ELSE '((0,0),(1,1),(2,0))' END::path"),
    ("pg", "polygon", "polygon(3 + i % 9, circle(point(i, 2), 1 + i))"),
    ("cl", "circle", "circle(point(i, -i), i / 3.0)"),
    ("tv", "tsvector", "CASE i % 5 WHEN 0 THEN '' WHEN 1 THEN $q$'it''s':3A,7B 'b\\s':2C f:1$q$ "
     "ELSE to_tsvector('simple', md5(i::text) || ' äh the ' || repeat('word' || i || ' ', i % 40)) "
     "END::tsvector"),
    ("tq", "tsquery", "(ARRAY['', 'a', 'a & !b | c', $q$(a | b) & 'it''s':*AD$q$, "
     "'a <-> (b <-> c) <3> !d', '!(a & b) <-> x:B', "
     "'(a <-> b) <-> c | !(!d)'])[1 + i % 7]::tsquery"),
    ("sn", "txid_snapshot", "(i || ':' || i + 9 || ':' || i + 1 || ',' || i + 5)::txid_snapshot"),
    ("ps2", "pg_snapshot", "(i || ':' || i + 9 || ':')::pg_snapshot"),
)  # fmt: skip
SINCE_14 = (
    ("mr", "int4multirange", "int4multirange(int4range(i, i + 2), int4range(i + 5, NULL))"),
    ("mr8", "int8multirange[]", "ARRAY[int8multirange(int8range(NULL, i)), '{}', NULL]"),
    ("mrn", "nummultirange", "nummultirange(numrange(i, i + 1.5, '()'), numrange(i + 2.25, 1e30), "
     "numrange(1e31, 1e32))"),
    ("mrt", "tstzmultirange", "tstzmultirange(tstzrange('2020-01-01Z', '2020-01-02Z'), "
     "tstzrange('2021-01-01Z', NULL, '()'))"),
    ("mrf", "floats_multirange",
     "floats_multirange(floats(i, i + 0.5), floats(i + 1, i + 2, '[]'))"),
    ("mrw", "words_multirange",
     "words_multirange(words('a', 'b' || repeat('b', i % 200)), words('c c', 'd\"'))"),
)  # fmt: skip

Note = Callable[[], None]


class Schemas:
    """The work; `tables` are those that exist now."""

    def __init__(self, connection: psycopg.Connection[Any], seed: int) -> None:
        self.connection, self.random = connection, random.Random(seed)
        has_multiranges = connection.info.server_version >= 140000
        self._columns = COLUMNS + (SINCE_14 if has_multiranges else ())
        self.next_row = 1
        self._extra = 0

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def create(self) -> None:
        seed = self.random.random()
        self.run(
            f"SELECT setseed({seed})",
            TYPES,
            "CREATE TABLE every_type (" + ", ".join(f"{n} {t}" for n, t, _ in self._columns) + ")",
            "CREATE TABLE plain (id int PRIMARY KEY, n int, t text) WITH (fillfactor = 80)",
            "CREATE TABLE doomed (id int, t text)",
            "INSERT INTO plain SELECT i, 0, md5(i::text) FROM generate_series(1, 600) i",
            "INSERT INTO doomed SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 50) i",
        )
        self.insert()

    def insert(self) -> None:
        """Insert rows: some values null, others of every shape that their type has."""
        values = ", ".join(
            v if n == "id" else f"CASE WHEN random() < 0.15 THEN NULL ELSE {v} END"
            for n, _, v in self._columns
        )
        names = ", ".join(n for n, _, _ in self._columns)
        first, self.next_row = self.next_row, self.next_row + self.random.randint(20, 60)
        rows = f"generate_series({first}, {self.next_row - 1}) i"
        self.run(f"INSERT INTO every_type ({names}) SELECT {values} FROM {rows}")

    def update(self) -> None:
        k = self.random.randint(2, 6)
        self.run(
            f"UPDATE every_type SET i8 = i8 + 1, t = 'new ' || left(t, 5000) WHERE id % {k} = 0",
            f"UPDATE plain SET n = n + 1, t = t || 'u' WHERE id % {k} = 1",
            f"UPDATE plain SET id = -id WHERE id % 31 = {k}",
        )

    def delete(self) -> None:
        k = self.random.randint(5, 12)
        self.run(
            f"DELETE FROM every_type WHERE id % {k} = 1",
            f"DELETE FROM plain WHERE id % {k} = 2",
            "INSERT INTO plain SELECT coalesce(max(id), 0) + 1, 0, 'fresh' FROM plain",
        )

    def vacuum(self) -> None:
        self.run("VACUUM every_type", "VACUUM (FREEZE) plain")

    def abort(self) -> None:
        self.run(
            "BEGIN", "INSERT INTO plain VALUES (1000000, 1, 'never')",
            "UPDATE plain SET n = -1", "DELETE FROM doomed", "ROLLBACK",
        )  # fmt: skip

    def subtransactions(self) -> None:
        top = self.random.randint(2_000_000, 1_000_000_000)
        self.run(
            "BEGIN", f"INSERT INTO plain VALUES ({top}, 0, 'top')",
            "SAVEPOINT a", "UPDATE plain SET n = n + 100 WHERE id % 9 = 0",
            "SAVEPOINT b", "DELETE FROM plain WHERE id % 7 = 0", "ROLLBACK TO a",
            "SAVEPOINT c", f"INSERT INTO plain VALUES ({top + 1}, 0, 'sub')", "RELEASE c",
            "COMMIT",
        )  # fmt: skip

    def two_phases(self) -> None:
        gid, row = f"g{self.random.randrange(1 << 40)}", -self.random.randint(2_000, 1 << 30)
        self.run(
            "BEGIN", f"INSERT INTO plain VALUES ({row}, 2, 'prepared')",
            "UPDATE plain SET n = n + 1 WHERE id % 5 = 0", f"PREPARE TRANSACTION '{gid}'",
            "INSERT INTO doomed VALUES (0, 'meanwhile')",
            f"{self.random.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'",
        )  # fmt: skip

    def multixact(self) -> None:
        """Make multixacts: the update of a locked row has one for its xmax."""
        self.run(
            "BEGIN", "SELECT * FROM plain WHERE id BETWEEN 1 AND 200 FOR KEY SHARE",
            "SAVEPOINT s", "UPDATE plain SET n = n + 7 WHERE id BETWEEN 50 AND 120",
            "RELEASE s", self.random.choice(("COMMIT", "ROLLBACK")),
        )  # fmt: skip

    def add_column(self) -> None:
        self._extra += 1
        name = f"x{self._extra}"
        kind = self.random.choice(
            ("int DEFAULT 42", "text DEFAULT 'missing'", "numeric DEFAULT 1.5", "timestamptz",
             "int8 DEFAULT 7", "int[] DEFAULT '{1,2}'", "jsonb DEFAULT '{\"k\": 1}'")
        )  # fmt: skip
        self.run(f"ALTER TABLE plain ADD COLUMN {name} {kind}")
        if self._extra > 2:
            self.run(f"ALTER TABLE plain DROP COLUMN x{self._extra - 2}")

    def rewrite(self) -> None:
        self.run(
            self.random.choice(
                ("VACUUM FULL every_type", "VACUUM FULL plain", "CLUSTER plain USING plain_pkey",
                 "ALTER TABLE plain ALTER COLUMN n TYPE int8", "VACUUM FULL pg_class",
                 "VACUUM FULL pg_attribute", "VACUUM FULL pg_type")
            )
        )  # fmt: skip

    def truncate(self) -> None:
        self.run(
            "TRUNCATE plain",
            "INSERT INTO plain (id, n, t) SELECT i, 0, 'again' FROM generate_series(1, 300) i",
        )

    def checkpoint(self) -> None:
        self.run("CHECKPOINT")

    def play(self, count: int, note: Note) -> None:
        steps = [
            self.insert, self.insert, self.update, self.update, self.delete, self.vacuum,
            self.abort, self.subtransactions, self.two_phases, self.multixact, self.add_column,
            self.rewrite, self.truncate, self.checkpoint,
        ]  # fmt: skip
        order = [*self.random.sample(steps, len(steps)), *self.random.choices(steps, k=count)]
        for step in order:
            step()
            note()
