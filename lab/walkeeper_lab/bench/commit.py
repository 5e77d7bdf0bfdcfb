"""`bench commit`: transactions a second and their latency at each number of clients."""

from __future__ import annotations

from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.disk import flushes
from walkeeper_lab.bench.pairs import Series
from walkeeper_lab.bench.rounds import Bench, Say
from walkeeper_lab.bench.sides import Side

CLIENTS = (1, 8, 32)


class Commit(Bench):
    """The benchmark that runs pgbench -N.

    It counts the flushes of the whole device, so each side's count includes the primary's.
    """

    title = "pgbench -N, prepared statements"

    def __init__(self, server: BenchServer, seconds: int) -> None:
        self._server, self._seconds = server, seconds
        self._series = {
            clients: (
                Series(f"{clients} clients" if clients > 1 else "1 client", "TPS", more=True),
                Series("", "ms", more=False),
                Series("", "p99.9 ms", more=False),
                Series("", "flushes/s", more=False),
            )
            for clients in CLIENTS
        }

    @property
    def series(self) -> list[Series]:
        return [series for each in self._series.values() for series in each]

    async def measure(self, side: Side, say: Say) -> None:
        directory = self._server.server.data.parent
        for clients, (rates, latencies, tails, flushed) in self._series.items():
            before = flushes(directory)
            result = await self._server.transactions(clients, self._seconds)
            after = flushes(directory)
            rates.add(side.name, result.tps)
            latencies.add(side.name, result.latency_ms)
            tails.add(side.name, result.p999_ms)
            if before is not None and after is not None:
                flushed.add(side.name, (after - before) / self._seconds)
            say(f"{side.name}: {clients} clients, {result.tps:.0f} TPS, {result.latency_ms:.2f} ms")
