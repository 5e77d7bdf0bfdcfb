"""`walkeeper detach`: the way out while commits hang."""

from __future__ import annotations

import asyncio
import sys

import click

from walkeeper_cli.options import (
    ApplicationName,
    SlotName,
    Timeout,
    config_option,
    dsn_option,
    option,
)
from walkeeper_common.shell.process.command_output import Audience


@click.command("detach", short_help="Let commits return without the quorum.")
@dsn_option
@option(
    "--drop-slot",
    is_flag=True,
    help="Also end the connection that uses the proposer's replication slot, and drop the slot.",
)
@option(
    "--slot",
    type=SlotName(),
    help="The proposer's slot, if it has another name than the proposer.",
)
@option(
    "--application-name",
    type=ApplicationName(),
    help="Take out this name alone; commits still wait for the others.  [default: clear all]",
)
@option(
    "--timeout",
    type=Timeout(),
    default="20s",
    show_default=True,
    help="How long to wait until no session waits.",
)
@config_option
def command(
    dsn: str, drop_slot: bool, slot: str | None, application_name: str | None, timeout: float
) -> None:
    """Let commits wait for the primary's own disk alone. This works while commits hang.

    \b
    Example:
      walkeeper detach --dsn 'host=db1 user=postgres'

    It needs only the primary, no safekeeper and no proposer. It clears synchronous_standby_names,
    or restores the value that `attach --replace` replaced. It prints the range of WAL that may be
    on the primary alone from then on. You may run it again.

    With --application-name it takes out one of several names (FIRST 2 becomes FIRST 1), and commits
    wait for the others as before. The option is necessary for a proposer that is not called
    walkeeper or walkeeper_….
    """
    from walkeeper_admin.primary.detach import DetachSettings, detach

    settings = DetachSettings(dsn, application_name, slot, drop_slot, timeout)
    audience = Audience(sys.stdout)
    asyncio.run(detach(settings, audience.say))
    audience.raise_failure()
