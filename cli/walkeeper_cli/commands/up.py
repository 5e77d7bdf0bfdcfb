"""`walkeeper up`: everything on one machine, for an existing PostgreSQL."""

from __future__ import annotations

import asyncio

import click

from walkeeper_cli.options import (
    HostPort,
    Timeout,
    allow_unauthenticated_option,
    config_option,
    dsn_option,
    http_token_option,
    option,
)
from walkeeper_common.addresses import Address, refuse_open_door
from walkeeper_common.shell.http.http_locks import HTTP_LOCK, is_locked

SAFEKEEPERS = 3


@click.command("up", short_help="Run everything on one machine, for an existing PostgreSQL.")
@option(
    "--data-dir",
    type=click.Path(file_okay=False),
    required=True,
    help="The directory for all files.",
)
@dsn_option
@option(
    "--base-port",
    type=click.IntRange(1, 65536 - SAFEKEEPERS),
    default=5454,
    show_default=True,
    help=f"The first safekeeper's port on 127.0.0.1; the others have the next {SAFEKEEPERS - 1}.",
)
@option(
    "--http",
    type=HostPort(port_min=0),
    metavar="HOST:PORT",
    help="Serve a web page of the whole cluster here.",
)
@http_token_option
@allow_unauthenticated_option
@option(
    "--stay-attached",
    is_flag=True,
    help="Do not detach at the end; commits hang until the next start.",
)
@option("--replace", is_flag=True, help="Replace a synchronous_standby_names that is not empty.")
@option(
    "--timeout",
    type=Timeout(),
    default="60s",
    show_default=True,
    help="How long each daemon may take to get ready.",
)
@config_option
def command(
    data_dir: str,
    dsn: str,
    base_port: int,
    http: Address | None,
    allow_unauthenticated: bool,
    stay_attached: bool,
    replace: bool,
    timeout: float,
) -> int:
    """Run three safekeepers and a proposer for an existing PostgreSQL, and attach it.

    \b
    Example:
      walkeeper up --data-dir ~/walkeeper --dsn 'host=127.0.0.1 user=postgres'

    It makes certificates in DIR/tls, and all daemons use them (docs/tls.md): give DIR/tls/admin.pem
    to other commands with --tls.

    Ctrl-C detaches, if `up` has attached, and stops. The same command resumes. `up` restarts a
    daemon that dies. Use it to try walkeeper on a server of yours, and for development. A quorum on
    one machine does not survive the loss of that machine.
    """
    from walkeeper_cli.certs.local_files import local_tls
    from walkeeper_lab.up import UpSettings, run

    risk = "see the members and positions of the log"
    is_safe = allow_unauthenticated or is_locked()
    refuse_open_door(http, "--http", risk, allowed=is_safe, lock=HTTP_LOCK)
    settings = UpSettings(
        data_dir, dsn, base_port, stay_attached, replace, timeout, http, local_tls
    )
    return asyncio.run(run(settings))
