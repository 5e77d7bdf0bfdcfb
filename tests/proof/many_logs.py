"""One safekeeper with many logs: its threads and memory, and a quiet log beside a bulk one.

    python -m tests.proof.many_logs                         200 logs, 3 rounds of 3 times 8 s
    python -m tests.proof.many_logs --logs 50 --rounds 1

A quiet primary commits small rows through a safekeeper, one after the other. In turn there is no
other load, a bulk load through another safekeeper, or a bulk load through the same one. The first
two differ by what the machine has to do. The last two differ by what one process shares: its
loop, its threads and its memory. The logs beside them are idle.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg

from tests.support.cluster import Daemon
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.program_parser import program_parser
from walkeeper_admin.create import CreateSettings, create
from walkeeper_admin.primary.attach import AttachSettings, attach
from walkeeper_common.addresses import Address
from walkeeper_common.quorum import Configuration, member_name
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.wire.requests import ConfigureLog, LogState, PrepareLog
from walkeeper_lab.local.tcp_ports import free_port

ARMS = ("alone", "bulk elsewhere", "bulk beside it")
ANSWER_S = 20.0
IDLE_S = 6.0  # a worker's thread ends after less
BULK_WRITERS, BULK_ROWS = 2, 2000
QUIET_PAUSE_S = 0.004
TABLE = "CREATE TABLE IF NOT EXISTS bulk (filler text)"
BULK = f"INSERT INTO bulk SELECT repeat('x', 1000) FROM generate_series(1, {BULK_ROWS})"


class Host:
    """A safekeeper by itself, and the primaries whose logs it has."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory, self.number, self.port = directory, number, free_port()
        where = ("--data-dir", str(directory / f"safekeeper{number}"))
        words = ("safekeeper", "--id", str(number), *where, "--listen", f"127.0.0.1:{self.port}")
        self.daemon = self._daemon(*words, name=f"safekeeper{number}")
        self.proposers: list[Daemon] = []

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    def _daemon(self, *words: str, name: str) -> Daemon:
        return Daemon(name, words, self.directory / f"{name}.log")

    def lead(self, server: PostgresServer, cluster: str) -> Configuration:
        """Make a log for the primary, lead it, and let the primary's commits wait for it."""
        made = asyncio.run(create(CreateSettings((self.address,), server.dsn(), cluster)))
        where = ("--safekeepers", f"127.0.0.1:{self.port}", "--dsn", server.dsn())
        names = ("--cluster", cluster, "--slot", "walkeeper", "--application-name", "walkeeper")
        proposer = self._daemon("proposer", *where, *names, name=f"proposer_{cluster}")
        self.proposers.append(proposer)
        proposer.start()
        asyncio.run(attach(AttachSettings(server.dsn()), lambda line: None))
        return made.configuration

    def add_idle(self, like: Configuration, count: int) -> None:
        """Make so many logs that nobody leads."""
        asyncio.run(self._add_idle(like, count))

    async def _add_idle(self, like: Configuration, count: int) -> None:
        for number in range(count):
            cluster, log_uuid = f"idle{number}", number.to_bytes(16)
            state = await ask(self.address, PrepareLog(cluster, log_uuid), ANSWER_S)
            assert isinstance(state, LogState), f"{state=}"
            member = member_name(state.acceptor_id, state.incarnation)
            made = replace(like, log_uuid=log_uuid, members=(member,), ack_quorum=1)
            await ask(self.address, ConfigureLog(cluster, made), ANSWER_S)

    def figures(self) -> dict[str, int]:
        """Return threads and memory of the process, as the kernel counts them."""
        lines = Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines()
        known = dict(line.split(":", 1) for line in lines if ":" in line)
        return {name: int(known[name].split()[0]) for name in ("Threads", "VmRSS", "VmHWM")}

    def close(self) -> None:
        for daemon in (*self.proposers, self.daemon):
            daemon.kill()


@contextmanager
def bulk_load(server: PostgresServer) -> Iterator[list[int]]:
    """Insert large rows without a pause; yield a list with the bytes of each commit."""
    server.sql(TABLE)
    stopping, written = threading.Event(), list[int]()

    def write() -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            while not stopping.is_set():
                connection.execute(BULK)
                written.append(BULK_ROWS * 1000)

    threads = [threading.Thread(target=write, daemon=True) for _ in range(BULK_WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield written
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
        server.sql("TRUNCATE bulk; CHECKPOINT")


def measured(quiet: PostgresServer, bulk: PostgresServer | None, seconds: float) -> list[float]:
    """Return p50, p99 and the greatest latency of the quiet commits, and the bulk's MB/s."""
    with ExitStack() as stack:
        written = stack.enter_context(bulk_load(bulk)) if bulk is not None else []
        journal = stack.enter_context(Journal(quiet, writers=1, pause_s=QUIET_PAUSE_S))
        journal.wait_for_more(20)
        began_s, before = time.monotonic(), len(written)
        time.sleep(seconds)
        took_s = time.monotonic() - began_s
        rate = sum(written[before:]) / took_s / 1e6
        spread = [journal.latency_s(fraction, began_s) * 1000 for fraction in (0.5, 0.99, 1.0)]
        journal.stop()
        assert not journal.lost_in(quiet)
    return [*spread, rate]


def run(logs: int, rounds: int, seconds: float) -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory(prefix="walkeeper_many_logs_") as name, ExitStack() as stack:
        directory = Path(name)
        servers = [
            stack.enter_context(PostgresServer.create(initdb_options=["--wal-segsize=16"]))
            for _ in range(3)
        ]
        quiet, elsewhere, beside = servers
        first, second = Host(directory, 1), Host(directory, 2)
        for host in (first, second):
            stack.callback(host.close)
            host.daemon.start()
        like = first.lead(quiet, "quiet")
        first.lead(beside, "beside")
        second.lead(elsewhere, "elsewhere")
        few = settled(first)
        first.add_idle(like, logs - 2)
        tell(f"2 logs: {shown(few)}")
        tell(f"{logs} logs, {logs - 2} of them idle: {shown(settled(first))}")
        bulks = dict(zip(ARMS, (None, elsewhere, beside), strict=True))
        found: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
        for number in range(rounds):
            for arm in ARMS if number % 2 == 0 else reversed(ARMS):
                found[arm].append(measured(quiet, bulks[arm], seconds))
        tell("quiet commits, median of the rounds: p50 ms, p99 ms, greatest ms, bulk MB/s")
        for arm, rows in found.items():
            middle = [statistics.median(column) for column in zip(*rows, strict=True)]
            tell(f"{arm:16} {' '.join(f'{value:8.1f}' for value in middle)}")
        tell(f"after the load: {shown(settled(first))}")
        first.daemon.kill()
        began_s = time.monotonic()
        first.daemon.start()
        tell(f"{logs} logs are open {time.monotonic() - began_s:.1f} s after the start")


def settled(host: Host) -> dict[str, int]:
    """Wait until threads without work have ended, and return the figures."""
    time.sleep(IDLE_S)
    return host.figures()


def shown(figures: dict[str, int]) -> str:
    return (
        f"{figures['Threads']} threads, {figures['VmRSS'] // 1024} MB in memory, "
        f"{figures['VmHWM'] // 1024} MB at most"
    )


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = program_parser("tests.proof.many_logs", __doc__)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    chosen = parser.parse_args()
    run(chosen.logs, chosen.rounds, chosen.seconds)
