"""The identity that a certificate states: URIs in its subjectAltName, from ssl's getpeercert().

    walkeeper://<cluster|*>/<role>/<name>       of a safekeeper, the name is its id

A certificate may state several roles, each in a URI of its own. All of its URIs must have the same
clusters and the same name. Otherwise a role would reach clusters for which it was not issued.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from walkeeper_common.access.identity import Identity, Role
from walkeeper_common.errors import Refused

SCHEME = "walkeeper://"
ALL_CLUSTERS = "*"
SAFEKEEPER_ID_MAX = 65535
NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")


def identity_uri(cluster: str, role: Role, name: str) -> str:
    """Return the URI of one role; raise Refused for a name that no URI can have."""
    if not NAME.fullmatch(name):
        raise Refused(f"{name!r} is no name for a certificate: use 1 to 63 of a-z, 0-9, _, - and .")
    return f"{SCHEME}{cluster}/{role}/{name}"


def identity_of_certificate(certificate: Mapping[str, Any]) -> Identity:
    """Return the identity; raise Refused with the reason if the certificate states none."""
    names = certificate.get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI" and value.startswith(SCHEME)]
    if not uris:
        raise Refused(
            f"the certificate has no {SCHEME} URI in its subjectAltName: make it with "
            "walkeeper certs issue"
        )
    reach: dict[Role, set[str]] = {}
    stated: set[str] = set()
    for uri in uris:
        cluster, role, name = _parts(uri)
        reach.setdefault(role, set()).add(cluster)
        stated.add(name)
    clusters = next(iter(reach.values()))
    if len(stated) != 1 or any(other != clusters for other in reach.values()):
        raise Refused(f"the certificate's URIs differ in name or clusters: {', '.join(uris)}")
    name = stated.pop()
    return Identity(
        name=name,
        roles=frozenset(reach),
        clusters=None if ALL_CLUSTERS in clusters else frozenset(clusters),
        safekeeper_id=_safekeeper_id(name) if Role.SAFEKEEPER in reach else None,
        how="certificate",
    )


def safekeeper_of_certificate(certificate: Mapping[str, Any]) -> Identity:
    """Return the identity of a server that has to be a safekeeper; raise Refused if it is none."""
    identity = identity_of_certificate(certificate)
    if identity.safekeeper_id is None:
        roles = ", ".join(sorted(identity.roles))
        raise Refused(f"the server's certificate is that of {roles} {identity.name}, no safekeeper")
    return identity


def check_stated_id(identity: Identity, stated_id: int) -> None:
    """Raise Refused if a safekeeper states another id than its certificate.

    A host that holds the file of safekeeper 1 can then not vote as safekeeper 2. A plain connection
    has no certificate, and states what it likes.
    """
    if identity.safekeeper_id not in (None, stated_id):
        raise Refused(
            f"it says that it is safekeeper {stated_id}, and its certificate is that of safekeeper "
            f"{identity.safekeeper_id}; give each safekeeper its own file"
        )


def _parts(uri: str) -> tuple[str, Role, str]:
    parts = uri.removeprefix(SCHEME).split("/")
    if len(parts) != 3 or not parts[0] or not NAME.fullmatch(parts[2]):
        raise Refused(f"{uri!r} is not {SCHEME}<cluster|*>/<role>/<name>")
    try:
        return parts[0], Role(parts[1]), parts[2]
    except ValueError:
        raise Refused(f"{uri!r} has an unknown role: {', '.join(Role)}") from None


def _safekeeper_id(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and 1 <= int(name) <= SAFEKEEPER_ID_MAX):
        raise Refused(f"a safekeeper's certificate has its id as name, not {name!r}")
    return int(name)
