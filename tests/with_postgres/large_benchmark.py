"""The cost of a large transaction for other sessions: streamed, or sent at its commit.

    python -m tests.with_postgres.large_benchmark [--rounds 3] [--rows 1000000]

One PostgreSQL, a proposer and three safekeepers run, and every commit waits for the logical log.
Each round measures both sides in turn. `streamed` is the proposer as it is. `at commit` is the same
with --spool-size-max 0, so that PostgreSQL itself keeps a transaction until it commits. One session
writes all rows in one transaction, another commits a row every 10 ms. The output has the medians of
the rounds, and their ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field

from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.with_postgres.logical_cluster import SETTINGS, LogicalCluster

FILL = "INSERT INTO large SELECT i, md5(i::text) FROM generate_series(1, {}) i"
PAUSE_S = 0.01


@dataclass
class Side:
    """One way to send, and the results of its rounds."""

    name: str
    options: tuple[str, ...]
    commit_s: list[float] = field(default_factory=list)
    longest_s: list[float] = field(default_factory=list)

    def measure(self, cluster: LogicalCluster, rows: int) -> None:
        server = cluster.primary
        logical = ("--logical", "--publication", "p")
        cluster.proposer = cluster.new_proposer("measured", *logical, *self.options)
        cluster.proposer.start()
        server.sql("DROP TABLE IF EXISTS large", "CREATE TABLE large (id int, v text)")
        others = Journal(server, writers=1, pause_s=PAUSE_S)
        with others, server.connect() as session:
            session.execute(b"BEGIN")
            session.execute(FILL.format(rows).encode())
            started = time.perf_counter()
            session.execute(b"COMMIT")
            self.commit_s.append(time.perf_counter() - started)
            time.sleep(1)
        self.longest_s.append(max(entry.latency_s for entry in others.entries))
        cluster.proposer.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description="What a large transaction costs the others.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    asked = parser.parse_args()
    sides = [Side("at commit", ("--spool-size-max", "0")), Side("streamed", ())]
    with PostgresServer.create(SETTINGS) as server:
        server.sql("CREATE PUBLICATION p FOR ALL TABLES")
        with LogicalCluster.create(server) as cluster:
            cluster.proposer.terminate()
            for number in range(asked.rounds):
                for side in sides[:: 1 if number % 2 else -1]:
                    side.measure(cluster, asked.rows)
    sys.stdout.write(f"{asked.rows} rows in one transaction, {asked.rounds} rounds\n")
    for side in sides:
        commit, longest = statistics.median(side.commit_s), statistics.median(side.longest_s)
        sys.stdout.write(
            f"{side.name:10} COMMIT {commit:6.2f} s, others at most {longest:6.2f} s\n"
        )
    ratios = [
        statistics.median(b / a for a, b in zip(one, other, strict=True))
        for one, other in (
            (sides[0].commit_s, sides[1].commit_s),
            (sides[0].longest_s, sides[1].longest_s),
        )
    ]
    sys.stdout.write(f"ratio      COMMIT {ratios[0]:6.2f}, others {ratios[1]:6.2f}\n")


if __name__ == "__main__":
    main()
