"""Compare the CPU time of a commit with TLS and without, in the same minutes.

    python -m tests.proof.tls_cost                          8 rounds of 4 s for 1, 8 and 32 clients
    python -m tests.proof.tls_cost --rounds 2 --seconds 2

A plain cluster and one with TLS follow one primary at the same time, and each commit waits for
both. So they have the same WAL and the same neighbours, and a busy machine does no harm.
`walkeeper bench commit --tls` takes turns, and needs a quiet one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from walkeeper_admin.create import CreateSettings, create
from walkeeper_cli.certs.local_files import local_tls
from walkeeper_common.shell.tls.own_credentials import use_credentials
from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.sides import READY_S, RECEIVERS, _caught_up, _wait_for
from walkeeper_lab.local import daemons
from walkeeper_lab.local.child_process import ChildProcess
from walkeeper_lab.local.local_tls import LocalTls
from walkeeper_lab.local.postgresql import PostgreSQL
from walkeeper_lab.local.programs import find_programs
from walkeeper_lab.local.running import forget_surroundings, interruptible, prepare
from walkeeper_lab.local.tcp_ports import HOST, free_port

CLIENTS = (1, 8, 32)
SCALE = 10
PLAIN, TLS = "plain", "tls"


def cpu_us(child: ChildProcess) -> float:
    """Return the CPU time of a process, with that of its threads that have ended."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6


class Cluster:
    """Three safekeepers and a proposer; the name is that of the cluster, slot and application."""

    def __init__(
        self, server: PostgreSQL, directory: Path, name: str, tls: LocalTls | None
    ) -> None:
        self.name, self._server, self._tls = name, server, tls
        self._addresses = tuple((HOST, free_port()) for _ in range(RECEIVERS))
        (directory / "logs").mkdir(parents=True)
        self._safekeepers = daemons.safekeepers(directory, self._addresses, tls=tls)
        options = ["--cluster", name, "--slot", name, "--application-name", name]
        options += tls.of_proposer() if tls is not None else ()
        self._proposer = daemons.proposer(directory, self._addresses, server.dsn, options)

    @property
    def children(self) -> Sequence[ChildProcess]:
        return (self._proposer, *self._safekeepers.values())

    async def start(self) -> None:
        """Create the log and follow the primary."""
        await asyncio.gather(*(child.start(READY_S) for child in self._safekeepers.values()))
        use_credentials(self._tls.admin if self._tls is not None else None)
        await create(CreateSettings(self._addresses, self._server.dsn, self.name, self.name))
        await self._proposer.start(READY_S)
        await _caught_up(self._server, [self.name])

    def cpu_us(self) -> float:
        return sum(map(cpu_us, self.children))


async def measure(directory: Path, rounds: int, seconds: int) -> None:
    programs = await asyncio.to_thread(find_programs, None, directory)
    server = PostgreSQL(programs, directory, "primary", secrets.token_hex(16))
    primary = BenchServer(server, SCALE)
    tls = local_tls(directory / "files")
    clusters = [
        Cluster(server, directory / PLAIN, PLAIN, None),
        Cluster(server, directory / TLS, TLS, tls),
    ]
    try:
        await primary.make()
        for cluster in clusters:
            await cluster.start()
        await _wait_for(server, f"ANY 2 ({PLAIN}, {TLS})")
        for clients in CLIENTS:
            costs = [await costs_of(primary, clusters, clients, seconds) for _ in range(rounds)]
            _tell(clients, costs)
        await _wait_for(server, "")
    finally:
        for child in (child for cluster in clusters for child in cluster.children):
            if child.is_running:
                await child.kill()
        await server.kill()


async def costs_of(
    primary: BenchServer, clusters: Sequence[Cluster], clients: int, seconds: int
) -> list[float]:
    """Return the CPU time of a commit in each cluster, in microseconds."""
    before_us = [cluster.cpu_us() for cluster in clusters]
    done = await primary.transactions(clients, seconds)
    commits = done.tps * seconds
    spent = zip(clusters, before_us, strict=True)
    return [(cluster.cpu_us() - before) / commits for cluster, before in spent]


def _tell(clients: int, costs: Sequence[Sequence[float]]) -> None:
    plain, tls = (statistics.median(column) for column in zip(*costs, strict=True))
    extra = sorted(with_tls - without for without, with_tls in costs)
    spread = f"{statistics.median(extra):.0f} more ({extra[0]:.0f} to {extra[-1]:.0f})"
    sys.stdout.write(f"{clients:2d} clients: plain {plain:.0f} us, TLS {tls:.0f} us: {spread}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=4)
    flags = parser.parse_args()
    forget_surroundings()
    with tempfile.TemporaryDirectory(prefix="walkeeper_tls_") as name:
        directory = Path(name)
        prepare(directory)
        asyncio.run(interruptible(measure(directory, flags.rounds, flags.seconds)))


if __name__ == "__main__":
    main()
