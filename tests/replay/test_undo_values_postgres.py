"""SQL of undo keeps each value as it was, whatever the database's settings and later types."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.replay.restored import copied
from tests.replay.test_undo_postgres import changed, undone
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres

Output = pytest.CaptureFixture[str]
XML = (
    "<a/>", "\n<b/>", '<?xml version="1.0"?>\n<c/>', "<?xml version='1.0' encoding='utf-8' ?><d/>",
    "<?xml version = '1.0' standalone='yes'?>\n<e/>", '<?xml version="1.1"?><f/>', "\n\nf",
    '<?xml-stylesheet href="g"?>\n<g/>', "",
)  # fmt: skip

SAME_TEXTS = (
    "DROP TABLE IF EXISTS same",
    "DROP TYPE IF EXISTS regproc_pair", "DROP DOMAIN IF EXISTS regproc_domain",
    "DROP FUNCTION IF EXISTS two(int), two(text)",
    "CREATE FUNCTION two(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE FUNCTION two(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE DOMAIN regproc_domain AS regproc", "CREATE TYPE regproc_pair AS (p regproc, n int)",
    "CREATE SCHEMA IF NOT EXISTS aside",
    "INSERT INTO pg_collation (oid, collname, collnamespace, collowner, collprovider, "
    "collisdeterministic, collencoding, collcollate, collctype) "
    "SELECT 90000 + n, 'same', 'aside'::regnamespace, 10, 'c', true, n, 'C', 'C' "
    "FROM (VALUES (pg_char_to_encoding('UTF8')), (pg_char_to_encoding('LATIN1'))) AS e (n) "
    "WHERE NOT EXISTS (SELECT FROM pg_collation WHERE collname = 'same')",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    options = ["--wal-segsize=1", "--encoding=UTF8", "--locale=C"]
    with PostgresServer.create(settings, initdb_options=options) as made:
        yield made


@contextmanager
def setting(server: PostgresServer, name: str, value: str) -> Iterator[None]:
    """Give the database a setting."""
    server.sql(f"ALTER DATABASE postgres SET {name} = {value}")
    try:
        yield
    finally:
        server.sql(f"ALTER DATABASE postgres RESET {name}")


@pytest.mark.parametrize("type_", ["float8", "float8[]", "point"])
def test_a_float_of_other_last_digits_is_not_as_it_was_left(
    server: PostgresServer, tmp_path: Path, type_: str
) -> None:
    text = {"float8": "{}", "float8[]": "{{{}}}", "point": "({},0)"}[type_]
    left, later = text.format("0.3"), text.format("0.30000000000000004")
    server.sql("DROP TABLE IF EXISTS f", f"CREATE TABLE f (id int PRIMARY KEY, v {type_})")
    inserted = changed(server, f"INSERT INTO f VALUES (1, '{left}')")
    server.sql(f"UPDATE f SET v = '{later}'")
    with setting(server, "extra_float_digits", "0"):
        assert "is not as it was left" in undone(server, tmp_path, inserted).stderr
    assert server.sql("SELECT v::text FROM f") == later


@pytest.mark.parametrize(
    ("name", "value", "type_", "text"),
    [("array_nulls", "off", "text[]", "{NULL,a}"), ("xmloption", "document", "xml", "a<b/>")],
)
def test_a_value_comes_back_whatever_the_database_takes_text_for(
    server: PostgresServer, tmp_path: Path, name: str, value: str, type_: str, text: str
) -> None:
    server.sql("DROP TABLE IF EXISTS s", f"CREATE TABLE s (v {type_})")
    server.sql(f"INSERT INTO s VALUES ('{text}')")
    deleted = changed(server, "DELETE FROM s")
    with setting(server, name, value):
        done = undone(server, tmp_path, deleted)
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT v::text FROM s") == [(text,)]


def test_xml_is_shown_as_select_does_and_comes_back_as_stored(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """Output leaves out a declaration of version 1.0 and the line end after it; a cast does not."""
    server.sql("CREATE TABLE x (id int, v xml, a xml[])")
    for number, text in enumerate(XML):
        server.sql(f"INSERT INTO x VALUES ({number}, $${text}$$, ARRAY[$${text}$$::xml])")
    stored = "SELECT v::text, a[1]::text FROM x ORDER BY id"
    before = server.rows(stored)
    assert [row[0] for row in before] == list(XML)
    assert copied(server, "x") != [(str(n), *row) for n, row in enumerate(before)]
    script = tmp_path / "x.csv"
    path = ["--path", str(server.data / "pg_wal"), "--output", str(script)]
    assert run(["history", "table-at", "x", *path]) == 0, capsys.readouterr().err
    with script.open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert [tuple(row[:3]) for row in rows] == copied(server, "x")
    deleted = changed(server, "DELETE FROM x")
    assert (done := undone(server, tmp_path, deleted)).returncode == 0, done.stderr
    assert server.rows(stored) == before
    updated = changed(server, "UPDATE x SET id = id + 100")
    assert (done := undone(server, tmp_path, updated)).returncode == 0, done.stderr
    assert server.rows("SELECT id FROM x ORDER BY id")[0] == (0,)


@pytest.mark.parametrize(
    ("type_", "first", "second"),
    [("pair", "(1,a)", "(2,a)"), ("regclass", "pg_class", "pg_type"),
     ("regrole", "pg_monitor", "postgres"), ("pair[]", '{"(1,a)"}', "{}")],
    ids=["composite", "regclass", "regrole", "array"],
)  # fmt: skip
def test_a_row_is_found_by_a_key_of_any_type(
    server: PostgresServer, tmp_path: Path, type_: str, first: str, second: str
) -> None:
    server.sql("DROP TABLE IF EXISTS keyed", "DROP TYPE IF EXISTS pair")
    server.sql("CREATE TYPE pair AS (a int, b text)")
    server.sql(f"CREATE TABLE keyed (k {type_}, n int, PRIMARY KEY (k, n))")
    server.sql(f"INSERT INTO keyed VALUES ('{second}', 0)")
    inserted = changed(server, f"INSERT INTO keyed VALUES ('{first}', 1)")
    updated = changed(server, f"UPDATE keyed SET k = '{second}' WHERE n = 1")
    for xid, rows in ((updated, [(second, 0), (first, 1)]), (inserted, [(second, 0)])):
        assert (done := undone(server, tmp_path, xid)).returncode == 0, done.stderr
        assert server.rows("SELECT k::text, n FROM keyed ORDER BY n") == rows


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [("timestamp", "2020-01-01 12:00:00", "timestamptz USING v AT TIME ZONE 'Asia/Tokyo'"),
     ("int", "1250", "numeric(9,2) USING v / 100.0")],
    ids=["time", "number"],
)  # fmt: skip
def test_a_value_of_an_earlier_type_of_its_column_does_not_come_back(
    server: PostgresServer, tmp_path: Path, before: str, value: str, after: str
) -> None:
    """ALTER TABLE alone knew what the text means in the later type."""
    server.sql("DROP TABLE IF EXISTS r", f"CREATE TABLE r (id int, v {before})")
    server.sql(f"INSERT INTO r VALUES (1, '{value}')")
    deleted = changed(server, "DELETE FROM r")
    server.sql("INSERT INTO r VALUES (2, NULL)", "BEGIN; TRUNCATE r; SELECT 1; COMMIT")
    truncated = str(int(str(server.sql("SELECT txid_current()"))) - 1)
    server.sql(f"ALTER TABLE r ALTER v TYPE {after}")
    for xid in (deleted, truncated):
        assert undone(server, tmp_path, xid, code=1).returncode == 0
        said = (tmp_path / f"{xid}.sql").read_text()
        assert "of public.r: a column has another type since: v" in said
    assert server.rows("SELECT * FROM r") == []


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "keyless"])
def test_values_from_before_using_are_told_of(
    server: PostgresServer, tmp_path: Path, capsys: Output, key: str
) -> None:
    """The column has the type that it had. The only trace is the table's new file."""
    server.sql("DROP TABLE IF EXISTS u", f"CREATE TABLE u (id int {key}, v int)")
    server.sql("INSERT INTO u VALUES (1, 5), (2, 7), (3, 9)")
    inserted = changed(server, "INSERT INTO u VALUES (4, 2)")
    zeroed = changed(server, "UPDATE u SET v = 0 WHERE id = 1")
    deleted = changed(server, "DELETE FROM u WHERE id = 2")
    assert undone(server, tmp_path, deleted).returncode == 0
    assert "rewrote" not in capsys.readouterr().err
    server.sql("ALTER TABLE u ALTER v TYPE int USING v * 100")
    for xid in (zeroed, deleted):
        undone(server, tmp_path, xid)
        assert "table public.u: VACUUM FULL, CLUSTER or ALTER TABLE" in capsys.readouterr().err
    undone(server, tmp_path, inserted)  # It brings no value back.
    assert "rewrote" not in capsys.readouterr().err
    later = changed(server, "DELETE FROM u WHERE id = 3")
    assert undone(server, tmp_path, later).returncode == 0
    assert "rewrote" not in capsys.readouterr().err


def test_rows_of_an_earlier_type_do_not_come_back_after_truncate(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE cents (id int, v int)", "INSERT INTO cents VALUES (1, 1250)")
    with server.connect() as session, session.transaction():
        session.execute(b"ALTER TABLE cents ALTER v TYPE numeric USING v / 100.0")
        session.execute(b"TRUNCATE cents")
        row = session.execute(b"SELECT txid_current()").fetchone()
    assert row is not None
    assert undone(server, tmp_path, str(row[0]), code=1).returncode == 0
    said = (tmp_path / f"{row[0]}.sql").read_text()
    assert "-- not all of what truncate took from public.cents: a column was" in said
    assert server.rows("SELECT * FROM cents") == []


@pytest.mark.parametrize(
    ("type_", "left", "later"),
    [
        ("regproc", "two(int)", "two(text)"),
        ("regproc_domain", "two(int)", "two(text)"),
        ("regproc[]", "two(int)", "two(text)"),
        ("regproc_domain[]", "two(int)", "two(text)"),
        ("regproc_pair", "two(int)", "two(text)"),
        ("regoper", "=(int,int)", "=(text,text)"),
        ("regcollation", "UTF8", "LATIN1"),
    ],
)
@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "keyless"])
def test_a_value_that_prints_as_another_one_is_not_as_it_was_left(
    server: PostgresServer, tmp_path: Path, type_: str, left: str, later: str, key: str
) -> None:
    """An overload has the name of the other one, and a collation that of another encoding."""
    server.sql(*SAME_TEXTS)
    kinds = {"regoper": "regoperator", "regcollation": "collation"}
    kind = kinds.get(type_, "regprocedure")
    if kind == "collation":
        query = "SELECT oid FROM pg_collation WHERE collname = 'same' AND collencoding = "
        oids = [server.sql(f"{query} pg_char_to_encoding('{name}')") for name in (left, later)]
    else:
        oids = [server.sql(f"SELECT '{name}'::{kind}::oid") for name in (left, later)]
    shape = {"[]": "{{{}}}", "air": "({},1)"}.get(type_[-2:] if "[" in type_ else type_[-3:], "{}")
    one, other = (shape.format(oid) for oid in oids)
    server.sql("DROP TABLE IF EXISTS same", f"CREATE TABLE same (id int {key}, v {type_})")
    inserted = changed(server, f"INSERT INTO same VALUES (1, '{one}')")
    updated = changed(server, f"UPDATE same SET v = '{other}'")
    stored = "SELECT v::text, encode(record_send(ROW(v)), 'hex') FROM same"
    assert "is not as it was left" in undone(server, tmp_path, inserted).stderr
    texts = [row[0] for row in server.rows(stored)]
    assert (done := undone(server, tmp_path, updated)).returncode == 0, done.stderr
    assert [row[0] for row in server.rows(stored)] == texts, "the texts do not tell them apart"
    assert (done := undone(server, tmp_path, inserted)).returncode == 0, done.stderr
    assert server.rows(stored) == []


@pytest.mark.parametrize(
    ("before", "after", "comes"),
    [
        ("numeric(9,3)", "numeric(9,1)", False),
        ("numeric(9,3)", "numeric(9,-1)", False),
        ("numeric(9,3)", "numeric(12,3)", True),
        ("numeric(9,3)", "numeric", True),
        ("numeric", "numeric(9,1)", False),
        ("varchar(9)", "varchar(7)", False),
        ("varchar(9)", "varchar(12)", True),
        ("varchar(9)", "varchar", True),
        ("timestamp", "timestamp(0)", False),
        ("timestamp(3)", "timestamp(6)", True),
        ("interval(3)", "interval hour", False),
    ],
)
def test_a_value_does_not_come_back_with_fewer_digits(
    server: PostgresServer, tmp_path: Path, before: str, after: str, comes: bool
) -> None:
    values = {"n": "1.234", "v": "abcd   ", "t": "2024-01-01 00:00:00.125", "i": "1:02:03.5"}
    server.sql("DROP TABLE IF EXISTS digits", f"CREATE TABLE digits (id int, v {before})")
    server.sql(f"INSERT INTO digits VALUES (1, '{values[before[0]]}')")
    rows = server.rows("SELECT v::text FROM digits")
    deleted = changed(server, "DELETE FROM digits")
    server.sql(f"ALTER TABLE digits ALTER v TYPE {after}")
    done = undone(server, tmp_path, deleted, code=int(not comes))
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT v::text FROM digits") == (rows if comes else [])


def test_blanks_at_the_end_of_a_value_without_a_length_count(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE blanks (id int PRIMARY KEY, v bpchar, w char(5))")
    inserted = changed(server, "INSERT INTO blanks VALUES (1, 'a', 'b')")
    updated = changed(server, "UPDATE blanks SET v = 'a  '")
    assert "is not as it was left" in undone(server, tmp_path, inserted).stderr
    for xid in (updated, inserted):
        assert (done := undone(server, tmp_path, xid)).returncode == 0, done.stderr
