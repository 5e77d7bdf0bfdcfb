"""How the cost of an answer grows with the archive: with an index, as a stream, and over Spark.

    python -m tests.replay.scale [--path DIR | --megabytes 1000] [--table rare] [--spark 1,2,4]

Without --path a server makes the WAL first: pgbench, beside a table `rare` that changes once. The
program prints the seconds of each answer with and without an index. It prints the megabytes a
second of a stream, and the seconds of read_once with so many local cores. Compare runs of several
sizes: with an index the seconds of `rare` should hardly grow. The second of two runs counts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.history.benchmark import PGBENCH_TIMEOUT_S, SETTINGS
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from walkeeper_cli.program import run


def made_wal(directory: Path, megabytes: int) -> Path:
    """Make WAL of pgbench, with one small table beside it."""
    with PostgresServer.create(SETTINGS) as server:
        pgbench = [program("pgbench")]
        run_as_server_user([*pgbench, "-iq", "-s", "5", server.dsn()], timeout_s=PGBENCH_TIMEOUT_S)
        server.sql("CREATE TABLE rare (id int PRIMARY KEY, t text)")
        server.sql("INSERT INTO rare SELECT i, i::text FROM generate_series(1, 100) i")
        while server.sql("SELECT (pg_current_wal_lsn() - '0/0')::bigint") < megabytes << 20:
            arguments = ["-n", "-c", "4", "-T", "10", server.dsn()]
            run_as_server_user([*pgbench, *arguments], timeout_s=PGBENCH_TIMEOUT_S)
        server.sql("DELETE FROM rare WHERE id = 7")
        server.stop()
        shutil.copytree(server.data / "pg_wal", directory)
    return directory


def seconds(ask: Callable[[], object]) -> float:
    ask()
    begun = time.monotonic()
    ask()
    return time.monotonic() - begun


def command(*arguments: str) -> Callable[[], None]:
    def ask() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = run(["history", *arguments])
        assert code == 0, f"{arguments}: exit code {code}"

    return ask


def answers(wal: Path, table: str, folder: Path) -> Iterator[tuple[str, float]]:
    """Yield each answer's name and its seconds, without an index and with it."""
    index, output = str(folder / "index.parquet"), str(folder / "out.parquet")
    begun = time.monotonic()
    command("index", "--path", str(wal), "--output", index)()
    yield "index, the first time", time.monotonic() - begun
    questions = {
        f"table-at {table}": ["table-at", table, "--output", output],
        f"changes of {table}": ["changes", "--table", table, "--allow-missing", "-o", output],
        "find delete": ["find", "delete"],
    }
    for name, arguments in questions.items():
        asked = [*arguments, "--path", str(wal)]
        yield name, seconds(command(*asked))
        yield f"{name}, with the index", seconds(command(*asked, "--index", index))


def streamed(wal: Path, folder: Path) -> float:
    begun = time.monotonic()
    to, state = str(folder / "to"), str(folder / "state")
    asked = ["stream", "--path", str(wal), "--to", to, "--state", state, "--once"]
    command(*asked, "--allow-missing")()
    return time.monotonic() - begun


def over_spark(wal: Path, table: str, cores: int) -> float:
    from pyspark_pgwal.read_once import table_at
    from pyspark_pgwal.session import session

    made = session(f"local[{cores}]")
    made.sparkContext.setLogLevel("ERROR")
    try:
        parts = str(2 * cores)
        return seconds(lambda: table_at(made, path=str(wal), relation=table, parts=parts).count())
    finally:
        made.stop()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--path", type=Path)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--table", default="rare")
    parser.add_argument("--spark", default="", help="cores, separated by commas")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="walkeeper_scale_") as name:
        folder = Path(name)
        wal = given.path or made_wal(folder / "wal", given.megabytes)
        size = sum(each.stat().st_size for each in wal.iterdir() if each.is_file()) / (1 << 20)
        sys.stdout.write(f"{size:.0f} MB of WAL, {os.cpu_count()} CPUs\n")
        for answer, took in answers(wal, given.table, folder):
            sys.stdout.write(f"{answer:40} {took:8.2f} s\n")
        took = streamed(wal, folder)
        sys.stdout.write(f"{'stream of all tables':40} {took:8.2f} s, {size / took:.1f} MB/s\n")
        for cores in (int(each) for each in given.spark.split(",") if each):
            took = over_spark(wal, given.table, cores)
            sys.stdout.write(f"{f'read_once, {cores} cores':40} {took:8.2f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
