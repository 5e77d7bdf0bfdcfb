"""Identities: the name and the roles that a connection has once it is authenticated.

An identity is fixed when the connection is authenticated and never changes after that. The daemon
that serves the connection decides which role may do what. This module only names them.
"""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Name one set of permissions, as the settings and the certificates write it."""

    ADMIN = "admin"
    PROPOSER = "proposer"
    SAFEKEEPER = "safekeeper"
    REPLICA = "replica"
    PAGER = "pager"
    RESTORE = "restore"
    MONITOR = "monitor"


@dataclass(frozen=True, slots=True)
class Identity:
    """One authenticated peer; `clusters` is None for a peer that may reach every cluster.

    `how` names the proof: "loopback", "certificate", "scram-sha-256", "token" or "none".
    `connections_max` bounds the connections of one user, or is None.
    """

    name: str
    roles: frozenset[Role]
    clusters: frozenset[str] | None
    safekeeper_id: int | None
    how: str
    connections_max: int | None = None


# The peer of a daemon without authentication: on loopback, or with --allow-unauthenticated.
ANYBODY = Identity(
    name="anybody", roles=frozenset(Role), clusters=None, safekeeper_id=None, how="none"
)
# The peer of a TLS connection until its certificate is checked. It may do nothing.
NOBODY = Identity(
    name="nobody", roles=frozenset(), clusters=frozenset(), safekeeper_id=None, how="none"
)
