"""`walkeeper spare`: safekeepers that may take the place of a silent member."""

from __future__ import annotations

import asyncio
import json
import sys

import click

from walkeeper_cli.commands.replace import Newcomer
from walkeeper_cli.options import (
    config_option,
    json_option,
    log_options,
    progress_timeout_option,
    together,
)
from walkeeper_common.addresses import Address
from walkeeper_common.shell.process.command_output import Audience

change_options = together(log_options, progress_timeout_option, json_option, config_option)


@click.group("spare", short_help="Name spares, which take the place of silent members.")
def command() -> None:
    """Name safekeepers that take the place of a silent member, without an operator.

    \b
      walkeeper spare add 4@10.0.0.4:5454 --safekeepers 10.0.0.1:5454,10.0.0.2:5454,…
      walkeeper spare rm  4               --safekeepers 10.0.0.1:5454,10.0.0.2:5454,…

    The elected proposer replaces a member that is silent for longer than its `--repair-grace`
    (60 s) by the first spare. It does so only while enough members are left for commits, at most
    twice an hour. `walkeeper members` lists the spares (docs/members.md).
    """


@command.command("add")
@click.argument("spares", nargs=-1, required=True, type=Newcomer(), metavar="ID@HOST:PORT...")
@change_options
def add(
    spares: tuple[tuple[int, Address, str], ...],
    safekeepers: tuple[Address, ...],
    cluster: str,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Add running safekeepers, without this log, to the end of the list.

    ID@HOST:PORT/zone=NAME names the zone. A repair prefers a spare in the zone that lacks one.
    """
    _change(safekeepers, cluster, (spares, ()), timeout, as_json)


@command.command("rm")
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(0), metavar="ID...")
@change_options
def rm(
    ids: tuple[int, ...],
    safekeepers: tuple[Address, ...],
    cluster: str,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Remove spares from the list. The command ignores the id of a safekeeper that is no spare."""
    _change(safekeepers, cluster, ((), ids), timeout, as_json)


def _change(
    safekeepers: tuple[Address, ...],
    cluster: str,
    wanted: tuple[tuple[tuple[int, Address, str], ...], tuple[int, ...]],
    timeout: float | None,
    as_json: bool,
) -> None:
    from walkeeper_admin.members import change_spares
    from walkeeper_proposer.member_changes import Limits

    say, limits = Audience(sys.stderr).say, Limits(timeout_s=timeout)
    made = asyncio.run(change_spares(safekeepers, cluster, *wanted, limits, say))
    if as_json:
        facts = {"cluster": cluster, "generation": made.generation, "spares": list(made.spares)}
        click.echo(json.dumps(facts, indent=2))
        return
    listed = ", ".join(made.spares) or "none"
    click.echo(f"spares of cluster {cluster}: {listed} (generation {made.generation})")
