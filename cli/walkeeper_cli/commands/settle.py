"""`walkeeper settle`: fence older proposers and learn where the log ends."""

from __future__ import annotations

import asyncio
import json

import click

from walkeeper_cli.options import (
    Address,
    Duration,
    cluster_option,
    config_option,
    option,
    safekeepers_option,
)


@click.command("settle", short_help="Fence older proposers; print where the log ends.")
@safekeepers_option
@cluster_option
@option("--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="For programs.")
@option("--seal", is_flag=True, help="Let no proposer write on this timeline without --resume.")
@option(
    "--linger",
    type=Duration(),
    default="10s",
    show_default=True,
    help="Wait so long for safekeepers that a quorum does not need, so that standbys behind them "
    "get everything too.",
)
@option("--timeout", type=Duration(), default="60s", show_default=True, help="For all of it.")
@config_option
def command(
    safekeepers: tuple[Address, ...],
    cluster: str,
    as_json: bool,
    seal: bool,
    linger: float,
    timeout: float,
) -> None:
    """Fence older proposers, bring the safekeepers to the log's end, and print where that is.

    \b
    The first step of a failover:
      walkeeper settle --safekeepers h1:5454,h2:5454,h3:5454 --seal

    From then on no commit of the old primary is acknowledged. Every commit that ever was is below
    the LSN that it prints: a standby may be promoted once it has replayed up to there. A
    safekeeper that does not have all of it in the end is named. Run it as often as you like: the
    log ends where it ended. With --seal, the old primary is kept out until --resume; a promoted one
    is not, and goes on (docs/failover.md).
    """
    from walkeeper_common.logs import log_to_stderr
    from walkeeper_common.quorum import member_id
    from walkeeper_proposer.settling import settle

    log_to_stderr("WARNING")
    end = asyncio.run(settle(safekeepers, cluster, seal=seal, timeout_s=timeout, linger_s=linger))
    behind = [(member_id(name), lsn) for name, lsn in end.behind]
    if as_json:
        document = {
            "cluster": cluster,
            "lsn": str(end.consensus_lsn),
            "consensus_lsn": str(end.consensus_lsn),
            "flush_lsn": str(end.flush_lsn),
            "timeline": end.timeline,
            "term": end.ballot.term,
            "proposer_id": end.ballot.proposer_id.hex(),
            "ballot": str(end.ballot),
            "sealed": end.sealed,
            "behind": [
                {"id": number, "flush_lsn": None if lsn is None else str(lsn)}
                for number, lsn in behind
            ],
        }
        click.echo(json.dumps(document))
        return
    click.echo(
        f"settled: the log of cluster {cluster} ends at {end.consensus_lsn} on timeline "
        f"{end.timeline} (term {end.ballot.term}{', sealed' if end.sealed else ''})"
    )
    for number, lsn in behind:
        what = "could not be reached" if lsn is None else f"has only WAL up to {lsn}"
        click.echo(
            f"safekeeper {number} {what}: feed standbys from another one, or run settle again "
            "when it is back",
            err=True,
        )
