"""Servers that start as Patroni starts them: `walkeeper gate --exec` becomes postgres.

with gated(primary, installation, cluster.addresses) as server:
    server.start(); server.said(); server.guard()

A test without a server imports `server_door` and `own_files` for its fixtures `door` and `own`.
They are a door in `tmp_path`, and the server's own files beside it, with RULES.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.postgres_server import (
    PostgresServer,
    as_server_user,
    own,
    program,
    run_as_server_user,
    server_environment,
)
from tests.support.restore_installation import Installation
from tests.support.waiting import wait_until
from walkeeper_admin.primary.door import Door, OwnFiles

ROLES = ("postgres", "replicator")
RULES = "local all all trust\nhost all app 10.0.0.0/24 scram-sha-256\n"

# With restore, all of ours that `gate` imports. psycopg reads a DSN.
MORE_PACKAGES = (
    *("walkeeper_proposer", "walkeeper_fastpath", "walkeeper_admin", "asyncpg"),
    *("psycopg", "typing_extensions"),
)


@pytest.fixture(name="own")
def own_files(tmp_path: Path) -> OwnFiles:
    (tmp_path / "pg_hba.conf").write_text(RULES)
    names = ("postgresql.conf", "pg_hba.conf", "pg_ident.conf")
    return OwnFiles(*(str(tmp_path / name) for name in names))


@pytest.fixture(name="door")
def server_door(tmp_path: Path) -> Door:
    return Door(tmp_path / "data.gate")


class GatedServer:
    """The starts of one server; its own methods stop and kill it."""

    def __init__(self, server: PostgresServer, installation: Installation, log: str) -> None:
        self.server, self._walkeeper = server, str(installation.script)
        self.door = Door.beside(server.data)
        self._process: subprocess.Popen[bytes] | None = None
        self._options = ("--dsn", server.dsn(), "--safekeepers", log)
        self.script = server.directory / "postgres"
        options = f"--dsn '{server.dsn()}' --safekeepers {log}"
        self.script.write_text(
            f"#!/bin/sh\nexport HOME={server.directory}\n"
            f'exec {self._walkeeper} gate --exec {options} -- {program("postgres")} "$@"\n'
        )
        self.script.chmod(0o755)
        own(server.directory)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the script as Patroni does; its process becomes the postmaster."""
        self.reap()
        data = self.server.data
        words = [str(self.script), "-D", str(data), f"--config-file={data}/postgresql.conf"]
        with self.server.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*as_server_user(), *words],
                env=server_environment(),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self._process

    def reap(self) -> None:
        """Wait for the process of the last start, which has ended or been killed."""
        if self._process is not None:
            self._process.wait()

    def start_second(self) -> subprocess.CompletedProcess[str]:
        """Start the script beside the server that runs, which is refused."""
        words = [str(self.script), "-D", str(self.server.data)]
        return run_as_server_user(words, check=False)

    def runs_other(self, *arguments: str) -> str:
        """Run the script with arguments with which postgres is no server."""
        return run_as_server_user([str(self.script), *arguments]).stdout

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Run `walkeeper gate --wait`."""
        home = ("env", f"HOME={self.server.directory}")  # libpq's files of root are not readable
        words = (
            *home,
            self._walkeeper,
            "gate",
            "--wait",
            "-D",
            str(self.server.data),
            *self._options,
        )
        return run_as_server_user(words, check=False)

    def guards(self) -> list[int]:
        """Return the background processes of this server's starts."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if "--exec" in words and self.server.dsn() in words:
                found.append(int(entry.name))
        return found

    def kill_guard(self) -> None:
        (pid,) = wait_until(lambda: [p for p in self.guards() if p != self.server.postmaster_pid()])
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.guards())


@contextmanager
def gated(server: PostgresServer, installation: Installation, log: str) -> Iterator[GatedServer]:
    """Yield the server, and kill it and its background at the end."""
    made = GatedServer(server, installation, log)
    try:
        yield made
    except BaseException as error:
        error.add_note(f"the gated server {server.port}: {server.log_text()[-4000:]}")
        raise
    finally:
        server.kill()
        made.reap()
        wait_until(lambda: not made.guards())
