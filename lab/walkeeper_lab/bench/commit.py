"""`bench commit`: transactions a second, their latency and their CPU, by the number of clients."""

from __future__ import annotations

from walkeeper_lab.bench.bench_server import BenchServer
from walkeeper_lab.bench.disk import flushes
from walkeeper_lab.bench.pairs import Series
from walkeeper_lab.bench.rounds import Bench, Say
from walkeeper_lab.bench.sides import Side

CLIENTS = (1, 8, 32)


def cpu_s(side: Side) -> tuple[float, float]:
    """Return the processor time of a receiver, in the mean, and of the proposer; 0 for none."""
    receivers = [child.cpu_s() for child in side.victims]
    proposer_s = side.proposer.cpu_s() if side.proposer is not None else 0.0
    return sum(receivers) / max(len(receivers), 1), proposer_s


class _Figures:
    """The series of one number of clients."""

    def __init__(self, clients: int) -> None:
        what = f"{clients} clients" if clients > 1 else "1 client"
        self.rate = Series(what, "TPS", more=True)
        self.latency = Series("", "ms", more=False)
        self.tail = Series("", "p99.9 ms", more=False)
        self.longest = Series("", "longest ms", more=False)
        self.flushes = Series("", "flushes/s", more=False)
        self.receiver = Series("", "CPU µs, receiver", more=False)
        self.proposer = Series("", "CPU µs, proposer", more=False)

    @property
    def series(self) -> list[Series]:
        latencies = (self.latency, self.tail, self.longest)
        return [self.rate, *latencies, self.flushes, self.receiver, self.proposer]


class Commit(Bench):
    """The benchmark that runs pgbench -N.

    It counts the flushes of the whole device, so each side's count includes the primary's. A
    receiver's CPU a commit is the mean of the three.
    """

    title = "pgbench -N, prepared statements"

    def __init__(self, server: BenchServer, seconds: int) -> None:
        self._server, self._seconds = server, seconds
        self._figures = {clients: _Figures(clients) for clients in CLIENTS}

    @property
    def series(self) -> list[Series]:
        return [series for figures in self._figures.values() for series in figures.series]

    async def measure(self, side: Side, say: Say) -> None:
        directory = self._server.server.data.parent
        for clients, figures in self._figures.items():
            flushed, spent_s = flushes(directory), cpu_s(side)
            result = await self._server.transactions(clients, self._seconds)
            flushed_since = flushes(directory)
            figures.rate.add(side.name, result.tps)
            figures.latency.add(side.name, result.latency_ms)
            figures.tail.add(side.name, result.p999_ms)
            figures.longest.add(side.name, result.transactions_ms[-1])
            if flushed is not None and flushed_since is not None:
                figures.flushes.add(side.name, (flushed_since - flushed) / self._seconds)
            commits = len(result.transactions_ms)
            both = (figures.receiver, figures.proposer)
            for series, before_s, after_s in zip(both, spent_s, cpu_s(side), strict=True):
                if after_s:
                    series.add(side.name, 1_000_000 * (after_s - before_s) / commits)
            say(f"{side.name}: {clients} clients, {result.tps:.0f} TPS, {result.latency_ms:.2f} ms")
