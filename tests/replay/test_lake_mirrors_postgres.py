"""Mirrors in Delta and Iceberg: equal to the server's tables through any death, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.replay.test_change_stream_postgres import SETTINGS, Died, one_segment
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.history import stream as streaming
from walkeeper_cli.history.wal_options import Source
from walkeeper_cli.program import run
from walkeeper_replay.lakes.delta_mirrors import DeltaMirrors
from walkeeper_replay.lakes.iceberg_mirrors import IcebergMirrors
from walkeeper_replay.lakes.lake_mirrors import MIRROR, SCD2, Mirrors
from walkeeper_replay.lakes.table_maintenance import Retention
from walkeeper_replay.streams.change_windows import ChangeStream, Scope

pytest.importorskip("deltalake", reason="pip install 'walkeeper[lake]'")
pytest.importorskip("pyiceberg", reason="pip install 'walkeeper[lake]'")
pytestmark = [
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Output = pytest.CaptureFixture[str]
Rows = list[tuple[Any, ...]]
FILL = "INSERT INTO busy SELECT i, repeat(md5(i::text), 60) FROM generate_series(1, 400) i"
LONG = "(SELECT string_agg(md5((i * {0})::text), '') FROM generate_series(1, 300) i)"


def work(server: PostgresServer) -> None:
    """Change tables of one and of two keys over some segments, with TRUNCATE and a new column."""
    server.sql("CREATE TABLE busy (id int, t text)")
    server.sql('CREATE TABLE pairs (a int, "B" text, n numeric, PRIMARY KEY (a, "B"))')
    server.sql("CREATE TABLE cut (id int PRIMARY KEY, d date, at timestamp)")
    server.sql(f"INSERT INTO early VALUES (200, {LONG.format(7)})")
    server.sql("INSERT INTO pairs SELECT i, 'b' || i % 3, i / 7.0 FROM generate_series(1, 50) i")
    server.sql("INSERT INTO cut SELECT i, '2024-01-01', '2024-05-01 12:00' "
               "FROM generate_series(1, 9) i")  # fmt: skip
    server.sql(FILL)
    server.sql("UPDATE early SET id = id + 1000 WHERE id % 2 = 0")  # keys move
    server.sql("DELETE FROM early WHERE id % 5 = 0")
    server.sql("BEGIN; INSERT INTO cut VALUES (100, NULL, NULL); DELETE FROM cut WHERE id = 3; "
               "TRUNCATE cut; INSERT INTO cut VALUES (101, '1999-12-31', NULL); "
               "UPDATE cut SET d = d + 1; COMMIT; "
               "UPDATE cut SET id = 102; "
               "INSERT INTO cut VALUES (101, NULL, 'infinity')")  # fmt: skip
    server.sql(FILL)
    server.sql(
        "BEGIN; UPDATE pairs SET n = 0 WHERE a = 1; UPDATE pairs SET n = n + 1 WHERE a < 9; COMMIT"
    )
    server.sql("ALTER TABLE pairs ADD later text; UPDATE pairs SET later = a WHERE a = 2")
    server.sql(
        "BEGIN; DELETE FROM pairs WHERE a = 4; INSERT INTO pairs VALUES (4, 'b1', 5); COMMIT"
    )
    server.sql("BEGIN; DELETE FROM pairs; ROLLBACK")
    server.sql(FILL)
    server.sql("UPDATE early SET t = 'x' WHERE id < 20")


class Log:
    """The WAL of the work over a base backup, and what the server had at its end."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        server.sql("CREATE TABLE early (id int PRIMARY KEY, t text)")
        server.sql("INSERT INTO early SELECT i, 'early' FROM generate_series(1, 100) i")
        server.stop()
        self.base = folder / "base"
        shutil.copytree(server.data, self.base)
        server.start()
        work(server)
        self.rows = {name: rows_of(server, name) for name in TABLES}
        server.stop()
        self.wal = folder / "wal"
        shutil.copytree(server.data / "pg_wal", self.wal)

    def source(self) -> Source:
        return Source(
            str(self.wal), None, None, None, None, None, "fail", "crc", "auto", False, None
        )

    def scope(self, *tables: str) -> Scope:
        return Scope(tables or tuple(TABLES), "postgres", str(self.base))


TABLES = ("early", "pairs", "cut")


def rows_of(server: PostgresServer, name: str) -> list[str]:
    shown = server.sql(f"SELECT string_agg(x::text, E'\\n' ORDER BY x::text) FROM {name} x")
    return sorted(str(shown).split("\n"))


def as_text(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Return rows as `ROW(…)::text` shows them, of the types in these tables."""

    def one(value: Any) -> str:
        if value is None:
            return ""
        text = "infinity" if str(value).startswith("294247-") else str(value)
        return f'"{text}"' if " " in text else text

    return sorted(f"({','.join(one(row[name]) for name in names)})" for row in rows)


class Delta:
    """Tables below a folder."""

    def __init__(self, folder: Path) -> None:
        self._to = str(folder / "to")

    def sink(self, mode: str) -> Mirrors:
        return DeltaMirrors(self._to, mode)

    def table(self, name: str) -> Any:
        import deltalake

        table = deltalake.DeltaTable(f"{self._to}/public.{name}")
        query = deltalake.QueryBuilder().register("t", table)
        infinite = "CAST(at AS bigint) AS at" if name == "cut" else None
        names = [f.name for f in table.schema().fields]
        columns = ", ".join(infinite if n == "at" and infinite else f'"{n}"' for n in names)
        return pa.table(query.execute(f"SELECT {columns} FROM t").read_all())


class Iceberg:
    """Tables of a namespace, in a catalog that is a file."""

    def __init__(self, folder: Path) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        folder.mkdir(exist_ok=True)
        self.catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/to"
        )

    def sink(self, mode: str) -> Mirrors:
        return IcebergMirrors("lake", "shop", mode, opened=self.catalog)

    def table(self, name: str) -> Any:
        rows = self.catalog.load_table(f"shop.public_{name}").scan().to_arrow()
        if name != "cut":
            return rows
        place = rows.schema.get_field_index("at")
        return rows.set_column(place, "at", rows["at"].cast(pa.int64()))


Lake = Delta | Iceberg


def read(lake: Lake, name: str) -> tuple[list[dict[str, Any]], list[str]]:
    table = lake.table(name)
    return [shown(row) for row in table.to_pylist()], table.column_names


def shown(row: dict[str, Any]) -> dict[str, Any]:
    from datetime import datetime, timedelta

    if isinstance(at := row.get("at"), int):
        end = (1 << 63) - 1
        row["at"] = "infinity" if at == end else datetime(1970, 1, 1) + timedelta(microseconds=at)
    return row


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Log(server, tmp_path_factory.mktemp("log"))


def streamed(log: Log, folder: Path, lake: Lake, mode: str) -> None:
    asked = streaming.Asked(
        log.scope(), folder / "state", 1 << 20, True, 1.0, False, mode, retention=Retention(86400)
    )
    streaming.stream(log.source(), asked, lake.sink(mode))


@pytest.mark.parametrize("mode", [MIRROR, SCD2])
@pytest.mark.parametrize("made_lake", [Delta, Iceberg])
def test_a_mirror_is_the_servers_table_through_deaths(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_lake: type[Lake], mode: str
) -> None:
    """It dies after each second commit of a table, and before each third position."""
    lake = made_lake(tmp_path)
    owner = type(lake.sink(mode))
    counts = {"_properties": 0, "beat": 0}

    def dying(name: str, each: int) -> None:
        real = getattr(owner, name)

        def first_dies(self: Any, *given: Any) -> Any:
            counts[name] += 1
            if counts[name] % each == 0:
                raise Died
            return real(self, *given)

        monkeypatch.setattr(owner, name, first_dies)

    dying("_properties", 4)
    dying("beat", 3)
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    deaths = 0
    for _ in range(60):
        try:
            streamed(log, tmp_path, lake, mode)
            break
        except Died:
            deaths += 1
    assert deaths >= 3
    maintained = json.loads((tmp_path / "state" / "maintenance.json").read_text())
    assert set(maintained) == set(lake.sink(mode).tables()) and len(maintained) == len(TABLES)
    for name in TABLES:
        rows, names = read(lake, name)
        if mode == SCD2:
            check_versions(rows, name)
            rows = [row for row in rows if row["valid_to_lsn"] is None]
            names = names[:-4] if name != "pairs" else [n for n in names if "valid_" not in n]
        assert as_text(rows, names) == log.rows[name], name


def check_versions(rows: list[dict[str, Any]], name: str) -> None:
    """Refuse two rows of one key at a time, and versions that were never visible."""
    by_key: dict[Any, list[tuple[int, int]]] = {}
    for row in rows:
        end = row["valid_to_lsn"] or 1 << 62
        assert row["valid_from_lsn"] < end
        key = (row["a"], row["B"]) if name == "pairs" else row["id"]
        by_key.setdefault(key, []).append((row["valid_from_lsn"], end))
    for spans in by_key.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), spans
    assert any(row["valid_to_lsn"] for row in rows) and len(rows) > len(by_key)


OLD = (
    "SELECT pg_switch_wal(); CHECKPOINT; ALTER DATABASE postgres CONNECTION LIMIT 50; VACUUM FREEZE"
)
REFUSED = {
    "keyless": ("CREATE TABLE {0} (id int); INSERT INTO {0} VALUES (1)", "has no primary key"),
    "postponed": (  # The row of the first change would be gone with the second one.
        "CREATE TABLE {0} (id int PRIMARY KEY DEFERRABLE); INSERT INTO {0} VALUES (1), (2); "
        "UPDATE {0} SET id = id + 1",
        "public.postponed has no primary key, or a DEFERRABLE one",
    ),
    "added": (
        "CREATE TABLE {0} (id int PRIMARY KEY, t int); INSERT INTO {0} VALUES (1); "
        "SELECT pg_switch_wal(); ALTER TABLE {0} ADD u int DEFAULT 4; UPDATE {0} SET t = 3",
        "column u was added with a default",
    ),
    "gone": (
        "CREATE TABLE {0} (id int PRIMARY KEY, t int); INSERT INTO {0} VALUES (1); "
        "SELECT pg_switch_wal(); ALTER TABLE {0} DROP t; UPDATE {0} SET id = 3",
        "column t is gone",
    ),
    "again": (
        "CREATE TABLE {0} (id int PRIMARY KEY, t int); INSERT INTO {0} VALUES (1, 1), (2, 2); "
        "SELECT pg_switch_wal(); ALTER TABLE {0} DROP t; ALTER TABLE {0} ADD t int; "
        "UPDATE {0} SET t = 3 WHERE id = 1",
        "public.again: column t in",
    ),
    "exchanged": (
        "CREATE TABLE {0} (id int PRIMARY KEY, a int, b int); "
        "INSERT INTO {0} VALUES (1, 1, 9), (2, 2, 8); "
        "ALTER TABLE {0} RENAME a TO c; ALTER TABLE {0} RENAME b TO a; "
        "ALTER TABLE {0} RENAME c TO b; UPDATE {0} SET a = 3 WHERE id = 1",
        "public.exchanged: column",
    ),
    "recast": (  # No row is written anew, and 10.1.2.3/32 is 10.1.2.3 now.
        "CREATE TABLE {0} (id int PRIMARY KEY, a cidr, t text); "
        "INSERT INTO {0} VALUES (1, '10.1.2.3'), (2, '10.1.2.4'); SELECT pg_switch_wal(); "
        "ALTER TABLE {0} ALTER t TYPE varchar; UPDATE {0} SET t = 'x'; SELECT pg_switch_wal(); "
        "ALTER TABLE {0} ALTER a TYPE inet; UPDATE {0} SET id = 3 WHERE id = 1",
        "was of type cidr, and now it is of type inet",
    ),
    "relabelled": (  # The row of the label's first text would stay.
        "CREATE TYPE {0}_kind AS ENUM ('a', 'c'); CREATE TABLE {0} (k {0}_kind[] PRIMARY KEY); "
        "INSERT INTO {0} VALUES ('{{a}}'), ('{{c}}'); SELECT pg_switch_wal(); "
        "ALTER TYPE {0}_kind ADD VALUE 'd'; INSERT INTO {0} VALUES ('{{d}}'); "
        "SELECT pg_switch_wal(); ALTER TYPE {0}_kind RENAME VALUE 'a' TO 'b'; "
        "DELETE FROM {0} WHERE k = '{{b}}'",
        "label 'a' of an enum in its primary key is now 'b'",
    ),
    "naming": (
        "CREATE TABLE {0}_a (id int); CREATE TABLE {0} (r regclass PRIMARY KEY); "
        "INSERT INTO {0} VALUES ('{0}_a'); SELECT pg_switch_wal(); "
        "ALTER TABLE {0}_a RENAME TO {0}_b; DELETE FROM {0}",
        "its primary key (r) prints names of objects",
    ),
    "composed": (
        "CREATE TYPE {0}_pair AS (a int, b int); CREATE TABLE {0} (k {0}_pair PRIMARY KEY); "
        "INSERT INTO {0} VALUES ('(1,2)'); SELECT pg_switch_wal(); "
        "ALTER TYPE {0}_pair DROP ATTRIBUTE b; DELETE FROM {0}",
        "composite types in its primary key have other parts",
    ),
    "doubled": (  # The row that stayed would be gone.
        "SELECT pg_switch_wal(); CREATE TABLE {0} (id int, t text); "
        "INSERT INTO {0} VALUES (1, 'old'); INSERT INTO {0} VALUES (1, 'new'); "
        "DELETE FROM {0} WHERE t = 'old'; ALTER TABLE {0} ADD PRIMARY KEY (id); "
        "INSERT INTO {0} VALUES (2, 'more')",
        "two rows had one value of (id), which was not the primary key then",
    ),
    "unkeyed": (
        "CREATE TABLE {0} (id int PRIMARY KEY, t text); INSERT INTO {0} VALUES (1, 'old'); "
        "SELECT pg_switch_wal(); ALTER TABLE {0} DROP CONSTRAINT {0}_pkey; "
        "INSERT INTO {0} VALUES (1, 'new'); DELETE FROM {0} WHERE t = 'old'; "
        "ALTER TABLE {0} ADD PRIMARY KEY (id); INSERT INTO {0} VALUES (2, 'more')",
        "public.unkeyed has no primary key",
    ),
    "swapped": (  # One transaction: its end has the key again.
        "CREATE TABLE {0} (id int PRIMARY KEY, t text); INSERT INTO {0} VALUES (1, 'old'); "
        "SELECT pg_switch_wal(); BEGIN;ALTER TABLE {0} DROP CONSTRAINT {0}_pkey;"
        "INSERT INTO {0} VALUES (1, 'new');DELETE FROM {0} WHERE t = 'old';"
        "ALTER TABLE {0} ADD PRIMARY KEY (id);COMMIT; INSERT INTO {0} VALUES (2, 'more')",
        "public.swapped: a transaction changed rows and gave the table another primary key",
    ),
    "renamed": (
        "CREATE TABLE {0} (id int PRIMARY KEY); INSERT INTO {0} VALUES (1); "
        "SELECT pg_switch_wal(); ALTER TABLE {0} RENAME TO other; UPDATE other SET id = 3",
        "says public.renamed, and now it is public.other",
    ),
    "cased": (
        'CREATE TABLE {0} (id int PRIMARY KEY, n int, "N" int); INSERT INTO {0} VALUES (1, 2, 3)',
        "public.cased: columns n and N differ by case alone",
    ),
    "older": (
        "CREATE TABLE {0} (id int PRIMARY KEY); INSERT INTO {0} VALUES (1); "
        f"{OLD}; UPDATE {{0}} SET id = 3",
        "public.older is older than this WAL",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_that_a_mirror_cannot_follow_is_refused_by_name(
    made: PostgresServer, tmp_path: Path, capsys: Output, name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    sql, why = REFUSED[name]
    for statement in sql.format(name).split("; "):
        if statement.startswith("CHECKPOINT"):
            begin = str(made.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())"))
        made.sql(statement)
    wal = tmp_path / "wal"
    wal.mkdir()
    for path in (made.data / "pg_wal").iterdir():
        if path.is_file() and (name != "older" or path.name >= begin):
            shutil.copy(path, wal)
    code = run(["history", "stream", "--path", str(wal), "--to", f"delta:{tmp_path}/to", "--mode",
                "mirror", "--state", str(tmp_path / "state"), "--once", "--database", "postgres",
                "--allow-missing", "--table", name, "--table", "other"])  # fmt: skip
    assert code == 1
    assert why in capsys.readouterr().err


@pytest.fixture(scope="module")
def made() -> Iterator[PostgresServer]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield server


def test_a_table_whose_key_came_after_its_rows_is_mirrored(
    made: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So pg_restore makes it. VACUUM FULL writes all rows anew, with the label's new text."""
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    made.sql("CREATE TYPE tone AS ENUM ('low', 'high'); SELECT pg_switch_wal()")
    made.sql("CREATE TABLE late (k tone, n int); INSERT INTO late VALUES ('low', 1), ('high', 2)")
    made.sql("UPDATE late SET n = n + 1; ALTER TABLE late ADD PRIMARY KEY (k)")
    made.sql("UPDATE late SET n = 7 WHERE k = 'low'; SELECT pg_switch_wal()")
    made.sql("ALTER TYPE tone RENAME VALUE 'low' TO 'deep'")
    made.sql("VACUUM FULL late")
    made.sql("SELECT pg_switch_wal(); UPDATE late SET n = 8 WHERE k = 'deep'")
    made.sql("SELECT pg_switch_wal(); CHECKPOINT")
    code = run(["history", "stream", "--path", str(made.data / "pg_wal"), "--table", "late",
                "--database", "postgres", "--allow-missing", "--once", "--mode", "mirror",
                "--to", f"delta:{tmp_path}/to", "--state", str(tmp_path / "state")])  # fmt: skip
    assert code == 0
    rows, names = read(Delta(tmp_path), "late")
    assert as_text(rows, names) == rows_of(made, "late") == ["(deep,8)", "(high,3)"]


def test_a_mirror_follows_a_rewritten_table_and_versions_refuse_it(
    made: PostgresServer, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    made.sql("DROP TABLE IF EXISTS turned; CREATE TABLE turned (id int PRIMARY KEY, t text)")
    made.sql("INSERT INTO turned SELECT i, 'a' || i FROM generate_series(1, 5) i")
    made.sql("SELECT pg_switch_wal()")
    made.sql("ALTER TABLE turned ALTER t TYPE text USING upper(t)")
    made.sql("DELETE FROM turned WHERE id = 2; SELECT pg_switch_wal()")
    made.sql("CHECKPOINT")
    expected = rows_of(made, "turned")
    arguments = ["history", "stream", "--path", str(made.data / "pg_wal"), "--table", "turned",
                 "--database", "postgres", "--allow-missing", "--once"]  # fmt: skip
    for mode in (MIRROR, SCD2):
        folder = tmp_path / mode
        code = run([*arguments, "--to", f"delta:{folder}/to", "--mode", mode, "--state",
                    str(folder / "state")])  # fmt: skip
        if mode == MIRROR:
            assert code == 0, capsys.readouterr().err
            rows, names = read(Delta(folder), "turned")
            assert as_text(rows, names) == expected
        else:
            assert code == 1
            assert "public.turned was rewritten" in capsys.readouterr().err


def test_an_iceberg_mirror_follows_a_rewritten_table_with_another_type(
    made: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is a date, for which there is no filter: the window reads the whole table."""
    monkeypatch.setattr(ChangeStream, "advance_into", one_segment(ChangeStream.advance_into))
    made.sql("CREATE TABLE days (day date PRIMARY KEY, t text, small smallint)")
    made.sql("INSERT INTO days SELECT '2024-01-01'::date + i, i FROM generate_series(1, 5) i")
    made.sql("INSERT INTO days VALUES ('infinity', '0'), ('0044-03-15 BC', '1')")
    made.sql("SELECT pg_switch_wal()")
    made.sql("UPDATE days SET small = 3 WHERE t = '2'; SELECT pg_switch_wal()")
    made.sql("ALTER TABLE days ALTER t TYPE int USING t::int; SELECT pg_switch_wal()")
    made.sql("DELETE FROM days WHERE t = 1; SELECT pg_switch_wal(); CHECKPOINT")
    lake = Iceberg(tmp_path)
    source = Source(
        str(made.data / "pg_wal"), None, None, None, None, None, "fail", "crc", "auto", False, None
    )
    scope = Scope(("days",), "postgres", None)
    asked = streaming.Asked(scope, tmp_path / "state", 1 << 20, True, 1.0, True, MIRROR)
    streaming.stream(source, asked, lake.sink(MIRROR))
    found = lake.table("days")
    texts = found.set_column(0, "day", found["day"].cast(pa.int32())).to_pylist()
    days = "CASE WHEN isfinite(day) THEN day - '1970-01-01'::date ELSE 2147483647 END"
    rows = made.sql(f"SELECT string_agg(({days}, t, small)::text, ' ') FROM days")
    assert " ".join(as_text(texts, ["day", "t", "small"])) == " ".join(sorted(str(rows).split()))
