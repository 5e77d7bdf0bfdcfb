"""A stream of Spark tells what its changes lack, may lack or do not show: in rows, and in the log.
The commands tell it on stderr."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_pgwal.changes_stream import ChangesStreamReader, changes_stream
from pyspark_pgwal.replayed_tables import past_reader
from tests.replay.test_undescribed_postgres import begin, copied, later_wal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S
from walkeeper_replay.streams.change_ranges import ChangeRanges
from walkeeper_wal.wal_errors import HistoryError

# py4j leaves sockets to the collector.
pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]
SEGMENT_BYTES = 1 << 20
Row = dict[str, Any]


@pytest.fixture(scope="module")
def wal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """WAL with an unsure transaction, an heir, a rewrite, and a value of an unknown type."""
    settings = {"wal_keep_size": "8GB", "fsync": "off", "autovacuum": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CREATE EXTENSION cube", "CREATE TABLE t (a int)")
        with server.connect() as session:
            begin(session, "INSERT INTO t VALUES (1)")
            folder = tmp_path_factory.mktemp("later") / "wal"
            folder = later_wal(server, folder, says_what_is_open=False)
            session.execute("ALTER TABLE t ALTER a SET STATISTICS 5")  # describes it
            session.execute("ALTER TABLE t SET (fillfactor = 90)")
            session.execute("INSERT INTO t VALUES (2)")
            session.execute("COMMIT")
        server.sql("CHECKPOINT", "SELECT pg_switch_wal()")
        server.sql("CREATE TABLE parent (id int, c cube)", "CREATE TABLE heir () INHERITS (parent)")
        for number in range(3):
            server.sql(f"INSERT INTO parent VALUES ({number}, '(1,2)')", "SELECT pg_switch_wal()")
        server.sql("ALTER TABLE parent ALTER id TYPE bigint", "SELECT pg_switch_wal()")
        server.sql("INSERT INTO t VALUES (3)")
        yield copied(server, folder)


def reader(wal: str, folder: Path, **options: str) -> ChangesStreamReader:
    given = {
        "path": wal, "database": "postgres", "relation": "parent,t",
        "state": str(folder / "state"), "maxbytespertrigger": str(SEGMENT_BYTES),
    }  # fmt: skip
    return changes_stream(given | options)


def rows_of(made: ChangesStreamReader, start: Any, end: Any) -> list[Row]:
    parts = made.partitions(start, end)
    return [row for part in parts for batch in made.read(part) for row in batch.to_pylist()]


def told(rows: list[Row]) -> set[tuple[str, str, bool]]:
    """Return what rows tell, without the places that depend on where micro-batches end."""
    return {
        (row["file"].split(" up to ")[0], row["reason"].split(": ")[0], row["fatal"])
        for row in rows
    }  # fmt: skip


def test_a_stream_of_problems_tells_what_the_batch_tells_and_again_the_same(
    wal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeRanges, "save_bytes", 2 * SEGMENT_BYTES)
    of = {"table": "problems", "of": "changes"}
    made, found = reader(wal, tmp_path, **of), dict[int, list[Row]]()
    ends = [made.initialOffset()]
    while (end := made.latestOffset(ends[-1], made.getDefaultReadLimit())) != ends[-1]:
        number, start = len(ends), ends[-1]
        found[number] = rows_of(made, start, end)
        if number % 2:  # die, and go on from a state that lags, or is new
            made.stop()
            if number == 3:
                shutil.rmtree(tmp_path / "state")
            made = reader(wal, tmp_path, **of)
            assert rows_of(made, start, end) == found[number], f"{number=}"
        made.commit(end)
        ends.append(end)
    made.stop()
    every = [row for number in sorted(found) for row in found[number]]
    given = {"path": wal, "database": "postgres", "relation": "parent,t", **of}
    batch = past_reader(given, None)
    (part,) = batch.partitions()
    batches: Iterator[Any] = batch.read(part)
    expected = [row for rows in batches for row in rows.to_pylist()]
    assert told(every) == told(expected) and len(ends) > 5
    assert {row["fatal"] for row in every} == {True, False}
    (unsure,) = [row for row in every if "may have begun before this WAL" in row["reason"]]
    assert unsure["start_lsn"] < unsure["end_lsn"] and not unsure["fatal"]
    assert sum("ALTER TABLE rewrote its rows" in row["reason"] for row in every) == 1
    assert sum("not complete: 1 of its changes" in row["reason"] for row in every) == 3


@pytest.mark.parametrize("accepts", [False, True])
def test_a_stream_of_changes_tells_it_in_the_drivers_log(
    wal: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, accepts: bool
) -> None:
    given = {"table": "changes", "allowmissing": str(accepts).lower()}
    given |= {} if accepts else {"relation": "parent,heir,t"}
    made = reader(wal, tmp_path, **given)
    start = made.initialOffset()
    while (end := made.latestOffset(start, made.getDefaultReadLimit())) != start:
        rows_of(made, start, end)
        start = end
    made.stop()
    assert sum("may have begun before this WAL" in each for each in caplog.messages) == 1
    assert any("table public.parent: ALTER TABLE rewrote" in each for each in caplog.messages)
    assert any("public.heir: it inherits from" in each for each in caplog.messages) == accepts


def test_options_of_a_stream_of_problems(wal: str, tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="a stream of problems needs the option state"):
        changes_stream({"path": wal, "table": "problems", "of": "changes"})
    with pytest.raises(HistoryError, match="table problems has no option spool"):
        reader(wal, tmp_path, table="problems", of="changes", spool="s")
    with pytest.raises(HistoryError, match="problems has no option state in batch"):
        past_reader({"path": wal, "table": "problems", "of": "changes", "state": "s"}, None)


@pytest.mark.spark
def test_spark_runs_a_stream_of_problems(spark: SparkSession, wal: str, tmp_path: Path) -> None:
    rows = list[Any]()

    def keep(batch: DataFrame, number: int) -> None:
        rows.extend(batch.collect())

    stream = spark.readStream.format("pgwal").option("path", wal).option("table", "problems")
    stream = stream.option("of", "changes").option("state", str(tmp_path / "state"))
    writer = stream.option("database", "postgres").load().writeStream.foreachBatch(keep)
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(LIMIT_S))
    assert sum("may have begun before this WAL" in row.reason for row in rows) == 1
    assert any(row.file == "public.parent" and not row.fatal for row in rows)
