"""How long a table as of an LSN takes, beside a real restore to it and the same query.

    python -m tests.replay.benchmark [--directory DIR] [--megabytes 1000] [--rounds 3] [--spark]
    python -m tests.replay.benchmark --backup-gb 20 --rounds 1     needs twice that much disk

A server makes the WAL (pgbench at scale 20: two million accounts), over a base backup taken before.
Each round reads pgbench_accounts as of the end of the WAL by replay, in threads and, with --spark,
in local[2]. Once in a round PostgreSQL restores the backup, recovers to there, and computes the
sum. DIR keeps the files for the next run.

With --backup-gb the accounts are in the backup, beside a table that fills it up to that size, and
replay reads both. A restore copies all of it, and replay reads the accounts alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pyarrow.compute as compute

from tests.history.benchmark import PGBENCH_TIMEOUT_S
from tests.history.seeded_wal import segment_paths
from tests.replay.restored import Restored
from tests.support.postgres_server import PostgresServer, own, program, run_as_server_user
from walkeeper_common.lsn import Lsn
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.store import PageStore
from walkeeper_replay.redo.wal_pass import pass_over
from walkeeper_replay.table_at import TableAt
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

SETTINGS = {
    "wal_level": "replica",
    "wal_keep_size": "16GB",
    "fsync": "off",
    "synchronous_commit": "off",
    "checkpoint_timeout": "30s",
    "shared_buffers": "256MB",
}
RELATION_BYTES_MAX = 1 << 30  # a relation's file; the next block is in file .1, and so on
BESIDE = """
    CREATE TABLE beside WITH (autovacuum_enabled = off) AS
    SELECT repeat('x', 1900) AS x FROM generate_series(1, 4 * 131072)"""
QUERY = "SELECT count(*)::text || ' ' || sum(abalance)::text FROM pgbench_accounts"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def make(directory: Path, megabytes: int, backup_gb: int) -> None:
    """Make wal/, backup/ and end (an LSN) in `directory`."""
    pgbench = [program("pgbench")]
    with PostgresServer.create(SETTINGS) as server:
        accounts = [*pgbench, "-iq", "-s", "20", server.dsn()]
        if backup_gb:
            run_as_server_user(accounts, timeout_s=PGBENCH_TIMEOUT_S)
            server.sql(BESIDE)
        backup = server.base_backup()
        if backup_gb:
            path = server.sql("SELECT pg_relation_filepath('beside')")
            fill(backup.data / str(path), backup_gb)
        else:
            run_as_server_user(accounts, timeout_s=PGBENCH_TIMEOUT_S)
        begin = wal_bytes(server) if backup_gb else 0
        while wal_bytes(server) < begin + (megabytes << 20):
            arguments = ["-n", "-c", "4", "-T", "10", server.dsn()]
            run_as_server_user([*pgbench, *arguments], timeout_s=PGBENCH_TIMEOUT_S)
        end = server.sql("SELECT pg_current_wal_insert_lsn()::text")
        answer = server.sql(QUERY)
        server.sql("SELECT pg_switch_wal()")
        server.stop()
        shutil.copytree(server.data / "pg_wal", directory / "wal")
        own(directory / "wal")
        if backup_gb:  # the WAL that made the other table is none of the answer's
            first = min(path.name for path in segment_paths(backup.data / "pg_wal"))
            for segment in segment_paths(directory / "wal"):
                if segment.name < first:
                    segment.unlink()
        shutil.move(backup.data, directory / "backup")
        backup.delete()
        (directory / "end").write_text(f"{end}\n{answer}\n")


def fill(first: Path, gigabytes: int) -> None:
    """Fill a relation of the backup up to so many files with copies of its first one."""
    assert first.stat().st_size == RELATION_BYTES_MAX, f"{first.stat().st_size=}"
    for number in range(1, gigabytes):
        shutil.copy(first, f"{first}.{number}")


def wal_bytes(server: PostgresServer) -> int:
    return int(str(server.sql("SELECT (pg_current_wal_lsn() - '0/0')::bigint")))


def took(run: Callable[[], str], expected: str) -> float:
    start = time.monotonic()
    found = run()
    wall = time.monotonic() - start
    assert found == expected, f"{found=} {expected=}"
    return wall


def restore(directory: Path) -> str:
    """Restore; the copy of the backup counts, since a restore begins with one."""
    scratch = Path(tempfile.mkdtemp(prefix="walkeeper_restore_"))
    try:
        scratch.chmod(0o755)
        shutil.copytree(directory / "backup", scratch / "data")
        (scratch / "data").chmod(0o700)
        own(scratch)
        server = PostgresServer(scratch, {**SETTINGS, "hot_standby": "on"})
        restored = Restored(server, directory / "wal")
        restored.to(int(Lsn.parse((directory / "end").read_text().splitlines()[0])))
        try:
            return str(server.sql(QUERY))
        finally:
            server.kill()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def replay(wal: str, base: BaseDirectory | None, lsn: int, threads: int) -> str:
    plan = make_plan(open_files(wal))
    rows = TableAt.open(wal, plan, "public.pgbench_accounts", lsn=lsn, base=base).whole(threads)
    return f"{rows.num_rows} {compute.sum(rows['abalance']).as_py()}"


def only_redo(wal: str, lsn: int) -> str:
    """Redo all heap relations of the database, pages only, in one thread."""
    plan, store = make_plan(open_files(wal)), PageStore(takes_all=True)
    start = time.monotonic()
    pass_over(open_files(wal), plan, [store.add], until=lsn, check_crc=False)
    wall, applied = time.monotonic() - start, int(store.counts[3])
    say(f"  redo of all heap blocks, one thread: {wall:.2f} s, {applied / wall / 1e6:.2f} M/s")
    return ""


def in_spark(wal: str, lsn: int) -> Callable[[], str]:
    from pyspark_pgwal.session import session

    spark = session("local[2]", spark_driver_memory="2g")
    spark.sparkContext.setLogLevel("ERROR")

    def run() -> str:
        frame = spark.read.format("pgwal").option("path", wal).option("table", "table_at")
        frame = frame.option("relation", "public.pgbench_accounts").option("lsn", str(lsn))
        row = frame.load().selectExpr("count(*)", "sum(abalance)").collect()[0]
        return f"{row[0]} {row[1]}"

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.replay.benchmark")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--backup-gb", type=int, default=0, help="read a backup of this size, too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        directory = given.directory or Path(scratch)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        if not (directory / "end").exists():
            make(directory, given.megabytes, given.backup_gb)
        end, expected = (directory / "end").read_text().splitlines()
        wal, lsn = str(directory / "wal"), int(Lsn.parse(end))
        base = BaseDirectory(str(directory / "backup")) if given.backup_gb else None
        size = sum(path.stat().st_size for path in segment_paths(directory / "wal"))
        say(f"{size / 1e6:.0f} MB of WAL, {expected.split()[0]} rows, {os.cpu_count()} CPUs, ")
        runs: dict[str, Callable[[], str]] = {
            "table_at, one thread": lambda: replay(wal, base, lsn, 1),
            "table_at, two threads": lambda: replay(wal, base, lsn, 2),
        }
        if given.spark:
            runs["table_at in Spark local[2], warm"] = in_spark(wal, lsn)
        for run in runs.values():  # compiled code and a Java machine are warm then
            run()
        if base is None:
            only_redo(wal, lsn)
        runs["restore, recovery, SELECT"] = lambda: restore(directory)
        measured = {
            name: [took(run, expected) for _ in range(given.rounds)] for name, run in runs.items()
        }
        slowest = min(measured["restore, recovery, SELECT"])
        for name, times in measured.items():
            say(
                f"  {name:<36} best {min(times):6.2f} s, median {median(times):6.2f} s, "
                f"{slowest / min(times):5.1f} times as fast as a restore"
            )


if __name__ == "__main__":
    main()
