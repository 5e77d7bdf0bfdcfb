"""The Spark source's table_at, changes and row_history give what the core gives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_pgwal.logical_tables import LoggedOptions
from pyspark_pgwal.replayed_tables import PastOptions, past_reader
from tests.replay.test_past_command import SETTINGS, Shop
from tests.support.postgres_server import PostgresServer
from walkeeper_wal.wal_errors import HistoryError

# py4j leaves sockets to the collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Shop(server)


def loaded(spark: SparkSession, shop: Shop, **options: str) -> DataFrame:
    reader = spark.read.format("pgwal").option("path", shop.wal)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def test_table_at_is_the_table_as_it_was(spark: SparkSession, shop: Shop) -> None:
    frame = loaded(spark, shop, table="table_at", relation="public.orders", lsn=shop.lsn)
    assert frame.columns == ["id", "who", "amount", "at", "coverage"]
    assert frame.selectExpr("count(*)", "sum(id)", "count(who)").collect()[0] == (
        300, 300 * 301 // 2, 240,
    )  # fmt: skip
    now = loaded(spark, shop, table="table_at", relation="public.orders", parts="3")
    assert now.count() == shop.server.sql("SELECT count(*) FROM orders")
    assert {row.coverage for row in now.select("coverage").distinct().collect()} == {"complete"}


def test_changes_are_rows_with_maps(spark: SparkSession, shop: Shop) -> None:
    frame = loaded(spark, shop, table="changes", startLsn=shop.lsn, endLsn=shop.damaged)
    counts = {row.operation: row[1] for row in frame.groupBy("operation").count().collect()}
    assert counts == {"update": 130, "delete": 100, "insert": 2, "truncate": 1}
    rows = loaded(spark, shop, table="row_history", relation="orders", where="id=30").collect()
    assert [row.operation for row in rows] == ["insert", "update", "update"]
    assert rows[1].old["amount"] == "4.29" and rows[2].new["id"] == "-30"


def test_a_table_that_is_not_there_is_an_error(spark: SparkSession, shop: Shop) -> None:
    with pytest.raises(PySparkException, match="no table nothing"):
        loaded(spark, shop, table="table_at", relation="nothing")
    with pytest.raises(PySparkException, match="needs the option relation"):
        loaded(spark, shop, table="table_at")


@pytest.mark.parametrize(
    ("table", "option", "value"),
    [
        ("changes", "where", "id=7"),
        ("changes", "lsn", "0/1700000"),
        ("row_history", "time", "2024-01-01"),
        ("table_at", "startLsn", "0/1700000"),
        ("table_at", "endLsn", "0/1700000"),
    ],
)
def test_an_option_of_another_table_is_refused(
    spark: SparkSession, shop: Shop, table: str, option: str, value: str
) -> None:
    """It was taken and not heeded: today's rows for a table "as of" an endLsn."""
    with pytest.raises(PySparkException, match=f"table {table} has no option {option.lower()}"):
        loaded(spark, shop, table=table, relation="orders", **{option: value})


@pytest.mark.parametrize("parts", ["0", "-3", "x"])
def test_a_number_of_parts_that_is_none_is_refused(
    spark: SparkSession, shop: Shop, parts: str
) -> None:
    with pytest.raises(PySparkException, match=f"option parts: '{parts}' is not a number above 0"):
        loaded(spark, shop, table="changes", relation="orders", parts=parts).count()


@pytest.mark.parametrize("options", [LoggedOptions, PastOptions])
@pytest.mark.parametrize("where", [{}, {"where": "id"}])
def test_row_history_needs_a_key(
    options: type[LoggedOptions | PastOptions], where: dict[str, str]
) -> None:
    given = {"path": "wal", "table": "row_history"}
    with pytest.raises(HistoryError, match="row_history needs the option where, such as id=4711"):
        options.parse({**given, **where})
    assert options.parse({**given, "where": "id=1"}).values["where"] == "id=1"


def read_here(shop: Shop, **options: str) -> list[dict[str, Any]]:
    """Return what the one task of a source reads, without a session."""
    given = {"path": shop.wal, "relation": "parent", "parts": "1", **options}
    reader = past_reader(given, None)
    batches: Iterator[Any] = reader.read(reader.partitions()[0])
    return [row for batch in batches for row in batch.to_pylist()]


def test_heirs_that_are_not_named_and_new_values_are_problems(shop: Shop) -> None:
    shop.run("CREATE TABLE parent (id int)", "CREATE TABLE heir () INHERITS (parent)",
             "INSERT INTO parent VALUES (1)", "INSERT INTO heir VALUES (2)",
             "ALTER TABLE parent ALTER id TYPE bigint")  # fmt: skip
    found = read_here(shop, table="problems", of="changes")
    (missing,) = [row for row in found if row["fatal"]]
    assert missing["file"] == "public.heir"
    assert missing["reason"].startswith("table: it inherits from public.parent")
    (remark,) = [row for row in found if "ALTER TABLE rewrote its rows" in row["reason"]]
    assert (remark["file"], remark["fatal"]) == ("public.parent", False)
    with pytest.raises(HistoryError, match=r"changes are missing: table public\.heir"):
        read_here(shop, table="changes")
    accepted = read_here(shop, table="changes", allowMissing="true")
    assert [dict(row["new"]) for row in accepted] == [{"id": "1"}]


def test_tasks_of_one_query_end_where_the_driver_saw_the_log_end(shop: Shop) -> None:
    """Each task planned for itself: a later one had commits that an earlier one had not."""
    tables = ("CREATE TABLE one (id int)", "CREATE TABLE other (id int)")
    shop.run(*tables, "SELECT pg_switch_wal()")
    both = "WITH x AS (INSERT INTO one VALUES ({0})) INSERT INTO other VALUES ({0})"
    shop.run(both.format(1))
    given = {"path": shop.wal, "table": "changes", "relation": "one,other", "parts": "2"}
    readers = [past_reader({**given, **more}, None) for more in ({}, {"endlsn": "7F/0"})]
    for reader in readers:
        found: list[tuple[str, int]] = []
        for number, part in enumerate(reader.partitions(), start=2):
            batches: Iterator[Any] = reader.read(part)
            rows = [row for batch in batches for row in batch.to_pylist()]
            found += [(row["table"], int(dict(row["new"])["id"])) for row in rows]
            assert len({row["table"] for row in rows}) == 1, "each task has one table"
            shop.run(both.format(number), "SELECT pg_switch_wal()")
        assert {table for table, _ in found} == {"one", "other"}
        ids = {table: sorted(n for t, n in found if t == table) for table, _ in found}
        assert ids["one"] == ids["other"], ids
    assert sorted(n for _, n in found) == [1, 1], "its driver had looked before the others"


def test_changes_that_the_wal_does_not_describe_are_problems(
    spark: SparkSession, shop: Shop, tmp_path: Path
) -> None:
    shop.run("CREATE TABLE unnamed (id int)", "CHECKPOINT", "SELECT pg_switch_wal()")
    first = shop.server.sql(f"SELECT pg_walfile_name('{shop.mark()}')")
    file = shop.server.sql("SELECT pg_relation_filepath('unnamed')").split("/")[-1]
    shop.run("CREATE TABLE named AS SELECT 1 AS id", "INSERT INTO unnamed VALUES (2)")
    shop.run("SELECT pg_switch_wal()")
    for segment in Path(shop.wal).glob("0*"):
        if segment.name >= first:
            shutil.copy(segment, tmp_path)
    reader = spark.read.format("pgwal").option("path", str(tmp_path)).option("parts", "2")
    reader = reader.option("database", "postgres")
    with pytest.raises(PySparkException, match="changes are missing: file 1663/"):
        reader.option("table", "changes").load().collect()
    accepted = reader.option("table", "changes").option("allowMissing", "true").load()
    assert [row.table for row in accepted.collect()] == ["named"]
    problems = reader.option("table", "problems").option("of", "changes").load()
    (row,) = problems.where("fatal").collect()
    assert row.file.endswith(f"/{file}")
    assert "this WAL does not say whose it is" in row.reason
