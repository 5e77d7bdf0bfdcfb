"""`walkeeper detach`: the way out while commits hang."""

from __future__ import annotations

import asyncio
import sys

import click

from walkeeper_cli.audience import Audience
from walkeeper_cli.options import (
    ApplicationName,
    SlotName,
    Timeout,
    config_option,
    dsn_option,
    option,
)


@click.command("detach", short_help="Let commits wait for nobody; works while they hang.")
@dsn_option
@option(
    "--drop-slot",
    is_flag=True,
    help="Drop the proposer's replication slot too, ending the connection that uses it.",
)
@option(
    "--slot",
    type=SlotName(),
    help="The proposer's slot, if it is not called as the proposer is.",
)
@option(
    "--application-name",
    type=ApplicationName(),
    help="Take out this one alone; others that commits wait for stay.  [default: clear all]",
)
@option(
    "--timeout",
    type=Timeout(),
    default="20s",
    show_default=True,
    help="How long to wait until nobody waits any more.",
)
@config_option
def command(
    dsn: str, drop_slot: bool, slot: str | None, application_name: str | None, timeout: float
) -> None:
    """Let commits wait for the primary's own disk alone. Works while commits hang.

    \b
    Example:
      walkeeper detach --dsn 'host=db1 user=postgres'

    Needs nothing but the primary: no safekeeper and no proposer. Clears synchronous_standby_names,
    or restores what `attach --replace` replaced, and prints the range of WAL that may be on the
    primary alone from then on. May be run again.

    With --application-name it takes out one of several (FIRST 2 becomes FIRST 1), and commits wait
    for the others as before. A proposer that is not called walkeeper or walkeeper_… has to be
    named.
    """
    from walkeeper_cli.primary.detach import DetachSettings, detach

    settings = DetachSettings(dsn, application_name, slot, drop_slot, timeout)
    audience = Audience(sys.stdout)
    asyncio.run(detach(settings, audience.say))
    audience.raise_failure()
