"""How long a commit takes to be in the lake: the stream's command on a live log, under pgbench.

    python -m tests.replay.latency --to parquet|delta [--seconds 120] [--rate 10]

Three safekeepers and a server run here. pgbench commits `--rate` transactions a second. The command
follows the log with its own defaults. The latency of a commit is the time of the file that makes it
visible, less the commit's own time. That file is a Parquet file, or the log entry of a Delta table.
Both times are of this machine's clock. The first seconds are the start of the command, and do not
count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from tests.support.cluster import WALKEEPER, Cluster
from tests.support.postgres_server import (
    PostgresServer,
    program,
    run_as_server_user,
    server_environment,
)
from tests.support.program_parser import program_parser
from tests.support.waiting import LIMIT_S, wait_until

TABLE = "pgbench_accounts"
START_S = 10.0


def parquet_latencies(to: Path, begin: float) -> Iterator[float]:
    """Yield the latency of each commit after `begin` in files of changes."""
    for path in to.glob("changes-*.parquet"):
        shown = path.stat().st_mtime
        times = pq.read_table(path, columns=["commit_time"])["commit_time"].to_pylist()
        yield from (shown - t.timestamp() for t in times if t.timestamp() >= begin)


def delta_latencies(to: Path, begin: float) -> Iterator[float]:
    """Yield the latency of each commit after `begin` in a Delta table of changes."""
    for entry in (to / "_delta_log").glob("*.json"):
        shown = entry.stat().st_mtime
        for line in entry.read_text().splitlines():
            if (added := json.loads(line).get("add")) is not None:
                rows = pq.read_table(to / added["path"], columns=["commit_time"])
                times = [t.timestamp() for t in rows["commit_time"].to_pylist()]
                yield from (shown - each for each in times if each >= begin)


READERS = {"parquet": parquet_latencies, "delta": delta_latencies}


def measured(kind: str, seconds: int, rate: int, folder: Path) -> list[float]:
    """Return the latencies of all commits but the first ones, in their order of size."""
    with PostgresServer.create() as server, Cluster.create(server) as cluster:
        pgbench = [program("pgbench")]
        run_as_server_user([*pgbench, "-iq", "-s", "1", server.dsn()], timeout_s=LIMIT_S)
        to = folder / "to"
        words = [
            *(*WALKEEPER, "history", "stream", "--table", TABLE, "--state", str(folder / "state")),
            *("--path", f"walkeeper://{cluster.addresses}/{cluster.name}"),
            *("--to", f"delta:{to}" if kind == "delta" else str(to)),
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(words, env=server_environment(), stdout=log, stderr=log)
        try:
            wait_until(lambda: to.exists() and any(to.rglob("*.parquet")), LIMIT_S)
            begin = time.time() + START_S
            load = ["-n", "-c", "1", "-R", str(rate), "-T", str(seconds), server.dsn()]
            run_as_server_user([*pgbench, *load], timeout_s=seconds + LIMIT_S)
            wait_until(lambda: time.time() - _newest(to) > 2 * START_S, 4 * LIMIT_S)
        finally:
            process.terminate()
            process.wait(LIMIT_S)
        return sorted(READERS[kind](to, begin))


def _newest(to: Path) -> float:
    return max(path.stat().st_mtime for path in to.rglob("*.parquet"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = program_parser("tests.replay.latency", __doc__)
    parser.add_argument("--to", choices=sorted(READERS), default="parquet")
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--rate", type=int, default=10)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measured(asked.to, asked.seconds, asked.rate, Path(folder))
    at = {name: found[int(len(found) * share)] for name, share in (("median", 0.5), ("p95", 0.95))}
    shown = ", ".join(f"{name} {value:.2f} s" for name, value in at.items())
    sys.stdout.write(f"{asked.to}: {len(found)} changes, {shown}, most {found[-1]:.2f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
