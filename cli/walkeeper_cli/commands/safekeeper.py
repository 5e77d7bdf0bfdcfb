"""`walkeeper safekeeper`: one safekeeper daemon."""

from __future__ import annotations

import click

from walkeeper_cli.options import (
    Dsn,
    Duration,
    HostPort,
    HostPorts,
    Size,
    config_option,
    http_option,
    http_tls_option,
    http_token_option,
    log_json_option,
    log_level_option,
    option,
    process_option,
    use_archive_keys,
    use_tls,
)
from walkeeper_common.addresses import Address


@click.command("safekeeper", short_help="Run one safekeeper daemon.")
@option(
    "--id",
    "acceptor_id",
    type=click.IntRange(1, 65535),
    required=True,
    envvar="WALKEEPER_ID",
    help="This safekeeper's number: unique in the log, and never changed.",
)
@option(
    "--data-dir",
    type=click.Path(file_okay=False),
    required=True,
    help="The directory for WAL and state.",
)
@option(
    "--listen",
    type=HostPort(port_min=0),
    required=True,
    metavar="HOST:PORT",
    help="The address for proposers, and for standbys and tools with PostgreSQL's protocol.",
)
@option(
    "--wal-keep-size",
    type=Size(),
    default="1GB",
    show_default=True,
    help="WAL to keep although every member and reader has it.",
)
@option(
    "--wal-size-max",
    type=Size(),
    metavar="SIZE",
    help="The most WAL of one log on disk; a safekeeper that cannot remove enough refuses appends. "
    "From 80 % on it ignores --wal-keep-size.  [default: unlimited]",
)
@option(
    "--scrub-rate",
    type=Size(),
    default="1MB",
    show_default=True,
    metavar="SIZE",
    help="WAL to read again and check each second; 0 turns the scrub off.",
)
@option(
    "--fill-rate",
    type=Size(),
    default="32MB",
    show_default=True,
    metavar="SIZE",
    help="Older WAL to copy each second from other members, for a log that lacks it; 0 copies "
    "none, and the others keep what is needed.",
)
@option(
    "--repair-from",
    type=HostPorts(),
    default=(),
    metavar="H:P,H:P",
    help="Other members. A segment that the scrub finds damaged is rewritten from their copy if "
    "the archive lacks it. Clients also get WAL from them that this safekeeper does not hold. WAL "
    "that slots and --wal-keep-size keep there is copied from them.",
)
@option(
    "--allow-unauthenticated",
    is_flag=True,
    help="Allow --listen and --http beyond loopback without authentication, on a network that you "
    "trust.",
)
@process_option(
    "--tls",
    use=use_tls,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Speak TLS on the port of --listen, and take the identity and the role of a peer from its "
    "certificate. The file has the key, the certificate and the CA: see `walkeeper certs`.",
)
@option(
    "--require-tls",
    is_flag=True,
    help="Refuse a peer without a certificate on loopback, too.",
)
@option(
    "--users",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Ask clients of PostgreSQL without a certificate for a password, by SCRAM-SHA-256. "
    "`walkeeper user` writes the file.",
)
@http_option
@http_token_option
@http_tls_option
@option(
    "--archive",
    metavar="URL",
    help="Archive every committed segment to file:///dir, s3://bucket/prefix, gs://… or az://…, "
    "the same on every safekeeper. It removes local WAL only when that is archived and compared.",
)
@option(
    "--archive-compress",
    type=click.Choice(["none", "zstd"]),
    default="none",
    show_default=True,
    help="The compression of archived segments.",
)
@process_option(
    "--archive-keys",
    use=use_archive_keys,
    metavar="FILE",
    help="Encrypt archived files with the first key of this file; its other keys still open older "
    "ones. A line has an id and 64 hexadecimal digits. env:NAME takes the lines of a variable.",
)
@option(
    "--archive-tail-interval",
    type=Duration(),
    default="60s",
    show_default=True,
    help="How often to archive the committed part of the last segment, if it has grown.",
)
@option(
    "--copy-dsn",
    "copy_dsns",
    type=Dsn(),
    multiple=True,
    metavar="DSN",
    help="The primary of a logical log, which copies the tables of new subscriptions (copy_data = "
    "true). Its role needs REPLICATION, and SELECT on them. Keep passwords in ~/.pgpass. Give it "
    "once for each primary.",
)
@option("--audit-json", is_flag=True, help="Write each audit line of the log as a JSON object.")
@log_json_option
@log_level_option
@config_option
def command(
    acceptor_id: int,
    data_dir: str,
    listen: Address,
    wal_keep_size: int,
    wal_size_max: int | None,
    scrub_rate: int,
    fill_rate: int,
    repair_from: tuple[Address, ...],
    archive: str | None,
    archive_compress: str,
    archive_tail_interval: float,
    copy_dsns: tuple[str, ...],
    allow_unauthenticated: bool,
    require_tls: bool,
    users: str | None,
    http: Address | None,
    audit_json: bool,
    log_json: bool,
    log_level: str,
) -> int:
    """Run one safekeeper, which stores WAL, votes, and serves committed WAL.

    \b
    Example:
      walkeeper safekeeper --id 1 --data-dir /var/lib/walkeeper --listen 127.0.0.1:5454

    It prints `ready: safekeeper 1 on 127.0.0.1:5454` when it listens; port 0 takes any free one.
    SIGTERM and SIGINT stop it cleanly.
    """
    from walkeeper_archive.layout import Packing
    from walkeeper_safekeeper.safekeeper_daemon import run
    from walkeeper_safekeeper.safekeeper_settings import ArchiveSettings, SafekeeperSettings

    packing = Packing.ZSTD if archive_compress == "zstd" else Packing.PLAIN
    tail_interval_s = archive_tail_interval
    settings = SafekeeperSettings(
        acceptor_id=acceptor_id,
        data_dir=data_dir,
        listen=listen,
        wal_keep_bytes=wal_keep_size,
        wal_bytes_max=wal_size_max,
        scrub_bytes_s=scrub_rate,
        fill_bytes_s=fill_rate,
        repair_from=repair_from,
        archive=None if archive is None else ArchiveSettings(archive, packing, tail_interval_s),
        allow_unauthenticated=allow_unauthenticated,
        require_tls=require_tls,
        users=users,
        http=http,
        copy_dsns=copy_dsns,
        audit_json=audit_json,
        log_level=log_level,
        log_json=log_json,
    )
    return run(settings)
