"""`walkeeper safekeeper`: one safekeeper daemon."""

from __future__ import annotations

import click

from walkeeper_cli.options import (
    Address,
    HostPort,
    Size,
    config_option,
    http_option,
    log_level_option,
    option,
    unavailable,
)


@click.command("safekeeper", short_help="Run one safekeeper daemon.")
@option(
    "--id",
    "acceptor_id",
    type=click.IntRange(1, 65535),
    required=True,
    envvar="WALKEEPER_ID",
    help="This safekeeper's number: another one on each, and the same for ever.",
)
@option("--data-dir", type=click.Path(file_okay=False), required=True, help="Where the WAL goes.")
@option(
    "--listen",
    type=HostPort(port_min=0),
    required=True,
    metavar="HOST:PORT",
    help="For proposers, and for standbys and tools that speak PostgreSQL's protocol.",
)
@option(
    "--wal-keep-size",
    type=Size(),
    default="1GB",
    show_default=True,
    help="WAL to keep although everybody has it.",
)
@option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Listen on more than loopback without authentication: on a network that you trust.",
)
@http_option
@unavailable("--archive", metavar="URL")
@log_level_option
@config_option
def command(
    acceptor_id: int,
    data_dir: str,
    listen: Address,
    wal_keep_size: int,
    allow_unauthenticated: bool,
    http: Address | None,
    log_level: str,
) -> int:
    """Run one safekeeper: it stores WAL, votes, and serves what is committed.

    \b
    Example:
      walkeeper safekeeper --id 1 --data-dir /var/lib/walkeeper --listen 127.0.0.1:5454

    Prints `ready: safekeeper 1 on 127.0.0.1:5454` when it listens; port 0 takes any free one.
    SIGTERM and SIGINT stop it cleanly.
    """
    from walkeeper_safekeeper.daemon import run
    from walkeeper_safekeeper.settings import SafekeeperSettings

    settings = SafekeeperSettings(
        acceptor_id=acceptor_id,
        data_dir=data_dir,
        listen=listen,
        wal_keep_bytes=wal_keep_size,
        allow_unauthenticated=allow_unauthenticated,
        http=http,
        log_level=log_level,
    )
    return run(settings)
