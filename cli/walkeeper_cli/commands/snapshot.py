"""`walkeeper snapshot`: the tables with which a consumer of changes begins."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from walkeeper_cli.options import (
    SlotName,
    Timeout,
    cluster_option,
    config_option,
    dsn_option,
    option,
    safekeepers_option,
    tls_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.shell.process.command_output import Audience


@click.command("snapshot", short_help="Copy published tables to Parquet, joined to a logical log.")
@safekeepers_option
@tls_option
@dsn_option
@cluster_option
@option(
    "--slot",
    type=SlotName(),
    required=True,
    help="The consumer's slot in the log, which the command makes.",
)
@option(
    "--output", "-o", required=True, metavar="DIR", type=click.Path(file_okay=False),
    help="A directory for the files, new or empty.",
)  # fmt: skip
@option(
    "--timeout",
    type=Timeout(),
    default="60s",
    show_default=True,
    help="How long to wait for the log.",
)
@config_option
def command(
    safekeepers: tuple[Address, ...],
    dsn: str,
    cluster: str,
    slot: str,
    output: str,
    timeout: float,
) -> None:
    """Copy the tables that a logical log publishes, as of one LSN, and make a slot in the log that
    continues from that LSN. The files and the slot's changes together are the tables, without a
    gap and without a repetition.

    \b
    Example:
      walkeeper snapshot --safekeepers h1:5454,h2:5454,h3:5454 --cluster changes \\
          --dsn 'host=db1 user=walkeeper dbname=shop' --slot feed --output /srv/shop
      pg_recvlogical -d 'host=h1 port=5454 user=app dbname=shop' -S feed --start -f - \\
          -o proto_version=1 -o publication_names=orders

    DIR gets SCHEMA.TABLE.parquet for each table, then snapshot.json with the LSN and the tables'
    keys. A directory without snapshot.json is not complete. The role needs REPLICATION and SELECT.
    During the copy the slot retains changes, up to ten times --wal-keep-size of the safekeepers.
    """
    from walkeeper_cli.snapshot.published_tables import SnapshotSettings, take_snapshot

    settings = SnapshotSettings(
        safekeepers=safekeepers,
        dsn=dsn,
        cluster=cluster,
        slot=slot,
        output=Path(output),
        timeout_s=timeout,
    )
    audience = Audience(sys.stderr)
    taken = take_snapshot(settings, lambda text: audience.say(f"walkeeper: {text}"))
    tables = counted(taken.tables, "table", "tables")
    rows = counted(taken.rows, "row", "rows")
    click.echo(
        f"snapshot of {tables}, {rows}, at {taken.lsn} in {output}; slot {slot} goes on from there"
    )
