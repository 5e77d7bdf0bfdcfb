"""`walkeeper history changes` of a logical log: read, not replayed (docs/logical.md)."""

from __future__ import annotations

from collections.abc import Sequence

import click

from walkeeper_cli.history.wal_options import Source
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.logged_changes import LoggedChanges, selected
from walkeeper_wal.sources.entry_files import EntryFiles, is_entry_log
from walkeeper_wal.wal_errors import HistoryError

__all__ = ["is_entry_log", "logged"]


def logged(
    source: Source, tables: Sequence[str], database: str | None, base: str | None
) -> tuple[list[Change], str]:
    """Return (changes, database) of a logical log, which holds decoded changes.

    Raise UsageError for an option that is for WAL, and HistoryError for another database.
    """
    for name, value in (
        ("--base", base),
        ("--timeline", source.timeline),
        ("--start-time", source.start_time),
        ("--end-time", source.end_time),
    ):
        if value:
            raise click.UsageError(f"{source.path} is a logical log: {name} is for WAL")
    files = EntryFiles.open(source.path)
    begin = files.first if source.start_lsn is None else files.start_for(source.start_lsn)
    log = LoggedChanges(files, tables)
    found = list(selected(log.read(begin, files.end), source.start_lsn, source.end_lsn))
    if database not in (None, log.database):
        raise HistoryError(
            f"{source.path} is of database {log.database}, not {database}: correct --database"
        )
    return found, log.database
