"""`walkeeper slots`: list the slots of a log's clients, and drop one."""

from __future__ import annotations

import asyncio
import json

import click

from walkeeper_cli.default_command import DefaultCommand
from walkeeper_cli.options import (
    SlotName,
    answer_timeout_option,
    config_option,
    json_option,
    log_options,
)
from walkeeper_cli.text_table import table
from walkeeper_common.addresses import Address


@click.group(
    "slots",
    cls=DefaultCommand,
    default="ls",
    short_help="List the slots on safekeepers, and drop one.",
)
def command() -> None:
    """List or drop the replication slots that standbys and tools have on safekeepers.

    The safekeepers of a physical log share its slots, so a client may go on at another one. Without
    a command it lists them.

    \b
      walkeeper slots ls   --safekeepers h1:5454,h2:5454,h3:5454
      walkeeper slots drop --safekeepers h1:5454,h2:5454,h3:5454 standby_old
    """


@command.command("ls", short_help="List the slots.")
@log_options
@json_option
@answer_timeout_option
@config_option
def ls(safekeepers: tuple[Address, ...], cluster: str, as_json: bool, timeout: float) -> int:
    """List each slot with its position, its client, and the WAL that it keeps.

    \b
    Example:
      walkeeper slots ls --safekeepers h1:5454,h2:5454,h3:5454
    """
    from walkeeper_admin.slots import rows
    from walkeeper_admin.status import gather

    document = asyncio.run(gather(safekeepers, cluster, timeout))
    if as_json:
        found = {str(line["id"]): line["slots"] for line in document["safekeepers"]}
        click.echo(json.dumps(found))
    else:
        click.echo(table(rows(document)))
    return 0


@command.command("drop", short_help="Drop a slot.")
@log_options
@answer_timeout_option
@config_option
@click.argument("name", type=SlotName(), metavar="NAME")
def drop(safekeepers: tuple[Address, ...], cluster: str, timeout: float, name: str) -> int:
    """Drop a slot on all safekeepers. A slot that a client uses is refused.

    A safekeeper that does not answer drops it later, when a proposer reports the drop.

    \b
    Example:
      walkeeper slots drop --safekeepers h1:5454,h2:5454,h3:5454 standby_old
    """
    from walkeeper_admin.slots import drop as dropped

    for line in asyncio.run(dropped(safekeepers, cluster, name, timeout)):
        click.echo(line)
    return 0
