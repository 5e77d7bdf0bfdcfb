"""Tables of the source that need replay: table_at, changes, row_history, and problems of changes.
No logic of its own. A stream of `changes` has more options (pyspark_pgwal.changes_stream).

    table        table_at: a relation's rows as of an LSN; changes: each row with the transaction
                 and the time of its change; row_history: the changes of rows with one value;
                 problems, with the option `of`: the changes that the WAL does not describe
    of           for problems: the table that they concern, which is changes
    path         the WAL (required)
    relation     schema.table; for table_at one, for changes any number, separated by commas (all)
    lsn, time    for table_at: the moment of the rows (the end of the WAL)
    where        for row_history: COLUMN=VALUE
    startLsn, endLsn    for changes: transactions whose commits end in (startLsn, endLsn]
    startTime, endTime  for changes: the same by times of commits
    database     its name or OID, where there are several
    base         a base backup's directory, at the same place on every executor
    timeline     by default the newest
    allowMissing true: rows also if the WAL does not describe all changes; by default an error
    onError      fail (default) or skip
    parts        tasks, by default one a CPU; blocks of a table, or tables, are shared among them

Contract: an option that a table does not have is an error, as for the other tables. The driver
replays the catalogs once, for the schema. Each task walks over the WAL for itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_pgwal.pgwal_options import (
    hidden_rows,
    known_options,
    lsn_option,
    number_option,
    one_of,
    refuse_row_history_without_key,
    relations_option,
    table_of,
    time_option,
    where_option,
)
from walkeeper_common.lsn import Lsn
from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_history.tables import PROBLEM_SCHEMA, problem_rows
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import (
    SCHEMA,
    Change,
    batches,
    is_of_row,
    may_be_of_row,
)
from walkeeper_replay.changes.commit_range import CommitRange
from walkeeper_replay.changes.incomplete_changes import FirstLoss, problems_of_values
from walkeeper_replay.changes.undescribed import Undescribed, problems_of
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.wal_pass import next_record_lsn
from walkeeper_replay.table_at import TableAt
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, Problem, make_plan
from walkeeper_wal.sources.reading import SegmentReader
from walkeeper_wal.sources.threaded_reading import raise_fatal
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

_OF_ALL = ("path", "table", "relation", "database", "base", "timeline", "onError", "parts")
_OF_CHANGES = ("startLsn", "endLsn", "startTime", "endTime", "allowMissing")
_OF_STATES = ("state", "memory", "changeMemory", "maxBytesPerTrigger")
OF_STREAMS = (*_OF_STATES, "spool")
_ON_ERROR = ("fail", "skip", "report")  # the last two are one here: coverage and problems report
_OPTIONS = {
    "table_at": (*_OF_ALL, "lsn", "time"),
    "changes": (*_OF_ALL, *_OF_CHANGES, *OF_STREAMS),
    "row_history": (*_OF_ALL, *_OF_CHANGES, "where"),
    "problems": (*_OF_ALL, *_OF_CHANGES, *_OF_STATES, "of"),
}


@dataclass(frozen=True, slots=True)
class PastOptions:
    """The checked options, which Spark sends to the workers."""

    values: dict[str, str]

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> PastOptions:
        table = table_of(given)
        made = cls(known_options(given, _OPTIONS[table], f"pgwal's table {table}"))
        if not made.values.get("path"):
            raise HistoryError("pgwal needs the option path: a directory or URL with WAL")
        if made.table == "table_at" and not made.values.get("relation"):
            raise HistoryError("table_at needs the option relation, such as public.accounts")
        refuse_row_history_without_key(made.values)
        made.refuse_wrong_values()
        if made.values.get("of", "changes") != "changes":
            raise HistoryError(
                "table problems is known for changes alone: leave out the option of, or set it to "
                "changes"
            )
        return made

    def refuse_wrong_values(self) -> None:
        """Raise HistoryError for a value that its option does not take, whether used or not."""
        one_of(self.values, "onError", *_ON_ERROR)
        one_of(self.values, "allowMissing", "false", "true")
        relations_option(self.values)
        for name in ("parts", "timeline", "memory", "changeMemory", "maxBytesPerTrigger"):
            number_option(self.values, name)
        for name in ("lsn", "startLsn", "endLsn"):
            lsn_option(self.values, name)
        for name in ("time", "startTime", "endTime"):
            time_option(self.values, name)

    def refuse_others(self, others: Sequence[str], kind: str) -> None:
        """Raise HistoryError for an option that only the other kind of query has."""
        for name in others:
            if name in self.values:
                raise HistoryError(f"{self.table} has no option {name} {kind}: leave it out")

    @property
    def allows_missing(self) -> bool:
        return one_of(self.values, "allowMissing", "false", "true") == "true"

    @property
    def table(self) -> str:
        return self.values["table"]

    @property
    def path(self) -> str:
        return self.values["path"]

    @property
    def base(self) -> BaseDirectory | None:
        return BaseDirectory(self.values["base"]) if self.values.get("base") else None

    @property
    def parts(self) -> int:
        return number_option(self.values, "parts") or os.cpu_count() or 1

    @property
    def relations(self) -> tuple[str, ...]:
        """The names of tables; none means all."""
        return relations_option(self.values)

    def refuse_missing(self, missing: Sequence[Undescribed]) -> None:
        """Raise HistoryError if changes are missing, unless allowMissing accepts that."""
        if missing and not self.allows_missing:
            raise HistoryError(_text_of(missing))

    def own_changes(self, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield the changes of row_history's rows.

        Raise HistoryError if another one may be of these rows, unless allowMissing accepts that.
        """
        column, value = where_option(self.values)
        for change in changes:
            if is_of_row(change, [(column, value)]):
                yield change
            elif column in {each.name for each in change.table.columns} and (
                may_be_of_row(change, column) and not self.allows_missing
            ):
                raise hidden_rows(change, column)

    def on_problem(self, problem: Problem) -> None:
        if one_of(self.values, "onError", *_ON_ERROR) == "fail":
            raise_fatal(problem)

    def lsn(self, name: str) -> int | None:
        return lsn_option(self.values, name)

    def plan(self) -> Plan:
        base = self.base
        return make_plan(
            open_files(self.path),
            timeline=number_option(self.values, "timeline"),
            start_lsn=None if base is None else base.redo_lsn,
        )

    def place(self) -> tuple[Plan, int | None]:
        """Return the plan of table_at, and the LSN that `lsn` or `time` means in it."""
        plan, lsn = self.plan(), self.lsn("lsn")
        if "time" in self.values:
            if lsn is not None:
                raise HistoryError("table_at has either the option lsn or the option time")
            moment = time_option(self.values, "time")
            if self.base is not None and moment is not None:
                self.base.refuse_time_before(moment)
            lsn = CommitTimes(open_files(self.path), plan).range(None, moment)[1]
        return plan, lsn

    def commits(self, plan: Plan) -> CommitRange:
        """Return the commits whose changes are wanted. A range by time reads the WAL up to it."""
        return CommitRange.between(
            CommitTimes(open_files(self.path), plan), self.base,
            time_option(self.values, "startTime"), time_option(self.values, "endTime"),
            (self.lsn("startLsn"), self.lsn("endLsn")),
        )  # fmt: skip

    def table_at(
        self, plan: Plan, lsn: int | None, history: CatalogHistory | None = None
    ) -> TableAt:
        """Return the relation as of `lsn`. Without a `history`, replay the catalogs here."""
        return TableAt.open(
            self.path, plan, self.values["relation"], lsn=lsn, base=self.base,
            database=self.values.get("database"), on_problem=self.on_problem,
            is_of_a_time="time" in self.values, history=history,
        )  # fmt: skip


@dataclass
class Share(InputPartition):
    """One task's blocks, or tables."""

    part: int
    parts: int

    def __init__(self, part: int, parts: int) -> None:
        self.part, self.parts = part, parts


@dataclass(frozen=True, slots=True)
class _EndOfWal:
    """The end of a plan's last whole record, and the problems of the segments after it."""

    lsn: int
    problems: list[Problem]

    @classmethod
    def of(cls, files: WalFiles, plan: Plan) -> Self:
        """Read the plan's last segments for it."""
        reader, problems = SegmentReader(files), list[Problem]()
        for index in range(len(plan.segments) - 1, -1, -1):
            reading = reader.read(plan.reachable, index)
            for _ in reading:
                pass
            if reading.summary.end_lsn is not None:
                return cls(reading.summary.end_lsn, problems)
            problems[:0] = reading.problems
        return cls(plan.segments[0].first_lsn, problems)

    def is_before(self, lsn: int | None, plan: Plan) -> bool:
        """Return True if the WAL ends before an LSN that a caller wants."""
        return lsn is not None and lsn > next_record_lsn(self.lsn, plan.segment_bytes)


class TableAtReader(DataSourceReader):
    """Read a relation as of an LSN; each task has some of its blocks."""

    def __init__(self, past: TableAt, parts: int) -> None:
        self._past, self._parts = past, parts

    def partitions(self) -> Sequence[InputPartition]:
        return [Share(part, self._parts) for part in range(self._parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share), f"{partition=}"
        yield from self._past.read(partition.part, partition.parts)


class ChangesReader(DataSourceReader):
    """Read changes, row_history or problems; each task has some of the tables.

    The driver plans once, and no task reads beyond the end that the driver saw. In a log that
    grows, tasks would else have the tables as of different commits.
    """

    def __init__(self, options: PastOptions) -> None:
        self._options, self._plan = options, options.plan()
        self._commits = options.commits(self._plan)
        self._end, self._behind = self._commits.end, list[Problem]()
        seen = _EndOfWal.of(open_files(options.path), self._plan)
        self._is_short = seen.is_before(self._end, self._plan)
        if self._end is None or self._is_short:
            self._end, self._behind = seen.lsn, seen.problems

    def partitions(self) -> Sequence[InputPartition]:
        parts = 1 if self._options.table == "problems" else self._options.parts
        return [Share(part, parts) for part in range(parts)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Share), f"{partition=}"
        options = self._options
        files, plan = open_files(options.path), self._plan
        start, end = self._commits.start, self._end
        met: list[Problem] = []
        on_problem = met.append if options.table == "problems" else options.on_problem
        losses = FirstLoss(on_problem)
        history = CatalogHistory.read(files, plan, base=options.base, until=end, on_problem=losses)
        for problem in self._behind:
            on_problem(problem)
        database = history.database(history.end_lsn, options.values.get("database"))
        reader = ChangeReader(
            files, plan, history, database, options.base, on_problem=on_problem,
            lost_from=losses.lsn,
        )  # fmt: skip
        names = options.relations
        share = partition.part, partition.parts
        found = reader.find(names, start, end, share=share)
        others = "database" not in options.values and not names
        missing = reader.undescribed(start, end, others=others, names=names)
        if self._commits.is_cut_off:
            missing.insert(0, reader.cut_off_range())
        if options.table == "problems":
            if self._is_short:
                text = f"the WAL ends at {Lsn(history.end_lsn)}, before what was asked for"
                asked = self._commits.end
                met.append(Problem(files.shown(""), history.end_lsn, asked, text, fatal=False))
            remarks = [*reader.remarks(), *reader.unsure(found.transactions())]
            remarks += [] if names else reader.large_objects(start)
            places = problems_of(missing, remarks)
            values = problems_of_values(found.incomplete())
            yield problem_rows([*dict.fromkeys(met), *places, *values])
            return
        options.refuse_missing(missing)
        if options.table == "row_history":
            yield from batches(list(options.own_changes(found.changes())), database.name)
        else:
            yield from found.batches(database.name)


def _text_of(missing: Sequence[Undescribed]) -> str:
    first, more = missing[0], len(missing) - 1
    return (
        f"changes are missing: {first.kind} {first.place}: {first.reason}"
        + (f"; {more} more" if more else "")
        + "; table problems with option of = changes names all, option allowMissing accepts it"
    )


def past_schema(given: Mapping[str, str]) -> tuple[Any, TableAt | None]:
    """Return the Arrow schema of a table, and for table_at the relation, which the reader uses."""
    options = PastOptions.parse(given)
    if options.table == "problems":
        return PROBLEM_SCHEMA, None
    if options.table != "table_at":
        return SCHEMA, None
    past = options.table_at(*options.place())
    return past.schema, past


def past_reader(given: Mapping[str, str], past: object) -> DataSourceReader:
    """Return the reader of a table. `past` is the second result of `past_schema`, or None."""
    options = PastOptions.parse(given)
    if options.table != "table_at":
        options.refuse_others(OF_STREAMS, "in batch")
        return ChangesReader(options)
    assert past is None or isinstance(past, TableAt), f"{past=}"
    return TableAtReader(past or options.table_at(*options.place()), options.parts)
