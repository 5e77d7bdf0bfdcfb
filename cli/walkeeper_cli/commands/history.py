"""`walkeeper history`: what archived WAL says. Its work is done by walkeeper_history, which needs
more than the rest of walkeeper (numpy, pyarrow); that is imported when a command runs."""

from __future__ import annotations

import json

import click

from walkeeper_cli.commands.history_replay import REPLAY_COMMANDS
from walkeeper_cli.history.options import (
    NameSource,
    Source,
    names_options,
    source_options,
    source_options_but,
)
from walkeeper_cli.history.waiting import tell_who_waits
from walkeeper_cli.options import Timeout, config_option, option

_ENDLESS = "it begins at the end of the log or at --start-lsn, and goes on until Ctrl-C"


@click.group("history", short_help="Read archived WAL: statistics, tables, a report.")
def command() -> None:
    """Read archived WAL of PostgreSQL 13 to 18, also one that was never attached to walkeeper.

    \b
    --path is a directory or an object store's URL with segments, compressed or not, as they lie:
    walkeeper's archive, pg_wal, pg_receivewal's, Barman's, pgBackRest's or WAL-G's directory.
      walkeeper history stats  --path /var/lib/postgresql/15/main/pg_wal
      walkeeper history tables --path s3://backups/main/wals --output /data/wal --table xacts
    or safekeepers, whose log is read up to where it is committed; one that is dead is survived:
      walkeeper history tail   --path walkeeper://10.0.0.1:5451,10.0.0.2:5451/main
    \b
    Small archives need no Spark. On a cluster whose machines have walkeeper's wheel:
      spark-submit --master … .../walkeeper_cli/__main__.py history stats --spark --path s3://…
    """
    tell_who_waits()


@command.command("stats", short_help="Records and bytes by resource manager.")
@source_options
@option("--per-record", is_flag=True, help="A line for each kind of record.")
@option("--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="For programs.")
@config_option
def stats(source: Source, per_record: bool, as_json: bool) -> int:
    """Count records and their bytes, as pg_waldump --stats does (--stats=record with --per-record),
    for all versions and for compressed archives, and faster.

    \b
    Example:
      walkeeper history stats --path /srv/wal --start-lsn 0/3000000 --per-record
    """
    from walkeeper_cli.history.reading import opened
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
    help="Where the tables go: DIR/TABLE/SEGMENT.parquet.",
)
@option(
    "--table", "names", default="records", show_default=True, metavar="NAME,…",
    help="records, blocks, stats, xacts, checkpoints, locks, relations, messages, segments, "
    "problems; or all.",
)  # fmt: skip
@option("--columns", metavar="NAME,…", help="Only these, in this order; of one table.")
@names_options
@option("--again", is_flag=True, help="Also segments whose file is there and complete.")
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

    Run again over an archive that has grown, it writes what is new: a file is made once its
    segment is complete, and appears whole or not at all. With names of relations, blocks and
    relations have the columns database_name and relation_name.

    \b
    Example:
      walkeeper history tables --path /srv/wal --output /data/wal --table records,xacts
    """
    from walkeeper_cli.history.reading import opened
    from walkeeper_cli.history.tables import write

    with opened(source) as archive:
        write(archive, output, names.split(","), columns, named, again=again, quiet=quiet)
        return archive.exit_code


@command.command("find", short_help="Where a DROP, TRUNCATE, DELETE or transaction is.")
@click.argument("what", type=click.Choice(["drop", "truncate", "delete", "rewrite", "all"]),
                required=False)  # fmt: skip
@source_options
@option("--xid", type=click.IntRange(3, (1 << 32) - 1), metavar="XID", help="One transaction.")
@option(
    "--relation",
    metavar="[[TABLESPACE/]DATABASE/]RELFILENODE|NAME",
    help="Only what was done to this file: as in pg_relation_filepath, or its last number; or to "
    "the relation that --catalog, --dsn or --base has under this name.",
)
@names_options
@option("--min-rows", type=click.IntRange(1), default=1, metavar="N", help="Of deletes: from N on.")
@option("--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="For programs.")
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
    """Find where in the log something happened, and print the lines with which a recovery stops
    just before it.

    \b
    Examples:
      walkeeper history find drop   --path /srv/wal --start-time '2024-05-01 12:00:00+02'
      walkeeper history find delete --path /srv/wal --relation 16385 --min-rows 1000
      walkeeper history find        --path /srv/wal --xid 74113

    What PostgreSQL keeps of a relation in WAL is the number of its file: SELECT
    pg_relation_filenode('t') tells it in a backup that has the table still, and so does a file
    that `walkeeper history catalog` wrote while the table was there. --base takes the names from
    a base backup and the WAL since then.
    """
    from walkeeper_cli.history.find import document, lines, search
    from walkeeper_cli.history.reading import opened
    from walkeeper_history.printable import json_text, printable

    if (what is None) == (xid is None):
        raise click.UsageError("say what to find (drop, truncate, delete, rewrite, all) or --xid")
    with opened(source) as archive:
        names = archive.names(named)
        found = search(archive, what, xid, relation, min_rows, names)
        if as_json:
            click.echo(json_text([document(finding, names) for finding in found]))
        else:
            for line in lines(found, names):
                click.echo(printable(line))
        if not found:
            click.echo("walkeeper: nothing of that kind was committed in this WAL", err=True)
        return archive.exit_code


@command.command("report", short_help="One HTML file about all of it.")
@source_options
@option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Where the report goes.",
)
@names_options
@config_option
def report(source: Source, output: str, named: NameSource) -> int:
    """Write one HTML file, which needs no network: the rate of WAL with its checkpoints, kinds of
    records, the relations and transactions that made the most of it, gaps and damage, and what
    other checkpoint spacings would have cost.

    \b
    Example:
      walkeeper history report --path /srv/wal --output wal.html --dsn service=prod
    """
    from walkeeper_cli.history.reading import opened
    from walkeeper_cli.history.report import write

    with opened(source) as archive:
        write(archive, output, named)
        return archive.exit_code


@command.command("catalog", short_help="Keep the names of a server's relations for later.")
@option("--dsn", required=True, metavar="DSN", help="A server; all its databases are asked.")
@option(
    "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE",
    help="Where the names go; those that it has already are kept.",
)  # fmt: skip
@config_option
def catalog(dsn: str, output: str) -> None:
    """Write the names of all relations with the numbers of their files, for --catalog of the other
    commands and the option `catalog` in Spark, which then need no server.

    Run it now and then into the same file: it keeps the names of what has been dropped, truncated
    or rewritten since, which is when they are wanted.

    \b
    Example:
      walkeeper history catalog --dsn service=prod --output /srv/wal-names.json
    """
    from walkeeper_cli.history.reading import written_catalog

    names = written_catalog(dsn, output)
    click.echo(f"{output}: names of {len(names)} files of relations")


@command.command("index", short_help="Write what lets Spark pass over most segments.")
@source_options
@option(
    "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE",
    help="Where the index is, or goes: one Parquet file.",
)  # fmt: skip
@config_option
def index(source: Source, output: str) -> int:
    """Write the xids, relations, times and resource managers of each complete segment, for the
    option `index` in Spark: a filter for one of them then reads only the segments that have it.

    Run again over an archive that has grown, it reads what is new.

    \b
    Example:
      walkeeper history index --path /srv/wal --output /data/wal-index.parquet
    """
    from walkeeper_cli.history.reading import opened, updated_index

    ranges = (source.start_lsn, source.end_lsn, source.start_time, source.end_time)
    if any(each is not None for each in ranges):
        raise click.UsageError("an index is of a whole archive: no --start-… and --end-…")
    with opened(source) as archive:
        done = updated_index(archive, output)
        click.echo(f"{output}: {done.segments} segments, {done.added} of them new")
        return archive.exit_code


@command.command("tail", short_help="Show what is written, as it is written.")
@source_options_but(end_lsn=_ENDLESS, end_time=_ENDLESS, start_time=_ENDLESS, spark=_ENDLESS)
@option(
    "--table", "name", default="xacts", show_default=True, metavar="NAME",
    type=click.Choice(["records", "blocks", "xacts", "checkpoints", "locks", "messages"]),
    help="records, blocks, xacts, checkpoints, locks or messages.",
)  # fmt: skip
@option("--columns", metavar="NAME,…", help="Only these, in this order.")
@option("--interval", type=Timeout(), default="1s", show_default=True, help="Between two looks.")
@option("--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="One object a line.")
@config_option
def tail(source: Source, name: str, columns: str | None, interval: float, as_json: bool) -> None:
    """Show rows as they are written to a log, from its end on or from --start-lsn, until Ctrl-C.

    \b
    Example:
      walkeeper history tail --path /var/lib/postgresql/15/main/pg_wal --table checkpoints
    """
    from walkeeper_cli.history.reading import opened
    from walkeeper_cli.history.tail import tail as follow

    with opened(source) as archive:
        follow(archive, name, columns, interval, as_json)


for replayed in REPLAY_COMMANDS:
    command.add_command(replayed)
