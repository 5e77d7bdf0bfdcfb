"""table_at and changes as plans of Spark: in each of two stages, one task decodes a segment.

    from pyspark_pgwal.read_once import changes, table_at
    rows = table_at(spark, path="s3://…", relation="public.orders", lsn="0/5A3F2B8")
    rows = changes(spark, path="s3://…", startLsn="0/5A3F2B8")

Each task of the data source's tables reads all WAL, so that more executors read more. Here the
tasks share the segments. The first stage sends the driver the records that catalogs and
transactions need. The driver holds nothing else. For changes they include the files that each
transaction changed. These records come packed, from some tasks at a time. So the driver's Java
needs room for ROUND_BYTES of them, however large the archive and the cluster are. The second stage
sends the tables' records in groups: by blocks for table_at, and by tables for changes. Spark
shuffles them, and each group is redone where it arrives. Catalogs and transactions go there packed.
Contract: the rows and the options are those of the data source. `parts` is the number of groups.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udtf
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_pgwal.batch import PARTITION_BYTES_MIN, partitions_of
from pyspark_pgwal.packed_state import CODEC, Sent
from pyspark_pgwal.replayed_tables import OF_STREAMS, PastOptions
from walkeeper_history.rows.heap_changes import heap_changes
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.changes.incomplete_changes import FirstLoss
from walkeeper_replay.changes.shared_changes import Asked as SharedAsked
from walkeeper_replay.changes.shared_changes import SharedChanges
from walkeeper_replay.redo.chosen_records import records_of
from walkeeper_replay.redo.heap_files import HeapFiles
from walkeeper_replay.redo.parallel_pass import CatalogFiles, Taken, taken_of
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.table_at import TableAt, refuse_before
from walkeeper_wal.records.segment import Column
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan
from walkeeper_wal.sources.reading import Batch, Reading
from walkeeper_wal.sources.threaded_reading import (
    OnProblem,
    Part,
    SweepOptions,
    raise_fatal,
    read_each,
)

TASKS_A_ROUND, FIRST_TASKS = 2, 4  # for each core; in the first round at most
ROUND_BYTES = 128 << 20
"""The bytes that the tasks of a round may return. By default Java has 1 GB, and holds copies."""
Row = tuple[int, int, bytes | None]
Packed = tuple[int, bytes]
"""A pickled part: its bytes before it was compressed, and what came of them."""
_SHUFFLED = "part int, lsn long, records binary"


def table_at(session: SparkSession, **given: str) -> DataFrame:
    """Return a relation's rows as of an LSN or a time; raise HistoryError for a wrong option."""
    options = PastOptions.parse({**given, "table": "table_at"})
    plan, lsn = options.place()
    refuse_before(options.base, plan, lsn)
    history = CatalogHistory.read(
        open_files(options.path), plan, base=options.base, until=lsn, keeps_commits=False,
        on_problem=raise_fatal, decode=_Controls(session, options.path, plan, lsn).decode,
    )  # fmt: skip
    past = options.table_at(plan, lsn, history)
    # A page that lacks a record is not as it was, and onError cannot change that.
    decode = _Decode(options, plan, _Blocks(past, options.parts), raise_fatal)
    return _redone(session, decode, _redo_of(past, options.parts), past.schema)


def changes(session: SparkSession, **given: str) -> DataFrame:
    """Return the changes of tables.

    Raise HistoryError for a wrong option, or if the WAL does not describe all changes.
    """
    options = PastOptions.parse({**given, "table": "changes"})
    options.refuse_others(OF_STREAMS, "in batch")
    plan = options.plan()
    commits = options.commits(plan)
    end = commits.end
    controls = _Controls(session, options.path, plan, end, notes_changes=True)
    losses = FirstLoss(options.on_problem)
    history = CatalogHistory.read(
        open_files(options.path), plan, base=options.base, until=end,
        on_problem=losses, decode=controls.decode,
    )  # fmt: skip
    asked = SharedAsked(
        options.relations, commits.start,
        history.end_lsn if end is None else end, options.parts,
    )  # fmt: skip
    database = history.database(history.end_lsn, options.values.get("database"))
    shared = SharedChanges.open(
        options.path, plan, history, database, asked,
        base=options.base, lost_from=losses.lsn,
    )  # fmt: skip
    others = "database" not in options.values and not options.relations
    missing = shared.undescribed(controls.heaps, others=others, is_cut_off=commits.is_cut_off)
    options.refuse_missing(missing)
    decode = _Decode(options, plan, shared, options.on_problem)
    return _redone(session, decode, _changes_of(shared, options), SCHEMA)


class _Controls:
    """The first stage: executors decode the plan for catalogs, some tasks at a time."""

    def __init__(
        self, session: SparkSession, path: str, plan: Plan, until: int | None,
        *, notes_changes: bool = False,
    ) -> None:  # fmt: skip
        self._context, self._path, self._plan, self._until = (
            session.sparkContext, path, plan, until,
        )  # fmt: skip
        self._notes_changes, self.heaps = notes_changes, HeapFiles()

    def decode(self, wanted: CatalogFiles) -> Iterator[Part[Taken]]:
        """Yield what catalogs need of each segment, in the order of the log."""
        path, until, notes_changes = self._path, self._until, self._notes_changes
        self.heaps = HeapFiles()
        per_task = max(1, PARTITION_BYTES_MIN // self._plan.segment_bytes)
        plans = [each.plan for each in partitions_of(self._plan, per_task)]
        most, at = TASKS_A_ROUND * self._context.defaultParallelism, 0
        tasks = min(most, FIRST_TASKS)

        def work(part: Plan) -> Iterator[Packed]:
            def make(reading: Reading) -> Taken:
                changed: list[Column] = []

                def choose(batch: Batch) -> Batch:
                    if notes_changes:
                        changed.append(heap_changes(batch))
                    return wanted.choose(batch)

                taken = taken_of(reading, until, choose)
                taken.changed = changed
                return taken

            return map(_packed, read_each(open_files(path), part, make, SweepOptions(threads=1)))

        while at < len(plans):
            some = plans[at : at + tasks]
            at += tasks
            came = 0
            for packed in self._context.parallelize(some, len(some)).flatMap(work).collect():
                came += len(packed[1])
                part = _unpacked(packed)
                self._note(part.made)
                yield part
            tasks = max(1, min(most, ROUND_BYTES * len(some) // max(came, 1)))

    def _note(self, taken: Taken) -> None:
        if self._notes_changes:
            for batch in taken.batches:
                self.heaps.add_files(batch)
            for rows in taken.changed:
                self.heaps.note(rows)


def _packed(part: Part[Taken]) -> Packed:
    plain = pickle.dumps(part, pickle.HIGHEST_PROTOCOL)
    return len(plain), pa.compress(plain, codec=CODEC, asbytes=True)


def _unpacked(packed: Packed) -> Part[Taken]:
    size, data = packed
    part: Part[Taken] = pickle.loads(pa.decompress(data, size, codec=CODEC))
    return part


def _redone(session: SparkSession, decode: _Decode, made: type, columns: Any) -> DataFrame:
    """Return the rows: a stage that decodes, a shuffle by groups, a stage of redo."""
    numbers = session.sparkContext.parallelize(range(decode.tasks), decode.tasks)
    shuffled = session.createDataFrame(numbers.flatMap(decode.rows), _SHUFFLED, verifySchema=False)
    ordered = shuffled.repartition(decode.parts, "part")
    schema = from_arrow_schema(columns, prefer_timestamp_ntz=True)
    # A table function, because mapInArrow and applyInArrow need pandas.
    redo: Any = arrow_udtf(made, returnType=schema)
    rows: DataFrame = redo(ordered.asTable().partitionBy("part").orderBy("lsn"))
    return rows


class Groups(Protocol):
    """The groups of records that the second stage makes from batches, up to `until`."""

    @property
    def until(self) -> int | None: ...
    def chosen(self, batch: Batch) -> Iterator[tuple[int, Batch]]: ...


class _Blocks:
    """The groups of table_at: each has some of the table's blocks."""

    def __init__(self, past: TableAt, parts: int) -> None:
        self.until: int | None = past.until
        self._shares = [past.share(part, parts) for part in range(parts)]

    def chosen(self, batch: Batch) -> Iterator[tuple[int, Batch]]:
        """Yield the records of each group's blocks."""
        for share in self._shares:
            chosen = records_of(batch, share)
            if len(chosen.records):
                yield share.part, chosen


class _Decode:
    """The second stage's first half: the records of some segments, a row for each group."""

    def __init__(
        self, options: PastOptions, plan: Plan, groups: Groups, on_problem: OnProblem
    ) -> None:
        self._path, self._sent, self.parts = options.path, Sent(groups), options.parts
        self._on_problem = on_problem
        self._plans = [each.plan for each in partitions_of(plan, None)]

    @property
    def tasks(self) -> int:
        return len(self._plans)

    def rows(self, number: int) -> Iterator[Row]:
        """Yield the records of one task's segments."""
        if number == 0:  # A group without records has the rows of a base backup.
            yield from ((part, -1, None) for part in range(self.parts))
        files, how = open_files(self._path), SweepOptions(check_crc=False, threads=1)
        for part in read_each(files, self._plans[number], self._chosen, how):
            for problem in part.problems:
                self._on_problem(problem)
            yield from part.made

    def _chosen(self, reading: Reading) -> list[Row]:
        found: list[Row] = []

        def choose(batch: Batch) -> Batch:
            for part, chosen in self._sent.state.chosen(batch):
                packed = pickle.dumps(chosen, pickle.HIGHEST_PROTOCOL)
                found.append((part, chosen.span()[0], packed))
            return batch

        taken_of(reading, self._sent.state.until, choose)
        return found


def _redo_of(past: TableAt, parts: int) -> type:
    """Return the second stage of table_at: the rows of the pages of one group of blocks."""
    sent = Sent(past)
    return _replaying(
        lambda part: sent.state.store(part, parts),
        lambda store, part: iter(sent.state.rows_of(store, part, parts)[0]),
    )


def _changes_of(shared: SharedChanges, options: PastOptions) -> type:
    """Return the second stage of changes: those of the tables of one group."""

    sent = Sent(shared)

    def rows(store: PageStore, part: int) -> Iterator[Any]:
        found, missing = sent.state.rows(store, part)
        options.refuse_missing(missing)
        return found

    return _replaying(lambda part: sent.state.store(part), rows)


def _replaying(
    store_of: Callable[[int], PageStore], rows_of: Callable[[PageStore, int], Iterator[Any]]
) -> type:
    """Return the class of a table function, of which Spark makes an object for each group."""

    class Redo:
        """Redo one group and hold its pages, but no records. Yield their rows at its end."""

        def __init__(self) -> None:
            self.store, self.part = PageStore(), -1

        def eval(self, group: Any) -> Iterator[Any]:
            for part, packed in zip(group.column("part"), group.column("records"), strict=True):
                if self.part < 0:
                    self.part = int(part.as_py())
                    self.store = store_of(self.part)
                if packed.is_valid:
                    self.store.add(pickle.loads(packed.as_buffer()))
            yield from ()

        def terminate(self) -> Iterator[Any]:
            if self.part < 0:  # no group came: Spark has put two of them into another partition
                return
            yield from rows_of(self.store, self.part)

    return Redo
