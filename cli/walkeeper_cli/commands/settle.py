"""`walkeeper settle`: fence older proposers and learn where the log ends."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from walkeeper_cli.fencing import leader_of, state_of
from walkeeper_cli.options import (
    Dsn,
    Duration,
    config_option,
    json_option,
    log_options,
    option,
    promoted_slot_option,
    slot_of,
    step_timeout_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.shell.process.command_output import Audience

if TYPE_CHECKING:  # a command that only says its usage imports none of it
    from walkeeper_common.lsn import Lsn
    from walkeeper_proposer.consensus.proposer_events import Settled

NO_STANDBY = (
    "No standby replays it, so leave out --replayed-by, or name the primary's physical log in "
    "--cluster"
)


@click.command("settle", short_help="Fence older proposers; print the end of the log.")
@log_options
@json_option
@option("--seal", is_flag=True, help="Let no proposer write on this timeline without --resume.")
@option(
    "--linger",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long to wait for the safekeepers outside the quorum, so that their standbys get "
    "everything too.",
)
@option(
    "--replayed-by",
    type=Dsn(),
    metavar="DSN",
    help="Then wait until this standby has replayed the whole log, and compare its WAL with the "
    "log, so that you may promote it. As a superuser: it reads pg_control and pg_wal over SQL.",
)
@promoted_slot_option
@option("--yes", is_flag=True, help="Do not ask before it fences a proposer that leads.")
@step_timeout_option
@config_option
def command(
    safekeepers: tuple[Address, ...],
    cluster: str,
    as_json: bool,
    seal: bool,
    linger: float,
    replayed_by: str | None,
    slot: str | None,
    yes: bool,
    timeout: float,
) -> None:
    """Fence older proposers, bring the safekeepers to the log's end, and print its LSN.

    \b
    The first step of a failover:
      walkeeper settle --safekeepers h1:5454,h2:5454,h3:5454 --seal

    From then on, the old primary gets no commit acknowledged. Every acknowledged commit is below
    the LSN that `settle` prints. You may promote a standby once it has replayed up to there.
    `settle` names each safekeeper that lacks WAL in the end. You may run it again: the end of the
    log stays. --seal keeps the old primary out until --resume, and admits a promoted standby
    (docs/failover.md).

    \b
    As Patroni's pre_promote, which keeps it from promoting too early (docs/patroni/):
      walkeeper settle --seal --replayed-by 'host=/var/run/postgresql user=postgres'
    """
    from walkeeper_common.shell.log_lines.operator_log import log_to_stderr
    from walkeeper_proposer.settling import settle

    log_to_stderr("WARNING")
    if replayed_by is not None:
        from walkeeper_admin.log_kind_check import refuse_logical

        asyncio.run(refuse_logical(safekeepers, cluster, NO_STANDBY))
    elif not yes and sys.stdin.isatty():
        _ask_before_fencing(safekeepers, cluster)
    end = asyncio.run(settle(safekeepers, cluster, seal=seal, timeout_s=timeout, linger_s=linger))
    replayed_lsn, number = None, None
    if replayed_by is not None:
        from walkeeper_admin.replaying import make_promotable

        say = Audience(sys.stderr).say
        preparing = make_promotable(
            replayed_by, safekeepers, cluster, end,
            slot=slot_of(slot, cluster), timeout_s=timeout, say=say,
        )  # fmt: skip
        replayed_lsn, number = asyncio.run(preparing)
    if as_json:
        click.echo(json.dumps(document(cluster, end, replayed_lsn, number)))
    else:
        _tell(cluster, end, replayed_lsn, number)


def _ask_before_fencing(safekeepers: tuple[Address, ...], cluster: str) -> None:
    """Ask on the terminal if a proposer leads with a quorum; abort unless the answer is yes.

    The caller asks no script, since a script has no terminal.
    """
    leader = leader_of(state_of(safekeepers, cluster))
    if leader is None:
        return
    click.confirm(
        f"proposer {leader} leads with a quorum. settle ends it, and commits of its primary hang "
        "until a proposer leads again. Go on?",
        abort=True,
        err=True,
    )


def _behind(end: Settled) -> list[tuple[int, Lsn | None]]:
    from walkeeper_common.quorum import member_id

    return [(member_id(name), lsn) for name, lsn in end.behind]


def warn_of_laggards(end: Settled, command: str) -> None:
    """Tell on stderr which safekeepers lack WAL up to the end of the log."""
    for number, lsn in _behind(end):
        what = "could not be reached" if lsn is None else f"has only WAL up to {lsn}"
        click.echo(
            f"safekeeper {number} {what}: feed standbys from another one, or run {command} again "
            "when it is back",
            err=True,
        )


def document(
    cluster: str, end: Settled, replayed_lsn: Lsn | None = None, number: int | None = None
) -> dict[str, object]:
    """Return the end of the log for --json."""
    return {
        "cluster": cluster,
        "lsn": str(end.consensus_lsn),
        "consensus_lsn": str(end.consensus_lsn),
        "flush_lsn": str(end.flush_lsn),
        "timeline": end.timeline,
        "term": end.ballot.term,
        "proposer_id": end.ballot.proposer_id.hex(),
        "ballot": str(end.ballot),
        "sealed": end.sealed,
        "closed": end.closed,
        "replayed_lsn": None if replayed_lsn is None else str(replayed_lsn),
        "reserved_timeline": number,
        "behind": [
            {"id": number, "flush_lsn": None if lsn is None else str(lsn)}
            for number, lsn in _behind(end)
        ],
    }


def _tell(cluster: str, end: Settled, replayed_lsn: Lsn | None, number: int | None) -> None:
    sealed = ", sealed" if end.sealed else ""
    click.echo(
        f"settled: the log of cluster {cluster} ends at {end.consensus_lsn} on timeline "
        f"{end.timeline} (term {end.ballot.term}{sealed}{', closed' if end.closed else ''})"
    )
    if replayed_lsn is not None:
        click.echo(
            f"the standby has replayed up to {replayed_lsn}, and its WAL is the log's: it may be "
            "promoted" + ("" if number is None else f", to timeline {number}")
        )
    warn_of_laggards(end, "settle")
