"""`walkeeper replace`: another safekeeper in the place of a lost one."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from walkeeper_cli.options import (
    HostPort,
    ParamType,
    Timeout,
    cluster_option,
    config_option,
    option,
    safekeepers_option,
)
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.shell.command_output import Audience


class Newcomer(ParamType):
    """`ID@HOST:PORT`."""

    name = "id@host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, Address]:
        if isinstance(value, tuple):
            return value
        number, at, address = str(value).partition("@")
        if not at or not number.isascii() or not number.isdigit():
            self.fail(f"{value!r} is not ID@HOST:PORT, such as 4@10.0.0.4:5454", param, ctx)
        return int(number), HostPort().convert(address, param, ctx)


@click.command("replace", short_help="Replace a lost safekeeper by another one.")
@safekeepers_option
@option(
    "--member",
    type=click.IntRange(0),
    required=True,
    metavar="ID",
    help="The id of the member to replace.",
)
@option(
    "--with",
    "newcomer",
    type=Newcomer(),
    required=True,
    metavar="ID@H:P",
    envvar="WALKEEPER_WITH",
    help="The newcomer: a running safekeeper without this log, under a new id, or the same one on "
    "an emptied directory.",
)
@cluster_option
@option(
    "--instead",
    is_flag=True,
    help="Give up the newcomer of a replacement that is under way, because it is lost; take this "
    "one instead.",
)
@option(
    "--timeout",
    type=Timeout(),
    help="Give up after this long without progress.  [default: wait]",
)
@config_option
def command(
    safekeepers: tuple[Address, ...],
    member: int,
    newcomer: tuple[int, Address],
    cluster: str,
    instead: bool,
    timeout: float | None,
) -> None:
    """Replace one member of a log, because its disk or its machine is lost or has to go.

    \b
    A machine is lost, another one takes its place:
      walkeeper safekeeper --id 4 --data-dir /var/lib/walkeeper --listen 10.0.0.4:5454 …
      walkeeper replace --safekeepers 10.0.0.1:5454,10.0.0.2:5454,10.0.0.3:5454 \\
                        --member 3 --with 4@10.0.0.4:5454
    \b
    The same machine with a new disk (start it on the empty directory first):
      walkeeper replace --safekeepers … --member 3 --with 3@10.0.0.3:5454

    Commits go on meanwhile. The proposer needs no restart; it is elected anew twice, which takes
    about a second each. The proposer sends the log to the newcomer, and the old member counts
    until then. You may interrupt the command; the same command resumes. Replace one member at a
    time. Afterwards put the newcomer's address into --safekeepers everywhere (docs/failover.md,
    "A dead disk").
    """
    from walkeeper_admin.archive_status import needed_for_the_archive
    from walkeeper_admin.replace import ReplaceSettings, replace
    from walkeeper_admin.status import gather
    from walkeeper_common.quorum import member_id

    joining, address = newcomer
    settings = ReplaceSettings(
        safekeepers=safekeepers,
        cluster=cluster,
        leaving=member,
        joining=joining,
        address=address,
        instead=instead,
        timeout_s=timeout,
    )
    made = asyncio.run(replace(settings, Audience(sys.stderr).say))
    members = ", ".join(str(member_id(name)) for name in made.members)
    click.echo(
        f"safekeeper {joining} at {shown_address(address)} is a member of cluster {cluster}: "
        f"members are {members} (generation {made.generation})"
    )
    everybody = tuple(dict.fromkeys((*safekeepers, address)))
    document = asyncio.run(gather(everybody, cluster, settings.answer_timeout_s))
    needed = needed_for_the_archive(document["safekeepers"], joining)
    if needed is not None:
        click.echo(f"walkeeper: warning: {needed}", err=True)
