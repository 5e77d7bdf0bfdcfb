"""`walkeeper history`: reads archived WAL as statistics, tables, events or a report.

walkeeper_history does the work. It needs more than the rest of walkeeper (numpy, pyarrow), so a
command imports it only when it runs.
"""

from __future__ import annotations

import json

import click

from walkeeper_cli.commands.history_replay import REPLAY_COMMANDS
from walkeeper_cli.history.wal_options import (
    NameSource,
    Source,
    names_options,
    source_options,
    source_options_but,
)
from walkeeper_cli.options import Timeout, config_option, json_option, option
from walkeeper_common.operator_text.counts import counted

_ENDLESS = "it begins at the end of the log or at --start-lsn, and goes on until Ctrl-C"
_OWN = "the index that this command writes is --output"


@click.group("history", short_help="Read archived WAL as statistics, tables or a report.")
def command() -> None:
    """Read archived WAL of PostgreSQL 13 to 18, with or without walkeeper.

    \b
    --path is a directory or an object store's URL with segments, compressed or not, as they lie:
    walkeeper's archive, pg_wal, pg_receivewal's, Barman's, pgBackRest's or WAL-G's directory.
      walkeeper history stats  --path /var/lib/postgresql/15/main/pg_wal
      walkeeper history tables --path s3://backups/main/wals --output /data/wal --table xacts
    --path may also name safekeepers: it reads their committed log, also when one of them is down.
      walkeeper history tail   --path walkeeper://10.0.0.1:5454,10.0.0.2:5454/main
    \b
    Small archives need no Spark. On a cluster whose machines have walkeeper's wheel:
      spark-submit --master … .../walkeeper_cli/__main__.py history stats --spark --path s3://…
    """


@command.command("stats", short_help="Count records and bytes by resource manager.")
@source_options
@option("--per-record", is_flag=True, help="Print a line for each kind of record.")
@json_option
@config_option
def stats(source: Source, per_record: bool, as_json: bool) -> int:
    """Count records and their bytes, as pg_waldump --stats does (--stats=record with --per-record).

    It reads all versions and compressed archives, and is faster.

    \b
    Example:
      walkeeper history stats --path /srv/wal --start-lsn 0/3000000 --per-record
    """
    from walkeeper_cli.history.archive_reading import opened
    from walkeeper_cli.history.stats import document, gather
    from walkeeper_history.rows.stats import format_stats

    with opened(source) as archive:
        found = gather(archive)
        rows = found.by_record() if per_record else found.by_rmgr()
        if as_json:
            click.echo(json.dumps(document(found, rows, archive)))
        else:
            for line in format_stats(found, rows):
                click.echo(line)
        return archive.exit_code


@command.command("tables", short_help="Write Parquet, one file a segment.")
@source_options
@option(
    "--output",
    required=True,
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The directory of the tables, for DIR/TABLE/SEGMENT.parquet.",
)
@option(
    "--table", "names", default="records", show_default=True, metavar="NAME,…",
    help="records, blocks, stats, xacts, checkpoints, locks, relations, messages, segments, "
    "problems; or all.",
)  # fmt: skip
@option(
    "--columns", metavar="NAME,…", help="Write these columns only, in this order; for one table."
)
@names_options
@option("--again", is_flag=True, help="Write also segments whose file is complete already.")
@option("--quiet", is_flag=True, help="Show no progress.")
@config_option
def tables(
    source: Source,
    output: str,
    names: str,
    columns: str | None,
    named: NameSource,
    again: bool,
    quiet: bool,
) -> int:
    """Write tables as Parquet, one file a segment.

    A second run over an archive that has grown writes the new segments only. It writes a file
    when the segment is complete, and the file appears whole or not at all. With names of relations
    (--catalog, --dsn or --base), the tables blocks and relations get the columns database_name and
    relation_name.

    \b
    Example:
      walkeeper history tables --path /srv/wal --output /data/wal --table records,xacts
    """
    from walkeeper_cli.history.archive_reading import opened
    from walkeeper_cli.history.tables import write

    with opened(source) as archive:
        write(archive, output, names.split(","), columns, named, again=again, quiet=quiet)
        return archive.exit_code


@command.command("find", short_help="Find a DROP, TRUNCATE, DELETE or transaction.")
@click.argument("what", type=click.Choice(["drop", "truncate", "delete", "rewrite", "all"]),
                required=False)  # fmt: skip
@source_options
@option(
    "--xid", type=click.IntRange(3, (1 << 32) - 1), metavar="XID", help="Find this transaction."
)
@option(
    "--relation",
    metavar="[[TABLESPACE/]DATABASE/]RELFILENODE|NAME",
    help="Find only changes of this relation: its path as of pg_relation_filepath, the last number "
    "of that path, or its name with --catalog, --dsn or --base.",
)
@names_options
@option(
    "--min-rows",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Leave out deletes of fewer rows.",
)
@json_option
@config_option
def find(
    source: Source,
    what: str | None,
    xid: int | None,
    relation: str | None,
    named: NameSource,
    min_rows: int,
    as_json: bool,
) -> int:
    """Find an event in the log, and print the settings with which a recovery stops just before it.

    \b
    Examples:
      walkeeper history find drop   --path /srv/wal --start-time '2024-05-01 12:00:00+02'
      walkeeper history find delete --path /srv/wal --relation 16385 --min-rows 1000
      walkeeper history find        --path /srv/wal --xid 74113

    WAL identifies a relation by the number of its file. SELECT pg_relation_filenode('t') returns
    that number in a backup that still has the table. --catalog takes the names from a file that
    `walkeeper history catalog` wrote before the change. --base takes them from a base backup and
    the WAL since then.
    """
    from walkeeper_cli.history.archive_reading import opened
    from walkeeper_cli.history.find import document, lines, search
    from walkeeper_common.operator_text.printable import printable
    from walkeeper_wal.json_text import json_text

    if (what is None) == (xid is None):
        raise click.UsageError("name the event (drop, truncate, delete, rewrite, all) or --xid")
    with opened(source) as archive:
        names = archive.names(named)
        found = search(archive, what, xid, relation, min_rows, names)
        if as_json:
            click.echo(json_text([document(finding) for finding in found]))
        else:
            for line in lines(found):
                click.echo(printable(line))
        if not found:
            click.echo("walkeeper: nothing of that kind was committed in this WAL", err=True)
        return archive.exit_code


@command.command("report", short_help="Write a report as one HTML file.")
@source_options
@option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The report's file.",
)
@names_options
@config_option
def report(source: Source, output: str, named: NameSource) -> int:
    """Write a report as one HTML file, which needs no network.

    It shows the rate of WAL with its checkpoints, kinds of records, and the relations and
    transactions with the most WAL. It also shows gaps, damage, and the estimated cost of other
    checkpoint spacings.

    \b
    Example:
      walkeeper history report --path /srv/wal --output wal.html --dsn service=prod
    """
    from walkeeper_cli.history.archive_reading import opened
    from walkeeper_cli.history.report import write

    with opened(source) as archive:
        write(archive, output, named)
        return archive.exit_code


@command.command("catalog", short_help="Keep the names of a server's relations for later.")
@option(
    "--dsn", required=True, metavar="DSN", help="The server; the command reads all its databases."
)
@option(
    "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE",
    help="The file of names; names that it already has stay.",
)  # fmt: skip
@config_option
def catalog(dsn: str, output: str) -> None:
    """Write the names of all relations with the numbers of their files.

    With this file as --catalog, or as the option `catalog` in Spark, the other commands need no
    server. Run the command regularly into the same file. The file keeps the names of relations that
    were dropped, truncated or rewritten since.

    \b
    Example:
      walkeeper history catalog --dsn service=prod --output /srv/wal-names.json
    """
    from walkeeper_cli.history.archive_reading import written_catalog

    names = written_catalog(dsn, output)
    click.echo(f"{output}: names of {counted(len(names), 'file', 'files')} of relations")


@command.command("index", short_help="Write an index, with which readers skip segments.")
@source_options_but(index=_OWN)
@option(
    "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE",
    help="The index, one Parquet file.",
)  # fmt: skip
@config_option
def index(source: Source, output: str) -> int:
    """Write the relations, transactions, checkpoints, times and record starts of each segment.

    With this file as --index, the other commands skip segments that they do not need. So do filters
    in Spark with the option `index`. Before a reader skips a segment, it compares the segment's
    file with the index. A second run over an archive that has grown reads the new segments only,
    and those that were replaced.

    \b
    Example:
      walkeeper history index --path /srv/wal --output /data/wal-index.parquet
    """
    from walkeeper_cli.history.archive_reading import opened, updated_index

    ranges = (source.start_lsn, source.end_lsn, source.start_time, source.end_time)
    if any(each is not None for each in ranges):
        raise click.UsageError("an index is of a whole archive: no --start-… and --end-…")
    with opened(source) as archive:
        done = updated_index(archive, output)
        segments = counted(done.segments, "segment", "segments")
        click.echo(f"{output}: {segments}, {done.added} of them new")
        return archive.exit_code


@command.command("tail", short_help="Show new records as the log grows.")
@source_options_but(end_lsn=_ENDLESS, end_time=_ENDLESS, start_time=_ENDLESS, spark=_ENDLESS,
                    index=_ENDLESS)  # fmt: skip
@option(
    "--table", "name", default="xacts", show_default=True, metavar="NAME",
    type=click.Choice(["records", "blocks", "xacts", "checkpoints", "locks", "messages"]),
    help="records, blocks, xacts, checkpoints, locks or messages.",
)  # fmt: skip
@option("--columns", metavar="NAME,…", help="Show these columns only, in this order.")
@option(
    "--interval",
    type=Timeout(),
    default="1s",
    show_default=True,
    help="The time between two reads.",
)
@option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="WALKEEPER_JSON",
    help="Print one JSON object per line.",
)
@config_option
def tail(source: Source, name: str, columns: str | None, interval: float, as_json: bool) -> None:
    """Show new rows of a log, from its end or from --start-lsn on, until Ctrl-C.

    \b
    Example:
      walkeeper history tail --path /var/lib/postgresql/15/main/pg_wal --table checkpoints
    """
    from walkeeper_cli.history.archive_reading import opened
    from walkeeper_cli.history.tail import tail as follow

    with opened(source) as archive:
        follow(archive, name, columns, interval, as_json)


for replayed in REPLAY_COMMANDS:
    command.add_command(replayed)
