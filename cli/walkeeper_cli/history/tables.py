"""`walkeeper history tables`: Parquet files, with progress on stderr."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click
import pyarrow as pa

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_cli.history.wal_options import NameSource
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.shell.process.kept_heap import keep_heap
from walkeeper_history.parquet import write_table
from walkeeper_history.rows.relation_names import RelationNames
from walkeeper_history.tables import TABLE_NAMES, Table, table
from walkeeper_wal.wal_errors import HistoryError

HEAP_KEPT_BYTES, HEAP_BUFFER_BYTES_MAX = 256 << 20, 32 << 20


def write(
    archive: Archive,
    output: str,
    names: list[str],
    columns: str | None,
    named: NameSource,
    *,
    again: bool,
    quiet: bool,
) -> None:
    """Write one table after the other, each over all segments."""
    # The buffers of a segment's columns serve the next segment. Arrow's own pool gives them back.
    keep_heap(kept_bytes=HEAP_KEPT_BYTES, buffer_bytes_max=HEAP_BUFFER_BYTES_MAX)
    pa.set_memory_pool(pa.system_memory_pool())
    # Names add columns. Every file has the same columns, or no file is written.
    known = archive.names(replace(named, insists=True))
    chosen = list(TABLE_NAMES) if names == ["all"] else [name.strip() for name in names]
    if columns and len(chosen) != 1:
        raise click.UsageError("--columns is for one table; name it with --table")
    kept = [column.strip() for column in columns.split(",")] if columns else None
    for made in [_table(name, kept, known) for name in chosen]:
        _write_one(archive, made, Path(output), again=again, quiet=quiet)


def _table(name: str, columns: list[str] | None, names: RelationNames | None) -> Table:
    try:
        return table(name, columns, names)
    except HistoryError as error:
        raise click.UsageError(str(error)) from error


def _write_one(archive: Archive, made: Table, output: Path, *, again: bool, quiet: bool) -> None:
    progress = _Progress(made.name, len(archive.plan.segments), quiet=quiet)
    try:
        for written in write_table(
            archive.files,
            archive.plan,
            made,
            output,
            again=again,
            on_problem=archive.on_problem,
            options=archive.options,
            read=archive.read_each,
        ):
            progress.add(written.rows, kept=written.kept)
    except OSError as error:
        raise HistoryError(f"{output}: {error.strerror or error}") from error
    finally:
        progress.end()


class _Progress:
    """A line that counts segments: kept up to date on a terminal, otherwise written at the end."""

    def __init__(self, name: str, total: int, *, quiet: bool) -> None:
        self._name, self._total, self._quiet = name, total, quiet
        self._done = self._kept = self._rows = 0
        self._live = sys.stderr.isatty()

    def add(self, rows: int, *, kept: bool) -> None:
        self._done, self._kept, self._rows = self._done + 1, self._kept + kept, self._rows + rows
        if self._live and not self._quiet:
            click.echo(f"\r{self._line()}", nl=False, err=True)

    def end(self) -> None:
        if not self._quiet:
            click.echo(f"\r{self._line()}" if self._live else self._line(), err=True)

    def _line(self) -> str:
        kept = f", {self._kept} of them from an earlier run" if self._kept else ""
        total = counted(self._total, "segment", "segments")
        rows = counted(self._rows, "row", "rows")
        return f"{self._name}: {self._done} of {total}, {rows}{kept}"
