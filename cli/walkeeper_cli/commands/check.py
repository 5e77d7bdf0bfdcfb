"""`walkeeper check`: a list of what a working installation needs."""

from __future__ import annotations

import asyncio
import json

import click

from walkeeper_cli.options import (
    Dsn,
    Duration,
    SlotName,
    Timeout,
    archive_keys_option,
    cluster_option,
    config_option,
    option,
    safekeepers_option,
    slot_of,
    tls_option,
)
from walkeeper_common.addresses import Address


@click.command("check", short_help="Check all that a working installation needs.")
@safekeepers_option
@tls_option
@cluster_option
@option("--dsn", type=Dsn(), metavar="DSN", help="The primary; a marker is committed there.")
@option("--slot", type=SlotName(), metavar="NAME", help="The proposer's slot at the primary.")
@option("--archive", metavar="URL", help="The safekeepers' archive; a marker comes back from it.")
@archive_keys_option
@option(
    "--standby",
    "standbys",
    type=Dsn(),
    multiple=True,
    metavar="DSN",
    help="A standby whose WAL is compared with the log. Repeat it for several.",
)
@option(
    "--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="Print JSON, for programs."
)
@option("--quiet", "-q", is_flag=True, help="Print only what is not OK and not ignored.")
@option(
    "--ignore",
    metavar="CHECK",
    multiple=True,
    help="A WARNING of this check, such as archive or disk-space, does not count for the exit "
    "code. FAILED always counts. Repeat it for several.",
)
@option(
    "--timeout",
    type=Timeout(),
    default="10s",
    show_default=True,
    help="How long to wait for each answer, and for the marker's commit.",
)
@option(
    "--archive-wait",
    type=Duration(),
    default="2min",
    show_default=True,
    help="How long to wait until the marker is archived.",
)
@config_option
def command(
    safekeepers: tuple[Address, ...],
    cluster: str,
    dsn: str | None,
    slot: str | None,
    archive: str | None,
    standbys: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    ignore: tuple[str, ...],
    timeout: float,
    archive_wait: float,
) -> int:
    """Print OK, WARNING or FAILED for each part of an installation, with the reason and a remedy.

    Members, disks, clocks, versions, slots and readers are checked by what the safekeepers report.
    With --tls the ends of the certificates are checked: this file's, its CA's, each safekeeper's.
    With --dsn the primary's settings are checked, and a marker is committed. It is followed to a
    quorum's disks, to the archive, and back through `walkeeper restore`.

    \b
    Examples:
      walkeeper check --safekeepers h1:5454,h2:5454,h3:5454
      walkeeper check --safekeepers … --dsn service=prod --archive s3://backups/wal
      walkeeper check --safekeepers … --dsn service=prod --ignore archive
    \b
    Exit codes:
      0      everything is OK, or ignored
      1      at least one WARNING
      2      at least one FAILED, or usage
    """
    from walkeeper_admin.check.all_checks import CheckSettings, run
    from walkeeper_admin.check.finding import WITH_WARNINGS, Finding, counts, document, shown, worst

    if unknown := sorted(set(ignore) - set(WITH_WARNINGS)):
        raise click.UsageError(
            f"--ignore: no check with warnings is named {unknown[0]}; the names are "
            f"{', '.join(WITH_WARNINGS)}"
        )
    settings = CheckSettings(
        safekeepers, cluster, dsn, slot_of(slot, cluster), archive, standbys, timeout, archive_wait
    )
    findings: list[Finding] = []

    async def show_each() -> None:
        async for finding in run(settings):
            findings.append(finding)
            if not as_json and not (quiet and not counts(finding, ignore)):
                click.echo(shown(finding))

    asyncio.run(show_each())
    if as_json:
        click.echo(json.dumps(document(findings, ignore)))
    return int(worst(findings, ignore))
