"""`walkeeper members`: which safekeepers a log has, and changes of them."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from walkeeper_cli.commands.replace import Newcomer
from walkeeper_cli.default_command import DefaultCommand
from walkeeper_cli.history.wal_options import LsnText
from walkeeper_cli.options import (
    MemberZone,
    ack_zones_option,
    config_option,
    json_option,
    log_options,
    option,
    progress_timeout_option,
    together,
    zone_stop_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.command_output import Audience

if TYPE_CHECKING:  # a command that only says its usage imports none of it
    from walkeeper_admin.members import Wanted, ZoneRule
    from walkeeper_common.quorum import Configuration

ANSWER_S = 3.0

ack_quorum_option = option(
    "--ack-quorum",
    type=click.IntRange(1),
    metavar="N",
    help="How many of the new members acknowledge a commit.  [default: as now, or a majority if it "
    "is one now]",
)
single_ack_option = option(
    "--allow-single-ack",
    is_flag=True,
    help="Accept that commits are lost with one disk: an ack quorum of 1 of several members.",
)
zone_options = together(ack_zones_option, zone_stop_option)
change_options = together(progress_timeout_option, json_option, config_option)


@click.group(
    "members",
    cls=DefaultCommand,
    default="show",
    short_help="Show the members of a log, or change them.",
)
def command() -> None:
    """Show which safekeepers are the members of a log, and change them while commits go on.

    \b
    From three to five, and back:
      walkeeper members add    4@10.0.0.4:5454 5@10.0.0.5:5454 --safekeepers 10.0.0.1:5454,…
      walkeeper members remove 4 5 --safekeepers 10.0.0.1:5454,…
    \b
    Let all three acknowledge each commit, not two:
      walkeeper members set-ack-quorum 3 --safekeepers 10.0.0.1:5454,…
    \b
    Let each commit survive a whole zone:
      walkeeper members set-zone 1=a 2=b 3=c --ack-zones 2 --safekeepers 10.0.0.1:5454,…

    One change is under way at a time. You may interrupt a command; the same command resumes. The
    proposer needs no restart. It is elected anew in each step, which takes about a second
    (docs/members.md).
    """


@command.command("show")
@log_options
@option(
    "--locate",
    type=LsnText(),
    metavar="LSN",
    help="Show only which members hold the WAL at this LSN.",
)
@json_option
@config_option
def show(safekeepers: tuple[Address, ...], cluster: str, locate: Lsn | None, as_json: bool) -> None:
    """Show the sets of members, their quorums, and what each member has."""
    from walkeeper_admin.members import located, table
    from walkeeper_admin.members import show as gathered

    document = asyncio.run(gathered(safekeepers, cluster, ANSWER_S))
    if locate is not None and not as_json:
        click.echo(located(document, locate))
        return
    click.echo(json.dumps(document, indent=2) if as_json else table(document))


@command.command("add")
@click.argument("newcomers", nargs=-1, required=True, type=Newcomer(), metavar="ID@HOST:PORT...")
@log_options
@ack_quorum_option
@single_ack_option
@zone_options
@change_options
def add(
    newcomers: tuple[tuple[int, Address, str], ...],
    safekeepers: tuple[Address, ...],
    cluster: str,
    ack_quorum: int | None,
    allow_single_ack: bool,
    ack_zones: int | None,
    allow_zone_stop: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Add safekeepers as members: running ones, without this log.

    A newcomer learns first, and holds up no commit. Then commits wait for an ack quorum of the new
    set for some seconds. A newcomer that dies in that time may hold them up until it is back, or
    until `walkeeper members cancel`.
    """
    from walkeeper_admin.members import Wanted

    wanted = Wanted((), newcomers, ack_quorum, allow_single_ack, _rule(ack_zones, allow_zone_stop))
    _change(safekeepers, cluster, wanted, timeout, as_json)


@command.command("remove")
@click.argument("ids", nargs=-1, required=True, type=click.IntRange(0), metavar="ID...")
@log_options
@ack_quorum_option
@single_ack_option
@zone_options
@change_options
def remove(
    ids: tuple[int, ...],
    safekeepers: tuple[Address, ...],
    cluster: str,
    ack_quorum: int | None,
    allow_single_ack: bool,
    ack_zones: int | None,
    allow_zone_stop: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Remove members. Their disks keep what they have; stop them and remove the log's directory.

    The command ignores the id of a safekeeper that is no member, so that you may repeat it.
    """
    from walkeeper_admin.members import Wanted

    wanted = Wanted(ids, (), ack_quorum, allow_single_ack, _rule(ack_zones, allow_zone_stop))
    _change(safekeepers, cluster, wanted, timeout, as_json)


@command.command("replace")
@click.argument("member", type=click.IntRange(0), metavar="ID")
@click.argument("newcomer", type=Newcomer(), metavar="ID@HOST:PORT")
@log_options
@change_options
def replace(
    member: int,
    newcomer: tuple[int, Address, str],
    safekeepers: tuple[Address, ...],
    cluster: str,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Put a safekeeper into the place of a member, as `walkeeper replace` does."""
    from walkeeper_admin.members import Wanted

    _change(safekeepers, cluster, Wanted((member,), (newcomer,)), timeout, as_json)


@command.command("set-ack-quorum")
@click.argument("ack_quorum", type=click.IntRange(1), metavar="N")
@log_options
@single_ack_option
@zone_options
@change_options
def set_ack_quorum(
    ack_quorum: int,
    safekeepers: tuple[Address, ...],
    cluster: str,
    allow_single_ack: bool,
    ack_zones: int | None,
    allow_zone_stop: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Set how many members acknowledge a commit, and from how many zones.

    The votes that elect follow from it: each vote quorum meets each ack quorum.
    """
    from walkeeper_admin.members import Wanted

    wanted = Wanted((), (), ack_quorum, allow_single_ack, _rule(ack_zones, allow_zone_stop))
    _change(safekeepers, cluster, wanted, timeout, as_json)


@command.command("set-zone")
@click.argument("zones", nargs=-1, required=True, type=MemberZone(), metavar="ID=ZONE...")
@log_options
@zone_options
@change_options
def set_zone(
    zones: tuple[tuple[int, str], ...],
    safekeepers: tuple[Address, ...],
    cluster: str,
    ack_zones: int | None,
    allow_zone_stop: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Say in which zone each member is: a place that fails as a whole.

    \b
    Let a commit that returned survive a whole zone:
      walkeeper members set-zone 1=a 2=b 3=c --ack-zones 2 --safekeepers 10.0.0.1:5454,…

    Without --ack-zones the labels count for spares and for `walkeeper status` alone. Versions of
    walkeeper without zones cannot read such a log.
    """
    from walkeeper_admin.members import Wanted

    rule = _rule(ack_zones, allow_zone_stop, zones)
    _change(safekeepers, cluster, Wanted(rule=rule), timeout, as_json)


@command.command("cancel")
@log_options
@change_options
def cancel(
    safekeepers: tuple[Address, ...], cluster: str, timeout: float | None, as_json: bool
) -> None:
    """Take back a change that is under way: the old members decide alone again.

    It is possible until the new members are final.
    """
    from walkeeper_admin.members import cancel as taken_back
    from walkeeper_proposer.member_changes import Limits

    say = Audience(sys.stderr).say
    made = asyncio.run(taken_back(safekeepers, cluster, Limits(timeout_s=timeout), say))
    _tell(made, cluster, as_json)


def _rule(
    ack_zones: int | None, allow_stop: bool, zones: tuple[tuple[int, str], ...] = ()
) -> ZoneRule:
    """Return the rule that the options name; 1 zone is no rule."""
    from walkeeper_admin.members import ZoneRule

    return ZoneRule(0 if ack_zones == 1 else ack_zones, zones, allow_stop)


def _change(
    safekeepers: tuple[Address, ...],
    cluster: str,
    wanted: Wanted,
    timeout: float | None,
    as_json: bool,
) -> None:
    from walkeeper_admin.members import change
    from walkeeper_proposer.member_changes import Limits

    say = Audience(sys.stderr).say
    made = asyncio.run(change(safekeepers, cluster, wanted, Limits(timeout_s=timeout), say))
    _tell(made, cluster, as_json)


def _tell(made: Configuration, cluster: str, as_json: bool) -> None:
    from walkeeper_common.operator_text.zones import zones_clause
    from walkeeper_common.quorum import member_id
    from walkeeper_proposer.consensus.members.deciding import standing

    if as_json:
        members = [member_id(member) for member in made.members]
        facts = {"cluster": cluster, "generation": made.generation, "members": members}
        quorums = {"ack_quorum": made.ack_quorum, "vote_quorum": made.vote_quorum}
        if made.zones:
            facts |= {"ack_zones": made.ack_zones, "zones": list(made.zones)}
        click.echo(json.dumps(facts | quorums, indent=2))
        return
    click.echo(
        f"done: cluster {cluster} has no change of members under way; {standing(made)}, ack "
        f"quorum {made.ack_quorum}{zones_clause(made.present)}"
    )
