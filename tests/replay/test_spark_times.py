"""A time means the same commits to Spark and to the commands, and the ones that are right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_pgwal.read_once import changes as changes_by_stages
from pyspark_pgwal.read_once import table_at
from tests.proof.recoveries.clock_steps import EPOCH, SECOND, Archived, ends_of, stamped
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run
from walkeeper_common.lsn import Lsn
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_wal.wal_errors import HistoryError

# py4j leaves sockets to the collector.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
# Each row is a commit. Hours from the midnight, of UTC+02, that begins a day: the clock is set
# back after the third one.
HOURS = {1: -1.0, 2: -0.5, 3: 0.0, 4: -6.0, 5: 0.5, 6: 12.0}


@dataclass(frozen=True, slots=True)
class Stamped:
    """A backup and WAL behind it, whose commits have the times of HOURS."""

    wal: str
    base: str
    day: datetime  # its first moment in UTC+02
    before: datetime  # the backup's checkpoint

    def at(self, hours: float) -> str:
        return (self.day + timedelta(hours=hours)).isoformat(sep=" ")

    def on_the_day(self) -> str:
        return f"{(self.day + timedelta(hours=2)).date()}+02"


@pytest.fixture(scope="module")
def stamped_wal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stamped]:
    with PostgresServer.create({"autovacuum": "off"}, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE TABLE early (id int)", "INSERT INTO early VALUES (0)")
        backup = server.base_backup()
        begin = int(Lsn.parse(server.sql("SELECT pg_current_wal_insert_lsn()")))
        for number in HOURS:
            server.sql(f"INSERT INTO early VALUES ({number})")
        server.sql("SELECT pg_switch_wal()", "CREATE TABLE behind ()")
        wal = tmp_path_factory.mktemp("stamped") / "wal"
        wal.mkdir()
        for path in (server.data / "pg_wal").iterdir():
            if len(path.name) == 24:
                shutil.copy(path, wal)
        before = BaseDirectory(str(backup.data)).checkpoint_time
        day = (before + timedelta(days=2)).replace(hour=22, minute=0, second=0, microsecond=0)
        archived, ends = Archived(wal), ends_of(wal, begin)
        assert len(ends) > len(HOURS)
        for lsn, hours in zip(ends, [*HOURS.values(), *[24.0] * len(ends)], strict=False):
            passed = (day + timedelta(hours=hours) - EPOCH).total_seconds()
            archived.write(lsn, stamped(archived.record(lsn), int(passed) * SECOND))
        archived.save()
        yield Stamped(str(wal), str(backup.data), day, before)
        backup.delete()


def loaded(spark: SparkSession, stage: Stamped, **options: str) -> DataFrame:
    reader = spark.read.format("pgwal").option("path", stage.wal)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def commanded(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["history", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def rows_up_to(last: int) -> list[int]:
    return list(range(last + 1))


def test_a_tables_time_is_the_commands(
    spark: SparkSession, stamped_wal: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = stamped_wal
    plus_two = (stage.day + timedelta(hours=2)).strftime("%Y-%m-%d 00:00:00+02")
    for time, last in (
        (stage.on_the_day(), 2),  # the day begins two hours before UTC's
        (plus_two, 2),
        (stage.at(-5), 0),  # reached by the first commit already, before the clock was set back
        (stage.at(0.25), 4),  # with the commit behind the step, which is of an earlier time
        (f"{(stage.day + timedelta(hours=2)).date()}", 5),  # without an offset it is UTC's
    ):
        options = {"relation": "early", "base": stage.base, "time": time, "parts": "1"}
        where = ("--path", stage.wal, "--base", stage.base, "--time", time)
        code, out, _ = commanded(capsys, "table-at", "early", *where)
        assert (code, sorted(int(id) for id in out.split()[1:])) == (0, rows_up_to(last)), time
        rows = loaded(spark, stage, table="table_at", **options).collect()
        assert sorted(row.id for row in rows) == rows_up_to(last), time
        assert {row.coverage for row in rows} == {"complete"}
    by_stages = table_at(spark, path=stage.wal, **options).collect()
    assert sorted(row.id for row in by_stages) == rows_up_to(last)


def test_a_time_before_the_backup_is_refused_as_the_command_refuses_it(
    spark: SparkSession, stamped_wal: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    stage, options = stamped_wal, {"relation": "early", "base": stamped_wal.base}
    time = (stage.before - timedelta(seconds=1)).isoformat()
    where = ("--path", stage.wal, "--base", stage.base, "--time", time)
    code, _, said = commanded(capsys, "table-at", "early", *where)
    assert code == 1 and "ask for a later time" in said
    with pytest.raises(PySparkException, match="ask for a later time"):
        loaded(spark, stage, table="table_at", time=time, **options)
    with pytest.raises(HistoryError, match="ask for a later time"):
        table_at(spark, path=stage.wal, time=time, **options)
    with pytest.raises(PySparkException, match="either the option lsn or the option time"):
        loaded(spark, stage, table="table_at", time=stage.at(1), lsn="0/1700000", **options)


def ranges(stage: Stamped) -> Iterator[tuple[dict[str, str], list[str], list[int]]]:
    """Yield Spark's options, the command's, and the rows whose commits are in the range."""
    for start, end, expected in (
        (stage.at(-0.5), stage.at(0.5), [2, 3, 4]),
        (stage.on_the_day(), stage.at(1), [3, 4, 5]),
        (stage.at(0.25), None, [5, 6]),
        (None, stage.at(-0.5), [1]),
    ):
        named = {"startTime": start, "endTime": end}
        given = {name: value for name, value in named.items() if value is not None}
        flags = {"startTime": "--start-time", "endTime": "--end-time"}
        yield given, [word for n, value in given.items() for word in (flags[n], value)], expected


def test_ranges_of_changes_by_time_are_the_commands(
    spark: SparkSession, stamped_wal: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = stamped_wal
    for given, flags, expected in ranges(stage):
        where = ("--path", stage.wal, "--base", stage.base, "--table", "early", "--format", "json")
        code, out, said = commanded(capsys, "changes", *where, *flags)
        changes = [json.loads(line) for line in out.splitlines()]
        assert (code, [int(one["new"]["id"]) for one in changes]) == (0, expected), (given, said)
        options = {"table": "changes", "relation": "early", "base": stage.base, "parts": "1"}
        rows = loaded(spark, stage, **options, **given).orderBy("commit_lsn").collect()
        assert [int(row.new["id"]) for row in rows] == expected, given
        assert {row.coverage for row in rows} <= {"complete"}
    by_stages = changes_by_stages(
        spark, path=stage.wal, relation="early", base=stage.base, parts="1", **given
    )
    assert [int(row.new["id"]) for row in by_stages.collect()] == expected, given


def test_a_range_that_ends_before_it_begins_is_refused(
    spark: SparkSession, stamped_wal: Stamped
) -> None:
    """Without a word it would have no changes."""
    stage = stamped_wal
    where = {"relation": "early", "base": stage.base}
    for given in (
        {"startTime": stage.at(0.5), "endTime": stage.at(-0.5)},
        {"startLsn": "0/2000000", "endLsn": "0/1000000"},
    ):
        with pytest.raises(PySparkException, match="before its beginning"):
            loaded(spark, stage, table="changes", **where, **given).collect()
        with pytest.raises(HistoryError, match="before its beginning"):
            changes_by_stages(spark, path=stage.wal, **where, **given)


def test_a_range_of_changes_that_begins_before_the_wal_is_no_whole_one(
    spark: SparkSession, stamped_wal: Stamped, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = stamped_wal
    early = (stage.before - timedelta(days=1)).isoformat()
    where = ("--path", stage.wal, "--base", stage.base, "--table", "early")
    code, _, said = commanded(capsys, "changes", *where, "--start-time", early)
    assert code == 1 and "missing: range" in said
    options = {"table": "changes", "relation": "early", "base": stage.base, "parts": "1"}
    options["startTime"] = early
    with pytest.raises(PySparkException, match="changes are missing: range"):
        loaded(spark, stage, **options).collect()
    with pytest.raises(HistoryError, match="changes are missing: range"):
        changes_by_stages(spark, path=stage.wal, relation="early", base=stage.base, startTime=early)
    accepted = loaded(spark, stage, allowMissing="true", **options).collect()
    assert len(accepted) == len(HOURS)


def test_ranges_of_records_by_time_are_the_commands(
    spark: SparkSession, stamped_wal: Stamped, tmp_path: Path
) -> None:
    stage = stamped_wal
    for number, (given, flags, _) in enumerate(ranges(stage)):
        directory = tmp_path / str(number)
        where = ["--path", stage.wal, "--table", "xacts", "--output", str(directory), "--quiet"]
        assert run(["history", "tables", *where, *flags]) == 0
        files = sorted(directory.rglob("*.parquet"))
        written = [
            lsn for file in files for lsn in parquet.read_table(file)["start_lsn"].to_pylist()
        ]
        rows = loaded(spark, stage, table="xacts", **given).orderBy("start_lsn").collect()
        assert [row.start_lsn for row in rows] == sorted(written), given
