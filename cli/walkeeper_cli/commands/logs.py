"""`walkeeper logs`: list the logs of safekeepers, and drop one."""

from __future__ import annotations

import asyncio
import json
import sys

import click

from walkeeper_cli.options import (
    ClusterName,
    answer_timeout_option,
    config_option,
    json_option,
    option,
    safekeepers_option,
    tls_option,
)
from walkeeper_cli.text_table import table
from walkeeper_common.addresses import Address


@click.group("logs", short_help="List the logs of safekeepers, and drop one.")
def command() -> None:
    """List or drop the logs that safekeepers hold.

    \b
      walkeeper logs ls   --safekeepers h1:5454,h2:5454,h3:5454
      walkeeper logs drop --safekeepers h1:5454,h2:5454,h3:5454 old
    """


@command.command("ls", short_help="List the logs.")
@safekeepers_option
@tls_option
@json_option
@answer_timeout_option
@config_option
def ls(safekeepers: tuple[Address, ...], as_json: bool, timeout: float) -> int:
    """List every log of these safekeepers, with its members, its proposer and its state.

    \b
    Example:
      walkeeper logs ls --safekeepers h1:5454,h2:5454,h3:5454
    """
    from walkeeper_admin.logs import listed, rows

    documents = asyncio.run(listed(safekeepers, timeout))
    click.echo(json.dumps(documents) if as_json else table(rows(documents)))
    return 0


@command.command("drop", short_help="Drop a log on all its members.")
@safekeepers_option
@tls_option
@option("--yes", is_flag=True, help="Do not ask.")
@answer_timeout_option
@config_option
@click.argument("name", type=ClusterName(), metavar="NAME")
def drop(safekeepers: tuple[Address, ...], yes: bool, timeout: float, name: str) -> int:
    """Remove a log and all its WAL from every member.

    Detach and stop its proposer first, and stop its readers. Each safekeeper keeps a tombstone with
    the log's uuid, so that nobody makes this log again. A new log may have the same name. WAL in an
    archive stays. The slot at the primary stays too: walkeeper detach --drop-slot.

    \b
    Example:
      walkeeper logs drop --safekeepers h1:5454,h2:5454,h3:5454 old
    """
    from walkeeper_admin.logs import drop as dropped

    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("without a terminal to ask on, say --yes")
        click.confirm(f"drop the log {name} and all its WAL?", abort=True, err=True)
    for line in asyncio.run(dropped(safekeepers, name, timeout)):
        click.echo(line)
    return 0
