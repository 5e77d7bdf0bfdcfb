"""The name of a PostgreSQL client and the log that it wants, from its startup packet. Pure.

A certificate or a password has the identity. Without either, every user is accepted as given. The
cluster is
`-c walkeeper.cluster=NAME` in `options`, else a dbname other than `replication`, else
`default_log`. A second log on the safekeeper must not end the standbys of the first one. `-c
walkeeper.entries=on` asks for a logical log as it lies in its segments (docs/logical.md). libpq
sends the user's name as dbname when none is given. So a dbname that equals the user and names no
cluster counts as not given. Unknown parameters and options are ignored, as tools send many:
`-cdatestyle=iso`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from walkeeper_common.postgres.client_encoding import canonical_name
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.postgres.replication_commands import parse_boolean

APPLICATION_NAME_MAX = 63
DEFAULT_CLUSTER = "main"  # as --cluster has it
CLUSTER_OPTION = "walkeeper.cluster"
ENTRIES_OPTION = "walkeeper.entries"


@dataclass(frozen=True, slots=True)
class Login:
    """A startup packet that was accepted."""

    user: str
    application_name: str
    cluster: str
    replication: bool
    logical: bool = False  # replication=database: SQL and logical replication
    entries: bool = False  # a logical log's bytes as they lie there, by position
    encoding: str = "UTF8"  # PostgreSQL's name of client_encoding


def parse_login(
    parameters: Mapping[str, str],
    clusters: Sequence[str],
    logical_databases: Mapping[str, str] | None = None,
) -> Login:
    """Return the login. Raise SqlRefused, with a remedy, for a client that cannot be served.

    `logical_databases`: the database whose changes each logical log has, as far as it is known. A
    consumer of changes names that database, as it would at the primary. Where no cluster has this
    name, it means the only logical log, or the only one of that database.
    """
    logs = logical_databases or {}
    user = user_of(parameters)
    logical = parameters.get("replication", "off").lower() == "database"
    if logical and not logs:
        raise no_logical_log()
    replication = logical or wants_replication(parameters.get("replication", "off"))
    database = parameters.get("database", "")
    is_named = CLUSTER_OPTION in parse_options(parameters.get("options", ""))
    if logical and not is_named and database not in clusters:
        of_database = [name for name in logs if database and logs[name] == database]
        meant = list(logs) if len(logs) == 1 else of_database
        if len(meant) == 1:
            parameters = {**parameters, "database": meant[0]}
    entries = _wants_entries(parameters)
    wanted = [] if logical else [name for name in clusters if (name in logs) is entries]
    return Login(
        user=user,
        application_name=_printable(parameters.get("application_name", "")),
        cluster=choose_cluster(parameters, clusters, default_log(wanted)),
        replication=replication,
        logical=logical,
        entries=entries,
        encoding=_encoding(parameters) if logical else "UTF8",
    )


def user_of(parameters: Mapping[str, str]) -> str:
    """Return the user's name; raise SqlRefused if there is none."""
    user = parameters.get("user", "")
    if not user:
        raise SqlRefused("28000", "no PostgreSQL user name specified in startup packet")
    return user


def _wants_entries(parameters: Mapping[str, str]) -> bool:
    value = parse_options(parameters.get("options", "")).get(ENTRIES_OPTION, "off")
    return parse_boolean(value, f'parameter "{ENTRIES_OPTION}" requires a Boolean value')


def _encoding(parameters: Mapping[str, str]) -> str:
    """Return the name of client_encoding, which the packet's own parameter overrides."""
    given = parse_options(parameters.get("options", "")).get("client_encoding", "UTF8")
    return canonical_name(parameters.get("client_encoding", given))


def no_logical_log() -> SqlRefused:
    """Return the refusal for consumers of changes that connect where only WAL is kept."""
    return SqlRefused(
        "0A000",
        "a safekeeper cannot serve logical replication (replication=database) of a physical log",
        hint="Connect to the primary itself, or keep its changes, too: walkeeper create --logical. "
        "WAL is served to replication=true.",
    )


def wants_replication(value: str) -> bool:
    """Parse a boolean; the word `database` is the caller's."""
    try:
        return parse_boolean(value, "")
    except SqlRefused as error:
        raise SqlRefused(
            "22023",
            f'invalid value for parameter "replication": "{value}"',
            hint='Valid values are: "false", 0, "true", 1, "database".',
        ) from error


def default_log(wanted: Sequence[str]) -> str | None:
    """Return `main` if it is among the logs of the wanted kind, else the only one, else None."""
    if DEFAULT_CLUSTER in wanted:
        return DEFAULT_CLUSTER
    return wanted[0] if len(wanted) == 1 else None


def choose_cluster(
    parameters: Mapping[str, str], clusters: Sequence[str], default: str | None
) -> str:
    """Return one of `clusters`; raise 57P03 while there is none, 3D000 for an unknown one.

    `default` is for a client that names none; 3D000 as well if that is None, too."""
    named = parse_options(parameters.get("options", "")).get(CLUSTER_OPTION, "")
    database = parameters.get("database", "")
    is_default = database == parameters.get("user") and database not in clusters
    if not named and database != "replication" and not is_default:
        named = database
    if not clusters:
        raise SqlRefused(
            "57P03",
            "the safekeeper has no log yet",
            hint="Make one with walkeeper create, or wait until it has been made.",
        )
    if named in clusters:
        return named
    if not named and (default is not None or len(clusters) == 1):
        return clusters[0] if default is None else default
    some = ", ".join(sorted(clusters)[:10])
    example = f"options='-c {CLUSTER_OPTION}={sorted(clusters)[0]}'"
    raise SqlRefused(
        "3D000",
        f'cluster "{named}" does not exist here' if named else "the connection names no cluster",
        hint=f"This safekeeper keeps: {some}. Name one in the connection string: {example}",
    )


def parse_options(options: str) -> dict[str, str]:
    """Parse `-c name=value`, `-cname=value`, `--name=value`; a backslash escapes a character."""
    words = [re.sub(r"\\(.)", r"\1", word) for word in re.findall(r"(?:\\.|[^\s\\])+", options)]
    found: dict[str, str] = {}
    takes_next = False
    for word in words:
        setting = word if takes_next else word.removeprefix("-c").removeprefix("--")
        is_setting = takes_next or word.startswith(("-c", "--"))
        takes_next = word == "-c" and not takes_next
        name, equals, value = setting.partition("=")
        if is_setting and equals:
            found[name.replace("-", "_").lower()] = value
    return found


def _printable(name: str) -> str:
    """Clean a name as pg_clean_ascii does, since it goes into logs and status lines."""
    return re.sub(r"[^\x20-\x7e]", "?", name)[:APPLICATION_NAME_MAX]
