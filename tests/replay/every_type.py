"""Tables with a column of every type that a server has, and values that the type takes.

    made = EveryType(server); made.tables -> {table: {column: type}}

The types are those of pg_type: base types, arrays, domains, enums, ranges, multiranges, and
composites over all of them. A type's values are those of TEXTS that its input function takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support.postgres_server import PostgresServer

COLUMNS_PER_TABLE = 60
VALUES_MAX = 24
TEXTS = (
    "0", "1", "-1", "2", "17", "32767", "-32768", "1259", "16384", "2147483647", "4294967295",
    "9223372036854775807", "-9223372036854775808", "1.5", "-0", "1e20", "NaN", "Infinity", "t", "f",
    "a", "", "-", "A b", 'it\'s \\"q\\"', "äöü €", "$1.50", "-$1,234,567.89", "123456789012345678",
    "10.0.0.1", "10.0.0.0/8", "::", "::1", "::5", "::1:0", "::ffff:1.2.3.4", "::ffff:0.0.0.0",
    "::4.3.2.1", "::4.3.2.0/120", "::ffff:1.2.3.0/120", "::fffe:1.2.3.4", "::ffff:0:1.2.3.4",
    "1::ffff:1.2.3.4", "2001:db8::1", "2001:db8::/32", "1:0:0:2:0:0:0:3", "1:2:0:4:5:6:7:8",
    "fe80::1/64", "08:00:2b:01:02:03", "08:00:2b:01:02:03:04:05",
    "550e8400-e29b-41d4-a716-446655440000", "2024-02-29", "0044-03-15 BC", "infinity", "-infinity",
    "2024-02-29 12:34:56.789", "2024-02-29 12:34:56+05:30", "12:34:56.7", "24:00:00",
    "12:34:56-03:30:15", "1 day 02:03:04.5", "-1 years -2 mons +3 days -04:05:06", "(1,2)",
    "(1.5,-2e10)", "(1,2),(3,4)", "[(1,2),(3,4)]", "((1,2),(3,4),(5,6))", "{1,2,3}", "<(1,2),3>",
    "(1, 2, 3), (4, 5, 6)", "1.5 .. 2.5", "~5.0", "3(+-)1", '{"a": [1, "b", null, {"c": 1.50}]}',
    "[]", "null", "<a/>", "'it''s':1A b:2", "a & !(b | c:*A)", "a <-> b <2> c", "$",
    "$.a[*] ? (@.b > 1).c", "strict $.**{2 to last}.type()", "lax $[0, 1 to last]",
    '$ ? (@ like_regex "^a" flag "i")', "$.a.b + 1", "exists($.a)",
    "$.*.**{2}.**.**{last}.**{1 to 3}.**{last to 2}",
    "-$.a * (+3 - 2) % 7 / $x", '$."a b"[1, 2 to last - 1].size().abs().floor().ceiling()',
    '$ ? (!(@.a == "x\\ny") && (@ starts with "ä" || (@ < 1.50) is unknown))', "(2).double()",
    '$ ? (@.t.datetime("HH24:MI") != null && exists(@[*].keyvalue().key))', "true", '"only"',
    "($ + 1) - (2 - 3) - 4 * (5 + -6)", "$ ? (@ like_regex \"a.b\" flag \"smxq\" && true == @.b)",
    "$.decimal(5, 2).bigint().boolean().string().number().integer()", "$.decimal().time(3)",
    "$.timestamp_tz().time_tz(2)", "$.decimal(3).date()", "$.timestamp(1).type()",
    "Top.Science.Astronomy", "a.b",
    "*.a@*.!b{1,2}", "a & b@* | !c", '"a"=>"1", b=>NULL', "a=>x", "empty", "[1,5)", "(,5]",
    "[2020-01-01,2020-02-01)", "[2020-01-01 00:00,)", "{}", "{[1,3),[7,)}",
    "{[2020-01-01,2020-02-01)}", "pg_class", "pg_catalog.pg_class", "int4",
    "timestamp with time zone", "character varying", "int4[]", "public", "pg_catalog", "postgres",
    "english", "simple", "C", "now", "now()", "+", "+(int4,int4)", "postgres=r/postgres",
    "=r*w/postgres", "0/16B3748", "10:20:10,14,15", "(0,1)", "B101", "101", "X1F", "\\xdeadbeef",
    "978-0-393-04002-9", "9780393040029", "0-393-04002-X", "12345678", "1234-5679",
    "979-0-2600-0043-8", "036000291452", "public.pg_class", '"Other"."T b"', '"Other"."T b"[]',
    '"select"', "wide", "wide[]", '"Mood"', '"Other".pair', '"Other"', "_int4", '"char"', "bpchar",
    "public.english", "english_stem", "abs", "pg_catalog.abs(int4)", "public.once", "twice",
    "public.twice(text)", "once()", "boolin", "boolin(cstring)", "public.length(text)",
    '"Other"."T b"(wide,"Mood"[],"char",timestamptz[],int[])',
    "array_to_string(anyarray,text)",
    "public.##", "##(int4,int4)", "public.+(wide,wide)", "#%", "-(NONE,int4)", "=(int4,int4)",
    '"Other".#%#("Mood",text)', "#%(NONE,wide)", "default", "POSIX", '"Other"."C"', "own", '"it"',
    'public."C"',
)  # fmt: skip
EXTENSIONS = ("ltree", "hstore", "citext", "cube", "seg", "isn", "intarray", "lo", "pg_trgm")
SCHEMA = """
CREATE TYPE "Mood" AS ENUM ('sad', 'so so', 'happy');
CREATE SCHEMA "Other"; CREATE TABLE "Other"."T b" (a int);
CREATE TYPE "Other".pair AS (a int, b text);
CREATE TEXT SEARCH CONFIGURATION public.english (COPY = pg_catalog.simple);
CREATE TEXT SEARCH CONFIGURATION "Other"."T b" (COPY = pg_catalog.simple);
CREATE TEXT SEARCH DICTIONARY wide (TEMPLATE = pg_catalog.simple);
CREATE TABLE pg_class (a int); CREATE TABLE "select" (a int);
CREATE DOMAIN small AS int2 CHECK (VALUE < 30000); CREATE DOMAIN smaller AS small;
CREATE DOMAIN area AS box; CREATE DOMAIN words AS text[]; CREATE DOMAIN address AS inet;
CREATE TYPE wide AS (a int, b text, c text[], d "Mood", e address, f numeric);
CREATE TYPE deep AS (a wide, b wide[], c jsonb);
CREATE TYPE floats AS RANGE (subtype = float8); CREATE TYPE names AS RANGE (subtype = text);
CREATE FUNCTION once() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION twice(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION public.length(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION "Other"."T b"(wide, "Mood"[], "char", timestamptz[], VARIADIC int[]) RETURNS int
    LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION kept(wide, wide) RETURNS wide LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION kept(wide) RETURNS wide LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION kept(int, int) RETURNS int LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION kept("Mood", text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE OPERATOR + (LEFTARG = wide, RIGHTARG = wide, FUNCTION = kept);
CREATE OPERATOR ## (LEFTARG = int, RIGHTARG = int, FUNCTION = kept);
CREATE OPERATOR #% (RIGHTARG = wide, FUNCTION = kept);
CREATE OPERATOR "Other".#%# (LEFTARG = "Mood", RIGHTARG = text, FUNCTION = kept);
CREATE COLLATION "Other"."C" FROM pg_catalog."POSIX"; CREATE COLLATION public."C" FROM "POSIX";
CREATE COLLATION own FROM "C"; CREATE COLLATION "it" FROM "C";
CREATE FUNCTION taken(what text, kind regtype) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN EXECUTE format('SELECT (%L::text)::%s', what, kind); RETURN true;
EXCEPTION WHEN others THEN RETURN false; END $$;
"""
LONG = "repeat('long and dull ', 400)"
COMPOSITES = {
    "wide": f"ROW(1, {LONG}, ARRAY[{LONG}, NULL], 'so so', '::ffff:9.8.7.6', 1.50)::wide",
    "deep": (
        f"ROW(ROW(2, {LONG}, NULL, 'sad', '::1', NULL)::wide, ARRAY[ROW(3, {LONG}, '{{a}}', NULL, "
        f"NULL, 2)::wide], jsonb_build_object('k', {LONG}))::deep"
    ),
    '"Other".pair': f'ROW(NULL, {LONG})::"Other".pair',
}
_TYPES = """
SELECT t.oid, format_type(t.oid, NULL), t.typtype::text, t.typelem::int8,
       c.oid::regclass::text, c.relkind::text
FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.typtype <> 'p' AND t.typisdefined AND t.oid NOT IN (SELECT reltype FROM pg_class
      WHERE relkind NOT IN ('r', 'c', 'v', 'm')) ORDER BY t.oid
"""


@dataclass
class EveryType:
    """Tables of groups of types; `tables` has, by table, each column's type as it is written."""

    server: PostgresServer
    tables: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def major(self) -> int:
        """Return the server's major version."""
        return int((self.server.data / "PG_VERSION").read_text())

    @property
    def types(self) -> int:
        """Return how many types have a column."""
        return len({name for columns in self.tables.values() for name in columns.values()})

    def create(self) -> None:
        available = {row[0] for row in self.server.rows("SELECT name FROM pg_available_extensions")}
        with self.server.connect() as session:
            for name in EXTENSIONS:
                if name in available:
                    session.execute(f"CREATE EXTENSION {name}".encode())
            session.execute(SCHEMA.encode())
            values = self._values(session)
            each = list(values.items())
            for number, first in enumerate(range(0, len(each), COLUMNS_PER_TABLE)):
                group = dict(each[first : first + COLUMNS_PER_TABLE])
                self._create(session, f"types_{number}", group)

    def _values(self, session: Any) -> dict[str, list[str]]:
        """Return expressions by type, without types that none of TEXTS is a value of."""
        rows = session.execute(_TYPES.encode()).fetchall()
        taken = session.execute(
            b"SELECT t.oid, array_agg(x ORDER BY n) FROM pg_type t, "
            b"unnest(%s::text[]) WITH ORDINALITY y(x, n) "
            b"WHERE t.typtype NOT IN ('p', 'c') AND t.typname NOT LIKE '\\_%%' AND t.typisdefined "
            b"AND taken(x, t.oid::regtype) GROUP BY t.oid",
            [list(TEXTS)],
        )
        texts = dict(taken.fetchall())
        found: dict[str, list[str]] = {}
        elements: dict[int, list[str]] = {}
        for oid, name, kind, _, relation, relkind in rows:
            if kind == "c":
                if relkind in ("r", "v", "m"):
                    each = f"(SELECT x FROM {relation} x OFFSET %s LIMIT 1)"
                    made = [each % k for k in range(_rows_of(session, relation))]
                else:
                    made = [COMPOSITES[name]] if name in COMPOSITES else []
            elif name.endswith("[]"):
                continue
            else:
                made = [_literal(text, name) for text in texts.get(oid, [])]
            if made:
                elements[oid] = found[name] = _spread(made)
        for _, name, _, element, *_ in rows:
            if name.endswith("[]") and element in elements:
                some = elements[element]
                arrays = (f"ARRAY[{', '.join(some)}, NULL]", f"ARRAY[[{some[0]}], [NULL]]")
                found[name] = [f"{each}::{name}" for each in arrays]
        return found

    def _create(self, session: Any, table: str, values: dict[str, list[str]]) -> None:
        columns = {f"c{n}": name for n, name in enumerate(values)}
        kept: dict[str, str] = {}
        for column, name in columns.items():
            try:
                session.execute(f"CREATE TEMP TABLE tried (v {name})".encode())
                session.execute(b"DROP TABLE tried")
                kept[column] = name
            except Exception:  # a pseudo-type within it
                continue
        listed = ", ".join(f"{column} {name}" for column, name in kept.items())
        session.execute(f"CREATE TABLE {table} ({listed})".encode())
        self.tables[table] = kept
        for k in range(max(len(values[name]) for name in kept.values())):
            row = [values[name][k] if k < len(values[name]) else "NULL" for name in kept.values()]
            session.execute(f"INSERT INTO {table} SELECT {', '.join(row)}".encode())


def _rows_of(session: Any, relation: str) -> int:
    """Return how many rows are taken: none of a view that the machine does not support."""
    try:
        found = session.execute(f"SELECT x FROM {relation} x LIMIT 2".encode()).fetchall()
    except psycopg.Error:
        return 0
    return len(found)


def _literal(text: str, name: str) -> str:
    return "'" + text.replace("'", "''") + f"'::{name}"


def _spread(values: list[str]) -> list[str]:
    """Return all where there are few, else the first, the last, and some between."""
    step = max(1, len(values) // VALUES_MAX)
    return values[::step]
