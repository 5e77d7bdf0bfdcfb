"""`walkeeper history tail`: new rows as the log grows, one row a line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import click

from walkeeper_cli.history.archive_reading import Archive
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import printable
from walkeeper_history.follow import Follower, log_end
from walkeeper_history.tables import table


def tail(
    archive: Archive, name: str, columns: str | None, interval_s: float, as_json: bool
) -> None:
    """Print new rows until it is interrupted."""
    for line in lines(archive, name, columns, as_json, lambda: time.sleep(interval_s)):
        click.echo(printable(line))


def lines(
    archive: Archive, name: str, columns: str | None, as_json: bool, wait: Callable[[], None]
) -> Iterator[str]:
    """Yield the new rows, then call `wait`, for ever."""
    source = archive.source
    made = table(name, [column.strip() for column in columns.split(",")] if columns else None)
    start = source.start_lsn
    begin = log_end(archive.files, archive.plan) if start is None else int(start)
    follower = Follower(archive.files, made, begin, source.timeline)
    while True:
        for batch in follower.new_rows():
            for row in batch.to_pylist():
                shown = {column: _shown(column, value) for column, value in row.items()}
                yield json.dumps(shown) if as_json else _text(shown)
        wait()


def _shown(column: str, value: Any) -> Any:
    if value is not None and column.endswith("_lsn"):
        return str(Lsn(value))
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {name: _shown(name, each) for name, each in value.items()}
    return [_shown("", each) for each in value] if isinstance(value, list) else value


def _text(row: dict[str, Any]) -> str:
    """Return the first column's value, and the other columns with names unless they are empty."""
    first, *others = row.items()
    kept = (f"{name}={value}" for name, value in others if value not in (None, [], ""))
    return " ".join([str(first[1]), *kept])
