"""Changes of a logical log are those of the same server's WAL, in Spark and on the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxFiles

from pyspark_pgwal.logical_tables import LoggedOptions, LoggedStreamReader
from tests.support.cluster import lsn_of, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster
from walkeeper_common.lsn import Lsn
from walkeeper_wal.wal_errors import HistoryError

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WORKLOAD = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE orders (id int PRIMARY KEY, who text, amount numeric(10,2), at timestamptz)",
    "CREATE TABLE toasted (id int PRIMARY KEY, n int, long text, feeling mood)",
    "ALTER TABLE toasted ALTER long SET STORAGE EXTERNAL",
    "CREATE TABLE whole (id int, v text, long text)",
    "ALTER TABLE whole REPLICA IDENTITY FULL, ALTER long SET STORAGE EXTERNAL",
    "CREATE TABLE nameless (v text, f float8, b bytea, d date)",
    "INSERT INTO orders SELECT i, CASE WHEN i % 5 > 0 THEN 'who ''' || i END, i / 7.0, "
    "'2024-01-01Z'::timestamptz + i * interval '1 h' FROM generate_series(1, 300) i",
    "INSERT INTO toasted SELECT i, i, repeat('long', 5000), 'ok' FROM generate_series(1, 9) i",
    "UPDATE toasted SET n = n + 1",
    "INSERT INTO whole VALUES (1, 'a', repeat('w', 9000)), (1, NULL, 'x')",
    "UPDATE whole SET v = 'b'",
    "BEGIN; UPDATE orders SET amount = 0, who = NULL WHERE id % 3 = 0; SAVEPOINT s; "
    "DELETE FROM orders WHERE id > 200; ROLLBACK TO s; DELETE FROM orders WHERE id < 9; COMMIT",
    "UPDATE orders SET id = -id WHERE id % 10 = 0",
    "ALTER TABLE orders ADD COLUMN more jsonb DEFAULT '{}'",
    "INSERT INTO orders VALUES (1000, 'größer', 'NaN', 'infinity', '{\"a\": [1]}')",
    "INSERT INTO nameless VALUES ('x', 0.1, '\\x00ff', '2024-02-29')",
    "DELETE FROM whole WHERE v = 'b'",
    "BEGIN; INSERT INTO orders SELECT i, 'never' FROM generate_series(5000, 6000) i; ROLLBACK",
    "INSERT INTO orders SELECT i, repeat('many ', 60) FROM generate_series(2000, 5999) i",
    "TRUNCATE nameless",
)


class Recorded:
    """One workload in a server's WAL and in a logical log."""

    def __init__(self, cluster: LogicalCluster) -> None:
        self.cluster, server = cluster, cluster.primary
        self.wal = str(server.data / "pg_wal")
        self.log = f"walkeeper://{cluster.addresses}/{cluster.name}"
        with server.connect() as connection:
            for statement in WORKLOAD[:10]:
                connection.execute(statement.encode())
            self.middle = str(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
            for statement in WORKLOAD[10:]:
                connection.execute(statement.encode())
        cluster.end_lsn()


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    settings = {**SETTINGS, "wal_keep_size": "8GB", "fsync": "on", "timezone": "Asia/Tokyo"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        with LogicalCluster.create(server) as cluster:
            yield Recorded(cluster)


def loaded(spark: SparkSession, path: str, **options: str) -> DataFrame:
    reader = spark.read.format("pgwal").option("path", path).option("table", "changes")
    return reader.options(**options).load()


def facts(frame: DataFrame) -> list[dict[str, Any]]:
    rows = frame.orderBy("commit_lsn", "start_lsn").collect()
    return [row.asDict() for row in rows if row.table != "fence"]


@pytest.mark.soak
def test_the_same_changes_come_from_wal_and_from_the_log(
    spark: SparkSession, recorded: Recorded
) -> None:
    physical, logical = loaded(spark, recorded.wal), loaded(spark, recorded.log, parts="3")
    assert physical.schema == logical.schema
    found, kept = facts(physical), facts(logical)
    assert len(found) == len(kept) > 4400
    same = ("commit_lsn", "commit_time", "xid", "database", "schema", "table", "operation")
    doubts = set()
    for one, other in zip(found, kept, strict=True):
        assert {name: one[name] for name in same} == {name: other[name] for name in same}
        if one["operation"] == "truncate":
            continue  # WAL alone does not say which of its records emptied the table
        assert one["start_lsn"] == other["start_lsn"]
        doubts |= set(other["coverage"].split("; "))
        for side in ("old", "new"):
            known, sent = one[side], other[side]
            if other["coverage"] == "complete" or not known:
                assert known == sent, other
            else:
                assert known.items() >= sent.items() and sent, other
    assert {row["coverage"] for row in found} == {"complete"}
    assert len(doubts) == 3  # complete, and both kinds of what is not sent
    whole = [row for row in kept if row["table"] == "whole"]
    assert {row["coverage"] for row in whole} == {"complete"}
    assert [row["operation"] for row in whole] == ["insert"] * 2 + ["update"] * 2 + ["delete"] * 2


def test_options_choose_changes(spark: SparkSession, recorded: Recorded) -> None:
    later = facts(loaded(spark, recorded.log, startLsn=recorded.middle, relation="public.toasted"))
    assert not later
    early = facts(loaded(spark, recorded.log, endLsn=recorded.middle, relation="toasted,orders"))
    assert {row["table"] for row in early} == {"toasted", "orders"}
    assert max(row["start_lsn"] for row in early) < lsn_of(recorded.middle)
    history = spark.read.format("pgwal").option("table", "row_history")
    rows = facts(history.options(path=recorded.log, where="id=30", relation="orders").load())
    assert [row["operation"] for row in rows] == ["insert", "update", "update"]
    with pytest.raises(PySparkException, match="changes of a logical log has no option base"):
        loaded(spark, recorded.log, base="/").count()
    with pytest.raises(PySparkException, match="changes of a logical log has no option where"):
        loaded(spark, recorded.log, where="id=30").count()


def test_an_offset_of_another_primarys_log_is_refused(recorded: Recorded) -> None:
    made = LoggedStreamReader(LoggedOptions.parse({"path": recorded.log, "table": "changes"}))
    first = made.initialOffset()
    other = {**first, "system": "7"}
    with pytest.raises(HistoryError, match="is of the system 7, this log of the system"):
        made.latestOffset(other, ReadMaxFiles(64))
    with pytest.raises(HistoryError, match="is of the system 7, this log of the system"):
        made.partitions(first, other)
    ends = [  # the log goes on, by its entries of progress
        made.latestOffset(offset, ReadMaxFiles(64))
        for offset in (first, {"position": first["position"]}, first)
    ]
    assert {end["system"] for end in ends} == {first["system"]}
    positions = [lsn_of(offset["position"]) for offset in (first, *ends)]
    assert positions == sorted(positions) and positions[0] < positions[1]


def test_a_directory_at_rest_gives_the_same_also_on_the_command_line(
    spark: SparkSession, recorded: Recorded
) -> None:
    directory = str(recorded.cluster.wal_dir(1))
    recorded.cluster.wait_caught_up()
    assert facts(loaded(spark, directory)) == facts(loaded(spark, recorded.log))
    done = walkeeper("history", "changes", "--path", recorded.log, "--table", "whole",
                     "--format", "json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[2]["old"] == {"id": "1", "v": "a", "long": "w" * 9000}
    assert lines[2]["new"] == {"id": "1", "v": "b", "long": "w" * 9000}
    refused: subprocess.CompletedProcess[str] = walkeeper(
        "history", "changes", "--path", recorded.log, "--timeline", "1"
    )
    assert refused.returncode == 2 and "is a logical log" in refused.stderr


def test_a_stream_gives_each_change_once_over_a_restart_and_a_lost_safekeeper(
    spark: SparkSession, recorded: Recorded, tmp_path: Path
) -> None:
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")

    def run() -> list[dict[str, Any]]:
        reader = spark.readStream.format("pgwal").option("path", recorded.log)
        frame = reader.option("table", "changes").option("maxFilesPerTrigger", "2").load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query = writer.option("path", out).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        return facts(spark.read.parquet(out))

    assert run() == facts(loaded(spark, recorded.log))
    recorded.cluster.safekeepers[2].kill()
    recorded.cluster.primary.sql("INSERT INTO orders VALUES (-1, 'later')")
    again = run()
    recorded.cluster.safekeepers[2].start()
    assert again == facts(loaded(spark, recorded.log))
    assert again[-1]["new"]["who"] == "later"
