"""A PostgreSQL server in a network namespace: primary and standby of the fault runner."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.proof.chaos.namespaces import Node
from tests.support.postgres_server import (
    SETTINGS,
    PostgresServer,
    own,
    program,
    run_as_server_user,
    run_program,
)

PORT = 5432  # a namespace has its own


class NamespacedServer(PostgresServer):
    """A server whose `data` is filled by `adopt`; every node of the network may log in."""

    def __init__(self, directory: Path, node: Node, settings: Mapping[str, str]) -> None:
        directory.mkdir()
        self.directory, self.data, self.log = directory, directory / "data", directory / "log"
        self.node, self.port = node, PORT
        sockets = {"port": str(PORT), "unix_socket_directories": str(directory)}
        self._settings = {**SETTINGS, **sockets, "listen_addresses": "*", **settings}

    def adopt(self, source: Path) -> None:
        """Copy another server's data directory in place of the old one."""
        shutil.rmtree(self.data, ignore_errors=True)
        own(self.directory)
        run_as_server_user(["cp", "-a", str(source), str(self.data)])
        self.configure(self._settings)
        subnet = f"{self.node.address.rpartition('.')[0]}.0/24"
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {subnet} trust\nhost replication all {subnet} trust\n")

    def dsn(self, **parameters: str | int) -> str:
        return super().dsn(**{"host": self.node.address, **parameters})

    def pg_ctl(self, *arguments: str, check: bool = True) -> str:
        as_server = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
        command = [*self.node.prefix, *as_server, program("pg_ctl"), "-D", str(self.data)]
        return run_program([*command, *arguments], check=check).stdout
