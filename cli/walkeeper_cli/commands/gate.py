"""`walkeeper gate`: start a primary that admits clients when a quorum has all that it shows."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from walkeeper_cli.options import (
    Dsn,
    HostPorts,
    Timeout,
    cluster_option,
    config_option,
    option,
    tls_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused
from walkeeper_common.shell.process.command_output import Audience

if TYPE_CHECKING:  # a command that only says its usage imports none of it
    from walkeeper_admin.closed_start import GateSettings

OPEN_ALREADY = "the server was open already"


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
@option(
    "--exec",
    "become",
    is_flag=True,
    help="Become COMMAND, which is postgres itself with its arguments, and open it from the "
    "background. For a program that starts servers by itself, as Patroni does.",
)
@option(
    "--wait",
    is_flag=True,
    help="Open a server of --exec whose background process has ended early.",
)
@option(
    "--door",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The directory in which --exec keeps the closed rules.  [default: DIR.gate beside the "
    "data directory]",
)
@option(
    "--safekeepers",
    type=HostPorts(),
    metavar="H:P,H:P,H:P",
    help="Every safekeeper of the log. With --exec they open a standby that was a primary before.",
)
@tls_option
@cluster_option
@option(
    "--timeout",
    type=Timeout(),
    default="60s",
    show_default=True,
    help="How long to wait until COMMAND ends.",
)
@click.argument("start", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND…")
@config_option
def command(
    pgdata: Path | None,
    dsn: str,
    admit: tuple[str, ...],
    hba_file: Path | None,
    open_now: bool,
    become: bool,
    wait: bool,
    door: Path | None,
    safekeepers: tuple[Address, ...] | None,
    cluster: str,
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

    \b
    For Patroni, in a script that postgresql.bin_name.postgres names:
      exec walkeeper gate --exec --dsn 'host=/run/postgresql user=postgres' --admit replicator \\
        --safekeepers h1:5454,h2:5454,h3:5454 -- /usr/lib/postgresql/15/bin/postgres "$@"
    """
    from walkeeper_proposer.postgres.dsn import libpq_parameters

    _refuse_usage(start, open_now=open_now, become=become, wait=wait)
    user = libpq_parameters(dsn).get("user") or getpass.getuser()
    roles = tuple(dict.fromkeys((user, *admit)))
    gated = _Gated(dsn, door, safekeepers, cluster)
    if become:
        gated.become(start, roles)
    # It is imported here, because a start with --exec has to be quick.
    from walkeeper_admin.closed_start import GateSettings

    data = pgdata or (Path(os.environ["PGDATA"]) if os.environ.get("PGDATA") else None)
    if data is None:
        raise click.UsageError("name the server's data directory with -D, or set PGDATA")
    settings = GateSettings(data, dsn, roles, start, hba_file, timeout, door)
    if wait:
        gated.wait_open(data)
    elif open_now:
        _open(settings)
    else:
        _start_closed(settings)


def _refuse_usage(start: tuple[str, ...], *, open_now: bool, become: bool, wait: bool) -> None:
    """Raise UsageError if the flags and COMMAND do not go together."""
    if sum((open_now, become, wait)) > 1:
        raise click.UsageError("choose one of --open, --exec and --wait")
    if (open_now or wait) and start:
        raise click.UsageError(f"--{'open' if open_now else 'wait'} takes no COMMAND")
    if not (open_now or wait or start):
        raise click.UsageError("name the command that starts the server: -- pg_ctl -w start")


def _open(settings: GateSettings) -> None:
    from walkeeper_admin.closed_start import open_by_hand

    was_closed = asyncio.run(open_by_hand(settings))
    click.echo("opened" if was_closed else OPEN_ALREADY)


def _start_closed(settings: GateSettings) -> None:
    from walkeeper_admin.closed_start import start_closed

    opened = asyncio.run(start_closed(settings, say=Audience(sys.stderr).say))
    what = (
        "the server is a standby" if opened.lsn is None else f"a quorum has all WAL to {opened.lsn}"
    )
    click.echo(f"open: {what}; closed for {opened.closed_s:.1f} s")


@dataclass(frozen=True, slots=True)
class _Gated:
    """The flags for a server that another program starts."""

    dsn: str
    door: Path | None
    safekeepers: tuple[Address, ...] | None
    cluster: str

    def become(self, start: tuple[str, ...], roles: tuple[str, ...]) -> NoReturn:
        """Replace this process by postgres, and leave a background process if it starts closed."""
        from walkeeper_admin.primary.gated_start import in_background, prepare

        prepared = prepare(start, roles, self.door)
        if prepared.ticket is not None:
            data, ticket, pid = prepared.data_directory, prepared.ticket, os.getpid()
            assert data is not None, prepared
            _say(f"{data} starts closed to all but {', '.join(roles)}")
            in_background(lambda: self._open_when_durable(data, pid=pid, ticket=ticket))
        os.execvp(prepared.command[0], prepared.command)

    def wait_open(self, data: Path) -> None:
        """Do the work of a background process that has ended early."""
        from walkeeper_admin.primary.door import Door
        from walkeeper_admin.primary.running_server import running_pid

        ticket, pid = Door.beside(data, self.door).ticket(), running_pid(data)
        if ticket is None:
            click.echo(OPEN_ALREADY)
        elif pid is None:
            raise Refused(f"the server of {data} does not run: start it, and its start opens it")
        else:
            self._open_when_durable(data, pid=pid, ticket=ticket)

    def _open_when_durable(self, data: Path, *, pid: int, ticket: str) -> None:
        from walkeeper_admin.gated_server import Guard, open_when_durable
        from walkeeper_admin.primary.door import Door
        from walkeeper_restore.standby_check.checking import Where

        log = Where(self.safekeepers, self.cluster) if self.safekeepers else None
        guard = Guard(self.dsn, data, Door.beside(data, self.door), pid, log)
        opened = asyncio.run(open_when_durable(guard, ticket, say=_say))
        if opened is None:
            _say("this start is over: the server has ended, or another command has opened it")
        else:
            _say(f"open: a quorum has all WAL to {opened.lsn}; closed for {opened.closed_s:.1f} s")


def _say(text: str) -> None:
    """Write a line for the log of the program that starts the server."""
    Audience(sys.stderr).say(f"walkeeper gate: {text}")
