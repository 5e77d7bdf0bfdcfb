"""`walkeeper history table-at | changes | undo`: replay WAL, and write rows, changes or SQL.

Modules that need psycopg or asyncio are imported where they are used. They would take a third of
the start of `table-at`.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import click
import pyarrow as pa
import pyarrow.parquet as parquet

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_cli.history.terminal import OnTerminal, tell
from walkeeper_cli.history.wal_options import Source
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_history.whole_file import whole_file
from walkeeper_replay.catalogs.catalog import Catalog, Database, Table
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.catalogs.table_lives import TableLives
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import SCHEMA, Change, batches, is_of_row
from walkeeper_replay.changes.commit_range import CommitRange
from walkeeper_replay.changes.incomplete_changes import FirstLoss, Incomplete, incomplete
from walkeeper_replay.changes.later_names import in_later_names, renamed, rewritten_since
from walkeeper_replay.changes.table_owners import TableLife
from walkeeper_replay.changes.undescribed import Undescribed
from walkeeper_replay.changes.undo import not_undone, undo_lines
from walkeeper_replay.columns.written_rows import csv_line, csv_lines, insert_lines
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.store import Relation
from walkeeper_replay.table_at import TableAt, coverage_of, refuse_before
from walkeeper_replay.text.times_text import timestamp_text
from walkeeper_replay.tuples.commits import Commit
from walkeeper_wal.json_text import json_text
from walkeeper_wal.sources.plan import Plan, Problem, make_plan
from walkeeper_wal.wal_errors import HistoryError

FORMATS = ("parquet", "csv", "sql", "json")
PLACES_SHOWN = 10

OnNamesakes: TypeAlias = Callable[[str, Sequence[TableLife]], None]


@dataclass(frozen=True, slots=True)
class Asked:
    """Options of all three commands: the database, the backup, and the output with its format."""

    database: str | None
    base: str | None
    output: str | None
    format: str | None
    allows_missing: bool = False
    """True if rows or changes that the WAL does not describe leave the exit code 0."""

    @property
    def written_as(self) -> str:
        """The format that --format names, else the one that the file's name says."""
        if self.format is not None:
            return self.format
        suffix = Path(self.output or "").suffix.lstrip(".").lower()
        return suffix if suffix in FORMATS else "csv"


def refuse_another_table(history: CatalogHistory, past: TableAt) -> None:
    """Refuse a table as the server has it now if the WAL has it otherwise at that LSN."""
    table, database = past.table, past.table.file.database
    catalog = history.at(past.lsn, Database(database, str(database)))
    if (known := catalog.classes.get(table.oid)) is None:
        return
    columns = catalog.attributes.get(known.oid, [])
    then = {(a.number, a.name, a.type) for a in columns if not a.dropped}
    now = {(a.number, a.name, a.type) for a in table.attributes if not a.dropped}
    is_other = (known.schema, known.name) != (table.schema, table.name) or not then <= now
    if is_other or any(number > known.natts for number, *_ in now):
        raise HistoryError(
            f"{table.shown}: at {Lsn(past.lsn)} the WAL has {known.schema}.{known.name} with this "
            f"OID ({known.oid}), or other columns: name that one, without --dsn"
        )


@dataclass(frozen=True, slots=True)
class ServerCatalogs:
    """A server whose catalogs, as they are now, may stand for those that the WAL does not have."""

    dsn: str | None
    comes_first: bool = True
    """If False, the catalogs of that LSN come first, where the WAL has them."""

    def chosen(
        self,
        opened: Callable[[Catalog | None], TableAt],
        lsn: int,
        system_id: int | None,
        database: str | None,
    ) -> TableAt:
        """Open a table by catalogs of the WAL or the server. Raise HistoryError if both lack it."""
        if self.dsn is None:
            return opened(None)
        if self.comes_first:
            return opened(self._catalog(self.dsn, lsn, system_id, database))
        try:
            return opened(None)
        except HistoryError as error:
            try:
                past = opened(self._catalog(self.dsn, lsn, system_id, database))
            except HistoryError as without:
                text = f"walkeeper: the server of WALKEEPER_DSN does not have it either: {without}"
                tell(text)
                raise error from without
        text = f"{past.table.shown}: names and columns are those of WALKEEPER_DSN now"
        tell(f"walkeeper: {text}")
        return past

    def _catalog(self, dsn: str, lsn: int, system_id: int | None, database: str | None) -> Catalog:
        from walkeeper_cli.history.server_catalog import catalog_of_server

        return catalog_of_server(dsn, lsn, system_id=system_id, database=database)


def planned(archive: Archive, base: BaseDirectory | None, *, from_start: bool = False) -> Plan:
    """Plan all WAL after the backup, or with `from_start` that from --start-lsn on.

    WAL before a range decides what is in the range.
    """
    start: int | None = archive.source.start_lsn if from_start else None
    start = start if base is None else base.redo_lsn
    return make_plan(archive.files, timeline=archive.source.timeline, start_lsn=start)


def opened_base(asked: Asked) -> BaseDirectory | None:
    return None if asked.base is None else BaseDirectory(asked.base)


def place_of(
    archive: Archive,
    plan: Plan,
    base: BaseDirectory | None,
    lsn: int | None,
    time: datetime | None,
) -> int | None:
    """Return the LSN that a time means: the end of the last commit before it."""
    if time is None:
        return lsn
    if lsn is not None:
        raise click.UsageError("either --lsn or --time")
    if base is not None:
        base.refuse_time_before(time)
    return archive.commit_times(plan).range(None, time)[1]


def table_at(
    source: Source,
    asked: Asked,
    name: str,
    lsn: int | None,
    time: datetime | None,
    server: ServerCatalogs,
) -> int:
    """Write the rows; say on stderr how many there are and what is not known of them."""
    archive = Archive(source)
    base = opened_base(asked)
    plan = planned(archive, base, from_start=True)
    at = place_of(archive, plan, base, lsn, time)
    refuse_before(base, plan, at)
    jobs = source.jobs or os.cpu_count() or 1
    history = CatalogHistory.read(
        archive.files, plan, base=base, until=at, keeps_commits=False,
        on_problem=archive.on_problem, index=archive.index, reads_ahead=jobs > 1,
        notes_resets=True,
    )  # fmt: skip

    def opened(catalog: Catalog | None) -> TableAt:
        made = TableAt.open(
            source.path, plan, name, lsn=at, database=asked.database, base=base,
            history=history, catalog=catalog, is_of_a_time=time is not None, index=archive.index,
            is_for_sql=asked.written_as == "sql",
        )  # fmt: skip
        if catalog is not None:
            refuse_another_table(history, made)
        return made

    past = server.chosen(opened, at or history.end_lsn, plan.system_id, asked.database)
    if not history.is_whole and (lsn is not None or time is not None):
        ends = f"the last record of this WAL ends at {Lsn(history.end_lsn)}"
        until = time if lsn is None else Lsn(lsn)
        later = f"what came after it, up to {until}, is not known"
        tell(f"walkeeper: warning: {ends}; {later}")
    table = past.whole(jobs)
    with written(asked, binary=asked.written_as == "parquet") as file:
        if asked.written_as == "parquet":
            parquet.write_table(table, file)
        else:
            sql = asked.written_as == "sql"
            rows = (past.for_sql(table) if sql else table).drop_columns([past.coverage_column])
            of_then = f"{past.table.shown} at {Lsn(past.lsn)}; names are those of then"
            lines = insert_lines(past.table, rows, of_then) if sql else csv_lines(rows)
            file.writelines(line + "\n" for line in lines)
    text = f"{past.table.shown} at {Lsn(past.lsn)}: {counted(table.num_rows, 'row', 'rows')}"
    if virtual := past.table.virtual:
        text += (
            f" without {', '.join(virtual)} (virtual generated columns: no WAL has their values)"
        )
    known = coverage_of(table)
    tell(f"walkeeper: {text}; {known}")
    return archive.exit_code or int(not known.has_all and not asked.allows_missing)


@contextmanager
def written(asked: Asked, *, binary: bool) -> Iterator[IO[Any]]:
    """Open a file that appears whole or not at all, or stdout without --output."""
    if asked.output is None:
        if binary and sys.stdout.isatty():
            raise click.UsageError("Parquet on a terminal: name a file (--output)")
        if not sys.stdout.isatty() and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as in a file, whatever the locale
        out: Any = OnTerminal(sys.stdout) if sys.stdout.isatty() else sys.stdout
        yield sys.stdout.buffer if binary else out
        sys.stdout.flush()  # here, where a closed pipe or a full disk is reported
        return
    with whole_file(asked.output, encoding=None if binary else "utf-8") as file:
        yield file


def _changes(
    archive: Archive,
    asked: Asked,
    tables: Sequence[str],
    base: BaseDirectory | None,
    xid: int | None,
    on_namesakes: OnNamesakes,
    later: Callable[[Database], Latest] | None = None,
    *,
    takes_back: bool = False,
) -> tuple[list[Change], Database, int]:
    """Return the changes of the source's range, and the exit code: 1 if some are missing.

    With `takes_back`, changes that may be missing count as well: half of a transaction would be
    undone.

    `on_namesakes` takes each name that none or several tables had, with these. `later` returns the
    catalogs that name labels, roles, and what regclass and its like print. Without it, the catalogs
    at each change name them.
    """
    plan, source = planned(archive, base), archive.source
    chosen = CommitRange.between(
        archive.commit_times(plan), base, source.start_time, source.end_time,
        (source.start_lsn, source.end_lsn),
    )  # fmt: skip
    start, end, losses = chosen.start, chosen.end, FirstLoss(archive.on_problem)
    history = CatalogHistory.read(
        archive.files, plan, base=base, until=end, on_problem=losses, index=archive.index,
    )  # fmt: skip
    database = history.database(history.end_lsn, asked.database)
    reader = ChangeReader(
        archive.files, plan, history, database, base, on_problem=archive.on_problem,
        index=archive.index, later=None if later is None else later(database).catalog,
        lost_from=losses.lsn,
    )  # fmt: skip
    for name, namesakes in _namesakes(tables, reader, start, end):
        on_namesakes(name, namesakes)
    found = reader.read(tables, start, end)
    ends = (source.end_lsn, source.end_time)
    if not history.is_whole and ends != (None, None):
        place = Lsn(history.end_lsn)
        tell(f"walkeeper: warning: the WAL ends at {place}, before what was asked for")
    others = asked.database is None and not tables
    missing = reader.undescribed(start, end, xid=xid, others=others, names=tables)
    if chosen.is_cut_off:
        missing.insert(0, reader.cut_off_range())
    unsure = reader.unsure(
        c.commit.top_xid for c in found if xid in (None, c.xid, c.commit.top_xid)
    )
    unsure += [] if tables else reader.large_objects(start, xid)
    if takes_back:
        missing += unsure
    tell_of_missing(missing)
    tell_of_remarks([*reader.remarks(xid), *(() if takes_back else unsure)])
    return found, database, int(bool(missing) and not asked.allows_missing)


def _namesakes(
    tables: Sequence[str], reader: ChangeReader, start: int, end: int | None
) -> Iterator[tuple[str, list[TableLife]]]:
    """Yield each name that none or several tables had within the range, with these tables."""
    end_lsn = reader.history.end_lsn if end is None else end
    for name in tables:
        found = sorted(reader.owners.meant([name], start, end_lsn))
        if len(found) != 1:
            yield name, found


def _choice(found: Sequence[TableLife]) -> str:
    """Say how to name one of several tables: by its OID, or by its time if they had one OID."""
    oids = sorted({oid for oid, _ in found})
    if len(oids) == len(found):
        return "by its OID: " + " or ".join(f"--table {oid}" for oid in oids)
    begins = ", ".join(f"{oid} from {Lsn(begin)} on" for oid, begin in found)
    return f"by a range of its time, since an OID was given again: {begins}"


def _warn_of_namesakes(name: str, found: Sequence[TableLife]) -> None:
    if not found:
        tell(f"walkeeper: warning: {name}: no table had this name in the range")
        return
    tell(
        f"walkeeper: warning: {name}: {len(found)} tables had this name in the range, and the "
        f"changes of all of them are taken: say which one you mean {_choice(found)}"
    )


def _refuse_namesakes(name: str, found: Sequence[TableLife]) -> None:
    """Refuse to undo changes of tables that the operator may not mean."""
    if not found:
        _warn_of_namesakes(name, found)
        return
    raise HistoryError(
        f"{name}: {len(found)} tables had this name in the range; say which one to undo "
        f"{_choice(found)}"
    )


def tell_of_missing(missing: Sequence[Undescribed]) -> None:
    """Name on stderr what the changes lack: a line for each kind and reason."""
    groups: dict[tuple[str, str], list[str]] = {}
    for each in missing:
        groups.setdefault((each.kind, each.reason), []).append(each.place)
    for (kind, reason), places in groups.items():
        shown = ", ".join(places[:PLACES_SHOWN]) + (", …" if places[PLACES_SHOWN:] else "")
        tell(f"walkeeper: warning: missing: {kind} {shown} ({len(places)} in all): {reason}")


def tell_of_remarks(remarks: Sequence[Undescribed]) -> None:
    """Name on stderr what the changes do not show, or may lack."""
    for each in remarks:
        tell(f"walkeeper: warning: {each.kind} {each.place}: {each.reason}")


def tell_of_incomplete(found: Sequence[Incomplete]) -> None:
    """Name on stderr the tables with changes that are not all known."""
    for each in found:
        tell(f"walkeeper: warning: not complete: table {each.table}: {each.shown}")


def changes(
    source: Source, asked: Asked, tables: Sequence[str], where: Sequence[str], xid: int | None
) -> int:
    """Write a row for each change, in the order of commits."""
    from walkeeper_cli.history.logical_changes import is_entry_log, logged

    if is_entry_log(source.path):
        exit_code, (found, name) = 0, logged(source, tables, asked.database, asked.base)
    else:
        archive = Archive(source)
        found, database, missing = _changes(
            archive, asked, tables, opened_base(asked), xid, _warn_of_namesakes
        )
        found = [c for c in found if xid in (None, c.xid, c.commit.top_xid)]
        # Also those that --where leaves out: it does not see a value that is not known.
        doubts = incomplete((c.table.shown, c.start_lsn, c.coverage) for c in found)
        tell_of_incomplete(doubts)
        missing = missing or int(bool(doubts) and not asked.allows_missing)
        exit_code, name = archive.exit_code or missing, database.name
    wanted = [_condition(text) for text in where]
    found = [c for c in found if is_of_row(c, wanted) and xid in (None, c.xid, c.commit.top_xid)]
    made = pa.Table.from_batches(batches(found, name), SCHEMA)
    with written(asked, binary=asked.written_as == "parquet") as file:
        if asked.written_as == "parquet":
            parquet.write_table(made, file)
        elif asked.written_as == "json":
            file.writelines(json_text(row) + "\n" for row in documents(found))
        else:
            file.writelines(line + "\n" for line in change_lines(found))
    tell(f"walkeeper: {counted(len(found), 'change', 'changes')}")
    return exit_code


def _condition(text: str) -> tuple[str, str]:
    column, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--where {text}: not COLUMN=VALUE")
    return column.strip(), value


def undo(source: Source, asked: Asked, tables: Sequence[str], xid: int | None, yes: bool) -> int:
    """Write the SQL that takes the changes of a range back."""
    if not tables and xid is None and not yes:
        raise click.UsageError("name what to undo: --table, --xid, or --all-tables")
    archive = Archive(source)
    base = opened_base(asked)
    latest = cache(partial(_latest, archive, base))
    found, database, missing = _changes(
        archive, asked, tables, base, xid, _refuse_namesakes, latest, takes_back=True
    )
    found = [c for c in found if xid in (None, c.xid, c.commit.top_xid)]
    found = in_later_names(found, latest(database).catalog, latest(database).lives)
    tell_of_remarks(rewritten_since(found, latest(database).rewriting))
    partly: list[Change] = []

    def rows_before(change: Change) -> Any:
        # Just before the commit that truncated; its other changes are undone already.
        past = TableAt.open(
            source.path, planned(archive, base), change.table.oid,
            lsn=change.commit.end_lsn - 1, database=database.name, base=base,
            on_problem=archive.on_problem, index=archive.index, later=latest(database).catalog,
        )  # fmt: skip
        rows = past.for_sql(past.whole()).drop_columns([past.coverage_column])
        rows, are_all = renamed(rows, past.table, change.table)
        partly.extend([] if are_all and coverage_of(rows).has_values else [change])
        return rows

    with written(asked, binary=False) as file:
        lines = undo_lines(found, rows_before, latest(database).catalog.printer)
        file.writelines(line + "\n" for line in lines)
    lost = not_undone(found) + len(partly)
    text = f"walkeeper: {counted(len(found) - lost, 'change', 'changes')} can be undone"
    tell(text + (f", {lost} cannot: see the comments" if lost else ""))
    return archive.exit_code or missing or int(lost > 0)


@dataclass(frozen=True, slots=True)
class Latest:
    """The catalogs at the end of all WAL, and the tables that had one OID in turn."""

    catalog: Catalog
    lives: TableLives
    rewriting: Callable[[int], Sequence[int]]
    """The commits that rewrote a table."""


def _latest(archive: Archive, base: BaseDirectory | None, database: Database) -> Latest:
    """Return the catalogs at the end of all WAL, which are the nearest to those of the server."""
    met: list[Problem] = []
    history = CatalogHistory.read(
        archive.files, planned(archive, base), base=base, keeps_commits=False,
        on_problem=met.append, index=archive.index,
    )  # fmt: skip
    if any(problem.fatal for problem in met):
        place = Lsn(history.end_lsn)
        tell(f"walkeeper: warning: names are those of {place}, before WAL that is not readable")
    lives = TableLives.of_database(history, database.oid)
    rewriting = history.file_steps(database.oid).rewriting
    return Latest(history.at(history.end_lsn, database), lives, rewriting)


def documents(found: Sequence[Change]) -> Iterator[dict[str, Any]]:
    """Yield one object for each change; LSNs in PostgreSQL's form."""
    for c in found:
        yield {
            "start_lsn": str(Lsn(c.start_lsn)),
            "commit_lsn": str(Lsn(c.commit.end_lsn)),
            "commit_time": timestamp_text(c.commit.time, "+00"),
            "xid": c.commit.top_xid,
            "schema": c.table.schema,
            "table": c.table.name,
            "operation": c.operation,
            "old": c.old,
            "new": c.new,
            "coverage": c.coverage,
        }


def change_lines(found: Sequence[Change]) -> Iterator[str]:
    """Yield CSV with a header; old and new as JSON objects."""
    names = list(next(documents([_ANY]), {}))
    yield ",".join(names)
    for document in documents(found):
        values = (json_text(v) if isinstance(v, dict) else v for v in document.values())
        yield csv_line(None if v is None else str(v) for v in values)


_ANY = Change(0, Commit(0, 0, 0), 0, Table(0, "", "", Relation(0, 0, 0), (), None, ()), "")
