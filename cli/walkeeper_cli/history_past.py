"""`walkeeper history table-at | changes | undo`: WAL replayed, asked for, and written out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import click

from walkeeper_cli.history_options import Source
from walkeeper_cli.history_reading import Archive
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_history.errors import HistoryError
from walkeeper_history.plan import Plan, make_plan
from walkeeper_history.times import lsn_range
from walkeeper_replay.base import BaseDirectory
from walkeeper_replay.table_at import COMPLETE, TableAt
from walkeeper_replay.written import csv_lines, insert_lines

FORMATS = ("parquet", "csv", "sql")


@dataclass(frozen=True, slots=True)
class Asked:
    """What all three have: which database, over which backup, written where and how."""

    database: str | None
    base: str | None
    output: str | None
    format: str | None

    @property
    def written_as(self) -> str:
        """By its name, unless told."""
        if self.format is not None:
            return self.format
        suffix = Path(self.output or "").suffix.lstrip(".").lower()
        return suffix if suffix in FORMATS else "csv"


def planned(archive: Archive, base: BaseDirectory | None) -> Plan:
    """All WAL behind the backup: what was before a range decides what is in it."""
    start = None if base is None else base.redo_lsn
    return make_plan(archive.files, timeline=archive.source.timeline, start_lsn=start)


def opened_base(asked: Asked) -> BaseDirectory | None:
    return None if asked.base is None else BaseDirectory(asked.base)


def place_of(archive: Archive, plan: Plan, lsn: int | None, time: datetime | None) -> int | None:
    """The LSN that a time means: behind the last commit before it."""
    if time is None:
        return lsn
    if lsn is not None:
        raise click.UsageError("either --lsn or --time")
    return lsn_range(archive.files, plan, None, time, (None, None))[1]


def table_at(
    source: Source, asked: Asked, name: str, lsn: int | None, time: datetime | None
) -> int:
    """Writes the rows, says on stderr how many and what is not known of them."""
    archive, base = Archive(source), opened_base(asked)
    plan = planned(archive, base)
    at = place_of(archive, plan, lsn, time)
    past = TableAt.open(
        source.path, plan, name, lsn=at, database=asked.database, base=base,
        on_problem=archive.on_problem,
    )  # fmt: skip
    table = past.whole(source.jobs or os.cpu_count() or 1)
    shown = sorted(set(table["coverage"].to_pylist()))
    with written(asked, binary=asked.written_as == "parquet") as file:
        if asked.written_as == "parquet":
            import pyarrow.parquet as parquet

            parquet.write_table(table, file)
        else:
            rows = table.drop_columns(["coverage"])
            lines = insert_lines(past.table, rows) if asked.written_as == "sql" else csv_lines(rows)
            file.writelines(line + "\n" for line in lines)
    text = f"{past.table.shown} at {Lsn(past.lsn)}: {table.num_rows} rows"
    doubts = "; ".join(s for s in shown if s != COMPLETE)
    click.echo(f"walkeeper: {text}; {doubts or 'complete'}", err=True)
    return archive.exit_code


@contextmanager
def written(asked: Asked, *, binary: bool) -> Iterator[IO[Any]]:
    """A file that appears whole or not at all; stdout without --output."""
    if asked.output is None:
        if binary and sys.stdout.isatty():
            raise click.UsageError("Parquet on a terminal: name a file (--output)")
        yield sys.stdout.buffer if binary else sys.stdout
        return
    path = Path(asked.output)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb" if binary else "w") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def needed(error: ModuleNotFoundError) -> WalkeeperError:
    return WalkeeperError(f"walkeeper history needs {error.name}: pip install 'walkeeper[spark]'")
