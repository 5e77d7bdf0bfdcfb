"""TLS files for tests: one authority, and files of every role beside it."""

from __future__ import annotations

import datetime
from pathlib import Path

from walkeeper_cli.certs.authority import Authority
from walkeeper_common.access.certificate_identity import identity_uri
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls.credentials import Credentials

NOW = datetime.datetime.now(datetime.UTC)


class TlsFiles:
    """Files in a directory, made when they are first named."""

    def __init__(self, directory: Path, now: datetime.datetime = NOW) -> None:
        self._directory = directory
        self.authority = Authority.create(str(directory / "ca"), now)

    def path(
        self, role: Role, name: str, *, cluster: str = "*", hosts: tuple[str, ...] = ()
    ) -> str:
        """Return the path of a file with this role; a safekeeper's is valid at 127.0.0.1."""
        path = self._directory / f"{role}-{name}-{cluster.replace('*', 'all')}.pem"
        if not path.exists():
            hosts = hosts or (("127.0.0.1",) if role is Role.SAFEKEEPER else ())
            self.authority.issue(str(path), [identity_uri(cluster, role, name)], hosts)
        return str(path)

    def safekeeper(self, number: int) -> Credentials:
        return Credentials(self.path(Role.SAFEKEEPER, str(number)))

    def proposer(self, cluster: str = "main") -> Credentials:
        return Credentials(self.path(Role.PROPOSER, "db1", cluster=cluster))
