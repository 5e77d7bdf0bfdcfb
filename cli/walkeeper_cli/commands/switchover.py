"""`walkeeper switchover`: hand a primary's work over to its standby, by plan."""

from __future__ import annotations

import asyncio
import sys

import click

from walkeeper_cli.options import (
    Dsn,
    cluster_option,
    config_option,
    option,
    promoted_slot_option,
    safekeepers_option,
    slot_of,
    step_timeout_option,
    tls_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.shell.process.command_output import Audience

NO_STANDBY = "No standby replays it: name the primary's physical log in --cluster"


@click.command("switchover", short_help="Hand over to a standby by plan, in about a second.")
@safekeepers_option
@tls_option
@cluster_option
@option(
    "--primary",
    type=Dsn(),
    required=True,
    metavar="DSN",
    help="The server that hands over, as a role that may CHECKPOINT.",
)
@option(
    "--standby",
    type=Dsn(),
    required=True,
    metavar="DSN",
    help="The standby that takes over, as a superuser. `walkeeper proposer --follow` waits "
    "beside it.",
)
@option(
    "--stop",
    required=True,
    metavar="COMMAND",
    help="The shell command that stops the primary cleanly, such as "
    "'ssh db1 systemctl stop postgresql'.",
)
@promoted_slot_option
@step_timeout_option
@config_option
def command(
    safekeepers: tuple[Address, ...],
    cluster: str,
    primary: str,
    standby: str,
    stop: str,
    slot: str | None,
    timeout: float,
) -> None:
    """Stop the primary, promote its standby, and let commits go on there.

    \b
    Example:
      walkeeper switchover --safekeepers h1:5454,h2:5454,h3:5454 \\
        --primary 'host=db1 user=postgres' --standby 'host=db2 user=postgres' \\
        --stop 'ssh db1 systemctl stop postgresql'

    The command refuses, and changes nothing, while the standby lags, has no proposer beside it, is
    on another branch, or would acknowledge commits alone. The steps are a checkpoint, --stop,
    `settle --seal`, the check of the standby's WAL, its promotion, and a commit there that a quorum
    has. The old primary has sent all its WAL. It comes back as a standby without pg_rewind
    (docs/failover.md).
    """
    from walkeeper_admin.log_kind_check import refuse_logical
    from walkeeper_admin.switchover import SwitchoverSettings, switch_over
    from walkeeper_common.shell.log_lines.operator_log import log_to_stderr

    log_to_stderr("WARNING")
    asyncio.run(refuse_logical(safekeepers, cluster, NO_STANDBY))
    settings = SwitchoverSettings(
        safekeepers=safekeepers,
        primary=primary,
        standby=standby,
        stop=stop,
        cluster=cluster,
        slot=slot_of(slot, cluster),
        timeout_s=timeout,
    )
    done = asyncio.run(switch_over(settings, say=Audience(sys.stderr).say))
    timeline = "" if done.timeline is None else f" to timeline {done.timeline}"
    click.echo(
        f"switched over at {done.end_lsn}{timeline}: no commit was possible for "
        f"{done.without_commits_s:.2f} s, of which the primary took {done.stopped_s:.2f} s to "
        "stop\nnext: create standby.signal at the old primary, let its primary_conninfo name a "
        "safekeeper, and start it"
    )
