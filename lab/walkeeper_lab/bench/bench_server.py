"""The primary of a benchmark, made once for all sides, and pgbench on it. A shell.

fsync and full_page_writes are on. The settings are those of a small production server rather than a
tuned one. Checkpoints happen at set moments, so that no side pays for another side's checkpoint.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from walkeeper_common.errors import Refused
from walkeeper_lab.local.postgresql import USER, PostgreSQL
from walkeeper_lab.local.tcp_ports import HOST

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "min_wal_size": "1GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "wal_keep_size": "256MB",
    "max_wal_senders": "12",
    "max_connections": "60",
}
LATENCY = re.compile(r"latency average = ([\d.]+) ms")
LATENCIES = "latencies"  # the folder of pgbench's log: a line a transaction, the third field its µs
LATENCY_FIELD = 2
TPS = re.compile(r"^tps = ([\d.]+)", re.M)


@dataclass(frozen=True, slots=True)
class Throughput:
    """The figures of pgbench, without the time of its connections."""

    tps: float
    latency_ms: float
    transactions_ms: Sequence[float]
    """The latency of each transaction, in ascending order; never empty."""

    @property
    def p999_ms(self) -> float:
        """The latency that all but one in 1,000 transactions kept."""
        return self.transactions_ms[len(self.transactions_ms) * 999 // 1000]


class BenchServer:
    """A primary; call `make` first, which also creates pgbench's tables."""

    def __init__(self, server: PostgreSQL, scale: int) -> None:
        self.server, self._scale = server, scale

    async def make(self) -> None:
        await self.server.make()
        self.server.configure(SETTINGS)
        await self.server.start()
        await self._pgbench("-i", "-q", "-s", str(self._scale), seconds=600)

    async def transactions(self, clients: int, seconds: int) -> Throughput:
        """Run pgbench -N: each commit holds an UPDATE of a random account, a SELECT and an INSERT.

        Run it again, for longer, if it completed no transaction, as may happen on a busy machine.
        Raise Refused if it still completes none.
        """
        await self.server.value("CHECKPOINT")
        threads = str(min(clients, 2))
        directory = self.server.data.parent / LATENCIES
        for tried_s in (seconds, 5 * seconds):
            directory.mkdir(mode=0o700)
            self.server.programs.own(directory)
            said = await self._pgbench(
                *("-N", "-n", "-c", str(clients), "-j", threads, "-T", str(tried_s)),
                *("-M", "prepared", "-l", "--log-prefix", str(directory / "log")),
                seconds=tried_s + 60,
            )
            tps, latency = TPS.search(said), LATENCY.search(said)
            each_ms = ascending_ms(line for log in directory.iterdir() for line in log.open())
            shutil.rmtree(directory)
            if tps and latency and each_ms:
                return Throughput(float(tps.group(1)), float(latency.group(1)), each_ms)
        raise Refused(f"no transaction was completed in {5 * seconds} s; pgbench says:\n{said}")

    async def _pgbench(self, *arguments: str, seconds: float) -> str:
        return await self.server.programs.run(
            "pgbench",
            *("-h", HOST, "-p", str(self.server.port), "-U", USER, *arguments, "postgres"),
            directory=self.server.data.parent,
            timeout_s=seconds,
            PGPASSWORD=self.server.password,
        )


def ascending_ms(lines: Iterable[str]) -> list[float]:
    """Return what each transaction of pgbench's log took, in ascending order."""
    return sorted(int(line.split()[LATENCY_FIELD]) / 1000 for line in lines)
