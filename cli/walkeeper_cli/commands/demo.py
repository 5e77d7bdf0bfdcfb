"""`walkeeper demo`: what it promises, shown on a PostgreSQL that it makes for itself."""

from __future__ import annotations

import click

from walkeeper_cli.options import config_option, option


@click.command("demo", short_help="Show the promises on a PostgreSQL made for it.")
@option(
    "--seconds",
    type=click.FloatRange(2, 3600),
    default=20,
    show_default=True,
    help="How long load runs, all steps together; the steps themselves take about as long.",
)
@option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    envvar="WALKEEPER_DIR",
    help="Where everything goes, and stays.  [default: a temporary directory]",
)
@option(
    "--bindir",
    type=click.Path(exists=True, file_okay=False),
    help="PostgreSQL's programs.  [default: of PATH, of /usr/lib/postgresql, of walkeeper[demo]]",
)
@config_option
def command(seconds: float, directory: str | None, bindir: str | None) -> int:
    """Make a PostgreSQL server, three safekeepers and a proposer, and prove what is promised.

    \b
    Example:
      walkeeper demo --seconds 60

    Under load, a safekeeper is killed, then the proposer; a standby streams from a safekeeper; at
    last the primary is destroyed, and every acknowledged row is looked for in what is left. Each
    claim is checked on the servers; one that does not hold ends it with 1. As root, PostgreSQL runs
    as the user postgres, or nobody.
    """
    from walkeeper_cli.demo.show import DemoSettings, run

    return run(DemoSettings(seconds, directory, bindir))
