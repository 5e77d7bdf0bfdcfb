"""table_at and changes as plans of Spark's own: each segment is decoded once in a stage."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pyspark_pgwal import read_once
from pyspark_pgwal.batch import partitions_of
from pyspark_pgwal.read_once import changes, table_at
from pyspark_pgwal.replayed_tables import PastOptions
from tests.replay.test_past_command import SETTINGS, Shop
from tests.support.postgres_server import PostgresServer
from walkeeper_common.lsn import Lsn
from walkeeper_history.rows.ended import naming_endings
from walkeeper_history.rows.transactions import HAS_INFO
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.redo.chosen_records import Share, records_of
from walkeeper_replay.redo.parallel_pass import CatalogFiles, Taken, taken_of
from walkeeper_replay.tuples.xids import NEVER
from walkeeper_wal.records.versions import RMGR_IDS
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.threaded_reading import Part, SweepOptions, read_each
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server:
        bulk = "SELECT i, repeat(md5(i::text), 60) AS t FROM generate_series(1, 2000) i"
        server.sql(f"CREATE TABLE bulk AS {bulk}")
        made = Shop(server)
        server.sql(f"INSERT INTO bulk {bulk}")
        server.sql("UPDATE orders SET who = repeat('long', 3000) || id WHERE id % 7 = 0")
        server.sql("SELECT pg_switch_wal()")
        yield made


def test_catalogs_of_chosen_records_are_those_of_all_records(shop: Shop) -> None:
    files = open_files(shop.wal)
    plan = make_plan(files)
    for until in (None, int(Lsn.parse(shop.lsn)), plan.segments[1].first_lsn + 77_000):

        def decode(wanted: CatalogFiles, until: int | None = until) -> Iterator[Part[Taken]]:
            def make(reading: Reading) -> Taken:
                return taken_of(reading, until, wanted.choose)

            return iter(read_each(files, plan, make, SweepOptions(threads=2)))

        whole = CatalogHistory.read(files, plan, until=until)
        chosen = CatalogHistory.read(files, plan, until=until, decode=decode)
        assert (chosen.end_lsn, chosen.is_whole) == (whole.end_lsn, whole.is_whole)
        assert chosen.names() == whole.names()
        assert chosen.xids.commits.items() < whole.xids.commits.items()
        xids = np.array(sorted(whole.xids.commits))
        assert (chosen.xids.ends_by_now(xids) != NEVER).all()
        before = whole.xids.began_before(xids)
        assert chosen.xids.began_before(xids).tolist() == before.tolist()


class Here:
    """Run in this process the calls of Spark that read_once makes."""

    defaultParallelism = 1

    def __init__(self, made: Any = None) -> None:
        self.made, self.tasks = made, list[int]()

    @property
    def sparkContext(self) -> Here:
        return self

    def parallelize(self, items: list[Any], count: int) -> Here:
        assert len(items) == count
        self.tasks.append(count)
        return Here(items)

    def collect(self) -> Any:
        return self.made

    def flatMap(self, work: Callable[[Any], Any]) -> Here:
        return Here([made for item in self.made for made in work(item)])

    def createDataFrame(self, rows: Here, schema: str, verifySchema: bool) -> Here:
        return rows

    def repartition(self, parts: int, name: str) -> Here:
        return self

    def asTable(self) -> Here:
        return self

    def partitionBy(self, name: str) -> Here:
        parts = sorted({row[0] for row in self.made})
        return Here([[row for row in self.made if row[0] == part] for part in parts])

    def orderBy(self, name: str) -> list[Any]:
        return [sorted(group, key=lambda row: row[1]) for group in self.made]


def table_function(made: type, returnType: Any) -> Callable[[list[Any]], list[Any]]:
    """Return what arrow_udtf returns, but for this process: an instance for each group."""

    def rows(groups: list[Any]) -> list[Any]:
        found: list[Any] = []
        for group in groups:
            instance = made()
            for row in group:
                columns = [pa.array([row[0]]), pa.array([row[1]]), pa.array([row[2]], pa.binary())]
                found += instance.eval(pa.record_batch(columns, ["part", "lsn", "records"]))
            found += instance.terminate()
        return found

    return rows


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let the plans run in this process, and count how often each segment is decoded."""
    before, found = Reading.__iter__, Counter[str]()

    def counted(reading: Reading) -> Any:
        found[reading.segment.name] += 1
        return before(reading)

    monkeypatch.setattr(Reading, "__iter__", counted)
    monkeypatch.setattr(read_once, "arrow_udtf", table_function)
    monkeypatch.setattr(read_once, "partitions_of", lambda plan, _: partitions_of(plan, 2))
    return found


@pytest.mark.parametrize("parts", ["1", "5"])
@pytest.mark.parametrize("at_lsn", [False, True])
def test_each_segment_is_decoded_once_a_stage(
    shop: Shop, reads: Counter[str], parts: str, at_lsn: bool
) -> None:
    """As often with five groups of blocks as with one."""
    given = {"path": shop.wal, "relation": "orders", "parts": parts}
    given |= {"lsn": shop.lsn} if at_lsn else {}
    plan = make_plan(open_files(shop.wal))
    past = PastOptions.parse({**given, "table": "table_at"})
    expected = past.table_at(*past.place()).whole()
    reads.clear()
    spark: Any = Here()
    batches: Any = table_at(spark, **given)
    rows = pa.Table.from_batches(batches)
    assert set(reads.values()) == {2} and len(reads) <= len(plan.segments)
    key = [("id", "ascending")]
    assert rows.sort_by(key).to_pylist() == expected.sort_by(key).to_pylist()
    assert len(rows) == 300 if at_lsn else len(rows) > 100


def test_a_place_of_the_shuffle_that_got_no_group_has_no_rows(shop: Shop) -> None:
    """Two groups of blocks may come to one place, and the other place is left with none."""
    options = PastOptions.parse({"path": shop.wal, "relation": "orders", "table": "table_at"})
    redo = read_once._redo_of(options.table_at(*options.place()), 2)()
    assert list(redo.terminate()) == []


def test_a_table_is_never_redone_over_damage(
    shop: Shop, reads: Counter[str], tmp_path: Path
) -> None:
    """With onError skip a damaged record was redone, and coverage called the rows complete."""
    wal = Path(shutil.copytree(shop.wal, tmp_path / "wal"))
    shop.run("CREATE TABLE worn (id int)")
    first = shop.server.sql(f"SELECT pg_walfile_name('{shop.mark()}')")
    shop.run("INSERT INTO worn SELECT generate_series(1, 40000)", "SELECT pg_switch_wal()")
    names = [path.name for path in sorted(Path(shop.wal).glob("0*")) if path.name >= first]
    for name in names:
        shutil.copy(Path(shop.wal) / name, wal)
    data = bytearray((wal / names[1]).read_bytes())
    data[600_000] ^= 1
    (wal / names[1]).write_bytes(data)
    spark: Any = Here()
    given = {"path": str(wal), "relation": "worn", "parts": "2", "onError": "skip"}
    with pytest.raises(DamagedWal, match=f"{names[1]}: .*checksum in record"):
        pa.Table.from_batches(table_at(spark, **given))


def test_options_of_a_stream_are_refused(shop: Shop) -> None:
    """They were taken and not heeded."""
    spark: Any = Here()
    with pytest.raises(HistoryError, match="changes has no option state in batch"):
        changes(spark, path=shop.wal, state="s")


@pytest.mark.parametrize("parts", ["1", "5"])
@pytest.mark.parametrize("given", [{}, {"relation": "orders"}, {"startLsn": "", "endLsn": ""}])
def test_changes_decode_each_segment_once_a_stage(
    shop: Shop, reads: Counter[str], parts: str, given: dict[str, str]
) -> None:
    """As often with five groups of tables as with one. The changes are those of ChangeReader."""
    ends = {"startLsn": shop.lsn, "endLsn": shop.damaged}
    options = {name: value or ends[name] for name, value in given.items()}
    asked = PastOptions.parse({"path": shop.wal, "table": "changes", **options})
    files, plan, end = open_files(shop.wal), asked.plan(), asked.lsn("endLsn")
    history = CatalogHistory.read(files, plan, until=end)
    database = history.database(history.end_lsn, None)
    reader = ChangeReader(files, plan, history, database)
    start = asked.lsn("startLsn") or 0
    expected = rows_of(reader.find(asked.relations, start, end).batches("postgres"))
    reads.clear()
    spark: Any = Here()
    found: Any = changes(spark, path=shop.wal, parts=parts, **options)
    assert max(reads.values()) == 2 and min(reads.values()) >= 1
    assert rows_of(found) == expected and len(expected) > 200


class Sessions:
    """A server whose transactions last for several segments, in two tables and their TOAST."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        for table in ("left_one", "right_one"):
            server.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, t text)")
            server.sql(f"INSERT INTO {table} SELECT i, 'x' FROM generate_series(1, 50) i")
        with contextlib.ExitStack() as open_ones:
            long, rolled_back, prepared = (
                open_ones.enter_context(server.connect()) for _ in range(3)
            )
            for number, session in enumerate((long, rolled_back, prepared), 1):
                session.execute("BEGIN")
                session.execute(f"UPDATE left_one SET t = 'first' WHERE id = {number}".encode())
            self.fill(3)
            long.execute("SAVEPOINT s")
            long.execute("INSERT INTO right_one VALUES (1001, repeat('sub', 5000))")
            long.execute("SAVEPOINT s2")
            long.execute("DELETE FROM left_one WHERE id = 11")
            long.execute("ROLLBACK TO s2")
            rolled_back.execute("DELETE FROM right_one WHERE id = 12")
            prepared.execute("SAVEPOINT p")
            prepared.execute("DELETE FROM right_one WHERE id = 13")
            prepared.execute("PREPARE TRANSACTION 'p'")
            self.fill(3)
            rolled_back.execute("ROLLBACK")
            long.execute("COMMIT")
            self.fill(2)
        server.sql("COMMIT PREPARED 'p'")
        server.sql("SELECT pg_switch_wal()")

    def fill(self, segments: int) -> None:
        """Write WAL in transactions of other tables, and short ones of these."""
        for number in range(segments):
            self.server.sql("SELECT pg_logical_emit_message(true, 'fill', repeat('x', 900000))")
            self.server.sql(f"UPDATE right_one SET t = t || 'y' WHERE id = {20 + number}")
            self.server.sql("SELECT pg_switch_wal()")


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    settings = SETTINGS | {"max_prepared_transactions": "2"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        yield Sessions(server)


@pytest.mark.parametrize("relation", ["", "left_one", "right_one"])
@pytest.mark.parametrize("segments", [1, 3])
def test_transactions_that_outlast_a_task_have_their_changes(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, segments: int, relation: str
) -> None:
    """The task that sees a commit has not seen what its transaction changed before."""
    monkeypatch.setattr(read_once, "arrow_udtf", table_function)
    monkeypatch.setattr(read_once, "partitions_of", lambda plan, _: partitions_of(plan, segments))
    path = str(sessions.server.data / "pg_wal")
    given = {"path": path} | ({"relation": relation} if relation else {})
    files = open_files(path)
    plan = make_plan(files)
    history = CatalogHistory.read(files, plan)
    reader = ChangeReader(files, plan, history, history.database(history.end_lsn, None))
    expected = rows_of(reader.find([relation] if relation else []).batches("postgres"))
    for parts in ("1", "4"):
        spark: Any = Here()
        found = rows_of(changes(spark, parts=parts, **given))
        assert found == expected
    own = [row for row in found if any(it in row for it in ("'first'", "subsub", "'delete'"))]
    assert len(own) == {"": 4, "left_one": 2, "right_one": 2}[relation]


@pytest.mark.parametrize("bytes_", [1, 1 << 40])
def test_the_driver_asks_for_no_more_than_it_has_room_for(
    shop: Shop, reads: Counter[str], monkeypatch: pytest.MonkeyPatch, bytes_: int
) -> None:
    """Java's heap ended a job of 1 GB of WAL, and the driver then waited for ever."""
    monkeypatch.setattr(read_once, "ROUND_BYTES", bytes_)
    monkeypatch.setattr(read_once, "partitions_of", lambda plan, _: partitions_of(plan, 1))
    monkeypatch.setattr(Here, "defaultParallelism", 3)
    spark: Any = Here()
    changes(spark, path=shop.wal)
    first, *later, total = spark.tasks  # The server may make a segment at any time.
    assert first == read_once.FIRST_TASKS and sum((first, *later)) == total >= 6
    assert set(later) == {1} if bytes_ == 1 else later[0] == min(6, total - first)


def test_what_the_driver_gets_is_packed(shop: Shop) -> None:
    files = open_files(shop.wal)
    plan = make_plan(files)

    def make(reading: Reading) -> Taken:
        return taken_of(reading, None, lambda batch: batch)

    for part in read_each(files, plan, make, SweepOptions(threads=1)):
        size, data = packed = read_once._packed(part)
        assert len(data) < size / 2
        again = read_once._unpacked(packed)
        assert again.summary == part.summary and again.problems == part.problems
        for own, other in zip(again.made.batches, part.made.batches, strict=True):
            assert np.array_equal(own.records, other.records)


def rows_of(batches: Any) -> list[str]:
    """Return changes in an order that two plans share."""
    rows = pa.Table.from_batches(batches, SCHEMA).to_pylist()
    return sorted(map(str, rows))


def test_a_share_gets_no_commits_that_name_nothing(shop: Shop) -> None:
    """With wal_level = logical each commit has details, and each share got all of them."""
    files, nothing = open_files(shop.wal), Share(frozenset(), frozenset())

    def counts(reading: Reading) -> list[tuple[int, int, int]]:
        found = []
        for batch in reading:
            ends = batch.records[batch.records["rmid"] == RMGR_IDS["Transaction"]]
            shared = records_of(batch, nothing).records["rmid"] == RMGR_IDS["Transaction"]
            detailed = int((ends["info"] & HAS_INFO != 0).sum())
            found.append((detailed, len(naming_endings(batch)), int(shared.sum())))
        return found

    parts = read_each(files, make_plan(files), counts, SweepOptions(threads=1))
    detailed, naming, shared = np.array([one for part in parts for one in part.made]).sum(axis=0)
    assert detailed > naming == shared > 0


def test_changes_that_the_wal_does_not_describe_are_refused(
    shop: Shop, reads: Counter[str], tmp_path: Path
) -> None:
    shop.run("CREATE TABLE unnamed (id int)", "CHECKPOINT", "SELECT pg_switch_wal()")
    first = shop.server.sql(f"SELECT pg_walfile_name('{shop.mark()}')")
    # The ends of transactions before the first snapshot of running ones are kept anyway.
    shop.run("CREATE TABLE named AS SELECT 1 AS id", "CHECKPOINT", "INSERT INTO unnamed VALUES (2)")
    shop.run("SELECT pg_switch_wal()")
    for segment in Path(shop.wal).glob("0*"):
        if segment.name >= first:
            shutil.copy(segment, tmp_path)
    spark: Any = Here()
    given = {"path": str(tmp_path), "parts": "2", "database": "postgres"}
    with pytest.raises(HistoryError, match="changes are missing: file 1663/"):
        changes(spark, **given)
    accepted: Any = changes(spark, **given, allowMissing="true")
    assert [row["table"] for batch in accepted for row in batch.to_pylist()] == ["named"]


@pytest.mark.spark
def test_sparks_changes_are_those_of_the_data_source(spark: SparkSession, shop: Shop) -> None:
    given = {"path": shop.wal, "endLsn": shop.lsn, "parts": "3"}
    expected = spark.read.format("pgwal").options(table="changes", **given).load()
    rows = changes(spark, **given)
    assert rows.schema == expected.schema
    assert sorted(map(str, rows.collect())) == sorted(map(str, expected.collect()))
    assert rows.count() > 200


@pytest.mark.spark
def test_sparks_rows_are_those_of_the_data_source(spark: SparkSession, shop: Shop) -> None:
    for relation in ("orders", "notes"):
        given = {"path": shop.wal, "relation": relation, "lsn": shop.lsn, "parts": "3"}
        expected = spark.read.format("pgwal").options(table="table_at", **given).load()
        rows = table_at(spark, **given)
        assert rows.schema == expected.schema
        assert sorted(map(str, rows.collect())) == sorted(map(str, expected.collect()))
        assert rows.count() > 0
