"""`walkeeper status`: positions of all members, and the verdict."""

from __future__ import annotations

import asyncio
import json
import time

import click

from walkeeper_cli.options import (
    Dsn,
    Timeout,
    cluster_option,
    config_option,
    option,
    safekeepers_option,
    tls_option,
)
from walkeeper_common.addresses import Address

WATCH_S = 2.0


@click.command("status", short_help="Show the positions of all members, and the blocking one.")
@safekeepers_option
@tls_option
@cluster_option
@option(
    "--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="Print JSON, for programs."
)
@option(
    "--check",
    is_flag=True,
    help="Print one line. Exit with 0 if ok, 1 warning, 2 critical, 3 unknown.",
)
@option(
    "--ignore",
    metavar="CODE",
    multiple=True,
    help="With --check: a warning with this code, such as archive, does not count. Critical "
    "reasons always count. Repeat it for several.",
)
@option(
    "--dsn",
    type=Dsn(),
    metavar="DSN",
    help="Ask this primary instead of the proposer.",
)
@option("--watch", is_flag=True, help="Repeat every 2 s, until Ctrl-C.")
@option(
    "--timeout",
    type=Timeout(),
    default="3s",
    show_default=True,
    help="How long to wait for each answer.",
)
@config_option
def command(
    safekeepers: tuple[Address, ...],
    cluster: str,
    as_json: bool,
    check: bool,
    ignore: tuple[str, ...],
    dsn: str | None,
    watch: bool,
    timeout: float,
) -> int:
    """Show a line for each safekeeper, and one for the cluster that names a blocking member.

    \b
    Examples:
      walkeeper status --safekeepers h1:5454,h2:5454,h3:5454 --watch
      walkeeper status --safekeepers h1:5454,h2:5454,h3:5454 --check || page somebody
    """
    from walkeeper_admin.log_verdict import WARNINGS
    from walkeeper_admin.status import gather, gather_fresh, table, verdict
    from walkeeper_common.operator_text.printable import printable

    if ignore and not check:
        raise click.UsageError("--ignore needs --check")
    if unknown := sorted(set(ignore) - set(WARNINGS)):
        raise click.UsageError(
            f"--ignore: no warning has the code {unknown[0]}; the codes are {', '.join(WARNINGS)}"
        )

    while True:
        asking = (gather if watch else gather_fresh)(safekeepers, cluster, timeout, dsn)
        document = asyncio.run(asking)
        if watch and not as_json:
            click.clear()  # does nothing unless it is a terminal
        code, sentence = verdict(document, ignore)
        if as_json:
            click.echo(json.dumps(document))
        else:
            click.echo(printable(sentence) if check else table(document))
        if not watch:
            return code if check else 0
        time.sleep(WATCH_S)
