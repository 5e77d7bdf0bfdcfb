"""Undo ends well only if its rows are as they were before: triggers, rules and foreign keys."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replay.test_undo_postgres import applied
from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.seeds import drawn_seed
from tests.support.waiting import LIMIT_S
from walkeeper_cli.program import run

pytestmark = pytest.mark.postgres

CHANGED = "a trigger or a rule changed rows of public.{}, so that they would not be as before"
REPLICA = "SET session_replication_role = replica;\n"
FUNCTIONS = (
    "CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN new.n := new.n + 1; RETURN new; END'",
    "CREATE FUNCTION counts_after() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN UPDATE t SET n = n + 100 WHERE id = new.id; RETURN NULL; END'",
    "CREATE FUNCTION puts_back() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN INSERT INTO t VALUES (old.*); RETURN NULL; END'",
)
ON = "ON t FOR EACH ROW"
INTERFERENCES = {
    "before": f"CREATE TRIGGER x BEFORE INSERT OR UPDATE {ON} EXECUTE FUNCTION counts()",
    "after": f"CREATE TRIGGER x AFTER INSERT OR UPDATE {ON} WHEN (pg_trigger_depth() = 0) "
    "EXECUTE FUNCTION counts_after()",
    "deferred": "CREATE CONSTRAINT TRIGGER x AFTER INSERT OR UPDATE ON t INITIALLY DEFERRED "
    "FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION counts_after()",
    "rule instead": "CREATE RULE x AS ON INSERT TO t DO INSTEAD INSERT INTO other VALUES (new.*)",
    "rule also": "CREATE RULE x AS ON INSERT TO t DO ALSO DELETE FROM t WHERE id = new.id",
    "puts back": f"CREATE TRIGGER x AFTER DELETE {ON} EXECUTE FUNCTION puts_back()",
}
CHANGES = {
    "delete": "DELETE FROM t WHERE id < 3",
    "update": "UPDATE t SET v = 'x' WHERE id < 3",
    "truncate": "TRUNCATE t",
    "insert": "INSERT INTO t VALUES (4, 'd', 0), (5, 'd', 0)",
}
MEETS = {
    "before": ("delete", "update", "truncate"), "after": ("delete", "update", "truncate"),
    "deferred": ("delete", "update", "truncate"), "rule instead": ("delete", "truncate"),
    "rule also": ("delete", "truncate"), "puts back": ("insert",),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        made.sql("CREATE TABLE t (id int, v text, n int)", *FUNCTIONS)
        yield made


def in_one(server: PostgresServer, *statements: str) -> str:
    """Run them in one transaction, and return its number."""
    with server.connect() as session, session.transaction():
        for statement in statements:
            session.execute(statement.encode())
        row = session.execute(b"SELECT txid_current()").fetchone()
    assert row is not None
    return str(row[0])


def written(server: PostgresServer, tmp_path: Path, *words: str) -> Path:
    script = tmp_path / "undo.sql"
    path = str(server.data / "pg_wal")
    assert run(["history", "undo", "--path", path, *words, "--output", str(script)]) == 0
    return script


def as_replica(script: Path) -> Path:
    changed = script.with_name("replica.sql")
    changed.write_text(REPLICA + script.read_text())
    return changed


def rows_of(server: PostgresServer, table: str) -> list[Any]:
    return sorted(server.rows(f"SELECT r::text FROM {table} r"))


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "keyless"])
@pytest.mark.parametrize(
    ("interference", "change"), [(i, c) for i, changes in MEETS.items() for c in changes]
)
def test_rows_that_a_trigger_or_a_rule_changes_are_an_error(
    server: PostgresServer, tmp_path: Path, interference: str, change: str, key: str
) -> None:
    server.sql(
        "DROP TABLE IF EXISTS t, other", f"CREATE TABLE t (id int {key}, v text, n int)",
        "CREATE TABLE other (LIKE t)", "INSERT INTO t VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 0)",
    )  # fmt: skip
    before = rows_of(server, "t")
    xid = in_one(server, CHANGES[change])
    after = rows_of(server, "t")
    server.sql(INTERFERENCES[interference])
    script = written(server, tmp_path, "--xid", xid)
    done = applied(server, script)
    assert CHANGED.format("t") in done.stderr and done.returncode != 0
    assert "SET session_replication_role = replica; in front" in done.stderr
    assert rows_of(server, "t") == after and server.sql("SELECT count(*) FROM other") == 0
    assert (done := applied(server, as_replica(script))).returncode == 0, done.stderr
    assert rows_of(server, "t") == before


OTHERS = {
    "moves": "UPDATE u SET n = n + 1 WHERE id <> new.id",
    "moves in a savepoint": "BEGIN UPDATE u SET n = n + 1 WHERE id <> new.id; "
    "EXCEPTION WHEN division_by_zero THEN END",
    "adds": "INSERT INTO u VALUES (9, 9)",
    "removes": "DELETE FROM u WHERE id = 3",
    "another table": "INSERT INTO u_log VALUES (new.id)",
    "once more": "UPDATE u SET n = 0 WHERE id = new.id",
}


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_other_rows_of_the_table_are_not_changed(
    server: PostgresServer, tmp_path: Path, other: str, has_key: bool
) -> None:
    server.sql(
        "DROP TABLE IF EXISTS u, u_log", "CREATE TABLE u_log (id int)",
        f"CREATE TABLE u (id int {'PRIMARY KEY' if has_key else ''}, n int)",
        "INSERT INTO u VALUES (1, 0), (2, 0), (3, 0)",
    )  # fmt: skip
    before = rows_of(server, "u")
    xid = in_one(server, "DELETE FROM u WHERE id = 1")
    after = rows_of(server, "u")
    server.sql(
        "CREATE OR REPLACE FUNCTION others() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF pg_trigger_depth() = 1 THEN {OTHERS[other]}; END IF; RETURN NULL; END $$",
        "CREATE TRIGGER x AFTER INSERT ON u FOR EACH ROW EXECUTE FUNCTION others()",
    )
    script = written(server, tmp_path, "--xid", xid)
    done = applied(server, script)
    if other in ("another table", "once more"):
        assert done.returncode == 0, done.stderr
        assert rows_of(server, "u") == before
    else:
        assert done.returncode != 0 and "a trigger or a rule" in done.stderr
        assert rows_of(server, "u") == after
        assert (done := applied(server, as_replica(script))).returncode == 0, done.stderr
        assert rows_of(server, "u") == before


def test_a_total_that_a_trigger_keeps_is_not_counted_twice(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TABLE customers (id int PRIMARY KEY, total int)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount int)",
        "CREATE FUNCTION sums() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "UPDATE customers SET total = total + COALESCE(new.amount, 0) - COALESCE(old.amount, 0) "
        "WHERE id = COALESCE(new.customer, old.customer); RETURN NULL; END $$",
        "CREATE TRIGGER sums AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW "
        "EXECUTE FUNCTION sums()",
        "INSERT INTO customers VALUES (1, 0), (2, 0)",
        "INSERT INTO orders VALUES (1, 1, 10), (2, 1, 20), (3, 2, 40)",
    )
    before = [rows_of(server, name) for name in ("customers", "orders")]
    xid = in_one(server, "DELETE FROM orders WHERE customer = 1")
    after = [rows_of(server, name) for name in ("customers", "orders")]
    script = written(server, tmp_path, "--xid", xid)
    done = applied(server, script)
    assert CHANGED.format("customers") in done.stderr and done.returncode != 0
    assert [rows_of(server, name) for name in ("customers", "orders")] == after
    assert (done := applied(server, as_replica(script))).returncode == 0, done.stderr
    assert [rows_of(server, name) for name in ("customers", "orders")] == before
    again = in_one(server, "DELETE FROM orders WHERE customer = 1")
    script = written(server, tmp_path, "--xid", again, "--table", "orders")
    assert (done := applied(server, script)).returncode == 0, done.stderr
    assert [rows_of(server, name) for name in ("customers", "orders")] == before


def test_triggers_and_rules_that_change_no_such_row_are_no_error(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TABLE calm (id int PRIMARY KEY, v text, n int)",
        "CREATE TABLE calm_log (what text)",
        "CREATE TRIGGER x BEFORE UPDATE OF n ON calm FOR EACH ROW EXECUTE FUNCTION counts()",
        "CREATE RULE x AS ON DELETE TO calm DO ALSO INSERT INTO calm_log VALUES ('gone')",
        "CREATE RULE y AS ON UPDATE TO calm DO ALSO INSERT INTO calm_log VALUES (new.v)",
        "INSERT INTO calm VALUES (1, 'a', 0), (2, 'b', 0)",
    )  # fmt: skip
    before = rows_of(server, "calm")
    xid = in_one(
        server, "INSERT INTO calm VALUES (3, 'c', 0)", "UPDATE calm SET v = 'x'", "DELETE FROM calm"
    )
    done = applied(server, written(server, tmp_path, "--xid", xid, "--table", "calm"))
    assert done.returncode == 0, done.stderr
    assert rows_of(server, "calm") == before


def test_a_key_may_come_back_in_another_text(server: PostgresServer, tmp_path: Path) -> None:
    server.sql(
        "CREATE TABLE texts (k numeric PRIMARY KEY, v text)",
        "INSERT INTO texts VALUES (1.0, 'a'), (2.0, 'b')",
    )
    before = rows_of(server, "texts")
    xid = in_one(
        server, "UPDATE texts SET k = 1.00 WHERE k = 1", "DELETE FROM texts WHERE k = 2",
        "INSERT INTO texts VALUES (2.000, 'c')", "INSERT INTO texts VALUES (3.0, 'd')",
        "UPDATE texts SET k = 3.00 WHERE k = 3",
    )  # fmt: skip
    done = applied(server, written(server, tmp_path, "--xid", xid))
    assert done.returncode == 0, done.stderr
    assert rows_of(server, "texts") == before


@pytest.mark.parametrize("key", [", PRIMARY KEY (k)", ""], ids=["keyed", "keyless"])
def test_many_changes_of_few_rows_come_back(
    server: PostgresServer, tmp_path: Path, key: str
) -> None:
    chance = random.Random(drawn_seed())
    server.sql("DROP TABLE IF EXISTS few", f"CREATE TABLE few (k int, v text, n int[]{key})")
    rows = [f"({k}, 'v', NULL)" for k in range(6)] + ([] if key else ["(1, 'v', NULL)"] * 3)
    server.sql(f"INSERT INTO few VALUES {', '.join(rows)}")
    before, lsn = rows_of(server, "few"), str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    conflict = "ON CONFLICT DO NOTHING" if key else ""
    for _ in range(40):
        k, other, v = (
            chance.randrange(9),
            chance.randrange(9),
            chance.choice(["'v'", "'w'", "NULL"]),
        )
        moves = "" if not key else f"AND NOT EXISTS (SELECT FROM few WHERE k = {other})"
        in_one(server, *chance.sample((
            f"INSERT INTO few VALUES ({k}, {v}, '{{1}}') {conflict}",
            f"UPDATE few SET v = {v} WHERE k = {k}",
            f"UPDATE few SET k = {other} WHERE k = {k} {moves}",
            f"DELETE FROM few WHERE k = {k}",
            "ALTER TABLE few ADD COLUMN IF NOT EXISTS later int",
            *(["TRUNCATE few"] if chance.random() < 0.1 else []),
        ), k=chance.randrange(1, 5)))  # fmt: skip
    server.sql("ALTER TABLE few ADD COLUMN IF NOT EXISTS later int")
    done = applied(server, written(server, tmp_path, "--table", "few", "--start-lsn", lsn))
    assert done.returncode == 0, done.stderr
    assert sorted(server.rows("SELECT ROW(k, v, n)::text FROM few")) == before


def test_a_column_added_between_the_changes_of_alike_rows_needs_no_triggers(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE grown (id int, n int)")
    in_one(server, "INSERT INTO grown VALUES (1, 0)")
    server.sql("ALTER TABLE grown ADD COLUMN w int")
    in_one(server, "UPDATE grown SET w = 1", "INSERT INTO grown VALUES (2, 0, 2)")
    server.sql("CREATE TRIGGER x BEFORE INSERT ON grown FOR EACH ROW EXECUTE FUNCTION counts()")
    script = written(server, tmp_path, "--table", "grown")
    said = "a column was added to public.grown between the changes, and it has no primary key"
    assert said in applied(server, script).stderr
    assert (done := applied(server, as_replica(script))).returncode == 0, done.stderr
    assert rows_of(server, "grown") == []


def test_a_role_without_temporary_tables_is_told_so(server: PostgresServer, tmp_path: Path) -> None:
    server.sql(
        "CREATE TABLE owned (id int)", "CREATE ROLE poor", "ALTER TABLE owned OWNER TO poor",
        "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC",
    )  # fmt: skip
    xid = in_one(server, "INSERT INTO owned VALUES (1)")
    script = written(server, tmp_path, "--xid", xid)
    poor = tmp_path / "poor.sql"
    poor.write_text("SET ROLE poor;\n" + script.read_text())
    said = applied(server, poor).stderr
    assert "needs temporary tables, and poor may make none" in said and "GRANT TEMPORARY" in said
    server.sql("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")
    assert (done := applied(server, poor)).returncode == 0, done.stderr
    assert rows_of(server, "owned") == []


def test_a_role_from_which_rows_are_hidden_is_refused(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TABLE guarded (id int PRIMARY KEY, v text)", "CREATE ROLE guest",
        "GRANT ALL ON guarded TO guest", "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few_rows ON guarded USING (id < 9)",
    )  # fmt: skip
    xid = in_one(server, "INSERT INTO guarded VALUES (1, 'a')")
    script = written(server, tmp_path, "--xid", xid)
    (guest := tmp_path / "guest.sql").write_text("SET ROLE guest;\n" + script.read_text())
    assert "would be affected by row-level security" in applied(server, guest).stderr
    assert server.sql("SELECT count(*) FROM guarded") == 1
    assert (done := applied(server, script)).returncode == 0, done.stderr
    assert server.sql("SELECT count(*) FROM guarded") == 0


def test_rows_come_back_over_a_change_of_the_primary_key(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql(
        "CREATE TABLE rekeyed (a int PRIMARY KEY, b int NOT NULL, v text)",
        "INSERT INTO rekeyed VALUES (1, 10, 'a'), (2, 20, 'b')",
    )
    before, lsn = rows_of(server, "rekeyed"), str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    in_one(server, "UPDATE rekeyed SET v = 'c'", "INSERT INTO rekeyed VALUES (3, 30, 'd')")
    server.sql("ALTER TABLE rekeyed DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (b)")
    in_one(server, "UPDATE rekeyed SET v = 'e' WHERE a > 1", "DELETE FROM rekeyed WHERE a = 1")
    script = written(server, tmp_path, "--table", "rekeyed", "--start-lsn", lsn)
    assert (done := applied(server, script)).returncode == 0, done.stderr
    assert rows_of(server, "rekeyed") == before


def test_rows_in_savepoints_are_not_taken_for_changed_ones(
    server: PostgresServer, tmp_path: Path
) -> None:
    server.sql("CREATE TABLE saved (id int)", "INSERT INTO saved VALUES (1)")
    script = written(server, tmp_path, "--xid", in_one(server, "DELETE FROM saved"))
    words = ["-X", "-v", "ON_ERROR_STOP=1", "-v", "ON_ERROR_ROLLBACK=on", "-d", server.dsn()]
    done = subprocess.run(
        [program("psql"), *words, "-f", str(script)], capture_output=True, text=True,
        timeout=LIMIT_S, env=server_environment(),
    )  # fmt: skip
    assert "not known if savepoints are around them" in done.stderr
    assert rows_of(server, "saved") == []


@pytest.mark.parametrize(
    ("action", "kept"),
    [("ON DELETE CASCADE", True), ("ON DELETE SET NULL", True), ("ON DELETE SET DEFAULT", True),
     ("ON UPDATE SET NULL", True), ("ON UPDATE CASCADE", False)],
)  # fmt: skip
@pytest.mark.parametrize("parts", ["", " PARTITION BY LIST (id)"], ids=["plain", "partitioned"])
def test_later_rows_that_refer_to_the_row_do_not_go_with_it(
    server: PostgresServer, tmp_path: Path, action: str, kept: bool, parts: str
) -> None:
    server.sql(
        "DROP TABLE IF EXISTS child, parent",
        f"CREATE TABLE parent (id int PRIMARY KEY, v text){parts}",
        f"CREATE TABLE child (id int, of int DEFAULT 1 REFERENCES parent {action}){parts}",
        *(f"CREATE TABLE {name}_1 PARTITION OF {name} DEFAULT"
          for name in ("parent", "child") if parts),
        "INSERT INTO parent VALUES (1, 'a')",
    )  # fmt: skip
    before = rows_of(server, "parent")
    if "UPDATE" in action:
        xid = in_one(server, "UPDATE parent SET id = 2")
    else:
        xid = in_one(
            server, "INSERT INTO parent VALUES (2, 'b')", "INSERT INTO child VALUES (1, 2)"
        )
    in_one(server, "INSERT INTO child VALUES (2, 2)")
    after = [rows_of(server, name) for name in ("parent", "child")]
    script = written(server, tmp_path, "--xid", xid)
    done = applied(server, script)
    if kept:
        name = "parent_1" if parts else "parent"
        assert f"a foreign key to public.{name} changed rows that the undo" in done.stderr
        assert [rows_of(server, name) for name in ("parent", "child")] == after
        server.sql("DELETE FROM child WHERE id = 2")
        done = applied(server, script)
    assert done.returncode == 0, done.stderr
    assert rows_of(server, "parent") == before
    assert rows_of(server, "child") == ([] if kept else [("(2,1)",)])
