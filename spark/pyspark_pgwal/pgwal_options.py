"""The checked options of the data source `pgwal`, and the WAL that they select."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from walkeeper_common.lsn import Lsn
from walkeeper_history.lsn_of_time import CommitTimes
from walkeeper_history.rows.relation_names import RelationNames, load_names
from walkeeper_history.rows.row_filters import Wanted
from walkeeper_history.segment_index import passed_over
from walkeeper_history.tables import TABLE_NAMES, Table, column_names, table
from walkeeper_history.time_text import parse_time
from walkeeper_replay.changes.change_rows import Change
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.sources.threaded_reading import SweepOptions
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

OPTIONS = (
    "path", "table", "columns", "payload", "startLsn", "endLsn", "startTime", "endTime",
    "timeline", "verify", "onError", "segmentsPerPartition", "maxFilesPerTrigger", "pushdown",
    "catalog", "index", "engine",
)  # fmt: skip
MAX_FILES_PER_TRIGGER = 64
# Tables with options of their own (pyspark_pgwal.replayed_tables). A logical log has the last two.
PAST_TABLES = ("table_at", "changes", "row_history")


@dataclass(frozen=True, slots=True)
class PgWalOptions:
    """The checked options, which Spark sends to the workers."""

    path: str
    table: str
    columns: tuple[str, ...] | None
    start_lsn: int | None
    end_lsn: int | None
    start_time: datetime | None
    end_time: datetime | None
    timeline: int | None
    check_crc: bool
    on_error: str
    segments_per_partition: int | None
    max_files_per_trigger: int
    pushdown: bool
    engine: str
    names: RelationNames | None
    index: str | None
    wanted: Wanted = field(default_factory=Wanted)
    """The rows that a query's filters want, when they are known."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> PgWalOptions:
        """Parse the options of Spark. Raise HistoryError, with its name, for a wrong option."""
        values = known_options(given, OPTIONS, "pgwal")
        if not values.get("path"):
            raise HistoryError("pgwal needs the option path: a directory or URL with WAL")
        name = values.get("table", "records")
        if name not in TABLE_NAMES:
            every = (*TABLE_NAMES, *PAST_TABLES)
            raise HistoryError(
                f"pgwal has no table {name!r}{_nearest(name, every)}; it has: {', '.join(every)}"
            )
        names = load_names(values["catalog"].split(",")) if "catalog" in values else None
        return cls(
            path=values["path"],
            table=name,
            columns=_columns(values, name, names),
            start_lsn=lsn_option(values, "startLsn"),
            end_lsn=lsn_option(values, "endLsn"),
            start_time=time_option(values, "startTime"),
            end_time=time_option(values, "endTime"),
            timeline=number_option(values, "timeline"),
            check_crc=one_of(values, "verify", "crc", "none") == "crc",
            on_error=one_of(values, "onError", "fail", "skip", "report"),
            segments_per_partition=number_option(values, "segmentsPerPartition"),
            max_files_per_trigger=number_option(values, "maxFilesPerTrigger")
            or MAX_FILES_PER_TRIGGER,
            pushdown=one_of(values, "pushdown", "false", "true") == "true",
            engine=one_of(values, "engine", "auto", "compiled", "numpy"),
            names=names,
            index=values.get("index"),
        )

    def refuse_for_streams(self) -> None:
        """Raise HistoryError for an option that would have no effect on a stream."""
        if self.pushdown:
            raise HistoryError("a stream takes no filters of Spark: leave out the option pushdown")
        if self.index and not (self.start_time or self.end_time):
            raise HistoryError(
                "a stream uses an index for startTime and endTime alone: leave out the option index"
            )

    def made_table(self) -> Table:
        return table(self.table, self.columns, self.names, self.wanted)

    def sweep_options(self) -> SweepOptions:
        """Return options for one thread, as Spark starts a task for each core."""
        return SweepOptions(self.engine, self.check_crc, threads=1)

    def plan(self, files: WalFiles | None = None) -> Plan:
        """Return the plan of the WAL that the LSNs and times select."""
        files = files or open_files(self.path)
        start, end = self.start_lsn, self.end_lsn
        if self.start_time or self.end_time:
            whole = make_plan(files, timeline=self.timeline)
            times = CommitTimes(files, whole, lambda time: self._without(files, whole, time))
            start, end = times.range(self.start_time, self.end_time, (start, end))
        plan = make_plan(files, timeline=self.timeline, start_lsn=start, end_lsn=end)
        if self.names is not None:
            self.names.check(plan.system_id)
        return plan

    def _without(self, files: WalFiles, plan: Plan, time: int) -> frozenset[int]:
        """Return the first LSNs of the segments that the index shows to end before `time`."""
        if not self.index:
            return frozenset()
        return passed_over(self.index, files, plan, Wanted(times=(time, None)))


def _columns(
    values: Mapping[str, str], name: str, names: RelationNames | None
) -> tuple[str, ...] | None:
    payload = one_of(values, "payload", "false", "true") == "true"
    if payload and "columns" in values:
        raise HistoryError(
            "option payload adds nothing beside columns: leave it out, and name those with bytes, "
            "such as main_data, in the option columns"
        )
    if "columns" in values:
        return tuple(column.strip() for column in values["columns"].split(","))
    if payload:
        return tuple(column_names(name, with_payload=True, names=names))
    return None


def known_options(given: Mapping[str, str], known: Sequence[str], whose: str) -> dict[str, str]:
    """Return the options by their names in `known`, since Spark changes names to lower case.

    Raise HistoryError for an option that `known` does not have, and for one without a value. Such
    a value is a variable of a job that was not set. `whose` names the owner in messages.
    """
    names = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in names:
            raise HistoryError(
                f"{whose} has no option {name}{_nearest(name, known)}; it has: {', '.join(known)}"
            )
    values = {names[name.lower()]: value for name, value in given.items()}
    for name, value in values.items():
        if name != "path" and not value.strip():
            raise HistoryError(f"{whose}: option {name} is empty: leave it out, or give a value")
    if "table" in values:
        values["table"] = values["table"].strip().lower()
    return values


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return a question with the known name that is nearest, or nothing."""
    plain = {each.lower().replace("_", ""): each for each in known}
    found = get_close_matches(name.lower().replace("_", ""), plain, 1)
    return f" (did you mean {plain[found[0]]}?)" if found else ""


def table_of(options: Mapping[str, str]) -> str:
    """Return the table that Spark's options name, in lower case."""
    return options.get("table", "records").strip().lower()


def refuse_row_history_without_key(values: Mapping[str, str]) -> None:
    """Raise HistoryError if row_history is requested and the option where names no key."""
    if values.get("table") == "row_history" and "=" not in values.get("where", ""):
        raise HistoryError("row_history needs the option where, such as id=4711")


def relations_option(values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of tables; none means all. Raise HistoryError if the option has no name."""
    if "relation" not in values:
        return ()
    names = (name.strip() for name in values["relation"].split(","))
    if not (found := tuple(name for name in names if name)):
        raise HistoryError(f"option relation: {values['relation']!r} has no name of a table")
    return found


def where_option(values: Mapping[str, str]) -> tuple[str, str]:
    """Return the column and the value of the option where."""
    column, _, value = values["where"].partition("=")
    return column.strip(), value


def hidden_rows(change: Change, column: str) -> HistoryError:
    """Return the error for a change of which row_history does not know whether it is of a row."""
    return HistoryError(
        f"row_history by {column} may lack changes: {change.operation} of {change.table.shown} at "
        f"{Lsn(change.start_lsn)}: {change.coverage}; name a column that is known, or set the "
        "option allowMissing"
    )


def lsn_option(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        return int(text) if text.isdigit() else int(Lsn.parse(text))
    except ValueError:
        raise HistoryError(f"option {name}: {text!r} is not an LSN such as 0/16B3748") from None


def refuse_other_system(path: str, offset: Mapping[str, Any], system_id: int | None) -> None:
    """Raise HistoryError if the offset is of another system. An older version's names none."""
    of = offset.get("system")
    if of is not None and system_id is not None and of != str(system_id):
        raise HistoryError(
            f"{path}: what the checkpoint has read is of the system {of}, this log of the system "
            f"{system_id}: start a new checkpoint"
        )


def time_option(values: Mapping[str, str], name: str) -> datetime | None:
    text = values.get(name)
    if text is None:
        return None
    try:
        return parse_time(text)
    except ValueError:
        raise HistoryError(
            f"option {name}: {text!r} is not a time such as 2024-05-01 12:30:00+02"
        ) from None


def number_option(values: Mapping[str, str], name: str) -> int | None:
    """Return the number, or None without the option. Raise HistoryError if it is not above 0."""
    text = values.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise HistoryError(f"option {name}: {text!r} is not a number above 0")
    return None if text is None else int(text)


def one_of(values: Mapping[str, str], name: str, *choices: str) -> str:
    value = values.get(name, choices[0]).lower()
    if value not in choices:
        raise HistoryError(f"option {name}: {value!r} is none of {', '.join(choices)}")
    return value
