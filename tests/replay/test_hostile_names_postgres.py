"""Names and values that would leave their place in SQL, in a comment or on a terminal: psql judges.

Each table, column, schema and value is made of pieces that end a line, a quote or a comment. psql
runs what was written, in a directory where `\\! touch` would leave a file.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.seeds import drawn_seed
from walkeeper_cli.history.terminal import OnTerminal
from walkeeper_cli.program import run
from walkeeper_common.operator_text.printable import UNPRINTABLE

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]

PIECES = (
    "\n\\! touch seen\n", "\r\n\\! touch seen\r\n", "\r\\! touch seen\r", "\\! touch seen", "\n",
    "\nDROP TABLE public.victim;\n--", "'; DROP TABLE public.victim; --", '"', "'", "\\", "\\'",
    "$walkeeper$", "$walkeeper_$", "$$", "$", "/*", "*/", "--", ";", ":v", ":'v'", ':"v"', "%",
    "%s", "`touch seen`", "\\connect x", "\\g |touch seen", "\\'\n\\! touch seen\n", "\x7f",
    "\x1b]0;title\x07", "\x1b[2J", "\x9b2J", "\u2028\\! touch seen\u2028", "\u202e", "E'", 'U&"',
    "\x85\\! touch seen\x85", "\\000A", "ä", "漢", "\t", " ", ",", "=cmd()", "{", "}", "NULL",
    "coverage", "\\.",
)  # fmt: skip
NAME_BYTES_MAX = 63
TABLES = 14


@dataclass(frozen=True, slots=True)
class Hostile:
    """A table. If `commented`, its changes cannot be undone, so its name goes into comments."""

    schema: str
    name: str
    key: str
    columns: tuple[str, str]
    has_key: bool
    commented: str = ""

    @property
    def sql(self) -> Identifier:
        return Identifier(self.schema, self.name)

    @property
    def quoted(self) -> str:
        return ".".join('"' + part.replace('"', '""') + '"' for part in (self.schema, self.name))


class Work:
    """Tables made, filled, and damaged after `lsn`. `before` has their rows at `lsn`."""

    def __init__(self, server: PostgresServer, seed: int) -> None:
        self.server, self.random = server, random.Random(seed)
        self.path = str(server.data / "pg_wal")
        taken: set[str] = set()
        made = [self._table(number, taken) for number in range(TABLES)]
        self.tables = made
        with server.connect() as session:
            session.execute("CREATE TABLE public.victim (a int)")
            session.execute("INSERT INTO public.victim VALUES (1)")
            for table in made:
                self._create(session, table)
            self.before = {table: self.rows(table) for table in made}
            self.lsn = str(server.sql("SELECT pg_current_wal_insert_lsn()"))
            for table in made:
                self._damage(session, table)
            session.execute("UPDATE public.victim SET a = 2")

    def text(self, most: int = 1 << 20) -> str:
        pieces = self.random.choices(PIECES, k=self.random.randint(1, 5))
        return "".join(pieces).encode()[:most].decode(errors="ignore") or "x"

    def _table(self, number: int, taken: set[str]) -> Hostile:
        names: list[str] = []
        while len(names) < 5:
            name = self.text(NAME_BYTES_MAX)
            if name not in taken and not name.startswith("pg_"):
                taken.add(name)
                names.append(name)
        schema, table, key, one, two = names
        if number == 0:
            table = "evil\n\\! touch seen\nDROP TABLE public.victim; --"
        commented = {0: "rewritten", 1: "bytes", 2: "truncated bytes"}.get(number, "")
        return Hostile(schema, table, key, (one, two), number % 2 == 0, commented)

    def _create(self, session: Any, table: Hostile) -> None:
        one, two = map(Identifier, table.columns)
        key = SQL(" PRIMARY KEY" if table.has_key else "")
        kind = SQL("money" if "bytes" in table.commented else "text[]")
        session.execute(SQL("CREATE SCHEMA {}").format(Identifier(table.schema)))
        session.execute(
            SQL("CREATE TABLE {} ({} text{}, {} text, {} {})").format(
                table.sql, Identifier(table.key), key, one, two, kind
            )
        )
        for number in range(8):
            self._insert(session, table, number)

    def _insert(self, session: Any, table: Hostile, number: int) -> None:
        other: Any = "1" if "bytes" in table.commented else [self.text(), self.text()]
        values = [Literal(each) for each in (f"{number}{self.text()}", self.text(), other)]
        session.execute(SQL("INSERT INTO {} VALUES ({}, {}, {})").format(table.sql, *values))

    def _damage(self, session: Any, table: Hostile) -> None:
        key, one = Identifier(table.key), Identifier(table.columns[0])
        update = SQL("UPDATE {} SET {} = {} WHERE {} < '4'").format(
            table.sql, one, Literal(self.text()), key
        )
        with session.transaction():
            session.execute(update)
            if table.commented == "rewritten":
                alter = SQL("ALTER TABLE {} ALTER {} TYPE int USING 1")
                session.execute(alter.format(table.sql, one))
        delete = SQL("DELETE FROM {} WHERE {} LIKE '3%' OR {} LIKE '5%'")
        session.execute(delete.format(table.sql, key, key))
        if table.commented != "rewritten":
            self._insert(session, table, 9)
        if table.commented == "truncated bytes" or self.random.random() < 0.2:
            session.execute(SQL("TRUNCATE {}").format(table.sql))

    def rows(self, table: Hostile) -> list[Any]:
        query = SQL("SELECT t::text FROM {} t").format(table.sql)
        with self.server.connect() as session:
            return sorted(row[0] for row in session.execute(query))

    def history(self, *arguments: str) -> int:
        return run(["history", *arguments, "--path", self.path])

    def psql(self, at: Path, *arguments: str, options: str = "") -> tuple[int, str]:
        command = [program("psql"), "-X", "-q", "-d", self.server.dsn(), *arguments]
        environment = server_environment() | {"PGOPTIONS": options}
        done = subprocess.run(
            command, cwd=at, capture_output=True, text=True, timeout=120, env=environment
        )
        return done.returncode, done.stderr

    def psql_in_vain(self, at: Path, script: Path) -> None:
        """Run it where no statement succeeds, no SET either, and a backslash escapes a quote."""
        failing = ("-c", "BEGIN", "-c", "SELECT 1/0", "-f", str(script))
        self.psql(at, *failing, options="-c standard_conforming_strings=off")


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    settings = {"fsync": "off", "wal_keep_size": "8GB"}
    options = ["--wal-segsize=1", "--encoding=UTF8", "--locale=C"]
    with PostgresServer.create(settings, initdb_options=options) as server:
        yield Work(server, drawn_seed())


def test_undo_runs_nothing_but_its_own_statements(work: Work, tmp_path: Path) -> None:
    script = tmp_path / "undo.sql"
    place = ("--all-tables", "--start-lsn", work.lsn)
    assert work.history("undo", *place, "--output", str(script)) == 1
    written = script.read_text()
    for why in ("-- not undone: update", "-- not undone: delete", "-- not all of what truncate"):
        assert why in written
    work.psql_in_vain(tmp_path, script)
    assert [each.name for each in tmp_path.iterdir()] == ["undo.sql"]
    code, said = work.psql(tmp_path, "-v", "ON_ERROR_STOP=1", "-f", str(script))
    assert code == 0, said
    assert [each.name for each in tmp_path.iterdir()] == ["undo.sql"]
    assert work.server.rows("SELECT a FROM public.victim") == [(1,)]
    for table in work.tables:
        if not table.commented:
            assert work.rows(table) == work.before[table], table
    assert UNPRINTABLE.search(written.replace("\n", "")) is None


def test_table_at_writes_sql_that_makes_the_same_rows(
    work: Work, tmp_path: Path, capsys: Output
) -> None:
    for table in work.tables:
        if table.commented:
            continue
        script, place = tmp_path / "rows.sql", ("--lsn", work.lsn, "--format", "sql")
        assert work.history("table-at", table.quoted, *place, "-o", str(script)) == 0
        assert UNPRINTABLE.search(capsys.readouterr().err.replace("\n", "")) is None
        with work.server.connect() as session:
            session.execute(SQL("DELETE FROM {}").format(table.sql))
        work.psql_in_vain(tmp_path, script)
        code, said = work.psql(tmp_path, "-v", "ON_ERROR_STOP=1", "-f", str(script))
        assert code == 0, said
        assert work.rows(table) == work.before[table], table
        assert [each.name for each in tmp_path.iterdir()] == ["rows.sql"]
    assert work.server.sql("SELECT count(*) FROM public.victim") == 1


def test_an_error_of_undo_names_the_table_in_one_line(
    work: Work, tmp_path: Path, capsys: Output
) -> None:
    table, script = work.tables[0], tmp_path / "undo.sql"
    with work.server.connect() as session:
        lsn = str(work.server.sql("SELECT pg_current_wal_insert_lsn()"))
        session.execute(SQL("INSERT INTO {} VALUES ('new', 2, NULL)").format(table.sql))
        place = ("--table", table.quoted, "--start-lsn", lsn)
        assert work.history("undo", *place, "-o", str(script)) == 0
        delete = SQL("DELETE FROM {} WHERE {} = 'new'")
        session.execute(delete.format(table.sql, Identifier(table.key)))
    code, said = work.psql(tmp_path, "-v", "ON_ERROR_STOP=1", "-f", str(script))
    assert code != 0
    shown = "evil\\n\\! touch seen\\nDROP TABLE public.victim; -- is not as it was left"
    assert any(shown in line for line in said.split("\n")), said
    capsys.readouterr()
    assert work.history("table-at", "absent") == 1
    assert "known there" in (said := capsys.readouterr().err) and said.count("\n") == 1
    assert UNPRINTABLE.search(said.removesuffix("\n")) is None


def test_changes_are_lines_that_a_terminal_does_not_obey(
    work: Work, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("changes", "--start-lsn", work.lsn, "--allow-missing")
    assert work.history(*place, "--format", "json") == 0
    said = capsys.readouterr()
    assert UNPRINTABLE.search(said.out.replace("\n", "")) is None
    names = {(row["schema"], row["table"]) for row in map(json.loads, said.out.split("\n")[:-1])}
    assert {(table.schema, table.name) for table in work.tables} <= names
    assert UNPRINTABLE.search(said.err.replace("\n", "")) is None
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert work.history(*place) == 0
    assert UNPRINTABLE.search(terminal.getvalue().replace("\n", "").replace("\t", "")) is None


def test_names_in_findings_and_in_a_report_are_one_line(
    work: Work, tmp_path: Path, capsys: Output
) -> None:
    names = ("--dsn", work.server.dsn())
    assert work.history("find", "delete", *names) == 0
    found = capsys.readouterr().out
    assert "\\n\\! touch seen" in found
    assert UNPRINTABLE.search(found.replace("\n", "")) is None
    page = tmp_path / "page.html"
    assert work.history("report", "--output", str(page), *names) == 0
    assert UNPRINTABLE.search(page.read_text().replace("\n", "")) is None


def test_a_terminal_is_written_to_line_by_line() -> None:
    out = io.StringIO()
    OnTerminal(out).writelines(["a\tb\n", "\x1b[2J\x9b1m\u202eä\n"])
    assert out.getvalue() == "a\tb\n\\x1b[2J\\u009b1m\\u202eä\n"
