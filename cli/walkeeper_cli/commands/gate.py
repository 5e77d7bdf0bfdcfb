"""`walkeeper gate`: start a primary that admits clients when a quorum has all that it shows."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from pathlib import Path

import click

from walkeeper_cli.options import Dsn, Timeout, config_option, option
from walkeeper_common.shell.process.command_output import Audience


@click.command("gate", short_help="Start a primary closed until a quorum has all its WAL.")
@option(
    "--pgdata",
    "-D",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The server's data directory.  [default: $PGDATA]",
)
@option(
    "--dsn",
    type=Dsn(),
    required=True,
    metavar="DSN",
    help="The server that COMMAND starts, as a superuser, on this machine.",
)
@option(
    "--admit",
    multiple=True,
    metavar="ROLE",
    help="A role that gets in while the server is closed: that of the proposer. May be repeated. "
    "The role of --dsn always gets in.",
)
@option(
    "--hba-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The server's pg_hba.conf.  [default: DIR/pg_hba.conf]",
)
@option("--open", "open_now", is_flag=True, help="Admit all clients now, without a quorum.")
@option("--timeout", type=Timeout(), default="60s", show_default=True, help="For COMMAND to end.")
@click.argument("start", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")
@config_option
def command(
    pgdata: Path | None,
    dsn: str,
    admit: tuple[str, ...],
    hba_file: Path | None,
    open_now: bool,
    timeout: float,
    start: tuple[str, ...],
) -> None:
    """Start a primary, and admit clients when a quorum has all WAL that it shows.

    \b
    Example, as the server's user:
      walkeeper gate -D $PGDATA --dsn 'host=/run/postgresql user=postgres' --admit walkeeper \\
        -- pg_ctl -w start

    After a crash a primary shows commits that no quorum has, and a failover may lose them. So
    pg_hba.conf admits only the role of --dsn and those of --admit, until a commit has returned. The
    proposer has to run, or to be started meanwhile. A killed command leaves the server closed, and
    the same command goes on. A standby is opened at once, because it shows only what the log has.
    """
    from walkeeper_admin.closed_start import GateSettings, open_by_hand, start_closed
    from walkeeper_proposer.postgres.dsn import libpq_parameters

    pgdata = pgdata or (Path(os.environ["PGDATA"]) if os.environ.get("PGDATA") else None)
    if pgdata is None:
        raise click.UsageError("say the server's data directory with -D, or set PGDATA")
    user = libpq_parameters(dsn).get("user") or getpass.getuser()
    roles = tuple(dict.fromkeys((user, *admit)))
    settings = GateSettings(pgdata, dsn, roles, start, hba_file, timeout)
    if open_now:
        if start:
            raise click.UsageError("--open takes no COMMAND")
        click.echo(
            "opened" if asyncio.run(open_by_hand(settings)) else "the server was open already"
        )
        return
    if not start:
        raise click.UsageError("name the command that starts the server: -- pg_ctl -w start")
    opened = asyncio.run(start_closed(settings, say=Audience(sys.stderr).say))
    what = (
        "the server is a standby" if opened.lsn is None else f"a quorum has all WAL to {opened.lsn}"
    )
    click.echo(f"open: {what}; closed for {opened.closed_s:.1f} s")
