"""The users of a safekeeper's port who log in with a password. Pure.

One line a user, in the form of PgBouncer's userlist with our settings after it:

    "standby1" "SCRAM-SHA-256$4096:…" role=replica cluster=main connections=4

PgBouncer ignores the rest of a line, so it reads the same file. A line that begins with `;` is a
comment. The second word is what `pg_authid.rolpassword` holds, and never a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from walkeeper_common.access.certificate_identity import ALL_CLUSTERS, NAME
from walkeeper_common.access.identity import Identity, Role
from walkeeper_common.cluster_name import check_cluster_name
from walkeeper_common.errors import Refused
from walkeeper_common.postgres.scram import StandIn, Verifier

USERS_MAX, CONNECTIONS_MAX = 10_000, 10_000
# The roles of daemons, which speak walkeeper's own protocol and prove themselves by certificates.
BY_CERTIFICATE = frozenset((Role.PROPOSER, Role.SAFEKEEPER))
BY_PASSWORD = tuple(role for role in Role if role not in BY_CERTIFICATE)

_LINE = re.compile(r'"((?:[^"]|"")*)"\s+"((?:[^"]|"")*)"(?:\s+(.*))?')


@dataclass(frozen=True, slots=True)
class User:
    """One line; `clusters` is None for all, and `connections_max` None for no bound of its own."""

    name: str
    verifier: Verifier
    roles: frozenset[Role]
    clusters: frozenset[str] | None = None
    connections_max: int | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise Refused(
                f"{self.name!r} is no name for a user: use 1 to 63 of a-z, 0-9, _, - and ."
            )
        if not self.roles:
            raise Refused(f"no role is given: add role= with one of {', '.join(BY_PASSWORD)}")
        if daemons := self.roles & BY_CERTIFICATE:
            raise Refused(
                f"{', '.join(sorted(daemons))} is the role of a daemon, which has no password: "
                "make a TLS file with walkeeper certs issue"
            )
        if self.connections_max is not None and not 0 < self.connections_max <= CONNECTIONS_MAX:
            raise Refused(f"connections= must be 1 to {CONNECTIONS_MAX}")

    @property
    def identity(self) -> Identity:
        """The identity of a connection that has proved the password."""
        return Identity(
            self.name,
            self.roles,
            self.clusters,
            safekeeper_id=None,
            how="scram-sha-256",
            connections_max=self.connections_max,
        )

    def line(self) -> str:
        """Return the user's line, as `parse_users` reads it."""
        clusters = [ALL_CLUSTERS] if self.clusters is None else sorted(self.clusters)
        words = [
            f'"{self.name}" "{self.verifier}"',
            f"role={','.join(sorted(self.roles))}",
            f"cluster={','.join(clusters)}",
        ]
        if self.connections_max is not None:
            words.append(f"connections={self.connections_max}")
        return " ".join(words)


@dataclass(frozen=True)
class Users:
    """The users of one file, in its order."""

    by_name: Mapping[str, User] = field(default_factory=dict)

    def __iter__(self) -> Iterator[User]:
        return iter(self.by_name.values())

    @cached_property
    def stand_in(self) -> StandIn:
        """The verifiers for names that are not among these users."""
        return StandIn.beside([user.verifier for user in self])


def parse_users(text: str) -> Users:
    """Return the users; raise Refused with the line's number, and never with a secret."""
    found: dict[str, User] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if is_comment(line):
            continue
        try:
            user = _parse_line(line)
            if user.name in found:
                raise Refused(f"the user {user.name} is there twice: remove one of the lines")
            if len(found) >= USERS_MAX:
                raise Refused(f"there are more than {USERS_MAX} users")
        except Refused as error:
            raise Refused(f"line {number}: {error}") from error
        found[user.name] = user
    return Users(found)


def is_comment(line: str) -> bool:
    """Return True for a line without a user."""
    return not line.strip() or line.lstrip().startswith(";")


def name_in(line: str) -> str | None:
    """Return the name of the line's user, or None for a comment."""
    return None if is_comment(line) else _parse_line(line).name


def _parse_line(line: str) -> User:
    found = _LINE.fullmatch(line.strip())
    if found is None:
        raise Refused(
            'it is not "NAME" "VERIFIER" role=ROLE: walkeeper user add writes such a line'
        )
    name, secret = (word.replace('""', '"') for word in found.group(1, 2))
    settings: dict[str, str] = {}
    for word in (found[3] or "").split():
        key, equals, value = word.partition("=")
        if not equals or key in settings or key not in ("role", "cluster", "connections"):
            raise Refused(
                f"{word!r} is none of role=, cluster= and connections=, each of them once"
            )
        settings[key] = value
    try:
        verifier = Verifier.parse(secret)
    except Refused as error:
        raise Refused(f"the second word of {name!r}: {error}; see walkeeper user add") from error
    clusters = settings.get("cluster", ALL_CLUSTERS)
    connections = settings.get("connections")
    if connections is not None and not re.fullmatch(r"[0-9]{1,5}", connections):
        raise Refused(f"connections={connections} is no number")
    return User(
        name,
        verifier,
        _roles(settings.get("role", "")),
        parse_clusters(clusters),
        None if connections is None else int(connections),
    )


def _roles(text: str) -> frozenset[Role]:
    try:
        return frozenset(Role(word) for word in text.split(",") if word)
    except ValueError:
        raise Refused(f"role={text} has an unknown role: {', '.join(BY_PASSWORD)}") from None


def parse_clusters(text: str) -> frozenset[str] | None:
    """Return the clusters of `NAME,NAME`, or None for `*`; raise Refused for an impossible name."""
    if text == ALL_CLUSTERS:
        return None
    names = frozenset(text.split(","))
    for name in names:
        check_cluster_name(name)
    return names
