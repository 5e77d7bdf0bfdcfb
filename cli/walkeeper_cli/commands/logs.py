"""`walkeeper logs`: list the logs of safekeepers, close one, and drop one."""

from __future__ import annotations

import asyncio
import json
import sys

import click

from walkeeper_cli.commands.settle import document, warn_of_laggards
from walkeeper_cli.default_command import DefaultCommand
from walkeeper_cli.fencing import leader_of, state_of
from walkeeper_cli.options import (
    ClusterName,
    Duration,
    Timeout,
    answer_timeout_option,
    config_option,
    default_name,
    json_option,
    option,
    safekeepers_option,
    tls_option,
)
from walkeeper_cli.text_table import table
from walkeeper_common.addresses import Address


@click.group(
    "logs",
    cls=DefaultCommand,
    default="ls",
    short_help="List the logs of safekeepers, close or drop one.",
)
def command() -> None:
    """List, close or drop the logs that safekeepers hold. Without a command it lists them.

    \b
      walkeeper logs ls    --safekeepers h1:5454,h2:5454,h3:5454
      walkeeper logs close --safekeepers h1:5454,h2:5454,h3:5454 old
      walkeeper logs drop  --safekeepers h1:5454,h2:5454,h3:5454 old
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


@command.command("close", short_help="Close a log for good: no primary writes it again.")
@safekeepers_option
@tls_option
@json_option
@option(
    "--linger",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long to wait for the safekeepers outside the quorum, so that they know it too.",
)
@option("--yes", is_flag=True, help="Do not ask.")
@option(
    "--timeout",
    type=Timeout(),
    default="60s",
    show_default=True,
    help="The time limit of the whole command.",
)
@config_option
@click.argument("name", type=ClusterName(), metavar="NAME")
def close(
    safekeepers: tuple[Address, ...],
    as_json: bool,
    linger: float,
    yes: bool,
    timeout: float,
    name: str,
) -> None:
    """End a log at the last LSN that a quorum has, for good, and print that LSN.

    Like settle, it fences older proposers and brings the safekeepers to the log's end. No proposer
    leads this log again, and no safekeeper takes more of its WAL. Standbys, subscribers, restore
    and the pager go on to the end, and the archive gets all of it. A closed log stays closed.

    You may run it again: it prints the same LSN, goes on where it was interrupted, and brings the
    end to members that were away.

    \b
    Example:
      walkeeper logs close --safekeepers h1:5454,h2:5454,h3:5454 old
    """
    from walkeeper_common.shell.log_lines.operator_log import log_to_stderr
    from walkeeper_proposer.settling import close as closed

    log_to_stderr("WARNING")
    if not yes:
        _ask_before_closing(safekeepers, name)
    end = asyncio.run(closed(safekeepers, name, timeout_s=timeout, linger_s=linger))
    if as_json:
        click.echo(json.dumps(document(name, end)))
    else:
        click.echo(f"closed: the log of cluster {name} ends at {end.consensus_lsn} for good")
        warn_of_laggards(end, f"`walkeeper logs close {name}`")


def _ask_before_closing(safekeepers: tuple[Address, ...], name: str) -> None:
    """Ask on the terminal, unless the log was closed before; abort unless the answer is yes."""
    state = state_of(safekeepers, name)
    if state.get("closed_lsn") is not None:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("without a terminal to ask on, say --yes")
    leader = leader_of(state)
    leads = f"proposer {leader} leads with a quorum, and commits of its primary will hang. "
    question = f"close the log {name} for good, so that no primary writes it again?"
    click.confirm(f"{leads if leader else ''}{question}", abort=True, err=True)


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
    slot = default_name(name)
    click.echo(
        f"next: walkeeper detach --dsn … --application-name {slot} --drop-slot --slot {slot}, "
        "since its slots keep WAL on the primary until then"
    )
    return 0
