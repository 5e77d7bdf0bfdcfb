"""`walkeeper proposer`: the daemon beside a primary."""

from __future__ import annotations

import click

from walkeeper_cli.options import (
    ApplicationName,
    Publications,
    Size,
    SlotName,
    allow_unauthenticated_option,
    cluster_option,
    config_option,
    default_name,
    dsn_option,
    http_option,
    http_tls_option,
    http_token_option,
    log_json_option,
    log_level_option,
    option,
    safekeepers_option,
    slot_of,
    tls_option,
)
from walkeeper_common.addresses import Address, refuse_open_door
from walkeeper_common.shell.http.http_locks import HTTP_LOCK, is_locked
from walkeeper_proposer.proposer_settings import ProposerSettings

RISK = "see the members and the positions of the log"


@click.command("proposer", short_help="Run the daemon beside a primary.")
@safekeepers_option
@tls_option
@dsn_option
@cluster_option
@option("--slot", type=SlotName(), help="The replication slot.  [default: walkeeper[_CLUSTER]]")
@option(
    "--application-name",
    type=ApplicationName(),
    help="The name in synchronous_standby_names.  [default: walkeeper[_CLUSTER]]",
)
@option(
    "--apply",
    type=click.Choice(["quorum-flush", "standbys"]),
    default="quorum-flush",
    show_default=True,
    help="The condition of synchronous_commit = remote_apply: a quorum's disks, or also the "
    "standbys that stream from safekeepers.",
)
@option("--take-over", is_flag=True, help="Do not wait for another proposer that seems alive.")
@option(
    "--follow",
    is_flag=True,
    help="Wait while the server is a standby or down; start when it is promoted. Use it to run a "
    "proposer beside every server.",
)
@option(
    "--repair-grace",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a member is silent before a spare takes its place (`walkeeper spare`); 0 for "
    "never.",
)
@option("--resume", is_flag=True, help="Lift the seal of `walkeeper settle --seal`.")
@option("--allow-unsafe-settings", is_flag=True, hidden=True)  # fsync=off: for tests
@http_option
@http_token_option
@http_tls_option
@allow_unauthenticated_option
@option(
    "--logical",
    is_flag=True,
    help="Send decoded changes instead of WAL, to a log made by `walkeeper create --logical`.",
)
@option(
    "--publication",
    "publications",
    envvar="WALKEEPER_PUBLICATION",
    type=Publications(),
    default="",
    metavar="NAME[,NAME]",
    help="The publications that --logical decodes, in the database of --dsn.",
)
@option(
    "--messages",
    is_flag=True,
    help="With --logical: also send messages of pg_logical_emit_message, for consumers that "
    "request them. A log that has messages once keeps them on. Needs PostgreSQL 14 or newer.",
)
@option(
    "--spool-size-max",
    type=Size(),
    default="4GB",
    show_default=True,
    metavar="SIZE",
    help="With --logical: the most bytes of open transactions to keep here. PostgreSQL 14 or newer "
    "streams large ones before they commit (logical_decoding_work_mem), so that their commit does "
    "not delay others for long. Beyond SIZE they stay at the primary until they commit. All of "
    "them do so with 0, with --messages and where replication origins are in use.",
)
@option(
    "--spool-dir",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="The spool's folder, on a disk and not in memory.  [default: that of temporary files]",
)
@log_json_option
@log_level_option
@config_option
def command(
    safekeepers: tuple[Address, ...],
    dsn: str,
    cluster: str,
    slot: str | None,
    application_name: str | None,
    apply: str,
    logical: bool,
    publications: tuple[str, ...],
    messages: bool,
    spool_size_max: int,
    spool_dir: str | None,
    take_over: bool,
    follow: bool,
    repair_grace: float,
    resume: bool,
    allow_unsafe_settings: bool,
    http: Address | None,
    allow_unauthenticated: bool,
    log_json: bool,
    log_level: str,
) -> int:
    """Send a primary's WAL to the safekeepers, and a quorum's acknowledgement back to it.

    \b
    Examples:
      walkeeper proposer --safekeepers h1:5454,h2:5454,h3:5454 --dsn 'host=db1 user=walkeeper'
      walkeeper proposer --safekeepers h1:5454,h2:5454,h3:5454 --cluster changes \\
          --dsn 'host=db1 user=walkeeper dbname=shop' --logical --publication orders

    The role needs REPLICATION. Commits wait for the quorum only after `walkeeper attach`. First the
    proposer compares the primary's WAL with the log, and says why if it refuses the primary. A
    promoted standby continues the log, unless its promotion left out WAL (docs/failover.md).
    """
    _check_logical(logical, publications, messages, spool_dir)
    is_safe = allow_unauthenticated or is_locked()
    refuse_open_door(http, "--http", RISK, allowed=is_safe, lock=HTTP_LOCK)
    from walkeeper_proposer.proposer_daemon import run

    settings = ProposerSettings(
        safekeepers=safekeepers,
        dsn=dsn,
        cluster=cluster,
        slot=slot_of(slot, cluster),
        application_name=application_name or default_name(cluster),
        take_over=take_over,
        follow=follow,
        repair_grace_s=repair_grace,
        resume=resume,
        unsafe_settings=allow_unsafe_settings,
        apply_quorum=apply == "quorum-flush",
        publications=publications,
        messages=messages,
        spool_directory=spool_dir,
        spool_bytes_max=spool_size_max,
        http=http,
        log_level=log_level,
        log_json=log_json,
    )
    return run(settings)


def _check_logical(
    logical: bool, publications: tuple[str, ...], messages: bool, spool_dir: str | None
) -> None:
    """Raise UsageError for options that a log of this kind does not take."""
    if logical != bool(publications):
        raise click.UsageError("--logical and --publication NAME go together")
    if messages and not logical:
        raise click.UsageError("--messages is for --logical: WAL has them anyway")
    if spool_dir and not logical:
        raise click.UsageError("--spool-dir is for --logical: the proposer spools no WAL")
