"""Compares two stock standbys: one behind the primary, one behind a safekeeper.

    python -m tests.proof.standby_lag --minutes 20       two rounds of each phase
    python -m tests.proof.standby_lag --minutes 1 --rounds 1

A primary waits for three safekeepers. Both standbys replay the same load at the same time on the
same machine. A sweep makes a commit that does not wait for the quorum, and reads the primary's
flush LSN. Then it reads the replay LSN of each standby, and the LSN that the primary knows of the
quorum. The next sweep reads these in the other order. For 20 ms a sweep asks those again that have
not reached the LSN, each 0.3 ms. The lag of an LSN ends at the first answer that has it. A lag
of up to 20 ms is known to about 0.5 ms. A longer one is known to about 4 ms.

No reader may see WAL before the quorum has it (R13). So the second standby gets WAL after the
quorum's fdatasync, and makes its own then. The sum of the quorum's lag and of the first standby's
is what that costs without any delay of ours.

Exit code 1: the standby behind the safekeeper has a fault. That is a line in its log that a healthy
one does not write, another walreceiver, or a checksum failure. Exit code 2: its median lag over all
phases is more than `--ratio-max` times that sum.
"""

from __future__ import annotations

import re
import shutil
import statistics
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
)
from tests.support.program_parser import program_parser
from tests.support.standbys import REPLAYED, standby_of, unhealthy_lines, wait_replayed

SETTINGS = {
    "shared_buffers": "128MB",
    "maintenance_work_mem": "64MB",
    "max_wal_size": "1GB",
    "min_wal_size": "256MB",
    "wal_keep_size": "2GB",
    "checkpoint_timeout": "5min",
}
PROBE = "SELECT pg_logical_emit_message(true, 'probe', '')::text"
FLUSHED = "SELECT pg_current_wal_flush_lsn()::text"
RECEIVER = "SELECT pid FROM pg_stat_wal_receiver"
FAILURES = "SELECT coalesce(sum(checksum_failures), 0)::int FROM pg_stat_database"
KNOWN = "SELECT flush_lsn::text FROM pg_stat_replication WHERE application_name = 'walkeeper'"
SIDES = ("primary", "safekeeper")
QUORUM = "quorum"
SEEN = (SIDES[0], QUORUM, SIDES[1])
PAUSE_S = 0.004
CLOSELY_S, AGAIN_S = 0.02, 0.0003  # how long a sweep asks again, and its pause
RECEIVER_SWEEPS = 250  # sweeps between two looks at the walreceiver
BEHIND_S = 300.0  # how long after a phase both may take to replay it
TPS = re.compile(r"tps = ([0-9.]+)")
BUILT = """CREATE TABLE built AS
    SELECT i, md5(i::text) AS v FROM generate_series(1, 300000) AS i"""
COPIED = "COPY (SELECT i, repeat(md5(i::text), 10) FROM generate_series(1, 150000) i) TO '{file}'"
# One line a phase: its options of pgbench, then its script, or pgbench's own.
PHASES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "COPY": (("-c", "1"), "BEGIN;\nTRUNCATE copied;\nCOPY copied FROM '{file}';\nCOMMIT;"),
    "index builds": (
        ("-c", "1"),
        "BEGIN;\nDROP INDEX IF EXISTS v_of_built;\nCREATE INDEX v_of_built ON built (v, i);\nEND;",
    ),
    "messages": (
        ("-c", "2"),
        "\\set size random(100, 1000000)\n"
        "SELECT length(pg_logical_emit_message(false, 'bulk', repeat('x', :size))::text);\n"
        "SELECT length(pg_logical_emit_message(true, 'bulk', repeat('x', :size / 10))::text);",
    ),
    "pgbench, 1 client": (("-c", "1"), ""),
    "pgbench, 8 clients": (("-c", "8"), ""),
    "pgbench, 20 a second": (("-c", "1", "--rate", "20"), ""),
}


@dataclass
class Sweeps:
    """The LSNs of a phase: times of time.monotonic(), each list in the order of its times.

    `first` has the first answer in each sweep, `reached` has all of them.
    """

    flushed: list[tuple[float, int]] = field(default_factory=list)
    reached: dict[str, list[tuple[float, int]]] = field(
        default_factory=lambda: {seen: [] for seen in SEEN}
    )
    first: dict[str, list[int]] = field(default_factory=lambda: {seen: [] for seen in SEEN})

    def lags_ms(self, seen: str) -> list[float]:
        """Return the lag of each LSN that the primary newly flushed and that was reached."""
        polls = self.reached[seen]
        lsns = [lsn for _, lsn in polls]
        found, last = list[float](), -1
        for flushed_s, lsn in self.flushed:
            first = bisect_left(lsns, lsn)
            if lsn > last and first < len(polls):
                found.append(max(polls[first][0] - flushed_s, 0.0) * 1000)
            last = max(last, lsn)
        return found

    def lags_mb(self, seen: str) -> list[float]:
        """Return the bytes that were lacking in each sweep."""
        pairs = zip(self.flushed, self.first[seen], strict=True)
        return [max(flushed - reached, 0) / 1e6 for (_, flushed), reached in pairs]


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the 95th percentile and the greatest."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.95)], ordered[-1]


def ratio(ours: float, theirs: float) -> float:
    """Return ours by theirs; equal values, also two zeros, are 1."""
    return 1.0 if ours == theirs else ours / theirs if theirs else float("inf")


class Sampler:
    """Sweeps in a thread of its own while a phase runs; raises what ended it in `sweeps`."""

    def __init__(self, primary: PostgresServer, standbys: Mapping[str, PostgresServer]) -> None:
        self._primary = primary.connect()
        self._primary.execute("SET synchronous_commit = local")
        self._standbys = {side: server.connect() for side, server in standbys.items()}
        self._asked = {side: (self._standbys[side], REPLAYED) for side in SIDES}
        self._asked[QUORUM] = self._primary, KNOWN
        self.receivers: dict[str, list[int]] = {side: [] for side in SIDES}
        self._count = 0

    def close(self) -> None:
        for connection in (self._primary, *self._standbys.values()):
            connection.close()

    @contextmanager
    def sweeps(self) -> Iterator[Sweeps]:
        """Yield the sweeps that are made until the block ends."""
        found, stopping, broken = Sweeps(), threading.Event(), list[BaseException]()

        def run() -> None:
            try:
                while not stopping.wait(PAUSE_S):
                    self._sweep(found)
            except BaseException as error:
                broken.append(error)

        thread = threading.Thread(target=run, name="sampler")
        thread.start()
        try:
            yield found
        finally:
            stopping.set()
            thread.join()
        if broken:
            raise broken[0]

    def _sweep(self, found: Sweeps) -> None:
        order = SEEN if self._count % 2 == 0 else SEEN[::-1]
        if self._count % RECEIVER_SWEEPS == 0:
            self._look_at_receivers()
        self._count += 1
        _one(self._primary, PROBE)
        flushed_lsn = lsn_of(_one(self._primary, FLUSHED))
        flushed_s = time.monotonic()
        found.flushed.append((flushed_s, flushed_lsn))
        reached = {seen: self._ask(found, seen) for seen in order}
        for seen, lsn in reached.items():
            found.first[seen].append(lsn)
        while lacking := [seen for seen in order if reached[seen] < flushed_lsn]:
            if time.monotonic() > flushed_s + CLOSELY_S:
                return
            time.sleep(AGAIN_S)
            reached |= {seen: self._ask(found, seen) for seen in lacking}

    def _ask(self, found: Sweeps, seen: str) -> int:
        """Return the LSN that it has reached, and keep it."""
        lsn = lsn_of(_one(*self._asked[seen]) or "0/0")
        found.reached[seen].append((time.monotonic(), lsn))
        return lsn

    def _look_at_receivers(self) -> None:
        for side, pids in self.receivers.items():
            pid = _one(self._standbys[side], RECEIVER)
            if pids[-1:] != [pid]:
                pids.append(pid)


def _one(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement.encode(), prepare=True).fetchone()
    return row[0] if row else None


class Run:
    """The servers of a run, and what was measured on them."""

    def __init__(self, stack: ExitStack) -> None:
        options = ["--data-checksums"]
        self.primary = stack.enter_context(PostgresServer.create(SETTINGS, initdb_options=options))
        self.files = make_directory("walkeeper_lag_")
        stack.callback(shutil.rmtree, self.files, ignore_errors=True)
        self._prepare()
        self.cluster = stack.enter_context(Cluster.create(self.primary))
        ports = {"primary": self.primary.port, "safekeeper": self.cluster.ports[0]}
        self.standbys = {
            side: stack.enter_context(standby_of(self.primary, ports[side], settings=SETTINGS))
            for side in SIDES
        }
        self.sampler = Sampler(self.primary, self.standbys)
        stack.callback(self.sampler.close)

    def _prepare(self) -> None:
        run_as_server_user([program("pgbench"), "-iq", "-s", "10", self.primary.dsn()])
        self.primary.sql(
            BUILT, "CREATE TABLE copied (i int, v text)", COPIED.format(file=self.files / "rows")
        )
        for name, (_, script) in PHASES.items():
            (self.files / name).write_text(script.format(file=self.files / "rows") + "\n")
        own(self.files)

    def phase(self, name: str, seconds: float) -> tuple[Sweeps, float]:
        """Run one phase until both have replayed it; return its sweeps and transactions/s."""
        options, script = PHASES[name]
        words = ["-n", *options, "-T", f"{max(seconds, 1):.0f}"]
        words += ["-f", str(self.files / name)] if script else []
        with self.sampler.sweeps() as sweeps:
            command = [program("pgbench"), *words, self.primary.dsn()]
            done = run_as_server_user(command, timeout_s=seconds + BEHIND_S)
            end_lsn = lsn_of(self.primary.sql(FLUSHED))
            for standby in self.standbys.values():
                wait_replayed(standby, end_lsn, BEHIND_S)
        found = TPS.search(done.stdout)
        return sweeps, float(found[1]) if found else 0.0

    def faults(self, side: str) -> list[str]:
        """Return what a healthy standby does not show."""
        standby = self.standbys[side]
        found = unhealthy_lines(standby.log_text())
        pids = self.sampler.receivers[side]
        if len(pids) != 1:
            found.append(f"walreceivers: {pids}")
        for server in (standby, self.primary):
            failures = server.sql(FAILURES)
            if failures:
                found.append(f"checksum failures on {server.port}: {failures}")
        return found


@dataclass
class Figures:
    """The sums of the rounds of one phase."""

    seconds: float = 0.0
    wal_bytes: int = 0
    tps: list[float] = field(default_factory=list)
    lags_ms: dict[str, list[float]] = field(default_factory=lambda: {seen: [] for seen in SEEN})
    lags_mb: dict[str, list[float]] = field(default_factory=lambda: {seen: [] for seen in SEEN})

    def add(self, sweeps: Sweeps, tps: float) -> None:
        (begin_s, begin_lsn), (end_s, end_lsn) = sweeps.flushed[0], sweeps.flushed[-1]
        self.seconds += end_s - begin_s
        self.wal_bytes += end_lsn - begin_lsn
        self.tps.append(tps)
        for seen in SEEN:
            self.lags_ms[seen] += sweeps.lags_ms(seen)
            self.lags_mb[seen] += sweeps.lags_mb(seen)

    def add_all(self, other: Figures) -> None:
        self.seconds += other.seconds
        self.wal_bytes += other.wal_bytes
        self.tps += other.tps
        for seen in SEEN:
            self.lags_ms[seen] += other.lags_ms[seen]
            self.lags_mb[seen] += other.lags_mb[seen]


HEAD = (
    "phase",
    "transactions/s",
    "WAL MB/s",
    "ms: behind the primary",
    "quorum",
    "behind a safekeeper",
    "ratio: median, p95",
    "by the sum",
    "MB: behind the primary",
    "behind a safekeeper",
)


def row(name: str, figures: Figures) -> str:
    """Return a line of the table: all lags, and the ratios of medians and p95s.

    The first ratio is to the other standby's lag, the second one to the sum of the module's text.
    """
    times = {seen: spread(figures.lags_ms[seen]) for seen in SEEN}
    sizes = [spread(figures.lags_mb[side]) for side in SIDES]
    pairs = zip(times["safekeeper"], times["primary"], times[QUORUM], strict=True)
    by = [(ratio(ours, theirs), ratio(ours, theirs + known)) for ours, theirs, known in pairs][:2]
    cells = [
        name,
        f"{statistics.mean(figures.tps):.1f}",
        f"{figures.wal_bytes / 1e6 / figures.seconds:.1f}",
        *(" / ".join(f"{value:.1f}" for value in times[seen]) for seen in SEEN),
        *(", ".join(f"{value:.2f}" for value in values) for values in zip(*by, strict=True)),
        *(" / ".join(f"{value:.2f}" for value in three) for three in sizes),
    ]
    return "| " + " | ".join(cells) + " |"


def tell(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run(minutes: float, rounds: int, ratio_max: float, phases: Sequence[str]) -> int:
    """Run the phases in turn, print the table and the faults, and return the exit code."""
    found = {name: Figures() for name in phases}
    with ExitStack() as stack:
        servers = Run(stack)
        seconds = minutes * 60 / rounds / len(phases)
        for number in range(1, rounds + 1):
            for name, figures in found.items():
                sweeps, tps = servers.phase(name, seconds)
                figures.add(sweeps, tps)
                tell(f"round {number}, {len(sweeps.flushed)} sweeps: {row(name, figures)}")
        faults = {side: servers.faults(side) for side in SIDES}
    tell("median / p95 / greatest of each lag")
    tell("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for name, figures in found.items():
        tell(row(name, figures))
    over_all = Figures()
    for figures in found.values():
        over_all.add_all(figures)
    tell(row("all", over_all))
    for side, lines in faults.items():
        tell(f"behind the {side}: {len(lines)} faults")
        for line in lines:
            tell(f"  {line}")
    medians = {seen: statistics.median(over_all.lags_ms[seen]) for seen in SEEN}
    if faults["safekeeper"]:
        return 1
    return (
        2 if ratio(medians["safekeeper"], medians["primary"] + medians[QUORUM]) > ratio_max else 0
    )


if __name__ == "__main__":
    parser = program_parser("tests.proof.standby_lag", __doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="the length of all phases")
    parser.add_argument("--rounds", type=int, default=2, help="how often each phase runs")
    parser.add_argument(
        "--ratio-max", type=float, default=1.5, help="the greatest ratio to the sum"
    )
    parser.add_argument("--phase", choices=PHASES, action="append", help="these phases alone")
    chosen = parser.parse_args()
    phases = chosen.phase or list(PHASES)
    sys.exit(run(chosen.minutes, chosen.rounds, chosen.ratio_max, phases))
