"""Mirrors ten tables of a cluster into Delta tables, kills parts of it, and compares.

    python -m tests.proof.mirrors                          two rounds of five seconds
    python -m tests.proof.mirrors --rounds 10 --load 120   twenty minutes and more
    python -m tests.proof.mirrors --rounds 10 --load 720 --rate 100   two hours, for a busy machine

Each round has pgbench work on ten tables with keys, with changes of the schema between. Meanwhile
the stream, a safekeeper or the proposer is killed with SIGKILL at random times, and started again.
Then the work pauses, the mirrors reach the server's LSN, and each table's rows are compared. The
stream reads the live log with little memory, so that pages go to its state's file and come back.

Exit codes: 0 all tables were equal each time, 1 a difference, 2 usage.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from random import Random

from tests.proof.mirrors import mirrored_work
from tests.proof.mirrors.mirrored_work import TABLES, change_schema, digest, make_tables, rows_of
from tests.support.cluster import WALKEEPER, Cluster, lsn_of
from tests.support.postgres_server import (
    PostgresServer,
    program,
    run_as_server_user,
    server_environment,
)
from tests.support.program_parser import program_parser
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_history.change_files import ChangeFiles

CATCH_UP_S = 10 * LIMIT_S
MEMORY_MB = 1
RETENTION = "10min"  # so that a long run removes files, too
# Primary keys come before the rows: a mirror refuses rows of a table without one.
PGBENCH_TABLES = ("-iq", "-I", "dtpg", "-s", "1")
ENDS_BY_ITSELF_MAX = 5


class Different(AssertionError):
    """A mirror is not its table."""


class Stream:
    """The command, which is started again whenever it has ended."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.to, self.log = folder / "to", folder / "stream.log"
        path = f"walkeeper://{cluster.addresses}/{cluster.name}"
        tables = [word for name in TABLES for word in ("--table", f"public.{name}")]
        self._words = [
            *(*WALKEEPER, "history", "stream", "--path", path, "--to", f"delta:{self.to}"),
            *("--state", str(folder / "state"), "--mode", "mirror", "--interval", "200ms"),
            *("--save-every", "4", "--memory", str(MEMORY_MB), "--retention", RETENTION, *tables),
        ]
        self.ended_by_itself = 0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start it if it does not run. Fail if it ends by itself over and over."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self.ended_by_itself += 1
            shown = self.log.read_text(errors="replace")[-2000:]
            assert self.ended_by_itself <= ENDS_BY_ITSELF_MAX, f"the stream ends again:\n{shown}"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._words, env=server_environment(), stdout=log, stderr=log
            )

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def has_reached(self, lsn: int) -> bool:
        """Keep it running; return whether the mirrors are at `lsn`."""
        self.run()
        return ChangeFiles.open(str(self.to)).position() >= lsn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds, and print what was compared."""
    asked = _arguments(arguments)
    folder = Path(tempfile.mkdtemp(prefix="walkeeper_mirrors_"))
    try:
        return _compared(asked, folder)
    except Different as error:
        _say(f"FOUND: {error}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compared(asked: argparse.Namespace, folder: Path) -> int:
    settings = {"checkpoint_timeout": "30s", "autovacuum_naptime": "5s"}
    with (
        PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server,
        Cluster.create(server) as cluster,
    ):
        run_as_server_user([program("pgbench"), *PGBENCH_TABLES, server.dsn()], timeout_s=LIMIT_S)
        make_tables(server)
        stream, random, total = Stream(cluster, folder), Random(asked.seed), Counter[str]()
        try:
            for number in range(1, asked.rounds + 1):
                stream.run()
                total += _load(asked, cluster, stream, random, folder)
                total["schema changes"] += 1
                change = change_schema(server, random, number)
                lsn = lsn_of(server.sql("SELECT pg_current_wal_flush_lsn()"))
                wait_until(partial(stream.has_reached, lsn), CATCH_UP_S)
                rows = sum(_compare(server, stream, name) for name in TABLES)
                total["rows compared"] += rows
                total["tables equal"] += len(TABLES)
                _say(f"round {number}: {len(TABLES)} tables equal, {rows} rows, {change}")
        finally:
            stream.kill()
        total["times that the stream ended by itself"] = stream.ended_by_itself
        total["MB of WAL"] = lsn >> 20
    _say(", ".join(f"{count} {name}" for name, count in sorted(total.items())))
    return 0


def _load(
    asked: argparse.Namespace, cluster: Cluster, stream: Stream, random: Random, folder: Path
) -> Counter[str]:
    """Let pgbench work while parts are killed; return how many were."""
    killed = Counter[str]()
    words = [program("pgbench"), "-n", "-c", "3", "-T", str(asked.load), "-D", "scale=1",
             "-f", str(mirrored_work.script(folder))]  # fmt: skip
    words += ["-R", str(asked.rate)] if asked.rate else []
    words.append(cluster.primary.dsn())
    with ThreadPoolExecutor(1) as pool:
        # Its last commits wait for the quorum and for a proposer.
        work = pool.submit(run_as_server_user, words, timeout_s=asked.load + CATCH_UP_S)
        while not work.done():
            stream.run()
            time.sleep(random.uniform(0.5, asked.pause))
            victim = random.choice(("stream", "stream", "safekeeper", "proposer"))
            killed[f"kills of the {victim}"] += 1
            if victim == "stream":
                stream.kill()
                continue
            keeper = random.choice(cluster.safekeepers)
            daemon = keeper if victim == "safekeeper" else cluster.proposer
            daemon.kill()
            time.sleep(random.uniform(0.0, 1.0))
            daemon.start()
        work.result()
    return killed


def _compare(server: PostgresServer, stream: Stream, name: str) -> int:
    """Return the number of rows, which are the same on both sides; raise Different."""
    expected, found = rows_of(server, name), mirrored_work.mirrored(stream.to, name)
    if expected != found:
        only = sorted(set(expected) ^ set(found))[:4]
        raise Different(
            f"{name}: {len(expected)} rows ({digest(expected)}) and {len(found)} in the mirror "
            f"({digest(found)}); not on both sides: {only}"
        )
    return len(expected)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program_parser("tests.proof.mirrors", __doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the kills  [1]")
    parser.add_argument("--rounds", type=int, default=2, help="comparisons  [2]")
    parser.add_argument("--load", type=int, default=5, help="seconds of work in a round  [5]")
    parser.add_argument("--rate", type=int, default=0, help="transactions a second  [as they can]")
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between kills  [3]")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
