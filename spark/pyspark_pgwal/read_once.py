"""table_at as a plan of Spark's own: each segment is decoded once a stage, by one task.

    from pyspark_pgwal.read_once import table_at
    rows = table_at(spark, path="s3://…", relation="public.orders", lsn="0/5A3F2B8")

The data source's table_at walks over all WAL in each of its tasks, so that more executors read
more. Here the tasks share the segments. The first stage sends what catalogs and transactions need
to the driver, which is all that the driver holds. The second sends the table's records by groups of
blocks. Spark shuffles them, and each group is redone where it arrives. Contract: the rows and the
options are those of the data source. `parts` is the number of groups.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udtf
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_pgwal.batch import partitions_of
from pyspark_pgwal.replayed_tables import PastOptions
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.redo.chosen_records import records_of
from walkeeper_replay.redo.parallel_pass import CatalogFiles, Taken, taken_of
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.table_at import TableAt, refuse_before
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch, Reading
from walkeeper_wal.sources.threaded_reading import Part, SweepOptions, read_each

TASKS_A_ROUND = 2  # for each core: the driver holds no more results at a time
Row = tuple[int, int, bytes | None]
_SHUFFLED = "part int, lsn long, records binary"


def table_at(session: SparkSession, **given: str) -> DataFrame:
    """Return a relation's rows as of an LSN or a time; HistoryError names a wrong option."""
    options = PastOptions.parse({**given, "table": "table_at"})
    plan, lsn = options.place()
    refuse_before(options.base, plan, lsn)
    history = CatalogHistory.read(
        open_files(options.path), plan, base=options.base, until=lsn, keeps_commits=False,
        on_problem=options.on_problem, decode=_decoded_by(session, options.path, plan, lsn),
    )  # fmt: skip
    past = options.table_at(plan, lsn, history)
    return _redone(session, past, options)


def _decoded_by(
    session: SparkSession, path: str, plan: Plan, until: int | None
) -> Callable[[CatalogFiles], Iterable[Part[Taken]]]:
    """Return a function that has executors decode the plan for catalogs, some tasks at a time."""

    def decode(wanted: CatalogFiles) -> Iterator[Part[Taken]]:
        plans, context = [each.plan for each in partitions_of(plan, None)], session.sparkContext
        width = TASKS_A_ROUND * context.defaultParallelism

        def work(part: Plan) -> list[Part[Taken]]:
            def make(reading: Reading) -> Taken:
                return taken_of(reading, until, wanted.choose)

            return list(read_each(open_files(path), part, make, SweepOptions(threads=1)))

        for at in range(0, len(plans), width):
            some = plans[at : at + width]
            for parts in context.parallelize(some, len(some)).map(work).collect():
                yield from parts

    return decode


def _redone(session: SparkSession, past: TableAt, options: PastOptions) -> DataFrame:
    """Return the rows: a stage that decodes, a shuffle by groups of blocks, a stage of redo."""
    plans = [each.plan for each in partitions_of(past.plan, None)]
    decode = _Decode(past, plans, options.parts, options)
    numbers = session.sparkContext.parallelize(range(len(plans)), len(plans))
    shuffled = session.createDataFrame(numbers.flatMap(decode.rows), _SHUFFLED, verifySchema=False)
    ordered = shuffled.repartition(options.parts, "part")
    schema = from_arrow_schema(past.schema, prefer_timestamp_ntz=True)
    # A table function, because mapInArrow and applyInArrow need pandas.
    redo: Any = arrow_udtf(_redo_of(past, options.parts), returnType=schema)
    rows: DataFrame = redo(ordered.asTable().partitionBy("part").orderBy("lsn"))
    return rows


class _Decode:
    """The first stage: the records of the table in some segments, a row for each group."""

    def __init__(self, past: TableAt, plans: list[Plan], parts: int, options: PastOptions) -> None:
        self._path, self._until, self._options = past.path, past.lsn, options
        self._plans, self._shares = plans, [past.share(part, parts) for part in range(parts)]

    def rows(self, number: int) -> Iterator[Row]:
        """Yield the records of one task's segments."""
        if number == 0:  # A group without records has the rows of a base backup.
            yield from ((share.part, -1, None) for share in self._shares)
        how = SweepOptions(check_crc=False, threads=1)
        for part in read_each(open_files(self._path), self._plans[number], self._chosen, how):
            for problem in part.problems:
                self._options.on_problem(problem)
            yield from part.made

    def _chosen(self, reading: Reading) -> list[Row]:
        found: list[Row] = []

        def choose(batch: Batch) -> Batch:
            for share in self._shares:
                chosen = records_of(batch, share)
                if len(chosen.records):
                    packed = pickle.dumps(chosen, pickle.HIGHEST_PROTOCOL)
                    found.append((share.part, chosen.span()[0], packed))
            return batch

        taken_of(reading, self._until, choose)
        return found


def _redo_of(past: TableAt, parts: int) -> type:
    """Return the second stage, which Spark makes anew for each group of blocks."""

    class Redo:
        """The pages of one group, and at its end their rows. It holds no records."""

        def __init__(self) -> None:
            self.store, self.part = PageStore(), -1

        def eval(self, group: Any) -> Iterator[Any]:
            for part, packed in zip(group.column("part"), group.column("records"), strict=True):
                if self.part < 0:
                    self.part = int(part.as_py())
                    self.store = past.store(self.part, parts)
                if packed.is_valid:
                    self.store.add(pickle.loads(packed.as_buffer()))
            yield from ()

        def terminate(self) -> Iterator[Any]:
            if self.part < 0:  # Spark has put every group elsewhere: two groups at one place
                return
            yield from past.rows_of(self.store, self.part, parts)[0]

    return Redo
