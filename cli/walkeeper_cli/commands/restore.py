"""`walkeeper restore`: one WAL file for restore_command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from walkeeper_cli.options import (
    Duration,
    HostPorts,
    archive_keys_option,
    cluster_option,
    config_option,
    option,
    tls_option,
)
from walkeeper_common.addresses import Address

if TYPE_CHECKING:
    from walkeeper_common.lsn import Lsn
    from walkeeper_restore.archive_source import ArchiveAlone
    from walkeeper_restore.wal_source import ArchivedWal

PREFETCH_MAX = 256


def _lsn(ctx: click.Context, param: click.Parameter, value: str | None) -> Lsn:
    from walkeeper_common.lsn import ZERO_LSN, Lsn

    try:
        return ZERO_LSN if value is None else Lsn.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command("restore", short_help="Fetch one WAL file for restore_command.")
@option(
    "--safekeepers",
    type=HostPorts(),
    metavar="H:P,H:P,H:P",
    help="Every safekeeper of the log. Without this option the archive's end is the log's end.",
)
@tls_option
@option("--archive", metavar="URL", help="An archive with WAL that the safekeepers do not have.")
@archive_keys_option
@cluster_option
@option(
    "--wait",
    type=Duration(),
    default="5min",
    show_default=True,
    help="How long to retry while the answer is unknown. A standby retries for ever.",
)
@option(
    "--no-partial",
    is_flag=True,
    help="Fetch whole segments only, not the committed part of the current one. This leaves out "
    "the last commits.",
)
@option(
    "--min-lsn",
    metavar="LSN",
    callback=_lsn,
    help="The LSN that `walkeeper settle` printed. Never report the end of WAL below it.",
)
@option(
    "--prefetch",
    type=click.IntRange(0, PREFETCH_MAX),
    default=8,
    show_default=True,
    metavar="N",
    help="Segments to fetch ahead, into pg_wal/.walkeeper_prefetch. 0 turns it off.",
)
@config_option
@click.argument("name", metavar="%f")
@click.argument("path", metavar="%p")
def command(
    safekeepers: tuple[Address, ...] | None,
    archive: str | None,
    cluster: str,
    wait: float,
    no_partial: bool,
    min_lsn: Lsn,
    prefetch: int,
    name: str,
    path: str,
) -> str:
    """Fetch the WAL file %f to %p, as a restore_command of PostgreSQL.

    \b
    In postgresql.conf of a standby, or of a backup that is to be recovered:
      restore_command = '/opt/walkeeper/bin/walkeeper restore
                         --safekeepers h1:5454,h2:5454,h3:5454 %f %p'     (one line)

    It fetches whole segments, .history files, and the committed part of the current segment padded
    with zeros. So a server without its primary reaches the last acknowledged commit. Run
    `walkeeper settle` before you promote.

    \b
    PostgreSQL acts on the exit code:
      0      the file is there
      1      a quorum (and the archive) has no such WAL, or it is in pg_wal: a recovery ends.
             A standby with primary_conninfo also gets it for WAL that was removed
      126    anything else: a recovery stops instead of ending early, and can be started again
    While the answer is unknown, for example without a quorum, it retries and reports every 10 s.
    A standby (standby.signal) retries without limit, a recovery for --wait.

    \b
    It runs as PostgreSQL's user, which must be able to read the installation. An installation in
    a home directory of mode 0700 does not allow that. Make one elsewhere:
      python3 -m venv /opt/walkeeper && /opt/walkeeper/bin/pip install walkeeper
      sudo -u postgres /opt/walkeeper/bin/walkeeper restore --help

    If a quorum of safekeepers is lost for good, --archive alone restores the archived WAL.

    With archive_mode = always it refuses a padded part, as PostgreSQL would archive that as whole.
    """
    from walkeeper_restore.restoring import Restore, Settings
    from walkeeper_restore.spool import key_of
    from walkeeper_restore.wal_source import archived

    source = None if archive is None else archived(archive, cluster)
    options = _options_before(name, path)
    if safekeepers is None:
        alone = _archive_alone(source, key_of(options), not no_partial, min_lsn)
        return alone.run(name, path, wait)
    settings = Settings(
        safekeepers=safekeepers,
        cluster=cluster,
        wait_s=wait,
        partial=not no_partial,
        min_lsn=min_lsn,
        prefetch=prefetch,
        archive=source,
    )
    return Restore(settings, options).run(name, path)


def _archive_alone(
    source: ArchivedWal | None, key: str, partial: bool, min_lsn: Lsn
) -> ArchiveAlone:
    from walkeeper_restore.archive_source import ArchiveAlone

    if source is None:
        raise click.UsageError("name --safekeepers, or --archive, or both")
    return ArchiveAlone(source, key, partial, min_lsn)


def _options_before(name: str, path: str) -> list[str]:
    """Return the words of the command line without %f and %p: they are the same for each file."""
    import sys

    words = sys.argv[1:]
    return words[:-2] if words[-2:] == [name, path] else words
