"""table_at and changes as plans of Spark: in each of two stages, one task decodes a segment.

    from pyspark_pgwal.read_once import changes, table_at
    rows = table_at(spark, path="s3://…", relation="public.orders", lsn="0/5A3F2B8")
    rows = changes(spark, path="s3://…", startLsn="0/5A3F2B8")

Each task of the data source's tables reads all WAL, so that more executors read more. Here the
tasks share the segments. The first stage sends the driver the records that catalogs and
transactions need. For changes they include the files that each transaction changed. These records
come packed, from some tasks at a time. So the driver's Java needs room for ROUND_BYTES of them,
however large the archive and the cluster are. The driver keeps the catalogs, and two bits for the
end of each transaction. The second stage sends the tables' records in groups: by blocks for
table_at, and by tables for changes, with the commits of their transactions. Spark shuffles them,
and each group is redone where it arrives.
Contract: the rows and the options are those of the data source. `parts` is the number of groups.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import arrow_udtf
from pyspark.sql.pandas.types import from_arrow_schema

from pyspark_pgwal.batch import PARTITION_BYTES_MIN, partitions_of
from pyspark_pgwal.packed_state import CODEC, Sent
from pyspark_pgwal.replayed_tables import OF_STREAMS, PastOptions
from walkeeper_history.rows.ended import Ended, ended_of
from walkeeper_history.rows.heap_changes import heap_changes
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_rows import SCHEMA
from walkeeper_replay.changes.incomplete_changes import FirstLoss
from walkeeper_replay.changes.shared_changes import Asked as SharedAsked
from walkeeper_replay.changes.shared_changes import SharedChanges
from walkeeper_replay.changes.shared_ends import WalBefore, newest_xid
from walkeeper_replay.redo.chosen_records import records_of
from walkeeper_replay.redo.few_heap_files import FewHeapFiles
from walkeeper_replay.redo.parallel_pass import CatalogFiles, Taken, taken_of
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
    for ended in controls.heaps.commits():
        history.xids.commits.take(ended)
    missing = shared.undescribed(controls.heaps, others=others, is_cut_off=commits.is_cut_off)
    options.refuse_missing(missing)
    decode = _Decode(options, plan, shared, options.on_problem, controls.before)
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
        self._notes_changes, self.heaps = notes_changes, FewHeapFiles()
        self.before = [WalBefore()]
        """The state before each segment of the plan, as far as the pass went."""

    def decode(self, wanted: CatalogFiles) -> Iterator[Part[Taken]]:
        """Yield what catalogs need of each segment, in the order of the log."""
        path, until, notes_changes = self._path, self._until, self._notes_changes
        self.heaps, self.before = FewHeapFiles(), [WalBefore()]
        per_task = max(1, PARTITION_BYTES_MIN // self._plan.segment_bytes)
        plans = [each.plan for each in partitions_of(self._plan, per_task)]
        most, at = TASKS_A_ROUND * self._context.defaultParallelism, 0
        tasks = min(most, FIRST_TASKS)

        def work(part: Plan) -> Iterator[Packed]:
            def make(reading: Reading) -> Taken:
                changed: list[Column] = []
                newest: list[int | None] = []

                def choose(batch: Batch) -> Batch:
                    if notes_changes:
                        changed.append(heap_changes(batch))
                        newest.append(newest_xid(batch))
                    return wanted.choose(batch)

                taken = taken_of(reading, until, choose)
                taken.changed, taken.newest_xids = changed, newest
                return taken

            return map(_packed, read_each(open_files(path), part, make, SweepOptions(threads=1)))

        while at < len(plans):
            some = plans[at : at + tasks]
            at += tasks
            came = 0
            for packed in self._context.parallelize(some, len(some)).flatMap(work).collect():
                came += len(packed[1])
                part = _unpacked(packed)
                if notes_changes:
                    self._note(part)
                yield part
            tasks = max(1, min(most, ROUND_BYTES * len(some) // max(came, 1)))

    def _note(self, part: Part[Taken]) -> None:
        for batch, changed in zip(part.made.batches, part.made.changed, strict=True):
            self.heaps.add_files(batch)
            self.heaps.note(changed)
            self.heaps.settle(ended_of(batch))
        last, newest = self.before[-1], part.made.newest_xids
        self.before.append(last.followed_by(newest, has_gaps=bool(part.problems)))


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
    """The groups that the second stage makes from batches, up to `until`."""

    @property
    def until(self) -> int | None: ...
    def task(self, before: WalBefore) -> Callable[[Batch], Iterator[tuple[int, Batch | Ended]]]: ...


class _Blocks:
    """The groups of table_at: each has some of the table's blocks."""

    def __init__(self, past: TableAt, parts: int) -> None:
        self.until: int | None = past.until
        self._shares = [past.share(part, parts) for part in range(parts)]

    def task(self, before: WalBefore) -> Callable[[Batch], Iterator[tuple[int, Batch | Ended]]]:
        """Return what yields the records of each group's blocks."""
        return self._chosen

    def _chosen(self, batch: Batch) -> Iterator[tuple[int, Batch | Ended]]:
        for share in self._shares:
            chosen = records_of(batch, share)
            if len(chosen.records):
                yield share.part, chosen


class _Decode:
    """The second stage's first half: the records of some segments, a row for each group."""

    def __init__(
        self, options: PastOptions, plan: Plan, groups: Groups, on_problem: OnProblem,
        before: Sequence[WalBefore] = (WalBefore(),),
    ) -> None:  # fmt: skip
        """Take the state before each segment; the last one holds for all that follow."""
        self._path, self._sent, self.parts = options.path, Sent(groups), options.parts
        self._on_problem = on_problem
        self._plans = [each.plan for each in partitions_of(plan, None)]
        firsts = accumulate((len(each.segments) for each in self._plans[:-1]), initial=0)
        self._before = [before[min(first, len(before) - 1)] for first in firsts]

    @property
    def tasks(self) -> int:
        return len(self._plans)

    def rows(self, number: int) -> Iterator[Row]:
        """Yield the records of one task's segments."""
        if number == 0:  # A group without records has the rows of a base backup.
            yield from ((part, -1, None) for part in range(self.parts))
        files, how = open_files(self._path), SweepOptions(check_crc=False, threads=1)
        take = self._sent.state.task(self._before[number])
        for part in read_each(files, self._plans[number], partial(self._chosen, take), how):
            for problem in part.problems:
                self._on_problem(problem)
            yield from part.made

    def _chosen(
        self, take: Callable[[Batch], Iterator[tuple[int, Batch | Ended]]], reading: Reading
    ) -> list[Row]:
        found: list[Row] = []

        def choose(batch: Batch) -> Batch:
            for part, made in take(batch):
                packed = pickle.dumps(made, pickle.HIGHEST_PROTOCOL)
                found.append((part, batch.span()[0], packed))
            return batch

        taken_of(reading, self._sent.state.until, choose)
        return found


class Group(Protocol):
    """One group while it is redone."""

    def add(self, found: Batch | Ended) -> None: ...
    def rows(self) -> Iterator[Any]: ...


class _GroupOfBlocks:
    """A group of table_at."""

    def __init__(self, past: TableAt, part: int, parts: int) -> None:
        self._store = past.store(part, parts)
        self._rows = partial(past.rows_of, self._store, part, parts)

    def add(self, found: Batch | Ended) -> None:
        assert isinstance(found, Batch), f"{found=}"
        self._store.add(found)

    def rows(self) -> Iterator[Any]:
        return iter(self._rows()[0])


class _GroupOfTables:
    """A group of changes."""

    def __init__(self, shared: SharedChanges, part: int, options: PastOptions) -> None:
        self._share, self._options = shared.share(part), options
        self.add = self._share.add

    def rows(self) -> Iterator[Any]:
        found, missing = self._share.rows()
        self._options.refuse_missing(missing)
        return found


def _redo_of(past: TableAt, parts: int) -> type:
    """Return the second stage of table_at: the rows of the pages of one group of blocks."""
    sent = Sent(past)
    return _replaying(lambda part: _GroupOfBlocks(sent.state, part, parts))


def _changes_of(shared: SharedChanges, options: PastOptions) -> type:
    """Return the second stage of changes: those of the tables of one group."""
    sent = Sent(shared)
    return _replaying(lambda part: _GroupOfTables(sent.state, part, options))


def _replaying(group_of: Callable[[int], Group]) -> type:
    """Return the class of a table function, of which Spark makes an object for each group."""

    class Redo:
        """Redo one group and hold its pages, but no records. Yield their rows at its end."""

        def __init__(self) -> None:
            self.group: Group | None = None

        def eval(self, group: Any) -> Iterator[Any]:
            for part, packed in zip(group.column("part"), group.column("records"), strict=True):
                if self.group is None:
                    self.group = group_of(int(part.as_py()))
                if packed.is_valid:
                    self.group.add(pickle.loads(packed.as_buffer()))
            yield from ()

        def terminate(self) -> Iterator[Any]:
            if self.group is None:  # no group came: Spark has put two of them into another place
                return
            yield from self.group.rows()

    return Redo
