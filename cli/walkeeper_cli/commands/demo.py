"""`walkeeper demo`: the guarantees, proved on a PostgreSQL server that it makes."""

from __future__ import annotations

import click

from walkeeper_cli.options import config_option, option


@click.command("demo", short_help="Prove the guarantees on a temporary PostgreSQL.")
@option(
    "--seconds",
    type=click.FloatRange(2, 3600),
    default=20,
    show_default=True,
    help="How long the load runs in all steps together. The steps take about as long again.",
)
@option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    envvar="WALKEEPER_DIR",
    help="A directory for all files, which stays.  [default: a temporary directory]",
)
@option(
    "--bindir",
    type=click.Path(exists=True, file_okay=False),
    help="PostgreSQL's programs.  [default: of PATH, of /usr/lib/postgresql, of walkeeper[demo]]",
)
@config_option
def command(seconds: float, directory: str | None, bindir: str | None) -> int:
    """Make a PostgreSQL server, three safekeepers and a proposer, and prove the guarantees.

    \b
    Example:
      walkeeper demo --seconds 60

    Under load, the demo kills a safekeeper and then the proposer. A standby streams from a
    safekeeper. At last the demo destroys the primary, and looks for every acknowledged row on the
    survivors. It checks each claim on the servers, and exits with 1 if one does not hold. Under
    root, PostgreSQL runs as the user postgres or nobody.
    """
    from walkeeper_cli.certs.local_files import local_tls
    from walkeeper_lab.demo.demo_run import DemoSettings, run

    return run(DemoSettings(seconds, directory, bindir, local_tls))
