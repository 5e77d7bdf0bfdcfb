"""How long history takes beside pg_waldump, on the same WAL, in one run, by turns.

    python -m tests.history.benchmark [--path DIR] [--megabytes 1000] [--rounds 5] [--spark]

Without --path a server makes the WAL first (pgbench, full page images). In each round every
contestant runs twice and its second time is taken. So a busy machine is busy for all of them, and
no contestant pays for its predecessor's leftovers in the caches. The table has the best and the
median of the rounds, and the ratio of medians to pg_waldump's. CPU seconds (user and system, of all
threads) are beside the wall clock's, since other programs cannot inflate those as much. The JVM's
are not counted: its processes are not our children.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.history.reading_whole import stats_of_segment
from tests.history.seeded_wal import segment_paths
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from walkeeper_history.parquet import write_table
from walkeeper_history.rows.stats import Stats
from walkeeper_history.tables import table
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.sources.threaded_reading import SweepOptions, sweep

SETTINGS = {
    "wal_level": "logical",
    "wal_keep_size": "16GB",
    "fsync": "off",
    "synchronous_commit": "off",
    "checkpoint_timeout": "30s",
    "shared_buffers": "256MB",
}
PGBENCH_TIMEOUT_S = 300
WARMING = 6
Contestant = Callable[[], object]


@dataclass(frozen=True)
class Took:
    wall_s: float
    cpu_s: float


def took(run: Contestant) -> Took:
    before, start = os.times(), time.monotonic()
    run()
    after, end = os.times(), time.monotonic()
    return Took(end - start, sum(after[:4]) - sum(before[:4]))


def make_wal(directory: Path, megabytes: int) -> Path:
    with PostgresServer.create(SETTINGS) as server:
        pgbench = [program("pgbench")]
        run_as_server_user([*pgbench, "-iq", "-s", "20", server.dsn()], timeout_s=PGBENCH_TIMEOUT_S)
        while server.sql("SELECT (pg_current_wal_lsn() - '0/0')::bigint") < megabytes << 20:
            arguments = ["-n", "-c", "4", "-T", "10", server.dsn()]
            run_as_server_user([*pgbench, *arguments], timeout_s=PGBENCH_TIMEOUT_S)
        server.stop()
        shutil.copytree(server.data / "pg_wal", directory)
    return directory


def waldump(directory: Path, *options: str) -> Contestant:
    first = segment_paths(directory)[0]
    number, offset, size = int(first.name[8:16], 16), int(first.name[16:], 16), first.stat().st_size
    timeline = str(int(first.name[:8], 16))
    command = [program("pg_waldump"), *options, "-p", str(directory), "-t", timeline]
    command += ["-s", f"{number:X}/{offset * size:X}"]

    def run() -> None:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return run


def stats(directory: Path, engine: str, threads: int | None) -> Contestant:
    def run() -> None:
        files, total = open_files(str(directory)), Stats()
        options = SweepOptions(engine, threads=threads)
        for part, _ in sweep(files, make_plan(files), stats_of_segment, options=options):
            total.add(part)

    return run


def parquet(directory: Path, name: str) -> Contestant:
    def run() -> None:
        files = open_files(str(directory))
        with tempfile.TemporaryDirectory() as output:
            for _ in write_table(files, make_plan(files), table(name), Path(output)):
                pass

    return run


def spark_stats(directory: Path) -> Contestant:
    from pyspark_pgwal.session import session

    spark = session("local[2]")
    spark.sparkContext.setLogLevel("ERROR")

    def run() -> None:
        frame = spark.read.format("pgwal").option("path", str(directory)).option("table", "stats")
        frame.load().groupBy("resource_manager").sum("count", "record_size", "fpi_size").collect()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.history.benchmark")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wal = given.path or make_wal(Path(scratch) / "wal", given.megabytes)
        size = sum(path.stat().st_size for path in segment_paths(wal))
        say(f"{size / 1e6:.0f} MB, {len(segment_paths(wal))} segments, {os.cpu_count()} CPUs, ")
        say(f"load {os.getloadavg()[0]:.1f}\n\n")
        contestants: dict[str, tuple[str, Contestant]] = {
            "pg_waldump --stats": ("--stats", waldump(wal, "--stats")),
            "stats, compiled, 1 thread": ("--stats", stats(wal, "compiled", 1)),
            "stats, compiled, a thread a CPU": ("--stats", stats(wal, "compiled", None)),
            "stats, numpy, 1 thread": ("--stats", stats(wal, "numpy", 1)),
            "pg_waldump to /dev/null": ("text", waldump(wal)),
            "records to Parquet": ("text", parquet(wal, "records")),
            "blocks to Parquet": ("text", parquet(wal, "blocks")),
        }
        if given.spark:
            contestants["stats in Spark local[2], warm"] = ("--stats", spark_stats(wal))
        measure(contestants, given.rounds)


def measure(contestants: dict[str, tuple[str, Contestant]], rounds: int) -> None:
    for _, run in contestants.values():
        for _ in range(WARMING):
            run()  # fills caches, starts the JVM, which compiles what it runs often
    times: dict[str, list[Took]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (_, run) in contestants.items():
            run()  # the caches hold leftovers of the contestant before it
            times[name].append(took(run))
    wall = {name: median(t.wall_s for t in found) for name, found in times.items()}
    against = {"--stats": wall["pg_waldump --stats"], "text": wall["pg_waldump to /dev/null"]}
    say(f"{'':<30} {'best s':>8} {'median s':>9} {'CPU s':>7} {'ratio':>7}\n")
    for name, found in times.items():
        best, cpu = min(t.wall_s for t in found), median(t.cpu_s for t in found)
        ratio = wall[name] / against[contestants[name][0]]
        say(f"{name:<30} {best:>8.2f} {wall[name]:>9.2f} {cpu:>7.2f} {ratio:>7.2f}\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
