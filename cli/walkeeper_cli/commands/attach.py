"""`walkeeper attach`: let commits wait for the quorum."""

from __future__ import annotations

import asyncio
import sys

import click

from walkeeper_cli.options import ApplicationName, Timeout, config_option, dsn_option, option
from walkeeper_common.shell.process.command_output import Audience


@click.command("attach", short_help="Make commits wait for the quorum.")
@dsn_option
@option(
    "--application-name",
    type=ApplicationName(),
    help="The proposer's name.  [default: the connected walkeeper or walkeeper_…]",
)
@option(
    "--timeout",
    type=Timeout(),
    default="60s",
    show_default=True,
    help="How long to wait for the proposer, and then for the setting to be in force.",
)
@option("--replace", is_flag=True, help="Replace a setting that is not empty; detach restores it.")
@option(
    "--print",
    "print_only",
    is_flag=True,
    envvar="WALKEEPER_PRINT",
    help="Change nothing: print the line for postgresql.conf, Patroni, ….",
)
@option(
    "--grants",
    metavar="ROLE",
    help="Change nothing: print the SQL that gives ROLE the least privileges that walkeeper needs.",
)
@config_option
def command(
    dsn: str,
    application_name: str | None,
    timeout: float,
    replace: bool,
    print_only: bool,
    grants: str | None,
) -> None:
    """Make every commit wait until a quorum of safekeepers has it.

    \b
    Examples:
      walkeeper attach --dsn 'host=db1 user=postgres'
      walkeeper attach --dsn service=prod --print        # for the owner of the configuration
      walkeeper attach --dsn 'host=db1 user=postgres' --grants walkeeper | psql

    It waits until the proposer streams and has caught up. Then it sets synchronous_standby_names,
    reloads the configuration, and waits until the setting is in force. If that fails, it restores
    the old setting.

    A role that is no superuser needs the privileges that --grants prints (PostgreSQL 15 and newer).
    """
    if grants is not None:
        from walkeeper_admin.primary.grants import printed_grants

        click.echo(asyncio.run(printed_grants(dsn, grants)))
        return
    from walkeeper_admin.primary.attach import AttachSettings, attach, printed_line

    settings = AttachSettings(dsn, application_name, timeout, replace)
    if print_only:
        click.echo(asyncio.run(printed_line(settings)))
    else:
        click.echo(asyncio.run(attach(settings, Audience(sys.stderr).say)))
