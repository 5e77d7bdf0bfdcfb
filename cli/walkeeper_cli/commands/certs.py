"""`walkeeper certs`: the certificate authority of a cluster and the TLS files of its daemons."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING

import click

from walkeeper_cli.options import config_option, option
from walkeeper_common.access.certificate_identity import ALL_CLUSTERS, identity_uri
from walkeeper_common.access.identity import Role
from walkeeper_common.cluster_name import check_cluster_name
from walkeeper_common.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from walkeeper_cli.certs.authority import Shown

directory_option = option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    required=True,
    help="The directory of the authority. Its key stays there.",
)
file_argument = click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False)
)


@click.group("certs", short_help="Make certificates for TLS.")
def command() -> None:
    """Make a certificate authority, and one TLS file for each daemon.

    A daemon or command takes its file with --tls (docs/tls.md).

    \b
    Three machines:
      walkeeper certs init  --dir ca
      walkeeper certs issue --dir ca --role safekeeper --name 1 --host h1.example --out sk1.pem
      walkeeper certs issue --dir ca --role safekeeper --name 2 --host h2.example --out sk2.pem
      walkeeper certs issue --dir ca --role safekeeper --name 3 --host h3.example --out sk3.pem
      walkeeper certs issue --dir ca --role proposer --name db1 --cluster main --out proposer.pem
      walkeeper certs issue --dir ca --role admin --name alice --out alice.pem

    Copy each file to its machine, with mode 0600. A file is valid for 90 days. Renew it after 60.
    """


@command.command("init")
@directory_option
@config_option
def init(directory: str) -> int:
    """Make the authority."""
    from walkeeper_cli.certs.authority import Authority

    Authority.create(directory, _now())
    click.echo(f"made a certificate authority in {directory}")
    return 0


@command.command("issue")
@directory_option
@option(
    "--role",
    "roles",
    type=click.Choice([str(role) for role in Role]),
    multiple=True,
    required=True,
    help="The role of the file's owner. More than one may be given.",
)
@option("--name", required=True, help="The owner's name; a safekeeper's is its id.")
@option(
    "--cluster",
    default=ALL_CLUSTERS,
    show_default=True,
    metavar="NAME",
    help="The one cluster that the owner may reach; * for all.",
)
@option(
    "--host",
    "hosts",
    multiple=True,
    help="A name or an address at which a safekeeper is reached. More than one may be given.",
)
@option("--out", type=click.Path(dir_okay=False), required=True, help="The file to write.")
@config_option
def issue(
    directory: str,
    roles: tuple[str, ...],
    name: str,
    cluster: str,
    hosts: tuple[str, ...],
    out: str,
) -> int:
    """Write one TLS file: a private key, its certificate and the CA."""
    from walkeeper_cli.certs.authority import Authority

    if cluster != ALL_CLUSTERS:
        check_cluster_name(cluster)
    if Role.SAFEKEEPER in roles and not hosts:
        raise click.UsageError("a safekeeper's file needs --host: clients compare it")
    uris = [identity_uri(cluster, Role(role), name) for role in roles]
    if os.path.lexists(out):
        raise Refused(f"{out} exists; renew it with walkeeper certs renew, or choose another --out")
    _print(Authority(directory, _now()).issue(out, uris, hosts))
    return 0


@command.command("renew")
@directory_option
@option("--all", "is_forced", is_flag=True, help="Renew also files that are not due yet.")
@option(
    "--only-own-ca",
    "only_own",
    is_flag=True,
    help="Trust no other authority any more: the last step of a change of authority. Needs --all.",
)
@file_argument
@config_option
def renew(directory: str, is_forced: bool, only_own: bool, files: tuple[str, ...]) -> int:
    """Replace each file that has reached two thirds of its time. Its names and roles stay.

    The other files get the authority's list of revoked certificates, if it has one. A file still
    trusts the other authorities that are in it.
    """
    from walkeeper_cli.certs.authority import Authority

    if only_own and not is_forced:
        raise click.UsageError("--only-own-ca changes every file: give --all, too")
    authority = Authority(directory, _now())
    for path in files:
        is_renewed = authority.renew(path, only_own=only_own) if is_forced else None
        _print(is_renewed or authority.refresh(path))
    return 0


@command.command("revoke")
@directory_option
@click.argument("certificates", nargs=-1, required=True, metavar="NAME|SERIAL|FILE...")
@config_option
def revoke(directory: str, certificates: tuple[str, ...]) -> int:
    """Add certificates to the authority's list of revoked ones, crl.pem.

    A NAME is that of an owner, such as alice or safekeeper/1: all valid certificates with it are
    revoked. A SERIAL is what walkeeper certs show prints.

    A daemon knows of it once its own file has the list. So run walkeeper certs renew for each file
    afterwards, and copy the files to their machines.
    """
    from walkeeper_cli.certs.authority import Authority

    authority = Authority(directory, _now())
    new = authority.revoke(certificates)
    for each in new:
        click.echo(f"revoked {each.serial:X}{_shown_uris(each.uris)}")
    if not new:
        click.echo("revoked already")
    click.echo(
        f"now give each daemon the list: walkeeper certs renew --dir {directory} FILE..., and copy "
        "the files; docs/tls.md#a-stolen-file"
    )
    return 0


@command.command("show")
@option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False),
    help="The directory of an authority: print the certificates that it has revoked.",
)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@config_option
def show_command(directory: str | None, files: tuple[str, ...]) -> int:
    """Print the names, the roles and the end of each file, and what its lists revoke."""
    from walkeeper_cli.certs.authority import Authority, revoked_in, show

    if not files and directory is None:
        raise click.UsageError("name a file, or --dir for the list of an authority")
    for path in files:
        _print(show(path))
        for serial, since in revoked_in(path):
            _print_revoked(path, serial, (), since)
    if directory is not None:
        for issued, since in Authority(directory, _now()).revoked():
            _print_revoked(directory, issued.serial, issued.uris, since)
    return 0


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _print(shown: Shown) -> None:
    hosts = f" at {', '.join(shown.hosts)}" if shown.hosts else ""
    click.echo(
        f"{shown.path}: {', '.join(shown.uris)}{hosts}, until {shown.ends:%Y-%m-%d %H:%M} UTC, "
        f"serial {shown.serial:X}"
    )


def _print_revoked(where: str, serial: int, uris: Sequence[str], since: datetime.datetime) -> None:
    click.echo(f"{where}: revokes {serial:X}{_shown_uris(uris)} since {since:%Y-%m-%d %H:%M} UTC")


def _shown_uris(uris: Sequence[str]) -> str:
    return f" of {', '.join(uris)}" if uris else ""
