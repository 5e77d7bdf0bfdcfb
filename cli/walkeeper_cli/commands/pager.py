"""`walkeeper pager`: the reference pager's daemon, and its client."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from walkeeper_cli.history.wal_options import LsnText
from walkeeper_cli.options import (
    HostPort,
    HostPorts,
    Size,
    Timeout,
    allow_unauthenticated_option,
    cluster_option,
    config_option,
    http_tls_option,
    http_token_option,
    json_option,
    log_json_option,
    log_level_option,
    option,
    process_option,
    tls_option,
    use_https,
    use_token,
)
from walkeeper_common.addresses import Address, refuse_open_door
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.http.http_locks import HTTP_LOCK, is_locked

AT_DEFAULT = "127.0.0.1:5460"


@click.group("pager", invoke_without_command=True, short_help="Serve pages as of any recent LSN.")
@option("--safekeepers", type=HostPorts(), metavar="H:P,H:P,H:P", help="The safekeepers to follow.")
@tls_option
@option(
    "--base",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="A base backup (plain format) of this cluster. The pager reads it for as long as it runs, "
    "and never writes to it.",
)
@option(
    "--data-dir",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="The directory of the pager's own files.",
)
@cluster_option
@option(
    "--history",
    type=Size(),
    default="256MB",
    show_default=True,
    metavar="SIZE",
    help="Serve pages as of any LSN within the last SIZE of WAL.",
)
@option("--archive", metavar="URL", help="The archive with WAL that safekeepers no longer have.")
@option(
    "--http",
    type=HostPort(port_min=0),
    default=AT_DEFAULT,
    show_default=True,
    metavar="HOST:PORT",
    help="Serve /page, /status, /metrics, /health and /ready here. Without --http-token or "
    "--http-tls every client that reaches this port can read every table.",
)
@http_token_option
@http_tls_option
@allow_unauthenticated_option
@log_json_option
@log_level_option
@config_option
@click.pass_context
def command(
    ctx: click.Context, safekeepers: tuple[Address, ...] | None, base: str | None,
    data_dir: str | None, cluster: str, history: int, archive: str | None, http: Address,
    allow_unauthenticated: bool, log_json: bool, log_level: str,
) -> int | None:  # fmt: skip
    """Follow the log and serve pages as they are or were: page(relation, fork, block, LSN).

    \b
    Examples:
      pg_basebackup -D /srv/base -c fast
      walkeeper pager --safekeepers h1:5454,h2:5454,h3:5454 --base /srv/base --data-dir /srv/pager
      walkeeper pager get base/5/16384 0 --lsn 0/5A3F2B8 -o page.bin
      walkeeper pager status

    The pager applies committed records of the safekeepers to the base backup's pages. It keeps the
    changes of the last --history of WAL, and resumes where it stopped. It replays heap pages,
    sequences and full-page images. It refuses, with the reason, a page that another kind of record
    has changed since, such as most index pages (docs/pager.md).
    """
    if ctx.invoked_subcommand is not None:
        return None
    wanted = {"--safekeepers": safekeepers, "--base": base, "--data-dir": data_dir}
    if missing := [name for name, value in wanted.items() if not value]:
        raise click.UsageError(f"Missing option {', '.join(map(repr, missing))}.")
    assert safekeepers and base and data_dir, f"{wanted=}"
    is_safe = allow_unauthenticated or is_locked()
    refuse_open_door(http, "--http", "read every table", allowed=is_safe, lock=HTTP_LOCK)
    from walkeeper_pager.pager_daemon import PagerSettings, run

    return run(
        PagerSettings(
            safekeepers, cluster, base, Path(os.path.abspath(data_dir)), history, archive, http,
            log_level,
            log_json,
        )
    )  # fmt: skip


_at_option = option(
    "--at", type=HostPort(), default=AT_DEFAULT, show_default=True, metavar="HOST:PORT",
    help="The address of the pager's --http.",
)  # fmt: skip
_token_option = process_option(
    "--http-token", use=use_token, type=click.Path(dir_okay=False), metavar="FILE",
    help="Send the first token in this file. The pager has to have it in its own file.",
)  # fmt: skip
_https_option = process_option(
    "--http-tls", use=use_https, is_flag=True,
    help="Speak TLS, as the pager does with --http-tls. --tls names the CA and a certificate.",
)  # fmt: skip


@command.command("get", short_help="Write one page.")
@click.argument("relation")
@click.argument("block", type=click.IntRange(0))
@_at_option
@_token_option
@_https_option
@tls_option
@option(
    "--fork",
    type=click.Choice(["main", "init"]),
    help="The fork.  [default: that of the file's name, or main]",
)
@option(
    "--lsn", type=LsnText(), metavar="LSN", help="The LSN of the page.  [default: the newest one]"
)
@option(
    "--timeout",
    type=Timeout(),
    default="10s",
    show_default=True,
    help="How long to wait for a future LSN.",
)
@option("--output", "-o", metavar="FILE", help="The file for the 8192 bytes.  [default: stdout]")
@config_option
def get(
    relation: str, block: int, at: Address, fork: str | None, lsn: Lsn | None, timeout: float,
    output: str | None,
) -> int:  # fmt: skip
    """Write one page as of an LSN, after every record that ends at or before it.

    RELATION is tablespace/database/relfilenode as pg_waldump prints it (1663/5/16384), or what
    pg_relation_filepath() says (base/5/16384).

    \b
    Example:
      walkeeper pager get base/5/16384 0 --lsn 0/5A3F2B8 | xxd | head
    """
    from walkeeper_pager.page_requests import fetch_page

    page, found = fetch_page(at, relation, block, fork=fork, lsn=lsn, timeout_s=timeout)
    if output is None:
        sys.stdout.buffer.write(page)
        sys.stdout.buffer.flush()
        return 0
    try:
        Path(output).write_bytes(page)
    except OSError as error:
        raise click.ClickException(f"{output}: {error.strerror}") from error
    click.echo(f"block {block} of {relation} as of {found}: {output}", err=True)
    return 0


@command.command("status", short_help="Show the pager's position and its safekeeper.")
@_at_option
@_token_option
@_https_option
@tls_option
@json_option
@config_option
def status(at: Address, as_json: bool) -> int:
    """Show the received and applied LSNs, the oldest LSN of a page, and the safekeeper that the
    pager follows.

    \b
    Example:
      walkeeper pager status --at 127.0.0.1:5460
    """
    from walkeeper_pager.page_requests import fetch_status

    found: dict[str, Any] = fetch_status(at)
    if as_json:
        click.echo(json.dumps(found))
    for name, value in () if as_json else found.items():
        click.echo(f"{name:<14} {'-' if value is None else value}")
    return 0
