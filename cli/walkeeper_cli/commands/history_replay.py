"""`walkeeper history table-at | changes | undo`; replay is imported when one of them runs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from walkeeper_cli.history.wal_options import (
    LsnText,
    Source,
    Time,
    is_asked_for,
    source_options_but,
)
from walkeeper_cli.options import Duration, Timeout, config_option, option
from walkeeper_common.lsn import Lsn

_AS_OF = "name the moment with --lsn or --time"
_IN_SPARK = "in Spark, this is the source pgwal's: see docs/replay.md"

Function = TypeVar("Function", bound=Callable[..., Any])


def _written(*formats: str) -> Callable[[Function], Callable[..., Any]]:
    """Add the options that all three commands share, for input and output."""

    def add(function: Function) -> Callable[..., Any]:
        options = (
            option(
                "--database", metavar="NAME",
                help="The database's name or OID, if there are several.",
            ),
            option(
                "--base", metavar="DIR", type=click.Path(exists=True, file_okay=False),
                help="A base backup (plain format), for tables made before the WAL.",
            ),
            option(
                "--output", "-o", metavar="FILE",
                help="The file, which appears whole or not at all.  [default: stdout]",
            ),
            option(
                "--format", "format_", type=click.Choice(formats),
                help="The format.  [default: that of the file's name, or CSV]"
                if "csv" in formats
                else "The only format.",
            ),
        )  # fmt: skip
        made: Callable[..., Any] = function
        for each in reversed(options):
            made = each(made)
        return made

    return add


@click.command("table-at", short_help="Write a table's rows as of an LSN or a time.")
@click.argument("table")
@source_options_but(end_lsn=_AS_OF, end_time=_AS_OF, start_time=_AS_OF, spark=_IN_SPARK)
@option("--lsn", type=LsnText(), metavar="LSN", help="Apply all records that end here or before.")
@option("--time", type=Time(), metavar="TIME", help="Apply all transactions committed before.")
@option(
    "--dsn",
    metavar="DSN",
    help="The server whose present names and columns to use. WALKEEPER_DSN counts only if the WAL "
    "does not have them.",
)
@option("--allow-missing", is_flag=True, help="Exit with 0 also if the rows are not all known.")
@_written("parquet", "csv", "sql")
@config_option
def table_at(
    source: Source, table: str, lsn: Lsn | None, time: datetime | None, dsn: str | None,
    allow_missing: bool, database: str | None, base: str | None, output: str | None,
    format_: str | None,
) -> int:  # fmt: skip
    """Write a table's rows as of an LSN or a time, also if it was changed, truncated or dropped
    since. The rows are those of a SELECT on a server that was recovered to that point.

    \b
    Examples:
      walkeeper history table-at public.orders --path /srv/wal --time '2024-05-01 12:00+02' \\
          --base /backups/main --output orders.parquet
      walkeeper history table-at orders --path /srv/wal --lsn 0/5A3F2B8 --format sql | psql
      walkeeper history find drop --path /srv/wal        (says the LSN to ask for)

    \b
    Without --base, the command knows only tables and blocks that the WAL contains. It reports
    missing ones on stderr, in the column coverage of Parquet, and by the exit code 1. With
    full_page_writes (the default), it knows a block from its first change after a checkpoint on.
    A name without quotes is taken exactly as written. Quotes work as in PostgreSQL.
    """
    from walkeeper_cli.history.replay_commands import Asked, ServerCatalogs
    from walkeeper_cli.history.replay_commands import table_at as write

    catalogs = ServerCatalogs(dsn or None, comes_first=is_asked_for("dsn"))
    asked = Asked(database, base, output, format_, allow_missing)
    return write(source, asked, table, lsn, time, catalogs)


_tables_option = option(
    "--table",
    "tables",
    multiple=True,
    metavar="NAME",
    help="The table; repeat it for several. A name without quotes is taken exactly as written.",
)


_missing_option = option(
    "--allow-missing",
    is_flag=True,
    help="Exit with 0 also if this WAL does not describe all that was changed.",
)


@click.command("changes", short_help="Write the changes of rows, with old and new values.")
@source_options_but(spark=_IN_SPARK)
@_tables_option
@option(
    "--where",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Write only changes from or to a row with this value, as text.",
)
@option("--xid", type=click.IntRange(3, (1 << 32) - 1), metavar="XID", help="The transaction.")
@_missing_option
@_written("parquet", "csv", "json")
@config_option
def changes(
    source: Source, tables: tuple[str, ...], where: tuple[str, ...], xid: int | None,
    allow_missing: bool, database: str | None, base: str | None, output: str | None,
    format_: str | None,
) -> int:  # fmt: skip
    """Write every committed insert, update, delete and truncate, in the order of commits.

    Each change has the row before and after. WAL of wal_level=replica is enough. A range of LSNs or
    times selects commits, and each selected transaction is complete.

    \b
    Examples:
      walkeeper history changes --path /srv/wal --table orders --where id=4711
      walkeeper history changes --path /srv/wal --start-time '2024-05-01 12:00+02' \\
          --output changes.parquet
    """
    from walkeeper_cli.history.replay_commands import Asked
    from walkeeper_cli.history.replay_commands import changes as write

    asked = Asked(database, base, output, format_, allow_missing)
    return write(source, asked, tables, where, xid)


@click.command("undo", short_help="Write SQL that reverts changes.")
@source_options_but(spark=_IN_SPARK)
@_tables_option
@option("--xid", type=click.IntRange(3, (1 << 32) - 1), metavar="XID", help="The transaction.")
@option("--all-tables", is_flag=True, help="Revert all changes in the range.")
@_missing_option
@_written("sql")
@config_option
def undo(
    source: Source, tables: tuple[str, ...], xid: int | None, all_tables: bool,
    allow_missing: bool, database: str | None, base: str | None, output: str | None,
    format_: str | None,
) -> int:  # fmt: skip
    """Write SQL that reverts one transaction, or all that committed in a range of LSNs or times,
    on the server as it is now. It reverts each transaction as a whole. Read the SQL before you run
    it.

    \b
    Example: find a DELETE without WHERE, and revert it
      walkeeper history find delete --path /srv/wal --min-rows 1000
      walkeeper history undo --path /srv/wal --xid 74113 --output undo.sql
      psql -v ON_ERROR_STOP=1 -f undo.sql

    \b
    The SQL is one transaction. It changes nothing if a row was changed again since; revert the
    later change first. Triggers and foreign keys of the server apply (session_replication_role).
    It changes nothing either if one of them would leave other rows than before.
    """
    from walkeeper_cli.history.replay_commands import Asked
    from walkeeper_cli.history.replay_commands import undo as write

    asked = Asked(database, base, output, format_, allow_missing)
    return write(source, asked, tables, xid, all_tables)


class KeptFor(Duration):
    """A duration of at least a minute, or `off`, which is 0."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if value == "off":
            return 0.0
        seconds = super().convert(value, param, ctx)
        if seconds < _RETENTION_MIN_S:
            self.fail(
                f"{value!r} would remove files while a query reads them: name a time of at least "
                "1min, or off for no maintenance",
                param, ctx,
            )  # fmt: skip
        return seconds


_RETENTION_MIN_S = 60
_FOLLOWS = "the stream follows the log; --start-lsn is where it begins, --once ends at its end"


@click.command("stream", short_help="Write the changes of rows into files, as the log grows.")
@source_options_but(end_lsn=_FOLLOWS, end_time=_FOLLOWS, start_time=_FOLLOWS, spark=_IN_SPARK,
                    index="each segment is read once")  # fmt: skip
@option(
    "--to", required=True, metavar="URL",
    help="A directory, s3://…, gs://… or az://… for Parquet files. delta:URL and "
    "iceberg:CATALOG/NAMESPACE.TABLE are tables of a lake.",
)  # fmt: skip
@option(
    "--state", required=True, type=click.Path(file_okay=False), metavar="DIR",
    help="A directory for the state, which belongs to this stream alone.",
)  # fmt: skip
@_tables_option
@option("--database", metavar="NAME", help="The database's name or OID, if there are several.")
@option(
    "--base", metavar="DIR", type=click.Path(exists=True, file_okay=False),
    help="A base backup (plain format), for tables made before the WAL.",
)  # fmt: skip
@_missing_option
@option(
    "--mode", type=click.Choice(["append", "mirror", "scd2"]), default="append", show_default=True,
    help="append writes changes. mirror keeps tables of a lake equal to the server's, by primary "
    "key. scd2 keeps each version of a row, with the commits that began and ended it.",
)  # fmt: skip
@option("--once", is_flag=True, help="End at the end of the log.")
@option(
    "--interval", type=Timeout(), default="1s", show_default=True,
    help="The time between two looks at the log.",
)  # fmt: skip
@option(
    "--save-every", type=click.IntRange(1), default=1024, show_default=True, metavar="MB",
    help="The WAL between two saved states, which a restart reads again.",
)  # fmt: skip
@option(
    "--memory", type=click.IntRange(1), default=1024, show_default=True, metavar="MB",
    help="The most memory for pages of the tables. Other pages are on disk, in the state.",
)  # fmt: skip
@option(
    "--change-memory", type=click.IntRange(1), default=64, show_default=True, metavar="MB",
    help="The most memory for changes of transactions that are still open, like PostgreSQL's "
    "logical_decoding_work_mem. Other changes are on disk, in the state.",
)  # fmt: skip
@option(
    "--retention", type=KeptFor(), metavar="TIME",
    help="How long tables of a lake keep files that were replaced, and older versions. Small files "
    "are merged meanwhile, but not Iceberg's: run CALL system.rewrite_data_files(…) in Spark. off: "
    "no maintenance.  [default: the table's own, or 1d for Delta and 1h for Iceberg]",
)  # fmt: skip
@config_option
def stream(
    source: Source, to: str, state: str, tables: tuple[str, ...], database: str | None,
    base: str | None, allow_missing: bool, mode: str, once: bool, interval: float, save_every: int,
    memory: int, change_memory: int, retention: float | None,
) -> int:  # fmt: skip
    """Write every committed insert, update, delete and truncate into files or a lake's table, until
    Ctrl-C.

    The columns are those of `changes`. Each change is there once, also if the command dies
    at any point. Start it again with the same options, and it goes on. WAL of wal_level=replica is
    enough, and the server needs no slot.

    \b
    Examples:
      walkeeper history stream --path walkeeper://10.0.0.1:5454/main --table orders \\
          --to s3://lake/orders --state /var/lib/walkeeper/orders
      walkeeper history stream --path /srv/wal --base /backups/main --to /data/changes \\
          --state /data/state --once
    """
    from pathlib import Path

    from walkeeper_cli.history.stream import Asked, open_sink, retention_of
    from walkeeper_cli.history.stream import stream as run
    from walkeeper_replay.redo.page import PAGE_BYTES
    from walkeeper_replay.streams.change_windows import Scope

    start = 0 if source.start_lsn is None else int(source.start_lsn)
    if mode != "append" and start:
        raise click.UsageError(
            f"--mode {mode} begins with the WAL or --base: leave out --start-lsn"
        )
    scope = Scope(tables, database, base, start)
    sink = open_sink(to, mode)
    asked = Asked(
        scope, Path(state), save_every << 20, once, interval, allow_missing, mode,
        pages_max=(memory << 20) // PAGE_BYTES, changes_max_bytes=change_memory << 20,
        retention=retention_of(sink, retention),
    )  # fmt: skip
    return run(source, asked, sink)


REPLAY_COMMANDS = (table_at, changes, undo, stream)
