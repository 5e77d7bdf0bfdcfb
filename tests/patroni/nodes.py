"""Patroni from PyPI, with the examples' own configuration files (docs/patroni).

    with Site.create() as site:          safekeepers (not started), a raft controller, two nodes
        site.nodes[0].start()

The files are used as they stand there, but for addresses, ports and paths. `filled_in` has to find
each of these, so an example cannot drift away from the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster
from tests.support.postgres_server import (
    PostgresServer,
    binary_directory,
    make_directory,
    own,
    program,
    server_environment,
    server_user,
)
from tests.support.python_tools import tool_programs
from tests.support.restore_installation import Installation
from tests.tls_files import TlsFiles
from walkeeper_common.access.identity import Role
from walkeeper_lab.local.tcp_ports import free_port

EXAMPLES = Path(__file__).parents[2] / "docs" / "patroni"
# With restore, all of ours that pre_promote needs; psycopg is Patroni's.
MORE_PACKAGES = ("walkeeper_proposer", "walkeeper_fastpath", "walkeeper_admin", "asyncpg")
PATRONI = ("patroni-4.1.5", ["patroni[psycopg3,raft]==4.1.5", "psycopg[binary]"])
PASSWORD, REPLICATION_PASSWORD = "secret1", "secret2"  # the example's


def filled_in(example_file: str, values: Mapping[str, str]) -> str:
    """Return the example with these values, the longest text first; each must be there."""
    text = (EXAMPLES / example_file).read_text()
    for example in sorted(values, key=len, reverse=True):
        assert example in text, f"{example_file} has no {example!r}"
        text = text.replace(example, values[example])
    return text


class Process:
    """A program of Patroni's, as the servers' user."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = list(command), log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        user = server_user()
        here = {"HOME": str(self.log.parent), "PATH": f"{binary_directory()}:{os.environ['PATH']}"}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=server_environment() | here,
                user=user,
                group=pwd.getpwnam(user).pw_gid if user else None,
                extra_groups=[] if user else None,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Node(PostgresServer):
    """One machine: Patroni, and the PostgreSQL that it runs."""

    def __init__(self, name: str, directory: Path, port: int, rest_port: int) -> None:
        self.name, self.directory = name, directory
        self.data, self.log = directory / "data", directory / "patroni.log"
        self.port, self.rest_port = port, rest_port
        self.patroni: Process

    def start(self) -> None:
        self.patroni.start()

    def kill(self) -> None:
        """Kill the machine: SIGKILL, Patroni first, or it would start its server again."""
        self.patroni.kill()
        super().kill()

    def kill_server(self) -> None:
        """Kill PostgreSQL alone, which Patroni then starts again."""
        super().kill()

    def reload(self) -> None:
        """Do what `patronictl reload` does: Patroni writes its files anew, and reloads."""
        self._send("POST", "reload", {}, timeout_s=30)

    def dsn(self, **parameters: str | int) -> str:
        return super().dsn(**{"password": PASSWORD, **parameters})

    def ask(self, path: str = "patroni") -> dict[str, Any]:
        """Return the answer of Patroni's REST interface; {} while there is none."""
        assert self.patroni.is_running, f"{self.name}: Patroni has ended"
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.rest_port}/{path}", timeout=5
            ) as r:
                answer: dict[str, Any] = json.load(r)
        except urllib.error.HTTPError as error:
            answer = json.load(error)
        except (OSError, ValueError):
            return {}
        return answer

    def configure_cluster(self, change: Mapping[str, Any]) -> None:
        """Change the configuration as `patronictl edit-config` does."""
        self._send("PATCH", "config", change, timeout_s=10)

    def switch_over(self, to: Node) -> None:
        """Switch over as `patronictl switchover` does; return when it is done, or could not be."""
        self._send("POST", "switchover", {"leader": self.name, "candidate": to.name}, timeout_s=90)

    def rebuild(self) -> None:
        """Do what `patronictl reinit` does: replace the data directory by a base backup."""
        self._send("POST", "reinitialize", {"force": True}, timeout_s=30)

    def _send(self, method: str, path: str, body: Mapping[str, Any], *, timeout_s: float) -> None:
        url = f"http://127.0.0.1:{self.rest_port}/{path}"
        data = json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method)
        urllib.request.urlopen(request, timeout=timeout_s).close()

    @property
    def is_leader(self) -> bool:
        seen = self.ask()
        return seen.get("role") == "primary" and seen.get("state") == "running"

    @property
    def is_replica(self) -> bool:
        seen = self.ask()
        return seen.get("role") == "replica" and seen.get("state") in (
            "running", "in archive recovery", "streaming"
        )  # fmt: skip

    @property
    def timeline(self) -> int:
        return int(self.ask().get("timeline", 0))


class Site:
    """Two nodes, the third voter of Patroni's raft, and a standby cluster elsewhere."""

    def __init__(
        self,
        directory: Path,
        installation: Installation,
        *,
        asks_for_passwords: bool = False,
        is_gated: bool = True,
    ) -> None:
        self.directory, self._asks_for_passwords = directory, asks_for_passwords
        self._is_gated = is_gated
        self.programs = tool_programs(*PATRONI)
        # A users file is for PostgreSQL's clients. Patroni's commands and the proposers prove
        # themselves by a certificate, which serves restore, settle and proposer (docs/patroni.md).
        files = TlsFiles(directory) if asks_for_passwords else None
        own_file = "" if files is None else files.path(Role.ADMIN, "patroni")
        self.script = self._script(installation, own_file)
        self.proposer_options = ("--tls", own_file) if own_file else ()
        self.raft = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.nodes = [
            Node(name, directory / name, free_port(), free_port()) for name in ("node1", "node2")
        ]
        if files is None:
            self.cluster = Cluster(self.nodes[0])
        else:
            self.cluster = Cluster(
                self.nodes[0],
                passwords={"replicator": REPLICATION_PASSWORD},
                tls=lambda number: files.path(Role.SAFEKEEPER, str(number)),
            )
        for number, node in enumerate(self.nodes, 1):
            self._configure(node, number)
        self.elsewhere = Node("elsewhere1", directory / "elsewhere1", free_port(), free_port())
        self._configure_elsewhere()
        self.controller = self._controller()

    @classmethod
    @contextlib.contextmanager
    def create(
        cls,
        installation: Installation,
        *,
        asks_for_passwords: bool = False,
        is_gated: bool = True,
    ) -> Iterator[Site]:
        directory = make_directory("walkeeper_patroni_")
        try:
            site = cls(
                directory,
                installation,
                asks_for_passwords=asks_for_passwords,
                is_gated=is_gated,
            )
            own(directory)
            try:
                site.controller.start()
                yield site
            finally:
                for node in (*site.nodes, site.elsewhere):
                    node.kill()
                site.controller.kill()
                site.cluster.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _script(self, installation: Installation, tls: str) -> Path:
        """Write our command, with the psycopg of Patroni's environment.

        `restore` needs no psycopg, and it ignores PYTHONPATH."""
        script = self.directory / "walkeeper"
        command = f"PYTHONPATH={installation.packages} exec {self.programs}/python"
        variable = f"export WALKEEPER_TLS={tls}\n" * bool(tls)
        restore = f'[ "$1" = restore ] && exec {installation.script} "$@"'
        text = f'#!/bin/sh\n{variable}{restore}\n{command} {installation.script} "$@"\n'
        script.write_text(text)
        script.chmod(0o755)
        return script

    def _configure(self, node: Node, number: int) -> None:
        others = [address for at, address in enumerate(self.raft) if at != number - 1]
        own_raft = ("10.0.0.11:5010", self.raft[number - 1])
        partners = ("10.0.0.12:5010, 10.0.0.13:5010", ", ".join(others))
        name = ("name: node1", f"name: {node.name}")
        values = dict([own_raft, partners, name, ("10.0.0.0/24", "127.0.0.1/32")])
        self._fill_in("patroni.yml", node, "10.0.0.11", values)

    def _configure_elsewhere(self) -> None:
        """Prepare the standby cluster's only node."""
        primary = f"host=127.0.0.1 port={self.nodes[0].port}"
        # Here the safekeepers share one host, so a single port is a single safekeeper.
        ports = self.cluster.ports[: 1 if self._asks_for_passwords else 3]
        values = {
            "host: 10.0.0.21,10.0.0.22,10.0.0.23": f"host: {','.join(['127.0.0.1'] * len(ports))}",
            "port: 5454": f"port: {','.join(map(str, ports))}",
            "host=10.0.0.11 port=5432": primary,
            "10.0.1.11:5010": f"127.0.0.1:{free_port()}",
        }
        self._fill_in("standby.yml", self.elsewhere, "10.0.1.11", values)

    def _fill_in(self, example: str, node: Node, address: str, values: Mapping[str, str]) -> None:
        """Fill in the parts that both examples have."""
        directory = node.directory
        (directory / "raft").mkdir(parents=True)
        shared = {
            "/var/run/postgresql port=5432": f"{directory} port={node.port}",
            "/usr/lib/postgresql/15/bin": str(binary_directory()),
            "/opt/walkeeper/bin/walkeeper": str(self.script),
            "10.0.0.21:5454,10.0.0.22:5454,10.0.0.23:5454": self.cluster.addresses,
        }
        gated = directory / "gated-postgres"
        gated.write_text(filled_in("gated-postgres", shared))
        gated.chmod(0o755)
        common = {
            f"{address}:8008": f"127.0.0.1:{node.rest_port}",
            f"{address}:5432": f"127.0.0.1:{node.port}",
            "/var/run/postgresql": str(directory),
            "/var/lib/patroni/raft": str(directory / "raft"),
            "/var/lib/postgresql/15/shop": str(node.data),
            "/etc/patroni/gated-postgres": str(gated if self._is_gated else program("postgres")),
        }
        text = filled_in(example, {**shared, **common, **values})
        node.patroni = self._process("patroni", directory, text)

    def _controller(self) -> Process:
        directory = self.directory / "controller"
        (directory / "raft").mkdir(parents=True)
        text = (
            f"raft:\n  data_dir: {directory}/raft\n  self_addr: {self.raft[2]}\n"
            f"  partner_addrs: [{', '.join(self.raft[:2])}]\n"
        )
        return self._process("patroni_raft_controller", directory, text)

    def _process(self, program: str, directory: Path, configuration: str) -> Process:
        path = directory / "patroni.yml"
        path.write_text(configuration)
        return Process([str(self.programs / program), str(path)], directory / "patroni.log")
