"""`walkeeper create`: a new log on its safekeepers."""

from __future__ import annotations

import asyncio

import click

from walkeeper_cli.options import (
    MemberZones,
    SlotName,
    Timeout,
    ack_zones_option,
    cluster_option,
    config_option,
    dsn_option,
    option,
    safekeepers_option,
    slot_of,
    tls_option,
    zone_stop_option,
)
from walkeeper_common.addresses import Address


@click.command("create", short_help="Create a log on its safekeepers.")
@safekeepers_option
@tls_option
@dsn_option
@cluster_option
@option(
    "--ack-quorum",
    type=click.IntRange(1, 32),
    help="The number of safekeepers that must have a commit.  [default: a majority]",
)
@option(
    "--zones",
    type=MemberZones(),
    metavar="ID=ZONE,…",
    help="The zone of each safekeeper: a place that fails as a whole, such as 1=a,2=b,3=c.",
)
@ack_zones_option
@zone_stop_option
@option("--slot", type=SlotName(), help="The replication slot.  [default: walkeeper[_CLUSTER]]")
@option(
    "--timeout",
    type=Timeout(),
    default="10s",
    show_default=True,
    help="How long to wait for each answer.",
)
@option(
    "--allow-single-ack",
    is_flag=True,
    help="Allow --ack-quorum 1 with several safekeepers; a commit is then on one disk.",
)
@option("--if-not-exists", is_flag=True, help="Do not fail if the log exists and is in use.")
@option(
    "--logical",
    is_flag=True,
    help="Keep decoded changes instead of WAL, for `walkeeper proposer --logical`. The slot is a "
    "logical one in the database of --dsn. Needs wal_level = logical.",
)
@config_option
def command(
    safekeepers: tuple[Address, ...],
    dsn: str,
    cluster: str,
    ack_quorum: int | None,
    zones: tuple[tuple[int, str], ...] | None,
    ack_zones: int | None,
    allow_zone_stop: bool,
    slot: str | None,
    timeout: float,
    allow_single_ack: bool,
    if_not_exists: bool,
    logical: bool,
) -> None:
    """Create the log on all its safekeepers, and the slot on the primary.

    \b
    Example:
      walkeeper create --safekeepers h1:5454,h2:5454,h3:5454 --dsn 'host=db1 user=walkeeper'

    It needs every safekeeper. You may repeat it until a proposer has been elected.
    """
    from walkeeper_admin.create import CreateSettings, create
    from walkeeper_common.operator_text.zones import zones_clause
    from walkeeper_common.quorum import member_id

    settings = CreateSettings(
        safekeepers=safekeepers,
        dsn=dsn,
        cluster=cluster,
        slot=slot_of(slot, cluster),
        ack_quorum=ack_quorum,
        allow_single_ack=allow_single_ack,
        zones=dict(zones or ()),
        ack_zones=0 if ack_zones in (None, 1) else ack_zones,
        allow_zone_stop=allow_zone_stop,
        if_not_exists=if_not_exists,
        logical=logical,
        timeout_s=timeout,
    )
    created = asyncio.run(create(settings))
    made = created.configuration
    members = ", ".join(str(member_id(member)) for member in made.members)
    start = f"from {made.creation_lsn} on timeline {made.timeline} of system {made.system_id}"
    if logical:
        start = f"of decoded changes of system {made.system_id}"
    rule = f"{made.ack_quorum}{zones_clause(made.present)}"
    log = f"on safekeepers {members}: ack quorum {rule}, {start}"
    if created.in_use:
        click.echo(f"cluster {cluster} exists and is in use {log}")
        return
    click.echo(
        f"created cluster {cluster} {log}; slot {settings.slot} keeps the primary's WAL\n"
        f"next: walkeeper proposer{' --logical --publication NAME' if logical else ''}, with the "
        "same --safekeepers, --dsn, --cluster and --slot"
    )
