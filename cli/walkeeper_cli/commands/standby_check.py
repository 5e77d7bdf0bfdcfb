"""`walkeeper standby-check`: compare a server's WAL with the log, in ExecStartPre and hooks."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import TYPE_CHECKING

import click

from walkeeper_cli.options import (
    Duration,
    archive_keys_option,
    cluster_option,
    config_option,
    option,
    safekeepers_option,
    tls_option,
)
from walkeeper_common.addresses import Address
from walkeeper_common.operator_text.printable import in_one_line

if TYPE_CHECKING:  # a command that only says its usage imports none of it
    from walkeeper_restore.standby_check.checking import Checked

FIT, ANOTHER_BRANCH, CANNOT_KNOW = 0, 1, 3
SIGNALS = ("standby.signal", "recovery.signal")
PAUSE_S = 0.5


@click.command("standby-check", short_help="Check that a server's WAL is the log's.")
@option(
    "--pgdata",
    "-D",
    type=click.Path(),
    metavar="DIR",
    help="The server's data directory.  [default: $PGDATA]",
)
@safekeepers_option
@tls_option
@option("--archive", metavar="URL", help="An archive with WAL that the safekeepers do not have.")
@archive_keys_option
@cluster_option
@option(
    "--wait",
    type=Duration(),
    default="10s",
    show_default=True,
    help="How long to retry while the answer is unknown.",
)
@option(
    "--standby-only",
    is_flag=True,
    help="Exit 0 without a check if DIR has neither standby.signal nor recovery.signal, so that "
    "one unit serves primary and standbys.",
)
@option(
    "--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="Print JSON, for programs."
)
@config_option
def command(
    pgdata: str | None,
    safekeepers: tuple[Address, ...],
    archive: str | None,
    cluster: str,
    wait: float,
    standby_only: bool,
    as_json: bool,
) -> int:
    """Compare a server's WAL with the log, byte for byte, before it becomes a standby.

    Two standbys that are promoted at one place both take the next timeline number, so PostgreSQL
    cannot tell them apart. The one that the log did not follow would come back as a standby without
    an error. It would have rows that nobody acknowledged, and lack rows that were acknowledged.
    pg_rewind says "no rewind required". This command compares the histories with their reasons, the
    checkpoint in pg_control, the page at minRecoveryPoint and the last pages in pg_wal.

    It reads only, runs as PostgreSQL's user, and works while the server is stopped or running.
    `walkeeper restore` as restore_command makes the same check at each start of the server, so
    this is for servers without it, and for hooks:

    \b
    In the server's systemd unit:
      ExecStartPre=/opt/walkeeper/bin/walkeeper standby-check -D /var/lib/postgresql/15/main
                   --standby-only --safekeepers h1:5454,h2:5454,h3:5454       (one line)

    \b
    Exit codes:
      0      fit: its WAL is the log's
      1      another branch: the text names the place where they differ, and what to do
      2      usage
      3      cannot be known: no quorum of safekeepers, WAL that is not kept any more, no pg_control
    """
    from walkeeper_common.ancestry.ancestry_facts import AnotherBranch, SameBranch
    from walkeeper_restore.standby_check.checking import explained

    pgdata = pgdata or os.environ.get("PGDATA")
    if not pgdata:
        raise click.UsageError("name the server's data directory with -D, or set PGDATA")
    if standby_only and not any(os.path.exists(os.path.join(pgdata, name)) for name in SIGNALS):
        said = "neither standby.signal nor recovery.signal: no check"
        unasked = {"cluster": cluster, "pgdata": pgdata, "verdict": "none", "text": said}
        click.echo(json.dumps(unasked) if as_json else f"standby-check: {pgdata}: {said}")
        return FIT
    checked = _checked(pgdata, safekeepers, archive, cluster, wait)
    text = explained(checked.verdict, cluster)
    if as_json:
        click.echo(json.dumps(_document(checked, pgdata, cluster, text)))
    is_fit = isinstance(checked.verdict, SameBranch)
    if not as_json or not is_fit:
        click.echo(f"standby-check: {pgdata}: {text}", err=not is_fit)
    if is_fit:
        return FIT
    return ANOTHER_BRANCH if isinstance(checked.verdict, AnotherBranch) else CANNOT_KNOW


def _checked(
    pgdata: str, safekeepers: tuple[Address, ...], archive: str | None, cluster: str, wait_s: float
) -> Checked:
    """Check the server. Repeat that for `wait_s` while the answer may become known.

    Every failure is Unknown, and only a comparison gives another verdict.
    """
    from walkeeper_common.ancestry.ancestry_facts import Unknown
    from walkeeper_common.errors import WalkeeperError
    from walkeeper_restore.standby_check.checking import Checked, Where, check
    from walkeeper_restore.standby_check.data_directory import LocalFiles
    from walkeeper_restore.wal_source import ArchivedWal

    source = None if archive is None else partial(ArchivedWal, archive, cluster)
    where = Where(safekeepers, cluster, source)
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            checked = check(LocalFiles(pgdata), where)
        except (WalkeeperError, OSError, ImportError) as error:
            return Checked(Unknown(in_one_line(error)))
        verdict = checked.verdict
        is_open = isinstance(verdict, Unknown) and not verdict.out_of_reach
        if not is_open or time.monotonic() >= deadline_s:
            return checked
        time.sleep(PAUSE_S)


def _document(checked: Checked, pgdata: str, cluster: str, text: str) -> dict[str, object]:
    from walkeeper_common.ancestry.ancestry_facts import AnotherBranch, SameBranch

    server, log, verdict = checked.server, checked.log, checked.verdict
    same = verdict if isinstance(verdict, SameBranch) else None
    other = verdict if isinstance(verdict, AnotherBranch) else None
    end_lsn = None if server is None else server.end_lsn
    return {
        "cluster": cluster,
        "pgdata": pgdata,
        "verdict": "same" if same else "another" if other else "unknown",
        "text": text,
        "timeline": None if server is None else server.timeline,
        "end_lsn": None if end_lsn is None else str(end_lsn),
        "log_lsn": None if log is None else str(log.end_lsn),
        "compared_lsn": None if same is None else str(same.through_lsn),
        "ahead_bytes": None if same is None else same.ahead_bytes,
        "differs_lsn": None if other is None or other.lsn is None else str(other.lsn),
        "can_rewind": None if other is None else other.can_rewind,
    }
