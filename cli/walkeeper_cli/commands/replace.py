"""`walkeeper replace`: another safekeeper in the place of a lost one."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from walkeeper_cli.options import (
    HostPort,
    ParamType,
    ZoneName,
    cluster_option,
    config_option,
    option,
    progress_timeout_option,
    safekeepers_option,
    tls_option,
)
from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.quorum import IN_ZONE
from walkeeper_common.shell.process.command_output import Audience

if TYPE_CHECKING:
    from walkeeper_proposer.member_changes import Limits


class Newcomer(ParamType):
    """`ID@HOST:PORT`, or with the zone `ID@HOST:PORT/zone=NAME`: the zone is empty without one."""

    name = "id@host:port"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, Address, str]:
        if isinstance(value, tuple):
            return value
        text, has_zone, zone = str(value).partition(IN_ZONE)
        if has_zone:
            zone = ZoneName().convert(zone, param, ctx)
        number, at, address = text.partition("@")
        if not at or not number.isascii() or not number.isdigit():
            self.fail(f"{value!r} is not ID@HOST:PORT, such as 4@10.0.0.4:5454", param, ctx)
        return int(number), HostPort().convert(address, param, ctx), zone


@click.command("replace", short_help="Replace a lost safekeeper by another one.")
@safekeepers_option
@tls_option
@option(
    "--member",
    type=click.IntRange(0),
    metavar="ID",
    help="The id of the member to replace; with --cancel, of the member to keep.",
)
@option(
    "--with",
    "newcomer",
    type=Newcomer(),
    metavar="ID@H:P",
    envvar="WALKEEPER_WITH",
    help="The newcomer: a running safekeeper without this log, under a new id, or the same one on "
    "an emptied directory. /zone=NAME after it names its zone.",
)
@cluster_option
@option(
    "--instead",
    is_flag=True,
    help="Give up the newcomer of a replacement that is under way, because it is lost; take this "
    "one instead.",
)
@option(
    "--cancel",
    is_flag=True,
    help="Take back a replacement that is under way: the old members decide alone again. Possible "
    "until the newcomer is a member.",
)
@progress_timeout_option
@config_option
def command(
    safekeepers: tuple[Address, ...],
    member: int | None,
    newcomer: tuple[int, Address, str] | None,
    cluster: str,
    instead: bool,
    cancel: bool,
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
    \b
    The newcomer is lost as well, or was the wrong one; keep the old members:
      walkeeper replace --safekeepers … --cancel

    Commits go on meanwhile. The proposer needs no restart; it is elected anew three times, which
    takes about a second each. The proposer sends the log to the newcomer, and the old member counts
    until then. You may interrupt the command; the same command resumes. Replace one member at a
    time. Afterwards put the newcomer's address into --safekeepers everywhere (docs/failover.md,
    "A dead disk").
    """
    from walkeeper_proposer.member_changes import Limits

    limits = Limits(timeout_s=timeout)
    if cancel:
        if newcomer is not None or instead:
            raise click.UsageError("--cancel takes neither --with nor --instead")
        _cancel(safekeepers, cluster, member, limits)
        return
    if member is None or newcomer is None:
        raise click.UsageError("name --member ID and --with ID@HOST:PORT, or --cancel")
    _replace(safekeepers, cluster, member, newcomer, instead, limits)


def _cancel(
    safekeepers: tuple[Address, ...], cluster: str, member: int | None, limits: Limits
) -> None:
    from walkeeper_admin.replace import cancel
    from walkeeper_proposer.consensus.members.deciding import standing

    say = Audience(sys.stderr).say
    made = asyncio.run(cancel(safekeepers, cluster, member, limits, say))
    click.echo(f"no replacement is under way in cluster {cluster}: {standing(made)}")


def _replace(
    safekeepers: tuple[Address, ...],
    cluster: str,
    member: int,
    newcomer: tuple[int, Address, str],
    instead: bool,
    limits: Limits,
) -> None:
    from walkeeper_admin.archive_status import needed_for_the_archive
    from walkeeper_admin.replace import Newcomer as Joining
    from walkeeper_admin.replace import replace
    from walkeeper_admin.status import gather
    from walkeeper_proposer.consensus.members.deciding import standing

    joining, address, zone = newcomer
    known = asyncio.run(gather(safekeepers, cluster, limits.answer_timeout_s))["cluster"]
    coming = Joining(member, joining, address, instead, zone)
    say = Audience(sys.stderr).say
    made = asyncio.run(replace(safekeepers, cluster, coming, limits, say))
    click.echo(
        f"safekeeper {joining} at {shown_address(address)} is a member of cluster {cluster}: "
        f"{standing(made)}"
    )
    if joining == member and known["generation"] == made.generation:
        click.echo(
            f"walkeeper: nothing was changed: safekeeper {joining} is the member itself, with the "
            "disk that it has. To give it another disk, stop it, start it on an empty directory, "
            "and run this again",
            err=True,
        )
    everybody = tuple(dict.fromkeys((*safekeepers, address)))
    document = asyncio.run(gather(everybody, cluster, limits.answer_timeout_s))
    needed = needed_for_the_archive(document["safekeepers"], joining)
    if needed is not None:
        click.echo(f"walkeeper: warning: {needed}", err=True)
