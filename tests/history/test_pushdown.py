"""A query reads no more than it asks for: filters are pushed down, with and without an index. The
bytes that are read are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from pyspark_pgwal.batch import PushdownReader, Segments, read_segments
from pyspark_pgwal.pgwal_options import PgWalOptions
from tests.history.workload import STEPS, Workload
from tests.support.postgres_server import PostgresServer
from walkeeper_cli.program import run
from walkeeper_history.rows.row_filters import Wanted
from walkeeper_history.segment_index import passed_over
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.wal_errors import HistoryError

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore::ResourceWarning")]
Row = dict[str, Any]


@pytest.fixture(scope="module")
def wal() -> Iterator[Path]:
    settings = {"wal_keep_size": "2GB", "max_prepared_transactions": "9", "fsync": "off",
                "wal_level": "logical"}  # fmt: skip
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        for seed in (1, 2, 3):
            with server.connect() as connection:
                connection.execute(f"CREATE SCHEMA s{seed}; SET search_path = s{seed}".encode())
                Workload(connection, seed, 400).play(STEPS)
            server.sql("CHECKPOINT")
        server.stop()
        yield server.data / "pg_wal"


@pytest.fixture(scope="module")
def index(wal: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "wal.parquet"
    assert run(["history", "index", "--path", str(wal), "--output", str(path)]) == 0
    return path


class Counted:
    """Rows of a filtered read, the filters that are left to Spark, and the segments read for it."""

    def __init__(self, wal: Path, table: str, filters: list[Any], **options: str) -> None:
        given = {"path": str(wal), "table": table, "pushdown": "true", **options}
        reader = PushdownReader(PgWalOptions.parse(given))
        self.left = list(reader.pushFilters(filters))
        self.parts = list(reader.partitions())
        self.rows: list[Row] = []
        self.segments = 0
        before = Reading.__iter__

        def counted(reading: Reading) -> Any:
            self.segments += 1
            return before(reading)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Reading, "__iter__", counted)
            for part in self.parts:
                assert isinstance(part, Segments), f"{part=}"
                for batch in read_segments(reader._options, part):
                    self.rows += batch.to_pylist()


def everything(wal: Path, table: str) -> list[Row]:
    return Counted(wal, table, []).rows


def test_resource_managers_and_xids_choose_rows_where_they_are_read(wal: Path) -> None:
    for table in ("records", "blocks"):
        every = everything(wal, table)
        xid = every[len(every) // 2]["xid"]
        for filters, keep in (
            ([EqualTo(("resource_manager",), "Heap")], lambda r: r["resource_manager"] == "Heap"),
            ([In(("xid",), (xid, 0))], lambda r, xid=xid: r["xid"] in (xid, 0)),
            ([EqualTo(("xid",), xid), EqualTo(("resource_manager",), "Heap")],
             lambda r, xid=xid: r["xid"] == xid and r["resource_manager"] == "Heap"),
        ):  # fmt: skip
            found = Counted(wal, table, filters)
            assert not found.left and found.rows == [row for row in every if keep(row)]
            assert 0 < len(found.rows) < len(every)


def test_lsns_of_both_ends_choose_segments(wal: Path) -> None:
    every = everything(wal, "records")
    low, high = (every[len(every) * n // 8]["end_lsn"] for n in (3, 4))
    filters = [GreaterThanOrEqual(("start_lsn",), low), LessThanOrEqual(("end_lsn",), high)]
    found = Counted(wal, "records", filters)
    assert found.left == filters[1:], "where a record ends Spark looks at again"
    kept = [row for row in found.rows if row["end_lsn"] <= high]
    assert kept == [row for row in every if row["start_lsn"] >= low and row["end_lsn"] <= high]
    assert found.segments <= (high - low) // (1 << 20) + 2


def test_one_of_several_lsns_or_times_is_between_the_first_and_the_last(
    wal: Path, index: Path
) -> None:
    """A list of LSNs ended the query with TypeError."""
    for table, column in (("records", "start_lsn"), ("records", "end_lsn"), ("xacts", "time")):
        every = everything(wal, table)
        few = [every[len(every) * n // 8][column] for n in (2, 3)]
        filters = [In((column,), (few[1], None, few[0]))]
        found = Counted(wal, table, filters, index=str(index))
        assert found.left == filters, "what lies between them is Spark's to leave out"
        kept = [row for row in found.rows if row[column] in few]
        assert kept == [row for row in every if row[column] in few] and len(kept) >= 2
        assert len(found.rows) < len(every)


def test_with_an_index_an_xid_a_relation_and_a_time_read_their_segments_alone(
    wal: Path, index: Path
) -> None:
    with_index = {"index": str(index)}
    all_segments = len(make_plan(open_files(str(wal))).segments)
    blocks = everything(wal, "blocks")
    row = blocks[len(blocks) // 2]
    cases: tuple[tuple[str, list[Filter], Callable[[Row], bool]], ...] = (
        ("records", [EqualTo(("xid",), row["xid"])], lambda r: r["xid"] == row["xid"]),
        ("blocks", [EqualTo(("relfilenode",), row["relfilenode"])],
         lambda r: r["relfilenode"] == row["relfilenode"]),
        ("relations", [EqualTo(("relfilenode",), row["relfilenode"])],
         lambda r: r["relfilenode"] == row["relfilenode"]),
        ("records", [EqualTo(("resource_manager",), "SPGist")],
         lambda r: r["resource_manager"] == "SPGist"),
        ("stats", [EqualTo(("resource_manager",), "SPGist")],
         lambda r: r["resource_manager"] == "SPGist"),
    )  # fmt: skip
    for table, filters, keep in cases:
        found = Counted(wal, table, filters, **with_index)
        wanted = [r for r in everything(wal, table) if keep(r)]
        assert [r for r in found.rows if keep(r)] == wanted and wanted
        those = {r["segment"] for r in wanted}
        assert found.segments <= len(those) + 2 < all_segments, f"{table} {filters}"


def test_with_an_index_every_transaction_of_every_table_is_found(wal: Path, index: Path) -> None:
    """Prepared ones, which are ended by another's record, and those in locks, too."""
    files = open_files(str(wal))
    plan = make_plan(files)
    for table in ("xacts", "locks", "messages"):
        every = everything(wal, table)
        assert every
        for xid in {row["xid"] for row in every}:
            passed = passed_over(str(index), files, plan, Wanted(xids=frozenset([xid])))
            kept = {s.name for s in plan.segments if s.first_lsn not in passed}
            assert {row["segment"] for row in every if row["xid"] == xid} <= kept


def test_with_an_index_times_choose_segments(wal: Path, index: Path) -> None:
    every = everything(wal, "xacts")
    times = sorted(row["time"] for row in every)
    low, high = times[len(times) // 2], times[len(times) // 2] + timedelta(milliseconds=1)
    filters = [GreaterThanOrEqual(("time",), low), LessThan(("time",), high)]
    found = Counted(wal, "xacts", filters, index=str(index))
    assert found.left == filters
    wanted = [row for row in every if low <= row["time"] < high]
    assert [row for row in found.rows if low <= row["time"] < high] == wanted and wanted
    assert found.segments < len(make_plan(open_files(str(wal))).segments) / 2
    naive = [EqualTo(("time",), datetime(1999, 1, 1))]
    assert Counted(wal, "xacts", naive, index=str(index)).rows == every, "of an unknown zone"
    none = [EqualTo(("time",), datetime(1999, 1, 1, tzinfo=UTC))]
    assert Counted(wal, "xacts", none, index=str(index)).segments <= 2, "those that may change"


def test_a_timeline_reads_only_what_was_written_on_it(wal: Path) -> None:
    every = everything(wal, "records")
    assert Counted(wal, "records", [EqualTo(("timeline",), 1)]).rows == every
    assert {row["timeline"] for row in every} == {1}


def test_sums_are_never_cut_by_a_filter(wal: Path) -> None:
    every = everything(wal, "relations")
    one = [EqualTo(("start_lsn",), every[3]["start_lsn"])]
    found = Counted(wal, "relations", one)
    assert found.left == one and found.rows == every


def test_missing_wal_is_an_error_wherever_a_filter_begins(wal: Path, tmp_path: Path) -> None:
    """A filter passed over the segment that names the gap, by LSNs or by the index."""
    gapped, plan = tmp_path / "gapped", make_plan(open_files(str(wal)))
    gapped.mkdir()
    for path in wal.glob("0*"):
        if path.is_file():
            (gapped / path.name).symlink_to(path)
    lost = plan.segments[len(plan.segments) // 2]
    (gapped / lost.name).unlink()
    index = tmp_path / "index.parquet"
    command = ["history", "index", "--path", str(gapped), "--output", str(index)]
    assert run([*command, "--on-error", "skip"]) == 0
    inside, behind = lost.first_lsn + 8192, lost.first_lsn + lost.segment_bytes
    asked: list[tuple[list[Any], dict[str, str]]] = [
        ([GreaterThanOrEqual(("start_lsn",), inside)], {}),
        ([EqualTo(("start_lsn",), inside)], {}),
        ([EqualTo(("xid",), 1)], {"index": str(index)}),
        ([], {"startLsn": str(inside)}),
    ]
    for filters, options in asked:
        with pytest.raises(HistoryError, match="missing between"):
            Counted(gapped, "records", filters, **options)
    well_before = lost.first_lsn - lost.segment_bytes
    for each in (GreaterThanOrEqual(("start_lsn",), behind), LessThan(("start_lsn",), well_before)):
        assert Counted(gapped, "records", [each]).rows


def test_an_index_grows_and_is_of_one_cluster(
    wal: Path, index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["history", "index", "--path", str(wal), "--output"]
    assert run([*command, str(index)]) == 0
    assert ", 0 of them new" in capsys.readouterr().out
    half = tmp_path / "half"
    half.mkdir()
    names = sorted(path.name for path in wal.glob("0*") if path.is_file())
    for name in names[: len(names) // 2]:
        (half / name).symlink_to(wal / name)
    path = tmp_path / "index.parquet"
    assert run(["history", "index", "--path", str(half), "--output", str(path)]) == 0
    assert run([*command, str(path)]) == 0
    assert ", 0 of them new" not in capsys.readouterr().out.splitlines()[-1]
    assert path.read_bytes()[:4] == b"PAR1"
    files = open_files(str(wal))
    plan, wanted = make_plan(files), Wanted(xids=frozenset([1]))
    assert passed_over(str(path), files, plan, wanted) == passed_over(
        str(index), open_files(str(wal)), plan, wanted
    )
    with pytest.raises(HistoryError, match="an index of cluster"):
        passed_over(str(path), files, replace(plan, system_id=9), wanted)
    assert run([*command, str(path), "--start-lsn", "0/1"]) == 2


@pytest.mark.spark
def test_spark_hands_its_filters_over(spark: SparkSession, wal: Path, index: Path) -> None:
    every = everything(wal, "xacts")
    moment = sorted(row["time"] for row in every)[len(every) // 2]
    xid = every[len(every) // 2]["xid"]

    def load(table: str) -> Any:
        given = {"path": str(wal), "table": table, "pushdown": "true", "index": str(index)}
        return spark.read.format("pgwal").options(**given).load()

    assert load("xacts").where(f"xid = {xid}").count() == sum(r["xid"] == xid for r in every)
    late = load("xacts").where(f"time >= timestamp '{moment:%Y-%m-%d %H:%M:%S.%f}'")
    assert late.count() == sum(row["time"] >= moment for row in every)
    heap = load("records").where("resource_manager IN ('Heap', 'Heap2') AND timeline = 1")
    expected = [r for r in everything(wal, "records") if r["resource_manager"][:4] == "Heap"]
    assert heap.count() == len(expected)


@pytest.mark.spark
@pytest.mark.parametrize("table", ["records", "xacts"])
@pytest.mark.parametrize("asked", ["start_lsn > 9000000000000", "start_lsn < 0", "start_lsn = 5"])
def test_what_no_segment_can_have_is_no_row(
    spark: SparkSession, wal: Path, table: str, asked: str
) -> None:
    """Spark makes a partition of its own where a reader has none; it was taken for one of ours."""
    frame = spark.read.format("pgwal").options(path=str(wal), table=table, pushdown="true").load()
    assert frame.where(asked).count() == 0
