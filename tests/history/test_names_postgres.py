"""Names of relations are kept for later, and shown where WAL has numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pyspark_pgwal.batch import partitions_of, read_segments
from pyspark_pgwal.pgwal_options import PgWalOptions
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run
from walkeeper_history.rows.relation_names import NamedRelation, RelationNames, load_names
from walkeeper_wal.wal_errors import HistoryError

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "1GB", "fsync": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        yield made


@pytest.fixture(scope="module")
def catalog(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Taken before the tables are dropped and rewritten, and once more after it."""
    path = tmp_path_factory.mktemp("names") / "names.json"
    server.sql("CREATE DATABASE shop", 'CREATE SCHEMA "a b"')
    server.sql('CREATE TABLE "a b".orders (id int PRIMARY KEY, t text)')
    server.sql("INSERT INTO \"a b\".orders SELECT i, repeat('x', 99) FROM generate_series(1,900) i")
    server.sql("CREATE TABLE other (id int)", "INSERT INTO other VALUES (1)")
    take(server, path)
    server.sql('DELETE FROM "a b".orders WHERE id < 300', "TRUNCATE other", "INSERT INTO other "
               "VALUES (2)", 'DROP TABLE "a b".orders', "SELECT pg_switch_wal()")  # fmt: skip
    take(server, path)
    return path


def take(server: PostgresServer, path: Path) -> None:
    assert run(["history", "catalog", "--dsn", server.dsn(), "--output", str(path)]) == 0


def test_a_dump_has_all_databases_and_what_was_dropped_between_two(catalog: Path) -> None:
    names = load_names([catalog])
    databases = {each.database for each in names}
    assert {"postgres", "shop", "template1", ""} <= databases
    assert len(names.called("other")) == 2, "of before and after it was truncated"
    (orders,) = names.called('"a b".orders')
    assert names.of(orders.key) == 'postgres."a b".orders'
    shared = [each for each in names if each.relation == "pg_catalog.pg_database"]
    assert [(each.reltablespace, each.reldatabase) for each in shared] == [(1664, 0)]


def test_find_takes_and_shows_names_without_a_server(
    server: PostgresServer, catalog: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--path", str(server.data / "pg_wal"), "--catalog", str(catalog)]
    assert run(["history", "find", "delete", *where, "--relation", "ordres"]) == 2
    assert run(["history", "find", "delete", *where, "--relation", '"a b".orders']) == 0
    output = capsys.readouterr().out
    assert "delete of 299 rows" in output and 'postgres."a b".orders (1663/' in output
    assert run(["history", "find", "all", *where, "--relation", "public.other", "--json"]) == 0
    documents = json.loads(capsys.readouterr().out)
    assert [document["kind"] for document in documents] == ["truncate"]
    assert "postgres.public.other" in documents[0]["names"]


def test_tables_and_the_report_have_names(
    server: PostgresServer, catalog: Path, tmp_path: Path
) -> None:
    where = ["--path", str(server.data / "pg_wal"), "--catalog", str(catalog)]
    command = ["history", "tables", *where, "--output", str(tmp_path), "--quiet"]
    assert run([*command, "--table", "blocks,relations"]) == 0
    for name in ("blocks", "relations"):
        rows = pq.read_table(tmp_path / name).to_pylist()
        orders = [row for row in rows if row["relation_name"] == '"a b".orders']
        assert orders and {row["database_name"] for row in orders} == {"postgres"}
        assert len({row["relfilenode"] for row in orders}) == 1
    report = tmp_path / "wal.html"
    assert run(["history", "report", *where, "--output", str(report)]) == 0
    assert "postgres.&quot;a b&quot;.orders" in report.read_text()


def test_spark_has_the_names_of_the_option_catalog(server: PostgresServer, catalog: Path) -> None:
    given = {"path": str(server.data / "pg_wal"), "table": "relations", "catalog": str(catalog)}
    options = PgWalOptions.parse(given)
    rows = [
        row
        for part in partitions_of(options.plan(), None)
        for batch in read_segments(options, part)
        for row in batch.to_pylist()
    ]
    assert list(rows[0])[-2:] == ["database_name", "relation_name"]
    assert "public.other" in {row["relation_name"] for row in rows}
    narrowed = PgWalOptions.parse({**given, "columns": "relation_name,wal_bytes"}).made_table()
    assert narrowed.schema.names == ["relation_name", "wal_bytes"]


def test_names_of_another_cluster_are_refused(
    server: PostgresServer, catalog: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = json.loads(catalog.read_text()) | {"system_identifier": "7"}
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(other))
    where = ["--path", str(server.data / "pg_wal"), "--catalog", str(wrong)]
    assert run(["history", "find", "drop", *where]) == 1
    assert "the names are those of cluster 7" in capsys.readouterr().err
    assert run(["history", "catalog", "--dsn", server.dsn(), "--output", str(wrong)]) == 1
    other["relations"][0]["seen"] = "yesterday"
    for text in ("{}", json.dumps(other)):
        wrong.write_text(text)
        with pytest.raises(HistoryError, match="not a catalog"):
            load_names([wrong])


def test_many_relations_are_named_at_once() -> None:
    names = RelationNames(None, (NamedRelation(1663, d, n, n, f"d{d}", f"s.t{n}")
                                 for d in (5, 7) for n in range(100, 200, 3)))  # fmt: skip
    spaces = np.array([1663, 1663, 1664, 1663, 1663], np.uint32)
    databases, nodes = np.array([5, 7, 5, 5, 9]), np.array([100, 103, 100, 101, 100])
    found = names.find(spaces, databases, nodes).tolist()
    assert [names.columns[1][at] for at in found] == ["s.t100", "s.t103", None, None, None]
    assert [names.columns[0][at] for at in found] == ["d5", "d7", None, None, None]
    assert RelationNames().find(spaces, databases, nodes).tolist() == [0] * 5
