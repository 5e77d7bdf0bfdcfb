"""`walkeeper restore`: one WAL file for restore_command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from walkeeper_cli.options import (
    Duration,
    HostPorts,
    cluster_option,
    config_option,
    option,
)
from walkeeper_common.addresses import Address

if TYPE_CHECKING:
    from walkeeper_common.lsn import Lsn

PREFETCH_MAX = 256


def _lsn(ctx: click.Context, param: click.Parameter, value: str | None) -> Lsn:
    from walkeeper_common.lsn import ZERO_LSN, Lsn

    try:
        return ZERO_LSN if value is None else Lsn.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


@click.command("restore", short_help="Fetch one WAL file, for restore_command.")
@option(
    "--safekeepers",
    type=HostPorts(),
    metavar="H:P,H:P,H:P",
    help="Every safekeeper of the log. Without: what is in the archive, and that is the end.",
)
@option("--archive", metavar="URL", help="Look here too for what the safekeepers do not have.")
@cluster_option
@option(
    "--wait",
    type=Duration(),
    default="5min",
    show_default=True,
    help="How long to ask again while no answer can be known. A standby asks for ever.",
)
@option(
    "--no-partial",
    is_flag=True,
    help="Whole segments only, not the committed part of the current one. What is left out is "
    "what was committed last.",
)
@option(
    "--min-lsn",
    metavar="LSN",
    callback=_lsn,
    help="Never say that there is no more WAL below this: the LSN that `walkeeper settle` printed.",
)
@option(
    "--prefetch",
    type=click.IntRange(0, PREFETCH_MAX),
    default=8,
    show_default=True,
    metavar="N",
    help="Segments to fetch ahead, into pg_wal/.walkeeper_prefetch. 0: none.",
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
    """Place the WAL file %f at %p: what PostgreSQL's restore_command is for.

    \b
    In postgresql.conf of a standby, or of a backup that is to be recovered:
      restore_command = '/opt/walkeeper/bin/walkeeper restore
                         --safekeepers h1:5454,h2:5454,h3:5454 %f %p'     (one line)

    It gives whole segments, .history files, and the committed part of the current segment padded
    with zeros, so that a server without its primary comes to the last acknowledged commit. Run
    `walkeeper settle` before you promote.

    \b
    Exit codes, which PostgreSQL takes for verdicts:
      0      the file is there
      1      a quorum (and the archive) says that there is no such WAL: a recovery ends
      126    anything else: a recovery stops instead of ending early, and can be started again
    What cannot be known, without a quorum say, is asked again and said every 10 s: by a standby
    (standby.signal) without limit, else for --wait.

    \b
    It runs as PostgreSQL's user, who must be able to read the installation. A home directory of
    mode 0700 does not allow that; make one outside, for everybody:
      python3 -m venv /opt/walkeeper && /opt/walkeeper/bin/pip install walkeeper
      sudo -u postgres /opt/walkeeper/bin/walkeeper restore --help

    When no quorum of safekeepers is left for good, --archive alone brings back what was archived.

    With archive_mode = always a padded part would be archived as a whole segment: it is refused.
    """
    from walkeeper_cli.restore.archive_source import ArchiveAlone, archived
    from walkeeper_cli.restore.restoring import Restore, Settings
    from walkeeper_cli.restore.spool import key_of

    source = None if archive is None else archived(archive, cluster)
    key = key_of(_options_before(name, path))
    if safekeepers is None:
        if source is None:
            raise click.UsageError("say --safekeepers, or --archive, or both")
        return ArchiveAlone(source, key, not no_partial, min_lsn).run(name, path, wait)
    settings = Settings(
        safekeepers=safekeepers,
        cluster=cluster,
        wait_s=wait,
        partial=not no_partial,
        min_lsn=min_lsn,
        prefetch=prefetch,
        archive=source,
    )
    return Restore(settings, key).run(name, path)


def _options_before(name: str, path: str) -> list[str]:
    """The command line as PostgreSQL repeats it for each file."""
    import sys

    words = sys.argv[1:]
    return words[:-2] if words[-2:] == [name, path] else words
