"""`walkeeper snapshot`: the files and then the slot's changes are the tables, under load."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from tests.support.change_consumer import Replica, Row, receive, transactions
from tests.support.cluster import walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.logical_cluster import (  # noqa: F401
    LogicalCluster,
    cluster,
    primary,
    table_rows,
)
from walkeeper_cli.snapshot.parquet_copy import copy_table, published_tables
from walkeeper_proposer.postgres.logical_primary import TEXT_FORMS

pytestmark = pytest.mark.postgres

VALUES = """
INSERT INTO kinds VALUES
  (1, true, -7, 1.5, 'NaN', 12345678901234567890.5, 'größer, "x"' || chr(10) || 'y', '\\x00ff',
   '2024-02-29', '2024-02-29 12:34:56.000001', '2024-02-29 12:34:56.999999+02', '{"a": [1]}',
   '{1,2}'),
  (2, false, 0, 0, '-Infinity', 'NaN', '', '', 'infinity', '-infinity', 'infinity', 'null', '{}'),
  (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
  (4, true, 32767, 1e-30, 0.1, -0.50, 'NULL', 'nul', '0044-03-15 BC', '1969-12-31 23:59:59.5',
   '1600-01-01 00:00:00.25+00', '[]', NULL)
"""


def take(cluster: LogicalCluster, output: Path, *more: str) -> tuple[int, str]:  # noqa: F811
    done = walkeeper(
        "snapshot", "--safekeepers", cluster.addresses, "--cluster", cluster.name,
        "--dsn", cluster.primary.dsn(), "--slot", "feed", "--output", str(output), *more,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


class Writers:
    """Sessions that insert, update and delete until they are stopped."""

    def __init__(self, server: PostgresServer, count: int) -> None:
        self._stopping = threading.Event()
        self.commits = [0] * count
        self._threads = [
            threading.Thread(target=self._run, args=(server, number)) for number in range(count)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(LIMIT_S)

    def _run(self, server: PostgresServer, number: int) -> None:
        with server.connect() as connection:
            while not self._stopping.is_set():
                at = 1_000_000 * (number + 1) + self.commits[number]
                with connection.transaction():
                    connection.execute(f"INSERT INTO t VALUES ({at}, 'new', 0)".encode())
                    connection.execute(
                        f"UPDATE t SET n = n + 1 WHERE id % 40 = {at % 40} AND id < 400".encode()
                    )
                    connection.execute(f"DELETE FROM t WHERE id = {at - 5}".encode())
                self.commits[number] += 1


def replica_of(output: Path) -> tuple[Replica, dict[str, Any]]:
    """Return the files as tables, with values as text."""
    document = json.loads((output / "snapshot.json").read_text())
    replica = Replica()
    for table in document["tables"]:
        rows = parquet.read_table(output / table["file"]).to_pylist()
        assert len(rows) == table["rows"]
        name = f"{table['schema']}.{table['table']}"
        if name != "public.t":
            continue
        assert table["key"] == ["id"]
        kept = replica.keyed.setdefault(name, {})
        for row in rows:
            texts: Row = {k: None if v is None else str(v) for k, v in row.items()}
            kept[(texts["id"],)] = texts
    return replica, document


def test_a_snapshot_and_then_the_slot_are_the_tables_under_load(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    primary.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n int)",
        "INSERT INTO t SELECT i, repeat('row ', 40), 0 FROM generate_series(1, 20000) i",
        "CREATE TABLE empty (id int PRIMARY KEY)",
    )
    output = tmp_path / "snapshot"
    with Writers(primary, 3) as writers:
        wait_until(lambda: sum(writers.commits) > 20)
        code, said = take(cluster, output)
        assert code == 0, said
        cluster.safekeepers[0].kill()  # the client asked this one; others know the slot's place
    assert "slot feed goes on from there" in said
    replica, document = replica_of(output)
    snapshot_rows = len(replica.keyed["public.t"])
    assert sum(table["rows"] for table in document["tables"]) >= snapshot_rows >= 20000
    found = transactions(receive(cluster.ports[1], "feed", cluster.end_lsn()))
    assert found
    for one in found:
        replica.apply(one)  # raises for a row that is there twice, or not there
    assert replica.rows("public.t") == table_rows(primary, "t")


def test_values_have_the_types_of_table_at(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    primary.sql(
        "CREATE DOMAIN small AS int2",
        "CREATE TABLE kinds (id int PRIMARY KEY, b bool, s small, r real, f float8, n numeric, "
        "t text, y bytea, d date, ts timestamp, tz timestamptz, j jsonb, a int[])",
        VALUES,
        'CREATE SCHEMA "odd/name"; CREATE TABLE "odd/name"."T %" (id int, "a ""b" text)',
        """INSERT INTO "odd/name"."T %" VALUES (1, 'x')""",
        "CREATE TABLE parent (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE child PARTITION OF parent FOR VALUES FROM (0) TO (10)",
        "INSERT INTO parent VALUES (1), (2)",
    )
    code, said = take(cluster, tmp_path / "out")
    assert code == 0, said
    document = json.loads((tmp_path / "out" / "snapshot.json").read_text())
    files = {table["table"]: tmp_path / "out" / table["file"] for table in document["tables"]}
    table = parquet.read_table(files["kinds"])
    assert [str(field.type) for field in table.schema] == [
        "int32", "bool", "int16", "float", "double", "string", "string", "binary",
        "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]", "string", "string",
    ]  # fmt: skip
    columns = {name: table[name].to_pylist() for name in ("b", "s", "n", "t", "y", "j", "a")}
    assert columns == {
        "b": [True, False, None, True],
        "s": [-7, 0, None, 32767],
        "n": ["12345678901234567890.5", "NaN", None, "-0.50"],
        "t": ['größer, "x"\ny', "", None, "NULL"],
        "y": [b"\x00\xff", b"", None, b"nul"],
        "j": ['{"a": [1]}', "null", None, "[]"],
        "a": ["{1,2}", "{}", None, None],
    }
    assert str(table["f"].to_pylist()[:2]) == "[nan, -inf]"
    assert table["ts"].cast("int64").to_pylist() == [
        1709210096000001, -(1 << 63), None, -500000,
    ]  # fmt: skip
    assert table["tz"].cast("int64").to_pylist()[:2] == [1709202896999999, (1 << 63) - 1]
    days = [row[0] for row in primary.rows("SELECT d - date '1970-01-01' FROM kinds WHERE id = 4")]
    assert table["d"].cast("int32").to_pylist() == [19782, (1 << 31) - 1, None, *days]
    assert files["T %"].name == "odd%2Fname.T%20%25.parquet"
    assert parquet.read_table(files["T %"]).to_pylist() == [{"id": 1, 'a "b': "x"}]
    assert parquet.read_table(files["child"]).num_rows == 2 and "parent" not in files


def test_column_lists_and_row_filters_of_publications_count(
    primary: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    primary.sql(
        "CREATE TABLE k (id int PRIMARY KEY, v text, secret text, rel regclass DEFAULT 'k')",
        "INSERT INTO k SELECT i, 'v', 's' FROM generate_series(1, 5) i",
        "CREATE TABLE heir (more int) INHERITS (k)",
        "INSERT INTO heir VALUES (4, 'v', 's', 'k', 9)",
        "CREATE PUBLICATION one FOR TABLE ONLY k (id, v) WHERE (id > 2 AND rel = 'k'::regclass)",
        "CREATE PUBLICATION two FOR TABLE ONLY k (id, v) WHERE (id = 1)",
    )
    with primary.connect() as connection:
        connection.execute(TEXT_FORMS.encode())
        (some,) = published_tables(connection, ["one"])
        assert copy_table(connection, some, tmp_path / "some") == 3
        (both,) = published_tables(connection, ["one", "two"])
        assert copy_table(connection, both, tmp_path / "both") == 4
    assert parquet.read_table(tmp_path / "some").column_names == ["id", "v"]


def test_long_rows_and_rows_of_a_null_alone_are_there(
    primary: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    primary.sql(
        "CREATE TABLE long (id int, b bytea)",
        "INSERT INTO long SELECT i, decode(repeat('ab', 2500000 * (i % 3)), 'hex') "
        "FROM generate_series(1, 6) i",
        "CREATE TABLE alone (v text)",
        "INSERT INTO alone VALUES ('a'), (NULL), (''), (NULL)",
        "CREATE PUBLICATION odd FOR TABLE long, alone",
    )
    with primary.connect() as connection:
        alone, long = published_tables(connection, ["odd"])
        assert copy_table(connection, alone, tmp_path / "alone") == 4
        assert copy_table(connection, long, tmp_path / "long") == 6
    assert parquet.read_table(tmp_path / "alone")["v"].to_pylist() == ["a", None, "", None]
    values = parquet.read_table(tmp_path / "long")["b"].to_pylist()
    assert [len(value) for value in values] == [2500000 * (i % 3) for i in range(1, 7)]
    assert {*values[1]} == {0xAB}


def test_a_table_of_which_the_role_may_see_a_part_is_refused(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    primary.sql(
        "CREATE TABLE sec (id int PRIMARY KEY, mine bool)",
        "INSERT INTO sec VALUES (1, true), (2, false)",
        "ALTER TABLE sec ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON sec USING (mine)",
        "CREATE ROLE copier LOGIN REPLICATION PASSWORD 'secret'",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO copier",
    )
    done = walkeeper(
        "snapshot", "--safekeepers", cluster.addresses, "--cluster", cluster.name,
        "--dsn", primary.dsn(user="copier", password="secret"),
        "--slot", "late", "--output", str(tmp_path / "out"),
    )  # fmt: skip
    primary.sql("DROP TABLE sec")
    assert done.returncode == 1 and "row-level security" in done.stderr, done
    assert "BYPASSRLS" in done.stderr and not (tmp_path / "out" / "snapshot.json").exists()


def test_a_failed_snapshot_leaves_no_files(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    code, said = take(cluster, tmp_path)
    assert code == 1 and "is not empty" in said
    primary.sql("CREATE DATABASE other")
    other = walkeeper(
        "snapshot", "--safekeepers", cluster.addresses, "--cluster", cluster.name,
        "--dsn", primary.dsn().replace("dbname=postgres", "dbname=other"),
        "--slot", "late", "--output", str(tmp_path / "other"),
    )  # fmt: skip
    assert other.returncode == 1 and "changes of database postgres" in other.stderr
    assert not cluster.slot_lsns("late") and not (tmp_path / "other" / "snapshot.json").exists()
