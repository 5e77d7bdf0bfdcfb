"""`walkeeper archive`: list, verify, repair and prune an archive. (`restore` fetches from it.)"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from walkeeper_cli.options import (
    HostPorts,
    archive_keys_option,
    config_option,
    json_option,
    option,
    safekeepers_option,
    tls_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.operator_text.counts import counted

Function = TypeVar("Function", bound=Callable[..., Any])


def _which(function: Function) -> Function:
    """Add the argument and the options that choose an archive."""
    for add in (
        option(
            "--system-id",
            type=click.IntRange(1),
            metavar="N",
            help="The system identifier, if the archive has several.",
        ),
        option("--cluster", metavar="NAME", help="The log.  [default: every log in the archive]"),
        archive_keys_option,
        click.argument("url", metavar="URL"),
    ):
        function = add(function)
    return function


@click.group("archive", short_help="List, verify and prune an archive of WAL.")
def command() -> None:
    """Read or prune an archive, which `safekeeper --archive URL` writes to a directory or an object
    store. Its files are
    URL/CLUSTER/SYSTEM_ID/TIMELINE/SEGMENT, with a receipt (SEGMENT.sha256) beside each file.

    \b
      walkeeper archive ls     s3://backups/wal
      walkeeper archive verify file:///srv/wal --cluster main
      walkeeper archive prune  s3://backups/wal --keep /backups/base --dry-run
    \b
    s3://, gs:// and az:// need walkeeper[archive], and take credentials, region and endpoint from
    the variables of their own tools: AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL, ….
    """


@command.command("ls", short_help="List an archive by timeline.")
@_which
@json_option
@config_option
def ls(url: str, cluster: str | None, system_id: int | None, as_json: bool) -> int:
    """List what is archived: the range of LSNs of each timeline, gaps, the tail and sizes.

    \b
    Example:
      walkeeper archive ls s3://backups/wal
    """
    from walkeeper_cli.archive.archive_selection import opened
    from walkeeper_cli.archive.ls import document, text

    found = [document(archive) for archive in opened(url, cluster, system_id)]
    if as_json:
        click.echo(json.dumps(found))
    for each in () if as_json else found:
        click.echo("\n".join(text(each)))
    return 0


@command.command("verify", short_help="Read and compare every file; report problems.")
@_which
@option("--jobs", "-j", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
        help="The number of files to read at once.")  # fmt: skip
@option("--names-only", is_flag=True, help="Look for gaps in the names; read no file.")
@option("--quiet", "-q", is_flag=True, help="Show no progress on stderr.")
@config_option
def verify(
    url: str, cluster: str | None, system_id: int | None, jobs: int, names_only: bool, quiet: bool
) -> int:
    """Read every file and compare it with its receipt, its name and its neighbours.

    Print a line for each problem: a flipped byte, a missing segment or .history file, a gap
    between timelines, WAL of another system. Exit with 1 if there are any. Change nothing.

    \b
    Example:
      walkeeper archive verify file:///srv/wal
    """
    from walkeeper_archive.verification import survey
    from walkeeper_archive.verification import verify as problems_of
    from walkeeper_cli.archive.archive_selection import Progress, opened

    problems = 0
    for archive in opened(url, cluster, system_id):
        contents = survey(archive)
        progress = Progress(archive.url, len(contents.files()), quiet=quiet or names_only)
        for problem in problems_of(
            archive, contents, jobs=jobs, read_all=not names_only, on_read=progress.add
        ):
            problems += 1
            progress.clear()
            click.echo(problem.text)
        progress.end()
    if not problems and not quiet:
        click.echo("no problem was found", err=True)
    if problems:
        what = counted(problems, "problem", "problems")
        click.echo(f"walkeeper: error: {what} in {url}", err=True)
    return 1 if problems else 0


@command.command("repair", short_help="Put back what the safekeepers still have.")
@_which
@safekeepers_option
@tls_option
@option("--jobs", "-j", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
        help="The number of files to read at once.")  # fmt: skip
@option("--dry-run", "-n", is_flag=True, help="Print the files to repair; change nothing.")
@config_option
def repair(
    url: str,
    cluster: str | None,
    system_id: int | None,
    safekeepers: tuple[Address, ...],
    jobs: int,
    dry_run: bool,
) -> int:
    """Find damaged and missing segments and histories, and put them back from the safekeepers.

    It reads the whole archive, as verify does. A file comes from the safekeepers as committed WAL.
    If its receipt can be read, the bytes must match it. A damaged object is deleted only when its
    replacement is in memory. Exit with 1 if a problem is left.

    \b
    Example:
      walkeeper archive repair file:///srv/wal --safekeepers h1:5454,h2:5454,h3:5454
    """
    from walkeeper_admin.archive_repair import repair_all
    from walkeeper_cli.archive.archive_selection import only

    archive = only(url, cluster, system_id)
    repairs = repair_all(archive, safekeepers, click.echo, jobs=jobs, dry_run=dry_run)
    repaired, left = asyncio.run(repairs)
    were = counted(repaired, "file was", "files were")
    click.echo(f"{were} repaired, {counted(left, 'is', 'are')} left", err=True)
    return 1 if left else 0


@command.command("prune", short_help="Delete WAL that no base backup needs.")
@_which
@option("--keep", "keeps", multiple=True, required=True, metavar="WHAT",
        help="A base backup (its directory, backup_label, backup_manifest or base.tar), a "
        "directory of them, an LSN, a segment or a time (7d). Repeat it for several; the oldest "
        "decides.",
)  # fmt: skip
@option("--safekeepers", type=HostPorts(), default=(), metavar="H:P,H:P,H:P",
        help="Every safekeeper of the log; each must answer. WAL that its slots, readers and "
        "members still need stays as well.",
)  # fmt: skip
@tls_option
@option("--dry-run", "-n", is_flag=True, help="Print the files to delete; delete none.")
@option("--quiet", "-q", is_flag=True, help="Show no progress on stderr.")
@config_option
def prune(
    url: str,
    cluster: str | None,
    system_id: int | None,
    keeps: tuple[str, ...],
    safekeepers: tuple[Address, ...],
    dry_run: bool,
    quiet: bool,
) -> int:
    """Delete whole segments below everything that --keep names, lowest first.

    With --safekeepers (or WALKEEPER_SAFEKEEPERS) the command also keeps WAL that their replication
    slots, connected standbys and tools, and lagging members still need from the archive.

    A base backup needs all WAL from its start on. So name the oldest one that you keep, or the
    directory in which all of them are. A time alone keeps WAL that was archived since. That is of
    use only with a base backup that is as old. Histories stay, and so does the newest timeline's
    last segment.

    \b
    Examples:
      walkeeper archive prune s3://backups/wal --keep /backups/base --keep 7d --dry-run
      walkeeper archive prune s3://backups/wal --keep 000000010000000000000003.00000028.backup
      walkeeper archive prune /srv/wal --keep /backups/base --safekeepers h1:5454,h2:5454,h3:5454
    """
    from walkeeper_cli.archive.archive_selection import Progress, only
    from walkeeper_cli.archive.keep_values import parse_keep
    from walkeeper_cli.archive.prune import plan
    from walkeeper_cli.archive.prune import prune as carry_out

    wanted = [each for given in keeps for each in parse_keep(given)]
    archive = only(url, cluster, system_id)
    if safekeepers:
        from walkeeper_cli.archive.wal_needs import asked

        wanted += asked(safekeepers, archive)
    pruning = plan(archive, wanted, time.time())
    verb = "would delete" if dry_run else "deleting"
    files = counted(pruning.files, "file", "files")
    click.echo(
        f"{archive.url}: {verb} {files}, {pruning.size / 1e6:,.0f} MB, all below "
        f"{pruning.keep_lsn} ({pruning.oldest_kept}), which {pruning.because} needs"
    )
    if not safekeepers:
        click.echo(
            "slots, standbys and members may need WAL that is among it: add --safekeepers",
            err=True,
        )
    for found in pruning.objects if dry_run else ():
        if not found.is_receipt:
            click.echo(f"  {found.path}")
    if not dry_run:
        progress = Progress("deleted", pruning.files, quiet=quiet)
        carry_out(archive, pruning, progress.add)
        progress.end()
    return 0
