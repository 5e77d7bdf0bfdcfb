"""The authority and the files of a cluster on one machine: `up` and `demo` need no other command.

DIR/ca/…                      the authority, as `walkeeper certs init` makes it
DIR/safekeeper1.pem … 3, proposer.pem, admin.pem, replica.pem
"""

from __future__ import annotations

import datetime
from pathlib import Path

from walkeeper_cli.certs.authority import CA_KEY, Authority
from walkeeper_common.access.certificate_identity import ALL_CLUSTERS, identity_uri
from walkeeper_common.access.identity import Role
from walkeeper_lab.local.local_tls import LocalTls

SAFEKEEPERS = 3
HOSTS = ("127.0.0.1", "localhost")


def local_tls(directory: Path) -> LocalTls:
    """Make the files that are missing, renew those that are due, and return the paths.

    Raise Refused if a file cannot be written, or is no TLS file.
    """
    now = datetime.datetime.now(datetime.UTC)
    authority_directory = directory / "ca"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    has_authority = (authority_directory / CA_KEY).exists()
    begin = Authority if has_authority else Authority.create
    authority = begin(str(authority_directory), now)

    def file(role: Role, name: str, stem: str) -> str:
        path = str(directory / f"{stem}.pem")
        if not Path(path).exists():
            hosts = HOSTS if role is Role.SAFEKEEPER else ()
            authority.issue(path, [identity_uri(ALL_CLUSTERS, role, name)], hosts)
        else:
            authority.refresh(path)
        return path

    return LocalTls(
        safekeepers={
            number: file(Role.SAFEKEEPER, str(number), f"safekeeper{number}")
            for number in range(1, SAFEKEEPERS + 1)
        },
        proposer=file(Role.PROPOSER, "proposer", "proposer"),
        admin=file(Role.ADMIN, "admin", "admin"),
        replica=file(Role.REPLICA, "replica", "replica"),
    )
