"""`walkeeper history undo`: it takes back what is as the change left it, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.waiting import LIMIT_S
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres

Output = pytest.CaptureFixture[str]
TYPES = (
    "CREATE DOMAIN yes AS bool",
    "CREATE DOMAIN yes_again AS yes CHECK (value IS NOT NULL)",
    "CREATE TYPE pair AS (a int, b inet)",
    "CREATE EXTENSION citext",
    "CREATE EXTENSION hstore",
    "CREATE TABLE keyless (met int, i inet, d yes_again, r regclass, j json, p point, c char(5), "
    "f float8, n numeric(9,3), x pair, a inet[], h hstore, k citext, v tsvector, q tsquery, "
    "m int4multirange, b box[], g int GENERATED ALWAYS AS (met + 1) STORED)",
)
ROW = (
    "(7, '10.0.0.1', true, 'pg_class', '{\"a\":  1}', '(1,2)', 'c', 0.1, 1.5, "
    r"""'(1,10.0.0.2)', '{10.0.0.3}', '"a\"\\ "=>"", "NULL"=>"=>", no=>NULL, läng=>q', 'It''s', """
    "$$'it''s':2A the:1$$, $$the & !(a | 'it''s':*A)$$, '{[1,3),(7,)}', '{(1,2),(3,4)}')"
)


def changed(server: PostgresServer, statement: str) -> str:
    """Run it in a transaction of its own, and return the number."""
    text = f"WITH x AS ({statement} RETURNING 1) SELECT txid_current() FROM x LIMIT 1"
    return str(server.sql(text))


def undone(
    server: PostgresServer, tmp_path: Path, xid: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / f"{xid}.sql"
    path = str(server.data / "pg_wal")
    assert run(["history", "undo", "--path", path, "--xid", xid, "--output", str(script)]) == code
    return applied(server, script)


def applied(server: PostgresServer, script: Path) -> subprocess.CompletedProcess[str]:
    command = [program("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", server.dsn()]
    return subprocess.run(
        [*command, "-f", str(script)], capture_output=True, text=True, timeout=LIMIT_S,
        env=server_environment(),
    )  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        made.sql(*TYPES)
        yield made


def test_a_row_that_was_changed_since_is_left_alone(server: PostgresServer, tmp_path: Path) -> None:
    server.sql("CREATE TABLE k (id int PRIMARY KEY, v text, met int)")
    inserted = changed(server, "INSERT INTO k VALUES (1, 'a')")
    bad = changed(server, "UPDATE k SET v = 'bad' WHERE id = 1")
    changed(server, "UPDATE k SET v = 'good, later' WHERE id = 1")
    for xid in (inserted, bad):
        assert "a row of public.k is not as it was left" in undone(server, tmp_path, xid).stderr
    assert server.rows("SELECT * FROM k") == [(1, "good, later", None)]
    last = changed(server, "UPDATE k SET v = 'worse' WHERE id = 1")
    again = undone(server, tmp_path, last)
    assert again.returncode == 0, again.stderr
    assert server.sql("SELECT v FROM k") == "good, later"


def test_rows_are_found_by_values_of_every_type(server: PostgresServer, tmp_path: Path) -> None:
    """Some values' text differs from their cast to text, and some have no equality."""
    server.sql("CREATE TABLE keyed (LIKE keyless INCLUDING ALL, PRIMARY KEY (met, i))")
    for table in ("keyless", "keyed"):
        inserted = changed(server, f"INSERT INTO {table} VALUES {ROW}")
        before = server.rows(f"SELECT t::text FROM {table} t")
        update = (
            f"UPDATE {table} SET i = '10.0.0.0/8', d = false, r = 'pg_type', c = NULL, x = NULL, "
            "h = '', k = 'IT''S', v = '', q = '', m = '{}', b = NULL"
        )
        updated = changed(server, update)
        for xid, rows in ((updated, before), (inserted, [])):
            done = undone(server, tmp_path, xid)
            assert done.returncode == 0, done.stderr
            assert server.rows(f"SELECT t::text FROM {table} t") == rows


def test_a_value_that_is_not_known_as_text_is_not_written_into_sql(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql("CREATE TABLE words (id int, v money, m money[], t text DEFAULT 'x')")
    first = changed(server, "INSERT INTO words VALUES (1, '1', '{1}'), (2, NULL, NULL)")
    second = changed(server, "INSERT INTO words VALUES (3, NULL, NULL)")
    deleted = changed(server, "DELETE FROM words WHERE id < 3")
    assert undone(server, tmp_path, deleted, code=1).returncode == 0
    assert "1 change can be undone, 1 cannot" in capsys.readouterr().err
    assert server.rows("SELECT id, v FROM words ORDER BY id") == [(2, None), (3, None)]
    assert undone(server, tmp_path, second).returncode == 0
    table, where = ["table-at", "words", "--format", "sql"], ["--path", str(server.data / "pg_wal")]
    server.sql("UPDATE words SET v = '2'")
    assert run(["history", *table, *where]) == 1  # v is not known
    said = capsys.readouterr()
    assert '("id", "m", "t")' in said.out and "\\x" not in said.out
    assert "1 values of a type that is not known" in said.err
    server.sql("TRUNCATE words")
    capsys.readouterr()
    assert run(["history", "undo", "--table", "words", *where]) == 1
    said = capsys.readouterr()
    assert "-- not all of what truncate took" in said.out and "\\x" not in said.out
    assert first != second


def test_a_range_has_all_that_its_transactions_did(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """Also what they did before it began, and nothing of those that committed before."""
    server.sql("CREATE TABLE spans (id int PRIMARY KEY, v text)")
    server.sql("INSERT INTO spans VALUES (1, 'one'), (2, 'two')")
    path = ["--path", str(server.data / "pg_wal"), "--table", "spans"]
    with server.connect() as session:
        session.execute("BEGIN")
        session.execute("UPDATE spans SET v = 'bad' WHERE id = 1")
        server.sql("INSERT INTO spans VALUES (3, 'three')")
        lsn = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
        time = str(server.sql("SELECT clock_timestamp()"))
        session.execute("UPDATE spans SET v = 'bad' WHERE id = 2")
        session.execute("COMMIT")
    every = []
    for place in (["--end-lsn", lsn], ["--start-lsn", lsn], ["--start-time", time]):
        assert run(["history", "changes", *path, *place]) == 0
        rows = capsys.readouterr().out.splitlines()[1:]
        every.append([row.split(",")[6] for row in rows])
    assert every == [["insert"] * 3, ["update"] * 2, ["update"] * 2]
    script = tmp_path / "spans.sql"
    assert run(["history", "undo", *path, "--start-time", time, "-o", str(script)]) == 0
    done = applied(server, script)
    assert done.returncode == 0, done.stderr
    assert server.rows("SELECT v FROM spans ORDER BY id") == [("one",), ("two",), ("three",)]


@pytest.mark.parametrize("how", ["DELETE FROM kept_out WHERE id > 1", "TRUNCATE kept_out"])
def test_a_row_that_a_trigger_or_a_rule_keeps_out_is_an_error(
    server: PostgresServer, tmp_path: Path, how: str
) -> None:
    server.sql(
        "DROP TABLE IF EXISTS kept_out", "CREATE TABLE kept_out (id int)",
        "INSERT INTO kept_out SELECT generate_series(1, 250)",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RETURN CASE WHEN new.id <> 249 THEN new END; END'",
        "CREATE TRIGGER one BEFORE INSERT ON kept_out FOR EACH ROW EXECUTE FUNCTION refuse()",
    )  # fmt: skip
    with server.connect() as session, session.transaction():
        session.execute(how.encode())
        row = session.execute(b"SELECT txid_current(), count(*) FROM kept_out").fetchone()
    assert row is not None
    kept = "a row of public.kept_out was not put back"
    assert kept in undone(server, tmp_path, str(row[0])).stderr
    server.sql("DROP TRIGGER one ON kept_out")
    server.sql("CREATE RULE one AS ON INSERT TO kept_out DO INSTEAD NOTHING")
    assert kept in undone(server, tmp_path, str(row[0])).stderr
    assert server.sql("SELECT count(*) FROM kept_out") == row[1]
    server.sql("DROP RULE one ON kept_out")
    done = undone(server, tmp_path, str(row[0]))
    assert done.returncode == 0, done.stderr
    assert server.sql("SELECT count(DISTINCT id) FROM kept_out") == 250


def test_rows_of_tables_that_inherit_are_left_alone(server: PostgresServer, tmp_path: Path) -> None:
    """A child's row that looks the same was changed in the place of the parent's."""
    server.sql(
        "CREATE TABLE p (a int PRIMARY KEY, b text)", "CREATE TABLE pc () INHERITS (p)",
        "CREATE TABLE q (a int)", "CREATE TABLE qc () INHERITS (q)",
        "INSERT INTO p VALUES (2, 'y')", "INSERT INTO pc VALUES (2, 'z')",
        "INSERT INTO qc VALUES (3)",
    )  # fmt: skip
    updated = changed(server, "UPDATE ONLY p SET b = 'z'")
    inserted = changed(server, "INSERT INTO q VALUES (3)")
    for xid in (updated, inserted):
        assert undone(server, tmp_path, xid).returncode == 0
    children = "SELECT (SELECT b FROM pc), (SELECT a FROM qc), (SELECT b FROM ONLY p)"
    assert server.rows(children) == [("z", 3, "y")]
    again = changed(server, "UPDATE ONLY p SET b = 'z'")
    server.sql("DELETE FROM ONLY p")
    assert "a row of public.p is not as it was left" in undone(server, tmp_path, again).stderr
    assert server.sql("SELECT b FROM pc") == "z"


def test_constraints_that_can_wait_do_and_rows_may_have_no_columns(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql(
        "CREATE TABLE swapped (a int UNIQUE DEFERRABLE)", "CREATE TABLE nothing ()",
        "INSERT INTO swapped VALUES (1), (2)", "INSERT INTO nothing DEFAULT VALUES",
    )  # fmt: skip
    done = undone(server, tmp_path, changed(server, "UPDATE swapped SET a = 3 - a"))
    assert done.returncode == 0, done.stderr
    path = ["--path", str(server.data / "pg_wal")]
    assert run(["history", "table-at", "nothing", *path]) == 0
    assert "public.nothing" in (said := capsys.readouterr().err) and "1 row; complete" in said


def test_names_are_read_as_postgresql_quotes_them(server: PostgresServer, capsys: Output) -> None:
    server.sql(
        'CREATE SCHEMA "S.x"', 'CREATE TABLE "S.x"."q""t" (a int)',
        'CREATE TABLE "My.Table" (a int)',
        'CREATE SCHEMA "My"', 'CREATE TABLE "My"."Table" (b int)',
        'INSERT INTO "S.x"."q""t" VALUES (1)', 'INSERT INTO "My.Table" VALUES (2)',
        'INSERT INTO "My"."Table" VALUES (3)',
    )  # fmt: skip
    where = ("--path", str(server.data / "pg_wal"))
    for value, names in {
        1: ('"S.x"."q""t"', 'S.x.q"t', '"q""t"', 'q"t'),
        2: ('public."My.Table"', '"My.Table"', "public.My.Table"),
        3: ('"My"."Table"', "My.Table", 'My."Table"', "Table"),
    }.items():
        for name in names:
            for command in (("table-at", name), ("changes", "--table", name)):
                assert run(["history", *command, *where]) == 0, name
                rows = capsys.readouterr().out.splitlines()[1:]
                assert len(rows) == 1 and str(value) in rows[0], (name, rows)
        assert run(["history", "undo", "--table", names[0], *where]) == 0
        capsys.readouterr()
    assert run(["history", "table-at", '"my.table"', *where]) == 1


def test_exchanged_names_mean_the_tables_and_columns_that_were_changed(
    server: PostgresServer, tmp_path: Path
) -> None:
    """Both tables have the same rows, so that no condition would see the mistake."""
    server.sql(
        "CREATE TABLE this (id int PRIMARY KEY, a int, b int)",
        "INSERT INTO this VALUES (1, 10, 10), (2, 20, 21)",
        "CREATE TABLE that (LIKE this INCLUDING ALL)",
        "INSERT INTO that SELECT * FROM this",
    )
    deleted = changed(server, "DELETE FROM this WHERE id = 2")
    updated = changed(server, "UPDATE that SET a = 11 WHERE id = 1")
    rename = "ALTER TABLE {} RENAME TO {}"
    server.sql(
        "BEGIN; " + "; ".join(rename.format(*pair) for pair in (
            ("this", "other"), ("that", "this"), ("other", "that"))) + "; COMMIT",
        "BEGIN; ALTER TABLE that RENAME a TO c; ALTER TABLE that RENAME b TO a; "
        "ALTER TABLE that RENAME c TO b; ALTER TABLE that ADD COLUMN later int DEFAULT 5; COMMIT",
    )  # fmt: skip
    for xid in (updated, deleted):
        assert (done := undone(server, tmp_path, xid)).returncode == 0, done.stderr
    assert server.rows("SELECT * FROM this ORDER BY id") == [(1, 10, 10), (2, 20, 21)]
    assert server.rows("SELECT id, a, b FROM that ORDER BY id") == [(1, 10, 10), (2, 21, 20)]


def test_a_name_that_several_tables_had_is_not_undone(
    server: PostgresServer, capsys: Output
) -> None:
    server.sql(
        "CREATE TABLE one_name (id int)",
        "CREATE TABLE other_name (id int)",
        "ALTER TABLE one_name RENAME TO passing",
        "ALTER TABLE other_name RENAME TO one_name",
        "ALTER TABLE passing RENAME TO other_name",
        "INSERT INTO other_name VALUES (1)",
    )
    path = ("--path", str(server.data / "pg_wal"))
    assert run(["history", "changes", *path, "--table", "one_name"]) == 0
    assert "one_name: 2 tables had this name in the range" in capsys.readouterr().err
    assert run(["history", "undo", *path, "--table", "one_name"]) == 1
    said = capsys.readouterr()
    assert not said.out and "say which one to undo by its OID: --table " in said.err
    oid = str(server.sql("SELECT 'one_name'::regclass::oid::int"))
    assert run(["history", "undo", *path, "--table", oid]) == 0
    said = capsys.readouterr()
    assert "other_name" not in said.out and "warning" not in said.err


def test_values_that_are_names_mean_what_they_meant_after_an_exchange(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TYPE signal AS ENUM ('stop', 'go')",
        "CREATE TABLE first_one ()",
        "CREATE TABLE second_one ()",
        "CREATE TABLE names (id int, s signal, r regclass, a signal[])",
        "INSERT INTO names VALUES (1, 'stop', 'first_one', '{go}'), (2, 'go', NULL, NULL)",
    )
    shown = "SELECT id, s::text, r::text, a::text FROM names ORDER BY id"
    deleted = changed(server, "DELETE FROM names WHERE id = 1")
    server.sql("BEGIN; TRUNCATE names; SELECT 1; COMMIT")
    truncated = str(int(deleted) + 1)
    for rename, one, other in (
        ("ALTER TYPE signal RENAME VALUE '{}' TO '{}'", "stop", "go"),
        ("ALTER TABLE {} RENAME TO {}", "first_one", "second_one"),
    ):
        pairs = ((one, "passing"), (other, one), ("passing", other))
        server.sql(*(rename.format(*pair) for pair in pairs))
    for xid in (truncated, deleted):
        assert (done := undone(server, tmp_path, xid)).returncode == 0, done.stderr
    assert server.rows(shown) == [(1, "go", "second_one", "{stop}"), (2, "stop", None, None)]


def test_values_that_are_names_come_back_on_another_search_path(
    server: PostgresServer, tmp_path: Path
) -> None:
    """The path finds a decoy of the same name first, and a function's name means several."""
    server.sql(
        "CREATE TABLE meant ()",
        "CREATE SCHEMA decoy", "CREATE TABLE decoy.meant ()",
        "CREATE FUNCTION two(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION two(text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION gone() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE objects (r regclass, p regproc, q regprocedure, o regoper[], d regproc)",
        "INSERT INTO objects VALUES ('meant', 'two(text)'::regprocedure::oid, 'two(text)', "
        "ARRAY['=(int4,int4)'::regoperator::oid]::regoper[], 'gone')",
    )  # fmt: skip
    numbers = "SELECT r::oid::int, p::oid::int, q::oid::int, o::oid[]::text, d::oid::int"
    before = server.rows(f"{numbers} FROM objects")
    deleted = changed(server, "DELETE FROM objects")
    server.sql(
        "DROP FUNCTION gone()",
        'ALTER FUNCTION two(text) RENAME TO "Two"',
        'ALTER FUNCTION two(int) RENAME TO "Two"',
        "ALTER DATABASE postgres SET search_path = decoy, public",
    )
    try:
        done = undone(server, tmp_path, deleted)
    finally:
        server.sql("ALTER DATABASE postgres RESET search_path")
    assert done.returncode == 0, done.stderr
    assert server.rows(f"{numbers} FROM objects") == before
    text = (tmp_path / f"{deleted}.sql").read_text()
    assert "'public.meant'" in text and "'public.\"Two\"(pg_catalog.text)'" in text


def test_sql_of_a_table_is_in_the_names_of_its_lsn(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql(
        "CREATE TYPE paint AS ENUM ('red', 'blue')",
        "CREATE FUNCTION drawn(paint) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE pictures (id int, c paint, f regprocedure, t regtype[], k regclass)",
        "INSERT INTO pictures VALUES (1, 'red', 'drawn(paint)', '{paint[]}', 'pictures')",
    )
    before = server.rows("SELECT pictures::text FROM pictures")
    lsn = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    changed = (
        "ALTER TYPE paint RENAME VALUE 'red' TO 'blood'",
        "ALTER TYPE paint RENAME TO colour",
        "ALTER FUNCTION drawn(colour) RENAME TO painted",
        "ALTER TABLE pictures RENAME c TO shade",
        "ALTER TABLE pictures RENAME TO prints",
    )
    server.sql(*changed)
    script = tmp_path / "rows.sql"
    command = ("table-at", "pictures", "--lsn", lsn, "--path", str(server.data / "pg_wal"))
    assert run(["history", *command, "--output", str(script)]) == 0, capsys.readouterr().err
    text = script.read_text()
    assert f"-- public.pictures at {lsn}; names are those of then" in text
    assert "'public.drawn(public.paint)', '{public.paint[]}', 'public.pictures'" in text
    assert applied(server, script).returncode, "names of then are not those of now"
    server.sql(
        "ALTER TABLE prints RENAME TO pictures",
        "ALTER TABLE pictures RENAME shade TO c",
        "ALTER FUNCTION painted(colour) RENAME TO drawn",
        "ALTER TYPE colour RENAME TO paint",
        "ALTER TYPE paint RENAME VALUE 'blood' TO 'red'",
        "DELETE FROM pictures",
    )
    assert (done := applied(server, script)).returncode == 0, done.stderr
    assert server.rows("SELECT pictures::text FROM pictures") == before


def test_truncate_comes_back_beside_new_names_of_the_same_transaction(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TABLE cut (id int, v text)",
        "INSERT INTO cut VALUES (1, 'x')",
        "CREATE TABLE cut_before (id int, v text)",
        "INSERT INTO cut_before VALUES (9, 'wrong')",
    )
    xid = server.sql(
        "BEGIN; TRUNCATE cut; ALTER TABLE cut_before RENAME TO gone; "
        "ALTER TABLE cut RENAME v TO w; ALTER TABLE cut RENAME TO cut_before; "
        "ALTER TABLE gone RENAME TO cut; SELECT txid_current()",
        "COMMIT",
    ) or server.sql("SELECT txid_current() - 1")
    assert (done := undone(server, tmp_path, str(xid))).returncode == 0, done.stderr
    assert server.rows("SELECT id, w FROM cut_before") == [(1, "x")]
    assert server.rows("SELECT * FROM cut") == [(9, "wrong")]


def test_no_other_table_or_column_of_the_name_gets_the_rows(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE again (id int, v text)", "INSERT INTO again VALUES (1, 'x')")
    deleted = changed(server, "DELETE FROM again")
    server.sql("DROP TABLE again", "CREATE TABLE again (id int, v text)")
    assert undone(server, tmp_path, deleted, code=1).returncode == 0
    text = (tmp_path / f"{deleted}.sql").read_text()
    assert "-- not undone: delete of public.again: the table was dropped since" in text
    assert server.rows("SELECT * FROM again") == []
    server.sql("INSERT INTO again VALUES (1, 'x')")
    deleted = changed(server, "DELETE FROM again")
    server.sql("ALTER TABLE again DROP COLUMN v", "ALTER TABLE again ADD COLUMN v text")
    assert undone(server, tmp_path, deleted, code=1).returncode == 0
    text = (tmp_path / f"{deleted}.sql").read_text()
    assert "-- not undone: delete of public.again: a column was dropped since: v" in text
    assert server.rows("SELECT * FROM again") == []
