"""A cluster that speaks TLS alone, and the identity of this process towards it.

The safekeepers run with --require-tls, so that loopback is no way in.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from psycopg.conninfo import make_conninfo

from tests.support.cluster import Cluster, Daemon
from tests.support.postgres_server import PostgresServer
from tests.tls_files import TlsFiles
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.tls.own_credentials import own_credentials, use_credentials


class TlsCluster(Cluster):
    """A cluster whose daemons have files of their own roles, and whose commands are an admin's."""

    files: TlsFiles

    @classmethod
    @contextmanager
    def with_files(cls, primary: PostgresServer, files: TlsFiles) -> Iterator[Self]:
        """Make the whole cluster, and let this process be its administrator."""
        cls.files = files
        with speaking_as(files.path(Role.ADMIN, "alice")), cls.create(primary) as made:
            yield made

    def new_safekeeper(self, number: int, port: int, data_dir: Path | None = None) -> Daemon:
        made = super().new_safekeeper(number, port, data_dir)
        file = self.files.path(Role.SAFEKEEPER, str(number))
        made.arguments = (*made.arguments, "--tls", file, "--require-tls")
        return made

    def new_proposer(
        self, name: str, *options: str, dsn: str | None = None, cluster: str | None = None
    ) -> Daemon:
        file = self.files.path(Role.PROPOSER, "db1", cluster=cluster or self.name)
        return super().new_proposer(name, *options, "--tls", file, dsn=dsn, cluster=cluster)

    def command(self, name: str, *options: str) -> str:
        return super().command(name, *options, "--tls", self.files.path(Role.ADMIN, "alice"))

    def libpq(self, number: int, role: Role, name: str, **parameters: str) -> str:
        """Return a stock client's connection string to a safekeeper, with a file of its own."""
        file = self.files.path(role, name)
        given = {
            "host": "127.0.0.1",
            "port": str(self.ports[number - 1]),
            "user": name,
            "sslmode": "verify-full",
            **dict.fromkeys(("sslcert", "sslkey", "sslrootcert"), file),
            **parameters,
        }
        return make_conninfo(**given)


@contextmanager
def speaking_as(file: str | None) -> Iterator[None]:
    """Let this process be the owner of the file, and then who it was before."""
    before = own_credentials()
    use_credentials(file)
    try:
        yield
    finally:
        use_credentials(before.path if before is not None else None)
