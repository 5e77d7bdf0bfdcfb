"""Changes that the WAL does not describe are named, in the exit code and in Spark; none is left out
in silence."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pyspark_pgwal.replayed_tables import past_reader
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run
from walkeeper_history.rows.heap_changes import FIRST_NORMAL_OID, heap_changes
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.reading import Batch

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off", "autovacuum": "off"}


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield server


def other(server: PostgresServer, *statements: str) -> None:
    """Run statements in the database shop."""
    with server.connect(dbname="shop") as session:
        for statement in statements:
            session.execute(statement.encode())


def later_wal(server: PostgresServer, path: Path, *, says_what_is_open: bool = True) -> Path:
    """Make a folder for the segments from here on; they begin with a checkpoint, or without."""
    server.sql("CHECKPOINT", "SELECT pg_switch_wal()")
    first = str(server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())"))
    path.mkdir()
    (path / "from").write_text(first)
    if says_what_is_open:
        server.sql("CHECKPOINT")
    return path


def copied(server: PostgresServer, path: Path) -> str:
    server.sql("SELECT pg_switch_wal()")
    first = (path / "from").read_text()
    for segment in (server.data / "pg_wal").glob("0*"):
        if segment.name >= first:
            shutil.copy(segment, path)
    return str(path)


def begin(session: psycopg.Connection, statement: str) -> int:
    """Begin a transaction with a statement that changes something; return its xid."""
    session.execute("BEGIN")
    session.execute(statement.encode())
    row = session.execute("SELECT txid_current()").fetchone()
    assert row is not None
    return int(row[0])


def history(capsys: Output, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run(["history", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_another_database_with_changes_is_named(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """It has no table that this WAL describes, so the other one is the only one with tables."""
    server.sql("CREATE DATABASE shop", "CREATE DATABASE calm")
    other(server, "CREATE TABLE sold (a int)")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("CREATE TABLE here (a int)", "INSERT INTO here VALUES (1)")
    other(server, "INSERT INTO sold VALUES (1)")
    with server.connect(dbname="calm") as session:  # its users' tables are as they were
        session.execute("VACUUM FULL pg_statistic")
        session.execute("ANALYZE pg_class")
    path = copied(server, wal)
    for command in (("changes",), ("undo", "--all-tables")):
        code, out, said = history(capsys, *command, "--path", path)
        assert code == 1 and "here" in out
        assert (
            "missing: database" in said
            and "(1 in all)" in said
            and "it was changed here and is not looked at" in said
        )
        assert history(capsys, *command, "--path", path, "--allow-missing") == (0, out, said)
        code, _, said = history(capsys, *command, "--path", path, "--database", "postgres")
        assert code == 0 and "missing" not in said


def test_a_database_that_had_the_name_before_is_named(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    wal = later_wal(server, tmp_path / "wal")
    server.sql("CREATE DATABASE shop")
    other(server, "CREATE TABLE sold (a int)", "INSERT INTO sold VALUES (1)")
    first = str(server.sql("SELECT oid FROM pg_database WHERE datname = 'shop'"))
    server.sql("DROP DATABASE shop", "CREATE DATABASE shop", "CREATE DATABASE calm")
    other(server, "CREATE TABLE sold (a int)", "INSERT INTO sold VALUES (2)")
    between = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    other(server, "INSERT INTO sold VALUES (3)")
    path = copied(server, wal)
    command = ("changes", "--path", path, "--database", "shop")
    for table in ((), ("--table", "sold")):
        code, out, said = history(capsys, *command, *table)
        assert code == 1 and out.count("sold") == 2
        assert f"missing: database {first} (1 in all)" in said
    code, out, said = history(capsys, *command, "--start-lsn", between)
    assert (code, out.count("sold"), "missing" in said) == (0, 1, False)
    code, out, said = history(capsys, "changes", "--path", path, "--database", first)
    assert out.count("sold") == 1 and "missing: database" not in said
    second = str(server.sql("SELECT oid FROM pg_database WHERE datname = 'shop'"))
    code, _, said = history(capsys, "changes", "--path", path, "--database", second)
    assert (code, "missing" in said) == (0, False)


def test_a_truncation_in_a_database_that_had_the_name_before_is_named(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql("CREATE DATABASE shop")
    other(server, "CREATE TABLE sold AS SELECT 1 AS a", "CREATE INDEX sold_a ON sold (a)")
    first = str(server.sql("SELECT oid FROM pg_database WHERE datname = 'shop'"))
    wal = later_wal(server, tmp_path / "wal")
    other(server, "TRUNCATE sold")
    between = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    other(server, "REINDEX INDEX sold_a")
    server.sql("DROP DATABASE shop", "CREATE DATABASE shop")
    command = ("changes", "--path", copied(server, wal), "--database", "shop")
    code, _, said = history(capsys, *command)
    assert code == 1 and f"missing: database {first} (1 in all)" in said
    code, _, said = history(capsys, *command, "--start-lsn", between)
    assert code == 0 and "missing" not in said, said


def test_a_transaction_is_asked_for_alone(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql("CREATE TABLE older (a int)")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("CREATE TABLE named (a int)")
    known = str(server.sql("WITH x AS (INSERT INTO named VALUES (1) RETURNING 1) "
                           "SELECT txid_current() FROM x"))  # fmt: skip
    unknown = str(server.sql("WITH x AS (INSERT INTO older VALUES (1) RETURNING 1) "
                             "SELECT txid_current() FROM x"))  # fmt: skip
    path = copied(server, wal)
    for command in ("changes", "undo"):
        code, out, said = history(capsys, command, "--path", path, "--xid", known)
        assert code == 0 and "named" in out and "missing" not in said
        code, _, said = history(capsys, command, "--path", path, "--xid", unknown)
        assert code == 1 and "missing: file" in said


def test_a_transaction_that_began_before_is_in_the_exit_code(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql("CREATE TABLE t (a int)")
    with server.connect() as session:
        xid = begin(session, "INSERT INTO t VALUES (1)")
        backup = server.base_backup()
        session.execute("INSERT INTO t VALUES (2)")
        session.execute("COMMIT")
    try:
        path = ("--path", str(server.data / "pg_wal"), "--base", str(backup.data))
        code, _, said = history(capsys, "changes", *path)
        assert code == 1 and f"missing: transaction {xid} (1 in all): it began before" in said
        code, _, said = history(capsys, "changes", *path, "--xid", str(xid + 1))
        assert code == 0 and "missing" not in said
    finally:
        backup.delete()


def test_a_transaction_is_seen_to_have_begun_before_the_wal_without_a_backup(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """Its record is the WAL's first one. A later transaction ended before."""
    with server.connect() as session:
        xid = begin(session, "CREATE TABLE t AS SELECT 1 AS a")
        server.sql("SELECT txid_current()")
        wal = later_wal(server, tmp_path / "wal")
        session.execute("INSERT INTO t VALUES (2)")
        session.execute("COMMIT")
    server.sql("CREATE TABLE named (a int)", "INSERT INTO named VALUES (7)", "CHECKPOINT")
    path = ("--path", copied(server, wal), "--database", "postgres")
    code, out, said = history(capsys, "changes", *path)
    assert f"missing: transaction {xid} (1 in all): it began before this WAL" in said
    assert code == 1 and "named" in out


def test_a_transaction_that_may_have_begun_before_is_named(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """It is the only one, so the WAL does not show that it had begun before."""
    server.sql("CREATE TABLE t (a int)")
    with server.connect() as session:
        xid = begin(session, "INSERT INTO t VALUES (1)")
        wal = later_wal(server, tmp_path / "wal", says_what_is_open=False)
        session.execute("ALTER TABLE t ALTER a SET STATISTICS 5")  # describes it
        session.execute("ALTER TABLE t SET (fillfactor = 90)")
        session.execute("INSERT INTO t VALUES (2)")
        session.execute("COMMIT")
    server.sql("CHECKPOINT")
    later = server.sql("WITH x AS (INSERT INTO t VALUES (3) RETURNING 1) "
                       "SELECT txid_current() FROM x")  # fmt: skip
    path = ("--path", copied(server, wal), "--database", "postgres")
    code, out, said = history(capsys, "changes", *path)
    assert code == 0 and out.count("insert") == 2
    assert f"transaction {xid} may have begun before this WAL, and so may others" in said
    code, out, said = history(capsys, "undo", "--all-tables", *path)
    assert code == 1 and "missing: range up to 0/" in said
    assert history(capsys, "undo", "--all-tables", *path, "--allow-missing") == (0, out, said)
    for command in ("changes", "undo"):
        code, _, said = history(capsys, command, *path, "--xid", str(later))
        assert code == 0 and "may have begun before" not in said
    to, state = str(tmp_path / "to"), str(tmp_path / "state")
    code, _, said = history(capsys, "stream", *path, "--to", to, "--state", state, "--once")
    assert code == 0 and said.count("may have begun before") == 1, said


def test_a_table_of_this_wal_is_named_by_its_file_if_the_catalogs_are_not_known(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """Blocks of older catalogs are not known with full_page_writes = off."""
    server.configure({"full_page_writes": "off"})
    server.reload()
    server.sql("CREATE TABLE older (a int)")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
    file = server.sql("SELECT pg_relation_filenode('t')")
    passing = "CREATE TABLE passing AS SELECT 1; DROP TABLE passing; SELECT txid_current()"
    xid = server.sql(f"BEGIN; {passing}; COMMIT", "SELECT txid_current() - 1")
    path = ("--path", copied(server, wal), "--database", "postgres")
    for command in (("changes",), ("undo", "--all-tables")):
        code, _, said = history(capsys, *command, *path)
        assert code == 1 and f"/{file} " in said.replace(",", " "), said
    assert history(capsys, "changes", *path, "--xid", str(xid))[0] == 0


@pytest.mark.parametrize("statement", ["TRUNCATE older", "DROP TABLE older"])
def test_rows_that_go_with_a_file_are_missing_if_the_catalogs_are_not_known(
    server: PostgresServer, tmp_path: Path, capsys: Output, statement: str
) -> None:
    """A TRUNCATE of two tables was in neither `changes` nor what they lack."""
    server.configure({"full_page_writes": "off"})
    server.reload()
    server.sql("CREATE TABLE older (a int)", "INSERT INTO older VALUES (1)")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("CREATE TABLE named (a int)")
    file = server.sql("SELECT pg_relation_filenode('older')")
    server.sql(statement)
    begin = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
    server.sql("BEGIN; CREATE TABLE t (a int); ALTER TABLE t ALTER a TYPE bigint; COMMIT")
    path = ("--path", copied(server, wal), "--database", "postgres")
    for command in (("changes",), ("undo", "--all-tables")):
        code, _, said = history(capsys, *command, *path)
        assert code == 1 and f"/{file} " in said.replace(",", " "), said
        code, _, said = history(capsys, *command, *path, "--start-lsn", begin)
        assert code == 0 and "missing" not in said, said


@pytest.mark.parametrize("has_base", [False, True], ids=["WAL alone", "over a base"])
def test_a_range_that_begins_before_the_wal_is_in_the_exit_code(
    server: PostgresServer, tmp_path: Path, capsys: Output, has_base: bool
) -> None:
    """Commits before it are missing, so that undo of the range takes back a part."""
    server.sql("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)")
    lsn, time = server.rows("SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()::text")[0]
    server.sql("INSERT INTO t VALUES (2)", "SELECT pg_sleep(1)")
    wal = later_wal(server, tmp_path / "wal")
    backup = server.base_backup() if has_base else None
    inside, later = server.rows(
        "SELECT pg_current_wal_insert_lsn()::text, clock_timestamp()::text"
    )[0]
    server.sql("CREATE TABLE named (a int)", "INSERT INTO named VALUES (3)")
    path = ["--path", copied(server, wal)] + (["--base", str(backup.data)] if backup else [])
    try:
        for start in (["--start-lsn", lsn], ["--start-time", time]):
            for command in (["changes"], ["undo", "--all-tables"]):
                code, _, said = history(capsys, *command, *path, *start)
                assert code == 1 and "missing: range before 0/" in said, said
                assert history(capsys, *command, *path, *start, "--allow-missing")[0] == 0
        code, out, said = history(capsys, "changes", *path, "--start-lsn", inside)
        assert code == 0 and "named" in out and "missing" not in said, said
        if backup is not None:
            code, out, said = history(capsys, "changes", *path, "--start-time", later)
            assert code == 0 and "named" in out and "missing" not in said, said
    finally:
        if backup is not None:
            backup.delete()


def test_a_table_whose_columns_are_not_known_does_not_keep_the_others_back(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """Its row of pg_class is there, and rows of pg_attribute are not."""
    columns = ", ".join(f"c{number} int" for number in range(300))
    server.sql(f"CREATE TABLE wide ({columns})")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("ALTER TABLE wide SET (fillfactor = 50)", "INSERT INTO wide (c1) VALUES (1)",
               "CREATE TABLE named (a int)", "INSERT INTO named VALUES (7)")  # fmt: skip
    path = ("--path", copied(server, wal), "--database", "postgres")
    code, out, said = history(capsys, "changes", *path)
    assert code == 1 and "public,named,insert" in out
    assert "missing: table public.wide (1 in all): public.wide has 300 columns, of which" in said
    code, out, said = history(capsys, "changes", *path, "--table", "wide")
    assert code == 1 and not out and "error: public.wide has 300 columns" in said


def test_changes_after_missing_wal_are_not_complete(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql("CREATE TABLE t (a int)", "INSERT INTO t VALUES (1)", "SELECT pg_switch_wal()")
    server.sql("INSERT INTO t VALUES (2)")
    lost = str(server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())"))
    server.sql("SELECT pg_switch_wal()", "INSERT INTO t VALUES (3)", "SELECT pg_switch_wal()")
    path = tmp_path / "wal"
    path.mkdir()
    for segment in (server.data / "pg_wal").glob("0*"):
        if segment.name != lost:
            shutil.copy(segment, path)
    where = ("--path", str(path), "--table", "t")
    code, _, said = history(capsys, "changes", *where)
    assert code == 1 and "missing between" in said
    code, out, said = history(capsys, "changes", *where, "--on-error", "skip")
    assert code == 0 and "missing between" in said
    coverages = [line.rpartition(",")[2] for line in out.splitlines()[1:]]
    assert coverages[0] == "complete" and len(coverages) == 2
    assert coverages[1].startswith("WAL before it is missing or damaged")
    code, out, _ = history(capsys, "undo", *where, "--on-error", "skip")
    assert code == 1 and "-- not undone: insert of public.t: WAL before it" in out


def test_changes_of_a_damaged_record_are_not_complete(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    """The second pass checks no CRC, so the damaged row was shown, and undone, as complete."""
    server.sql("CREATE TABLE t (a text)", "INSERT INTO t VALUES ('before')")
    with server.connect() as session:  # its commit is on a later page, which is read
        begin(session, "INSERT INTO t VALUES ('damaged value')")
        session.execute("INSERT INTO t SELECT repeat('long', 250) FROM generate_series(1, 20)")
        session.execute("COMMIT")
    server.sql("SELECT pg_switch_wal()")
    wal = tmp_path / "wal"
    wal.mkdir()
    for segment in (server.data / "pg_wal").glob("0*"):
        (wal / segment.name).write_bytes(segment.read_bytes().replace(b"damaged v", b"damagEd v"))
    where = ("--path", str(wal), "--table", "t")
    code, _, said = history(capsys, "changes", *where)
    assert code == 1 and "checksum in record" in said
    code, out, said = history(capsys, "changes", *where, "--on-error", "skip")
    assert code == 0 and "checksum in record" in said
    (first, *lines) = out.splitlines()[1:]
    assert "before" in first and first.endswith("complete") and len(lines) == 21
    assert all("WAL before it is missing or damaged" in line for line in lines)
    code, out, _ = history(capsys, "undo", *where, "--on-error", "skip")
    assert code == 1 and out.count("-- not undone: insert of public.t: WAL before it") == 21
    given = {"path": str(wal), "table": "changes", "relation": "t", "parts": "1"}
    made = past_reader({**given, "onerror": "skip"}, None)
    (part,) = made.partitions()
    batches: Iterator[Any] = made.read(part)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["coverage"] == "complete" for row in rows] == [True] + 21 * [False]


def test_no_database_that_is_described_is_an_error_that_says_so(
    server: PostgresServer, tmp_path: Path, capsys: Output
) -> None:
    server.sql("CREATE TABLE older (a int)")
    wal = later_wal(server, tmp_path / "wal")
    server.sql("INSERT INTO older VALUES (1)")
    code, _, said = history(capsys, "changes", "--path", copied(server, wal))
    assert code == 1 and "known at this LSN:" in said


def test_large_objects_that_were_changed_are_named(
    server: PostgresServer, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No table is pg_largeobject, and undo of a row does not bring back the object it names.

    The index is as an earlier version wrote it.
    """

    def earlier(batch: Batch) -> Column:
        found = heap_changes(batch)
        kept: Column = found[found[:, 2] >= FIRST_NORMAL_OID]
        return kept

    monkeypatch.setattr("walkeeper_history.segment_facts.heap_changes", earlier)
    base, said_so = tmp_path / "base", "pg_catalog.pg_largeobject"
    server.sql("CREATE TABLE docs (id int, lo oid)")
    server.sql("INSERT INTO docs VALUES (1, lo_from_bytea(0, 'one')), (2, 0)")
    server.stop()
    shutil.copytree(server.data, base)
    server.start()
    with server.connect() as session:
        bare = begin(session, "DELETE FROM docs WHERE id = 2")
        session.execute("COMMIT")
        session.execute("SELECT pg_switch_wal()")
        alone = begin(session, "SELECT lo_from_bytea(50000, 'x')")  # in a segment without a row
        session.execute("COMMIT")
        session.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 1200000))")
        gone = begin(session, "DELETE FROM docs RETURNING lo_unlink(lo)")
        session.execute("COMMIT")
        session.execute("VACUUM FULL pg_largeobject")
        late = begin(session, "INSERT INTO docs VALUES (3, lo_from_bytea(0, 'two'))")
        session.execute("COMMIT")
        session.execute("CHECKPOINT")
    own = ["--path", str(server.data / "pg_wal"), "--database", "postgres"]
    index = str(tmp_path / "index")
    assert history(capsys, "index", "--path", own[1], "--output", index)[0] == 0
    for options in ((), ("--base", str(base)), ("--base", str(base), "--index", index)):
        code, out, said = history(capsys, "changes", *own, *options)
        assert code == 0 and said_so in said and "large" not in out
        code, _, said = history(capsys, "changes", *own, *options, "--table", "docs")
        assert code == 0 and said_so not in said
        for xid in (gone, late, alone):
            code, out, said = history(capsys, "undo", "--xid", str(xid), *own, *options)
            assert code == 1 and f"missing: table {said_so}" in said, (xid, options)
            assert ("docs" in out) is (xid != alone)
        code, out, said = history(capsys, "undo", "--xid", str(bare), *own, *options)
        assert code == 0 and said_so not in said and "docs" in out
    to = ("--to", str(tmp_path / "to"), "--state", str(tmp_path / "state"), "--once")
    code, _, said = history(capsys, "stream", *own, "--base", str(base), *to)
    assert code == 0 and said_so in said
