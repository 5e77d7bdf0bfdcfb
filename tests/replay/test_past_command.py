"""`walkeeper history table-at | changes | undo` as a user runs them, on a real server's pg_wal."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from crc32c import crc32c

from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.waiting import LIMIT_S
from walkeeper_cli.history.server_catalog import catalog_of_server
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.table_at import coverage_of
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off"}
_CONTROL_CRC = 288


Output = pytest.CaptureFixture[str]


def done(capsys: Output, *arguments: str) -> str:
    capsys.readouterr()
    code = run(["history", *arguments])
    text = capsys.readouterr()
    assert code == 0, text.err
    return text.out


def failed(capsys: Output, *arguments: str) -> tuple[int, str]:
    code = run(["history", *arguments])
    return code, capsys.readouterr().err


class Shop:
    """A server with some work done and some damage, and its state before that."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.wal = server, str(server.data / "pg_wal")
        self.run(
            "CREATE TABLE orders (id int PRIMARY KEY, who text, amount numeric(10,2), "
            "at timestamptz)",
            "CREATE TABLE notes (t text, j json, b bool, c char(5))",
            "INSERT INTO orders SELECT i, CASE WHEN i % 5 > 0 THEN 'who ''' || i END, i / 7.0, "
            "'2024-01-01Z'::timestamptz + i * interval '1 h' FROM generate_series(1, 300) i",
            """INSERT INTO notes SELECT repeat('n, "', i), '{"a": 1}', i % 2 = 0, 'x' """
            "FROM generate_series(1, 20) i",
        )
        self.before = self.rows()
        self.lsn = self.mark()
        self.run(
            "UPDATE orders SET amount = 0, who = NULL WHERE id % 3 = 0",
            "DELETE FROM notes WHERE b",
            "INSERT INTO notes SELECT 'more', '{}', NULL, 'yz'",
            "UPDATE orders SET id = -id WHERE id % 10 = 0",
            "BEGIN; DELETE FROM orders WHERE id > 200; INSERT INTO orders VALUES (9999); COMMIT",
            "TRUNCATE notes",
        )
        self.damaged = self.mark()

    def run(self, *statements: str) -> None:
        with self.server.connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def mark(self) -> str:
        return str(Lsn.parse(self.server.sql("SELECT pg_current_wal_insert_lsn()")))

    def rows(self) -> list[Any]:
        return [
            sorted(map(str, self.server.rows(f"SELECT {table}::text FROM {table}")))
            for table in ("orders", "notes")
        ]

    def psql(self, path: Path) -> subprocess.CompletedProcess[str]:
        command = [program("psql"), "-X", "-v", "ON_ERROR_STOP=1", "-d", self.server.dsn()]
        return subprocess.run(
            [*command, "-f", str(path)], capture_output=True, text=True, timeout=LIMIT_S,
            env=server_environment(),
        )  # fmt: skip


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WALKEEPER_DSN", raising=False)


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Shop(server)


def test_table_at_writes_csv_parquet_and_sql(shop: Shop, tmp_path: Path, capsys: Output) -> None:
    where = ("--path", shop.wal, "--lsn", shop.lsn)
    rows = list(csv.DictReader(io.StringIO(done(capsys, "table-at", "orders", *where))))
    assert len(rows) == 300
    assert rows[0] == {
        "id": "1", "who": "who '1", "amount": "0.14", "at": "2024-01-01 01:00:00+00",
    }  # fmt: skip
    assert rows[4]["who"] == ""
    done(capsys, "table-at", "public.orders", *where, "--output", str(tmp_path / "o.parquet"))
    table = parquet.read_table(tmp_path / "o.parquet")
    assert table["id"].to_pylist() == list(range(1, 301))
    assert set(table["coverage"].to_pylist()) == {"complete"}
    done(capsys, "table-at", "orders", *where, "--output", str(tmp_path / "o.sql"))
    shop.run("CREATE SCHEMA kept", "CREATE TABLE kept.orders (LIKE public.orders)")
    text = (tmp_path / "o.sql").read_text().replace('"public"."orders"', '"kept"."orders"')
    (tmp_path / "k.sql").write_text(text)
    assert shop.psql(tmp_path / "k.sql").returncode == 0
    again = shop.server.rows("SELECT orders::text FROM kept.orders")
    assert sorted(map(str, again)) == shop.before[0]


def test_changes_tell_a_rows_history(shop: Shop, capsys: Output) -> None:
    row = ("--table", "public.orders", "--where", "id=30", "--end-lsn", shop.damaged)
    text = done(capsys, "changes", "--path", shop.wal, *row, "--format", "json")
    history = [json.loads(line) for line in text.splitlines()]
    assert [each["operation"] for each in history] == ["insert", "update", "update"]
    assert history[1]["old"]["amount"] == "4.29" and history[1]["new"]["amount"] == "0.00"
    assert history[2]["new"]["id"] == "-30"
    lines = done(
        capsys, "changes", "--path", shop.wal, "--start-lsn", shop.lsn, "--end-lsn", shop.damaged
    )
    operations = [row["operation"] for row in csv.DictReader(io.StringIO(lines))]
    assert operations.count("update") == 130 and operations.count("truncate") == 1
    assert operations.count("delete") == 10 + 90 and operations.count("insert") == 2


def test_undo_brings_the_rows_back_once(shop: Shop, tmp_path: Path, capsys: Output) -> None:
    script = tmp_path / "undo.sql"
    done(capsys, "undo", "--path", shop.wal, "--all-tables", "--start-lsn", shop.lsn,
         "--end-lsn", shop.damaged, "--output", str(script))  # fmt: skip
    applied = shop.psql(script)
    assert applied.returncode == 0, applied.stderr
    assert shop.rows() == shop.before
    again = shop.psql(script)
    assert again.returncode != 0
    assert shop.rows() == shop.before


def test_a_server_can_name_what_the_wal_does_not(shop: Shop, capsys: Output) -> None:
    """From a checkpoint on, catalogs are not in the WAL; the rows' pages are, once changed."""
    shop.run("CREATE TABLE old (id int PRIMARY KEY, t text)", "INSERT INTO old VALUES (1, 'a')")
    shop.run("CHECKPOINT", "SELECT pg_switch_wal()")
    begin = shop.mark()
    shop.run("INSERT INTO old VALUES (2, 'b')", "UPDATE old SET t = 'c' WHERE id = 1")
    where = ("--path", shop.wal, "--start-lsn", begin)
    code, text = failed(capsys, "table-at", "public.old", *where)
    assert code == 1 and "walkeeper" in text
    named = ("table-at", "public.old", *where, "--dsn", shop.server.dsn())
    code, text = failed(capsys, *named)
    assert code == 1 and "2 rows; made before this WAL" in text
    rows = done(capsys, *named, "--allow-missing")
    assert rows.splitlines() == ["id,t", "2,b", "1,c"]


def test_changes_of_tables_that_the_wal_does_not_name_are_reported(
    shop: Shop, tmp_path: Path, capsys: Output
) -> None:
    shop.run("CREATE TABLE unnamed (id int)", "INSERT INTO unnamed VALUES (1)")
    file = shop.server.sql("SELECT pg_relation_filepath('unnamed')").split("/")[-1]
    shop.run("CHECKPOINT", "SELECT pg_switch_wal()")
    begin = shop.mark()
    shop.run("CREATE TABLE named AS SELECT 1 AS id", "BEGIN; DELETE FROM unnamed; ROLLBACK")
    between = shop.mark()
    shop.run("INSERT INTO unnamed VALUES (2)", "SELECT pg_switch_wal()")
    first = shop.server.sql(f"SELECT pg_walfile_name('{begin}')")
    for segment in Path(shop.wal).glob("0*"):
        if segment.name >= first:
            shutil.copy(segment, tmp_path)
    where = ("--path", str(tmp_path), "--database", "postgres")
    for arguments in (("changes",), ("undo", "--all-tables")):
        code, said = failed(capsys, *arguments, *where)
        assert code == 1 and "missing: file 1663/" in said
        assert f"/{file} (1 in all): this WAL does not say whose it is" in said
        assert failed(capsys, *arguments, *where, "--allow-missing") == (0, said)
    for whole in (("--path", str(tmp_path), "--end-lsn", between), ("--path", shop.wal)):
        code, said = failed(capsys, "changes", *whole)
        assert code == 0 and "missing: file" not in said


def test_rows_that_the_wal_lacks_are_not_called_complete(
    shop: Shop, tmp_path: Path, capsys: Output
) -> None:
    """A table older than the WAL: nothing of it there, then one of its blocks, then TRUNCATE."""
    shop.run("CREATE TABLE older (id int, t text)", "CREATE TABLE other (id int)")
    shop.run("INSERT INTO older SELECT i, repeat('x', 100) FROM generate_series(1, 300) i")
    shop.run("CHECKPOINT", "SELECT pg_switch_wal()")
    begin = shop.mark()
    shop.run("INSERT INTO other VALUES (1)")
    nothing = shop.mark()
    # Both columns: their rows of pg_attribute may lie in two pages.
    targets = ", ".join(f"ALTER {column} SET STATISTICS 7" for column in ("id", "t"))
    shop.run("UPDATE older SET t = 'y' WHERE id = 1", f"ALTER TABLE older {targets}")
    shop.run("BEGIN; TRUNCATE older; COMMIT", "SELECT pg_switch_wal()")
    first = shop.server.sql(f"SELECT pg_walfile_name('{begin}')")
    for segment in Path(shop.wal).glob("0*"):
        if segment.name >= first:
            shutil.copy(segment, tmp_path)
    where = ("--path", str(tmp_path))
    output = str(tmp_path / "rows.parquet")
    code, said = failed(
        capsys, "table-at", "older", *where, "--lsn", nothing, "--dsn", shop.server.dsn(),
        "--output", output,
    )  # fmt: skip
    assert code == 1 and "0 rows; made before this WAL" in said and "complete" not in said
    assert coverage_of(parquet.read_table(output)) in said
    code, said = failed(capsys, "undo", *where, "--table", "older", "--output", f"{output}.sql")
    assert code == 1 and "1 cannot" in said, said
    script = Path(f"{output}.sql").read_text()
    assert "-- not all of what truncate took from public.older: made before this WAL" in script
    assert script.count("INSERT INTO") >= 1


def test_the_dsn_of_the_environment_does_not_stand_between_the_wal_and_its_reader(
    shop: Shop, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for `create` and `proposer`: of a server that has dropped the table, is of
    another cluster, or is gone."""
    shop.run("CREATE TABLE gone (id int)", "INSERT INTO gone VALUES (1), (2)")
    lsn = shop.mark()
    shop.run("DROP TABLE gone")
    where = ("--path", shop.wal)
    for dsn in (shop.server.dsn(), "host=/none"):
        monkeypatch.setenv("WALKEEPER_DSN", dsn)
        assert done(capsys, "table-at", "gone", *where, "--lsn", lsn) == "id\n1\n2\n"
        assert "drop" in done(capsys, "find", "drop", *where)
    said = failed(capsys, "find", "all", *where)[1]
    assert "without names of the server of WALKEEPER_DSN" in said
    code, said = failed(capsys, "table-at", "never", *where)
    assert code == 1 and "no table never in database postgres" in said
    code, _ = failed(capsys, "tables", *where, "--output", str(tmp_path / "tables"))
    assert code == 1  # it would have other columns than the files of a run before
    assert failed(capsys, "find", "drop", *where, "--dsn", "host=/none")[0] == 1
    assert failed(capsys, "table-at", "gone", *where, "--lsn", lsn, "--dsn", "host=/none")[0] == 1
    with pytest.raises(HistoryError, match=r"the server is of cluster .*, the WAL is of 7"):
        catalog_of_server(shop.server.dsn(), 0, system_id=7, database=None)
    with pytest.raises(HistoryError, match="--dsn is of database postgres, --database says shop"):
        catalog_of_server(shop.server.dsn(), 0, system_id=None, database="shop")


def test_an_answer_for_a_place_after_the_wal_says_so(
    shop: Shop, tmp_path: Path, capsys: Output
) -> None:
    shop.run("SELECT pg_switch_wal()")
    for segment in sorted(Path(shop.wal).glob("0*")):
        if segment.name < shop.server.sql("SELECT pg_walfile_name(pg_current_wal_lsn())"):
            shutil.copy(segment, tmp_path)
    end = shop.server.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")
    log, number = int(end[8:16], 16), int(end[16:24], 16)
    switched = Lsn((log << 32) + (number << 20))
    where = ("table-at", "orders", "--path", str(tmp_path))
    for place in ((), ("--lsn", str(switched)), ("--lsn", shop.lsn)):
        assert "warning" not in failed(capsys, *where, *place)[1], place
    live = ("table-at", "orders", "--path", shop.wal)
    inside = shop.server.sql("SELECT pg_logical_emit_message(true, 'test', '')")
    assert "warning" not in failed(capsys, *live, "--lsn", inside)[1]
    behind = str(Lsn.parse(shop.mark()) + 4096)
    for place in (("--lsn", behind), ("--time", "2100-01-01")):
        code, said = failed(capsys, *live, *place)
        assert code == 1 and "warning: the last record of this WAL ends at" in said, place
        assert "rows; the WAL ends at" in said and "before what was asked for" in said
    assert "ends at" in failed(capsys, "changes", *live[2:], "--end-lsn", behind)[1]


def test_a_column_called_coverage_is_the_tables(shop: Shop, tmp_path: Path, capsys: Output) -> None:
    """Parquet, CSV and SQL lost it, or had two."""
    shop.run('CREATE TABLE insured (id int, coverage text, "_Coverage" int)')
    shop.run("INSERT INTO insured VALUES (1, 'all risks', 2)")
    where = ("table-at", "insured", "--path", shop.wal)
    assert done(capsys, *where) == "id,coverage,_Coverage\n1,all risks,2\n"
    assert "('1', 'all risks', '2')" in done(capsys, *where, "--format", "sql")
    path = str(tmp_path / "insured.parquet")
    done(capsys, *where, "-o", path)
    names = ["id", "coverage", "_Coverage", "__coverage"]
    assert parquet.read_table(path).column_names == names
    assert parquet.read_table(path)["__coverage"].to_pylist() == ["complete"]


def test_output_files_are_utf8_in_every_locale(shop: Shop, tmp_path: Path) -> None:
    """SQL names its encoding, since psql would take it for the locale's."""
    shop.run("CREATE TABLE words (w text)", "INSERT INTO words VALUES ('Größe: 5 €')")
    locale = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    command = [sys.executable, "-m", "walkeeper_cli", "history", "table-at", "words"]
    command += ["--path", shop.wal, "--output", str(tmp_path / "words.sql")]
    done = subprocess.run(
        command, env={**os.environ, **locale}, capture_output=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr.decode()
    text = (tmp_path / "words.sql").read_bytes()
    assert "('Größe: 5 €')".encode() in text
    assert text.startswith(b"SET client_encoding = 'UTF8';\n")


def test_errors_say_what_to_do(shop: Shop, tmp_path: Path, capsys: Output) -> None:
    code, text = failed(capsys, "table-at", "nothing", "--path", shop.wal)
    assert code == 1
    assert "no table nothing in database postgres" in text
    assert "public.orders" in text
    code, text = failed(capsys, "table-at", "orders", "--path", shop.wal, "--base", str(tmp_path))
    assert code == 1 and "PG_VERSION" in text
    for option in ("--end-lsn", "--end-time", "--start-time"):
        value = "0/5" if option == "--end-lsn" else "2024-01-01"
        for command in (("table-at", "orders"), ("tail",)):
            code, text = failed(capsys, *command, "--path", shop.wal, option, value)
            assert code == 2 and f"{option} has no meaning here" in text
    code, text = failed(capsys, "undo", "--path", shop.wal)
    assert code == 2 and "--table" in text
    code, text = failed(capsys, "table-at", "orders", "--path", shop.wal, "--lsn", "FF/0")
    assert code == 1 and "the WAL ends" in text


def test_find_has_names_from_a_base_backup_and_the_wal_since(shop: Shop, capsys: Output) -> None:
    shop.run('CREATE TABLE "Kept" (id int, t text)', 'INSERT INTO "Kept" VALUES (7)')
    backup = shop.server.base_backup()
    try:
        shop.run("CREATE TABLE later (id int)", 'DROP TABLE later, "Kept"', "SELECT txid_current()")
        where = ("--path", shop.wal, "--base", str(backup.data))
        begin = Lsn(BaseDirectory(str(backup.data)).redo_lsn)
        text = done(capsys, "find", "drop", *where, "--start-lsn", str(begin))
        assert "postgres.public.later (1663/" in text
        assert 'postgres.public."Kept" (1663/' in text
        assert 'TOAST of public."Kept" (1663/' in text
        one = done(capsys, "find", "drop", *where, "--relation", "public.later")
        assert "transaction" in one
        code, said = failed(capsys, "find", "drop", *where, "--relation", "public.never")
        assert code == 2 and "no relation has that name" in said
        control = backup.data / "global" / "pg_control"  # begins with the system's identifier
        fields = bytes(8) + control.read_bytes()[8:_CONTROL_CRC]
        control.write_bytes(fields + crc32c(fields).to_bytes(4, "little"))
        for command in (("find", "drop"), ("table-at", "orders")):
            code, said = failed(capsys, *command, *where)
            assert code == 1 and "is of cluster 0, the WAL is of" in said
    finally:
        backup.delete()
