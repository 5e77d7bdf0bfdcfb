"""A stream of changes in Spark: each change once and in order, through deaths and restarts."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadMaxBytes

from pyspark_pgwal.changes_stream import ChangesStreamReader, changes_stream
from pyspark_pgwal.replayed_tables import past_reader
from tests.replay.test_change_stream_postgres import SETTINGS, Died, Log
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.streams.change_ranges import ChangeRanges
from walkeeper_wal.wal_errors import HistoryError

# py4j leaves sockets to the collector.
pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]
SEGMENT_BYTES = 1 << 20


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        yield Log(server, tmp_path_factory.mktemp("log"))


@dataclass
class Query:
    """A query as Spark runs it: ends of micro-batches are kept before, and commits after each."""

    log: Log
    folder: Path
    options: dict[str, str] = field(default_factory=dict)
    ends: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0
    batches: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    def reader(self) -> ChangesStreamReader:
        given = {
            "path": str(self.log.wal), "table": "changes", "database": "postgres",
            "state": str(self.folder / "state"), "maxbytespertrigger": str(SEGMENT_BYTES),
        }  # fmt: skip
        return changes_stream(given | self.options)

    def run(self, step: Callable[[str], None], upto: int = 1 << 30) -> None:
        """Run until there is nothing new; `step` is called after each step, and may raise."""
        reader = self.reader()
        try:
            self._run(reader, step, upto)
        finally:
            reader.stop()

    def _run(self, reader: ChangesStreamReader, step: Callable[[str], None], upto: int) -> None:
        if not self.ends:
            self.ends.append(reader.initialOffset())
        while self.committed < upto:
            if len(self.ends) == self.committed + 1:
                limit = reader.getDefaultReadLimit()
                new = reader.latestOffset(self.ends[-1], limit)
                if new == self.ends[-1]:
                    return
                self.ends.append(json.loads(json.dumps(new)))
            step("planned")
            start, end = self.ends[self.committed : self.committed + 2]
            if self.committed:
                reader.commit(start)
                step("source knows")
            parts = reader.partitions(start, end)
            step("made")
            task = pickle.loads(pickle.dumps(reader))
            made = [batch for part in parts for batch in task.read(part)]
            self.batches[self.committed] = pa.Table.from_batches(made, SCHEMA).to_pylist()
            step("written")
            self.committed += 1
            step("committed")

    def rows(self) -> list[dict[str, Any]]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def never(step: str) -> None:
    """Do not die."""


@pytest.mark.parametrize("over_base", [False, True])
def test_micro_batches_together_are_the_batch_answer(
    log: Log, tmp_path: Path, over_base: bool
) -> None:
    query = Query(log, tmp_path, {"base": str(log.base)} if over_base else {})
    query.run(never)
    expected = log.expected([], log.base if over_base else None)
    assert query.rows() == expected and len(expected) > 30
    assert query.committed > 4
    given = {"path": str(log.wal), "table": "changes", "database": "postgres", **query.options}
    reader = past_reader({**given, "parts": "1"}, None)
    (part,) = reader.partitions()
    batch = pa.Table.from_batches(list(reader.read(part)), SCHEMA).to_pylist()
    assert query.rows() == batch


@pytest.mark.parametrize("at", ["planned", "source knows", "made", "written", "committed"])
def test_a_death_at_any_step_repeats_a_batch_as_it_was(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Each batch is what it was when it was first made, from a state that lags or is new."""
    monkeypatch.setattr(ChangeRanges, "save_bytes", 2 * SEGMENT_BYTES)
    query, deaths, first = Query(log, tmp_path), 0, dict[int, list[dict[str, Any]]]()

    def die(step: str) -> None:
        nonlocal deaths
        if query.committed in query.batches:
            made = query.batches[query.committed]
            assert first.setdefault(query.committed, made) == made
        if step == at and deaths < 2 * query.committed:
            deaths += 1
            if deaths == 3:
                shutil.rmtree(tmp_path / "state")  # a new machine
            raise Died

    while True:
        try:
            query.run(die)
            break
        except Died:
            pass
    assert deaths > 3
    assert query.rows() == log.expected([], None)


def test_the_state_follows_what_is_committed_and_the_spool_is_emptied(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangeRanges, "save_bytes", 1)
    query = Query(log, tmp_path, {"spool": str(tmp_path / "spool")})
    left: list[int] = []

    def look(step: str) -> None:
        if step == "source knows":
            left.append(len(list((tmp_path / "spool").iterdir())))

    query.run(look)
    assert left and not any(left), "a finished range has no file"
    rewound = Query(log, tmp_path, query.options)
    with pytest.raises(HistoryError, match=r"read up to .*: name an empty state"):
        rewound.run(never)


def test_tasks_in_another_folder_find_a_relative_spool(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor's process looked for the files below the folder where it runs itself."""
    driver, executor = tmp_path / "driver", tmp_path / "executor"
    driver.mkdir()
    executor.mkdir()
    monkeypatch.chdir(driver)
    query = Query(log, tmp_path, {"spool": "spool"})
    query.run(lambda step: monkeypatch.chdir(executor if step == "made" else driver))
    assert query.rows() == log.expected([], None)
    assert (driver / "spool").is_dir() and not any(executor.iterdir())


def test_two_queries_with_one_spool_keep_apart(log: Log, tmp_path: Path) -> None:
    """Files of one range had one name: a query read the other's changes, or lost its own."""
    spool = {"spool": str(tmp_path / "spool")}
    whole = Query(log, tmp_path / "whole", spool)
    early = Query(log, tmp_path / "early", {**spool, "relation": "early", "allowmissing": "true"})

    def run_the_other(step: str) -> None:
        if step == "made":
            early.run(never, upto=whole.committed + 1)

    whole.run(run_the_other)
    early.run(never)
    assert whole.rows() == log.expected([], None)
    assert early.rows() == log.expected(["early"], None) and early.rows()


def test_a_micro_batch_has_no_more_wal_than_asked_for(log: Log, tmp_path: Path) -> None:
    reader = Query(log, tmp_path).reader()
    assert reader.getDefaultReadLimit() == ReadMaxBytes(SEGMENT_BYTES)
    start = reader.initialOffset()
    sizes = []
    for most in (1, 3 * SEGMENT_BYTES, 1 << 40):
        end = reader.latestOffset(start, ReadMaxBytes(most))
        sizes.append(int(end["lsn"].split("/")[1], 16) - int(start["lsn"].split("/")[1], 16))
    # The last record may lead into the next segment.
    assert 0 < sizes[0] < 2 * SEGMENT_BYTES < sizes[1] < 4 * SEGMENT_BYTES < sizes[2]


def test_a_second_query_with_the_same_state_is_refused(log: Log, tmp_path: Path) -> None:
    first = Query(log, tmp_path)

    def second(step: str) -> None:
        if step == "made":
            Query(log, tmp_path).run(never)

    with pytest.raises(HistoryError, match="another stream uses this state"):
        first.run(second)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option state"),
        ({"state": "s", "endlsn": "0/1"}, "no option endLsn as a stream"),
        ({"state": "s", "table": "table_at", "relation": "r"}, "has no option state"),
        ({"table": "table_at", "relation": "r"}, "in batch only"),
    ],
)
def test_options_that_a_stream_has_not_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(HistoryError, match=message):
        changes_stream({"path": "w", "table": "changes", **options})
    with pytest.raises(HistoryError, match="no option state in batch"):
        past_reader({"path": "w", "table": "changes", "state": "s"}, None)


def test_an_archive_that_grows_gives_the_same(log: Log, tmp_path: Path) -> None:
    wal = tmp_path / "wal"
    wal.mkdir()
    query = Query(log, tmp_path, {"path": str(wal)})
    for path in sorted(path for path in log.wal.iterdir() if path.is_file()):
        shutil.copy(path, wal)
        if len(list(wal.iterdir())) % 3 == 0:
            query.run(never)
    query.run(never)
    assert query.rows() == log.expected([], None)


@pytest.mark.spark
def test_a_query_that_fails_and_is_started_again_has_each_change_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    """The sink fails after its write, so that Spark asks for a batch again."""
    rows, failed = dict[int, list[Any]](), list[str]()

    def keep(batch: DataFrame, number: int) -> None:
        found = [row.asDict(recursive=True) for row in batch.collect()]
        assert rows.setdefault(number, found) == found
        if number == 1 and not failed:
            raise Died

    while len(failed) < 3:
        query = (
            spark.readStream.format("pgwal").option("path", str(log.wal))
            .option("table", "changes").option("database", "postgres")
            .option("state", str(tmp_path / "state"))
            .option("maxBytesPerTrigger", str(2 * SEGMENT_BYTES)).load()
            .writeStream.foreachBatch(keep).trigger(availableNow=True)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        )  # fmt: skip
        try:
            query.awaitTermination(int(LIMIT_S))
            break
        except PySparkException as error:
            failed.append(str(error))
    assert len(failed) == 1 and "Died" in failed[0], failed
    found = [row for number in sorted(rows) for row in rows[number]]
    expected = log.expected([], None)
    keys = ("start_lsn", "commit_lsn", "table", "operation", "old", "new", "coverage")
    of = [[{key: row[key] for key in keys} for row in each] for each in (found, expected)]
    for row in of[1]:
        row |= {key: None if row[key] is None else dict(row[key]) for key in ("old", "new")}
    assert of[0] == of[1] and len(rows) >= 3
