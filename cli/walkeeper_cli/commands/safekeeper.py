"""`walkeeper safekeeper`: one safekeeper daemon."""

from __future__ import annotations

import click

from walkeeper_cli.options import (
    Duration,
    HostPort,
    Size,
    config_option,
    http_option,
    log_level_option,
    option,
)
from walkeeper_common.addresses import Address


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
    "--wal-size-max",
    type=Size(),
    metavar="SIZE",
    help="Refuse appends when a log has so much WAL on disk that may not go; from 80 % of it on "
    "--wal-keep-size gives way. Unlimited, unless told otherwise.",
)
@option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Listen on more than loopback without authentication: on a network that you trust.",
)
@http_option
@option(
    "--archive",
    metavar="URL",
    help="Put every committed segment there: file:///dir, s3://bucket/prefix, gs://…, az://…. The "
    "same on every safekeeper. Local WAL then goes only when it is archived and compared.",
)
@option(
    "--archive-compress",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    help="How segments are kept in the archive.",
)
@option(
    "--archive-tail-interval",
    type=Duration(),
    default="60s",
    show_default=True,
    help="How often the committed part of the last segment is archived, if it has grown.",
)
@log_level_option
@config_option
def command(
    acceptor_id: int,
    data_dir: str,
    listen: Address,
    wal_keep_size: int,
    wal_size_max: int | None,
    archive: str | None,
    archive_compress: str,
    archive_tail_interval: float,
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
    from walkeeper_archive.layout import Packing
    from walkeeper_safekeeper.daemon import run
    from walkeeper_safekeeper.settings import ArchiveSettings, SafekeeperSettings

    packing = Packing.ZSTD if archive_compress == "zstd" else Packing.PLAIN
    tail_interval_s = archive_tail_interval
    settings = SafekeeperSettings(
        acceptor_id=acceptor_id,
        data_dir=data_dir,
        listen=listen,
        wal_keep_bytes=wal_keep_size,
        wal_bytes_max=wal_size_max,
        archive=None if archive is None else ArchiveSettings(archive, packing, tail_interval_s),
        allow_unauthenticated=allow_unauthenticated,
        http=http,
        log_level=log_level,
    )
    return run(settings)
