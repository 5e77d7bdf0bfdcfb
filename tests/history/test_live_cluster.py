"""Safekeepers of a real cluster are read by the commands and by Spark, also when one dies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.history.seeded_wal import segment_paths
from tests.history.waldump import stats_text
from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer, program
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_cli.program import run

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SCHEMA = "start_lsn bigint, end_lsn bigint, prev_lsn bigint"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Small segments, so that a short load crosses many of their ends."""
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server,
        Cluster.create(server) as made,
    ):
        server.sql("CREATE TABLE t (id int PRIMARY KEY, b text)")
        fill(made, 0, 6000)
        yield made


def fill(cluster: Cluster, begin: int, count: int) -> None:
    rows = f"generate_series({begin}, {begin + count - 1}) i"
    cluster.primary.sql(f"INSERT INTO t SELECT i, repeat('x', 300) FROM {rows}")


def url_of(cluster: Cluster) -> str:
    return f"walkeeper://{cluster.addresses}/{cluster.name}"


def test_stats_of_the_log_are_pg_waldumps_of_a_safekeepers_files(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.wait_all_equal()
    cluster.safekeepers[0].kill()

    def are_equal() -> bool:
        assert run(["history", "stats", "--path", url_of(cluster), "--per-record"]) == 0
        for path in segment_paths(cluster.wal_dir(2)):
            if any(path.read_bytes()[:8]):  # pg_waldump takes fright at those that are prepared
                shutil.copy(path, tmp_path)
        dumped = stats_text(
            program("pg_waldump"), tmp_path, by_record=True, environment=dict(os.environ)
        )
        return capsys.readouterr().out == dumped  # the server may write between the two

    try:
        wait_until(are_equal)
    finally:
        cluster.safekeepers[0].start()


def test_a_stream_of_changes_follows_the_committed_log(cluster: Cluster, tmp_path: Path) -> None:
    """Two runs, the first killed while the log grows: each change of the table is there once."""
    to = tmp_path / "to"
    arguments = [
        *("history", "stream", "--path", url_of(cluster), "--to", str(to), "--table", "t"),
        *("--state", str(tmp_path / "state"), "--interval", "50ms", "--allow-missing"),
    ]
    process = subprocess.Popen([sys.executable, "-m", "walkeeper_cli", *arguments])
    try:
        fill(cluster, 100_000, 500)
        wait_until(lambda: ids_in(to) >= set(range(100_000, 100_500)), LIMIT_S)
    finally:
        process.kill()
        process.wait(LIMIT_S)
    fill(cluster, 200_000, 500)
    cluster.wait_all_equal()
    assert run([*arguments, "--once"]) == 0
    known = cluster.primary.sql("SELECT string_agg(id::text, ' ') FROM t")
    assert ids_in(to) == set(map(int, str(known).split()))
    assert len(rows_in(to)) == len(ids_in(to))


def rows_in(to: Path) -> list[dict[str, str]]:
    tables = [pq.read_table(path) for path in sorted(to.glob("changes-*.parquet"))]
    return [dict(row) for table in tables for row in table["new"].to_pylist()]


def ids_in(to: Path) -> set[int]:
    return {int(row["id"]) for row in rows_in(to)}


def standbys_of(cluster: Cluster) -> list[str]:
    lines = cluster.status()["safekeepers"]
    return [each["application_name"] for line in lines for each in line.get("standbys") or []]


def test_tail_follows_what_is_committed_over_the_death_of_a_safekeeper(
    cluster: Cluster, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "walkeeper_cli", "history", "tail", "--json"),
                *("--path", url_of(cluster), "--interval", "100ms"),
            ],
            stdout=file,
        )
    xids: list[int] = []

    def shown() -> set[int]:
        whole = output.read_text().rpartition("\n")[0]  # the last one may be half written
        lines = [json.loads(line) for line in whole.splitlines()]
        return {line["xid"] for line in lines if line["kind"] == "commit"}

    def commit_is_shown() -> bool:
        xids.append(int(cluster.primary.sql("SELECT txid_current()")))
        return bool(shown() & set(xids))

    try:
        wait_until(commit_is_shown)
        first = min(shown())
        cluster.safekeepers[2].kill()
        latest = [int(cluster.primary.sql("SELECT txid_current()")) for _ in range(5)]
        wait_until(lambda: set(latest) <= shown())
        assert {xid for xid in xids if xid >= first} <= shown(), "none is left out"
        assert process.poll() is None
        # No slot or standby that stays holds WAL back on the safekeepers that are read.
        wait_until(lambda: "walkeeper history" not in standbys_of(cluster))
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        cluster.safekeepers[2].start()


@pytest.mark.spark
def test_spark_reads_and_follows_the_log_with_every_record_once(
    cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"

    def reader_options() -> dict[str, str]:
        return {"path": url_of(cluster), "columns": "start_lsn,end_lsn,prev_lsn"}

    def follow() -> StreamingQuery:
        stream = spark.readStream.format("pgwal").options(**reader_options()).load()
        return (
            stream.writeStream.format("parquet")
            .option("path", str(output))
            .option("checkpointLocation", str(checkpoint))
            .trigger(processingTime="200 milliseconds")
            .start()
        )

    def read_to() -> int:
        assert query.exception() is None
        output.mkdir(exist_ok=True)
        written = spark.read.schema(SCHEMA).parquet(str(output))
        return written.agg({"end_lsn": "max"}).collect()[0][0] or 0

    query = follow()
    try:
        fill(cluster, 10_000, 500)
        end = lsn_of(cluster.primary.sql("SELECT pg_current_wal_flush_lsn()"))
        wait_until(lambda: read_to() >= end)
        query.stop()
        cluster.safekeepers[1].kill()
        fill(cluster, 11_000, 3000)
        query = follow()
        fill(cluster, 14_000, 10)
        end = lsn_of(cluster.primary.sql("SELECT pg_current_wal_flush_lsn()"))
        wait_until(lambda: read_to() >= end)
        assert query.exception() is None
    finally:
        query.stop()
        if not cluster.safekeepers[1].is_running:
            cluster.safekeepers[1].start()
    followed = spark.read.parquet(str(output)).orderBy("start_lsn").toArrow().to_pylist()
    starts = [row["start_lsn"] for row in followed]
    assert len(starts) == len(set(starts)) > 9000
    assert [row["prev_lsn"] for row in followed[1:]] == starts[:-1], "none is left out"
    batch = spark.read.format("pgwal").options(**reader_options()).load()
    upto = batch.where(f"start_lsn <= {starts[-1]}").orderBy("start_lsn").toArrow().to_pylist()
    assert upto == followed
