"""Changes a second and lag of a logical log, beside a pg_recvlogical straight from the primary.

    python -m tests.with_postgres.changes_benchmark [--rounds 3] [--changes 100000] [--commits 200]

One PostgreSQL runs, and each round measures both sides in turn. `direct` is pg_recvlogical with a
slot at the primary. `walkeeper` is the same program with a slot at a safekeeper, fed by a proposer
with three safekeepers on the same disk. Throughput is that of transactions of 100 rows, from the
first one's begin until the consumer has the last. Lag is the time from a commit's return
(synchronous_commit = local) to its bytes at the consumer, one commit after another. The output has
the medians of the rounds, and their ratios.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

from tests.support.change_consumer import consumer_arguments, create_slot, drop_slot
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import wait_until
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster

ROWS = 100
MARK = re.compile(rb"mark(\d{8})")
SLOT = "measured"


@dataclass
class Side:
    """The results of one side's rounds."""

    name: str
    changes_per_s: list[float] = field(default_factory=list)
    lag_ms: list[float] = field(default_factory=list)
    lag_p95_ms: list[float] = field(default_factory=list)


class Consumer:
    """A pg_recvlogical, and the time at which each mark arrived."""

    def __init__(self, port: int) -> None:
        self.seen: dict[int, float] = {}
        self.bytes = 0
        self._process = subprocess.Popen(
            consumer_arguments(port, SLOT, "--start", "-n", "-s", "1", "-f", "-"),
            env=server_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        held, descriptor = b"", self._process.stdout.fileno()
        while data := os.read(descriptor, 1 << 20):
            now_s = time.perf_counter()
            self.bytes += len(data)
            held += data
            for found in MARK.finditer(held):
                self.seen.setdefault(int(found[1]), now_s)
            held = held[-12:]

    def wait_for(self, mark: int) -> float:
        wait_until(lambda: mark in self.seen, 300)
        return self.seen[mark]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join(10)


def measure(server: PostgresServer, port: int, side: Side, changes: int, commits: int) -> None:
    first = len(side.lag_ms) * 2_000_000 + (1_000_000 if side.name == "direct" else 0)
    create_slot(port, SLOT)  # the log may still bring what the other side was measured with
    consumer = Consumer(port)
    try:
        with server.connect() as connection:
            connection.execute(b"SET synchronous_commit = local")

            def mark(number: int) -> None:
                connection.execute(b"INSERT INTO marks VALUES ('mark%08d')" % number)

            mark(first)
            consumer.wait_for(first)
            begun_s = time.perf_counter()
            for _ in range(changes // ROWS):
                connection.execute(
                    b"INSERT INTO load SELECT i, repeat('x', 100) FROM generate_series(1, %d) i"
                    % ROWS
                )
            mark(first + 1)
            side.changes_per_s.append(changes / (consumer.wait_for(first + 1) - begun_s))
            returned = dict[int, float]()
            for number in range(first + 2, first + 2 + commits):
                mark(number)
                returned[number] = time.perf_counter()
                consumer.wait_for(number)
            lags = sorted(1000 * (consumer.seen[n] - at_s) for n, at_s in returned.items())
            side.lag_ms.append(statistics.median(lags))
            side.lag_p95_ms.append(lags[int(0.95 * len(lags))])
            connection.execute(b"TRUNCATE load")
    finally:
        consumer.stop()
    wait_until(lambda: _is_dropped(port))


def _is_dropped(port: int) -> bool:
    """Return True once the slot is dropped; it is in use until its walsender has noticed."""
    try:
        drop_slot(port, SLOT)
    except AssertionError as error:
        if "is active" in str(error):
            return False
        raise
    return True


def run(rounds: int, changes: int, commits: int) -> list[Side]:
    direct, ours = Side("direct"), Side("walkeeper")
    with PostgresServer.create({**SETTINGS, "shared_buffers": "128MB"}) as server:
        server.sql(
            "CREATE PUBLICATION p FOR ALL TABLES",
            "CREATE TABLE load (id int, v text)",
            "CREATE TABLE marks (v text)",
        )
        cluster = LogicalCluster(server)
        try:
            cluster.start_safekeepers()
            cluster.make_log()
            for number in range(rounds):
                sides = [direct, ours] if number % 2 else [ours, direct]
                for side in sides:
                    if side is ours:
                        cluster.proposer.start()
                        measure(server, cluster.ports[0], side, changes, commits)
                        cluster.proposer.terminate()
                    else:
                        measure(server, server.port, side, changes, commits)
                    _say(
                        f"round {number + 1}, {side.name}: {side.changes_per_s[-1]:,.0f} "
                        f"changes/s, lag {side.lag_ms[-1]:.2f} ms (p95 {side.lag_p95_ms[-1]:.2f})"
                    )
        finally:
            cluster.close()
    return [direct, ours]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--changes", type=int, default=100_000, help="of each side in a round")
    parser.add_argument("--commits", type=int, default=200, help="for the lag")
    asked = parser.parse_args()
    direct, ours = run(asked.rounds, asked.changes, asked.commits)
    for what, name in (
        ("changes/s", "changes_per_s"), ("lag ms", "lag_ms"), ("lag p95 ms", "lag_p95_ms")
    ):  # fmt: skip
        theirs, mine = getattr(direct, name), getattr(ours, name)
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        _say(
            f"{what}: direct {statistics.median(theirs):,.2f}, "
            f"walkeeper {statistics.median(mine):,.2f}, ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
