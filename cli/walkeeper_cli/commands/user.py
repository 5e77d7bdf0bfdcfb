"""`walkeeper user`: the users file of a safekeeper, for logins by password."""

from __future__ import annotations

import json
import secrets
import sys

import click

from walkeeper_cli.default_command import DefaultCommand
from walkeeper_cli.options import config_option, option
from walkeeper_cli.text_table import table
from walkeeper_common.access.certificate_identity import ALL_CLUSTERS
from walkeeper_common.access.identity import Role
from walkeeper_common.access.users import BY_PASSWORD, CONNECTIONS_MAX, User, parse_clusters
from walkeeper_common.errors import Refused

GENERATED_BYTES = 24
PASSWORD_BYTES_MAX = 1024

file_option = option(
    "--users",
    "path",
    type=click.Path(dir_okay=False),
    required=True,
    help="The users file, which a safekeeper takes with --users.",
)


@click.group(
    "user", cls=DefaultCommand, default="ls", short_help="Manage the users of a safekeeper's port."
)
def command() -> None:
    """Write the users file of safekeepers, for logins by password (docs/users.md).

    \b
      walkeeper user add --users users standby1 --role replica
      walkeeper user ls  --users users
      walkeeper user rm  --users users standby1

    Copy the file to each safekeeper. A safekeeper takes a change at the next login. Without a
    command it lists the users.
    """


@command.command("add", short_help="Add a user, or replace one.")
@file_option
@option(
    "--role",
    "roles",
    type=click.Choice([str(role) for role in BY_PASSWORD]),
    multiple=True,
    required=True,
    help="The user's role. More than one may be given.",
)
@option(
    "--cluster",
    "clusters",
    default=(ALL_CLUSTERS,),
    show_default=True,
    multiple=True,
    metavar="NAME",
    help="A cluster that the user may reach; * for all. More than one may be given.",
)
@option(
    "--connections",
    type=click.IntRange(1, CONNECTIONS_MAX),
    metavar="N",
    help="The most connections of the user on one safekeeper.  [default: no bound]",
)
@option("--generate", is_flag=True, help="Make a password, and print it once.")
@option("--replace", is_flag=True, help="Replace the user if there is one, with all settings.")
@config_option
@click.argument("name", metavar="NAME")
def add(
    path: str,
    roles: tuple[str, ...],
    clusters: tuple[str, ...],
    connections: int | None,
    generate: bool,
    replace: bool,
    name: str,
) -> int:
    """Write one user. The password comes from the terminal, or else from the first line of stdin.

    \b
    Example:
      walkeeper user add --users users standby1 --role replica --cluster main --connections 4

    Instead of the password you may give a verifier, which begins with SCRAM-SHA-256$. A PostgreSQL
    server has them in pg_authid.rolpassword. A password is never an argument, since `ps` shows
    arguments.
    """
    from walkeeper_cli.users.writing import add_user, verifier_of

    password = secrets.token_urlsafe(GENERATED_BYTES) if generate else _asked_password(name)
    user = User(
        name,
        verifier_of(name, password),
        frozenset(map(Role, roles)),
        parse_clusters(",".join(clusters)),
        connections,
    )
    add_user(path, user, replaces=replace)
    if generate:
        click.echo(password)
    return 0


@command.command("ls", short_help="List the users.")
@file_option
@option(
    "--json", "as_json", is_flag=True, envvar="WALKEEPER_JSON", help="Print JSON, for programs."
)
@config_option
def ls(path: str, as_json: bool) -> int:
    """List each user with its roles, its clusters and its bound. No verifier is shown.

    \b
    Example:
      walkeeper user ls --users users
    """
    from walkeeper_common.shell.files.users_file import load_users

    users = list(load_users(path))
    shown = [
        {
            "name": user.name,
            "roles": sorted(user.roles),
            "clusters": None if user.clusters is None else sorted(user.clusters),
            "connections": user.connections_max,
        }
        for user in users
    ]
    if as_json:
        click.echo(json.dumps(shown))
        return 0
    rows = [("USER", "ROLES", "CLUSTERS", "CONNECTIONS")]
    for user in users:
        clusters = ALL_CLUSTERS if user.clusters is None else ",".join(sorted(user.clusters))
        rows.append(
            (user.name, ",".join(sorted(user.roles)), clusters, str(user.connections_max or "-"))
        )
    click.echo(table(rows))
    return 0


@command.command("rm", short_help="Remove a user.")
@file_option
@config_option
@click.argument("name", metavar="NAME")
def rm(path: str, name: str) -> int:
    """Remove one user. Its connections end when the safekeeper reads the file.

    \b
    Example:
      walkeeper user rm --users users standby1
    """
    from walkeeper_cli.users.writing import remove_user

    remove_user(path, name)
    return 0


def _asked_password(name: str) -> str:
    if sys.stdin.isatty():
        text: str = click.prompt(
            f"Password for {name}", hide_input=True, confirmation_prompt=True, err=True
        )
        return text
    line = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 2)
    if len(line.rstrip(b"\r\n")) > PASSWORD_BYTES_MAX:
        raise Refused(f"the password has more than {PASSWORD_BYTES_MAX} bytes: give a shorter one")
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise Refused("the password is not UTF-8: write it to stdin in UTF-8") from error
