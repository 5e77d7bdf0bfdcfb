"""Standbys under bulk load and pgbench: one behind a safekeeper beside one behind the primary.

    python -m tests.with_postgres.busy_standbys --minutes 20

A cascading standby streams from the first one, and pg_receivewal from another safekeeper. Each
finished segment of pg_receivewal is compared with the primary's, and removed.

The two standbys are measured in one run, in turn. So the machine's other work meets both. The lag
is the WAL that its source may send and the standby has not replayed, on average. The primary may
send what it has flushed. A safekeeper may send what a quorum has, so `waiting` counts the rest
apart. A standby's log may have only the lines that a healthy one writes (R21).

Exit code 0: all held. Exit code 1: something did not, and its last lines say what. It may be a line
in a log, a walreceiver that started again, or a segment with other bytes. Or the lag is more than
1.2 times the other one. A standby that keeps up lags by some milliseconds of WAL. So the bound also
allows what the primary writes in 0.25 s.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

import psycopg

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import (
    PostgresServer,
    program,
    run_as_server_user,
    server_environment,
)
from tests.support.program_parser import program_parser
from tests.support.receivers import pg_receivewal
from tests.support.standbys import (
    REPLAYED,
    feed_from,
    standby_of,
    unhealthy_lines,
    wait_replayed,
)

SETTINGS = {
    "shared_buffers": "64MB",
    "wal_keep_size": "1GB",
    "max_wal_size": "1GB",
}
BULK = "INSERT INTO bulk SELECT i, repeat(md5(i::text), 200) FROM generate_series(1, 12000) i"
STREAMS = "started streaming WAL from primary"
FLUSHED = "SELECT pg_current_wal_flush_lsn()::text"
ON_A_QUORUM = "SELECT flush_lsn::text FROM pg_stat_replication WHERE application_name = 'walkeeper'"
ROUNDS_KEPT = 10  # then the table is emptied
PAUSE_S = 0.25
RATIO_MAX = 1.2
ALLOWED_S = 0.25  # the way has two processes more, on a busy machine
CATCH_UP_S = 600.0


class Lags:
    """Record how far each standby is behind its source, and how much waits for a quorum."""

    def __init__(self, primary: PostgresServer, standbys: dict[str, PostgresServer]) -> None:
        self._stack = contextlib.ExitStack()
        self._primary = self._stack.enter_context(primary.connect())
        self._standbys = {
            name: self._stack.enter_context(server.connect()) for name, server in standbys.items()
        }
        self.bytes: dict[str, list[int]] = {name: [] for name in (*standbys, "waiting")}

    def close(self) -> None:
        self._stack.close()

    def sample(self) -> None:
        """Add one sample of each; the first one is another one each time."""
        for name in sorted(self._standbys, reverse=len(self.bytes["primary"]) % 2 == 0):
            source = FLUSHED if name == "primary" else ON_A_QUORUM
            sent = position(self._primary, source)
            behind = sent - position(self._standbys[name], REPLAYED)
            self.bytes[name].append(max(0, behind))
        on_a_quorum = position(self._primary, ON_A_QUORUM)
        self.bytes["waiting"].append(position(self._primary, FLUSHED) - on_a_quorum)


def position(connection: psycopg.Connection[tuple[str]], query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    assert row is not None and row[0] is not None, query
    return lsn_of(row[0])


class Segments:
    """The finished segments of pg_receivewal, which are the primary's byte for byte."""

    def __init__(self, received: Path, primary: PostgresServer) -> None:
        self._received, self._wal = received, primary.data / "pg_wal"
        self.counts: Counter[str] = Counter()

    def compare(self) -> None:
        """Compare those that are there, and remove them; raise AssertionError for other bytes."""
        for path in sorted(self._received.glob("?" * 24)):
            with contextlib.suppress(FileNotFoundError):
                ours, theirs = path.read_bytes(), (self._wal / path.name).read_bytes()
                assert ours == theirs, f"segment {path.name} is not the primary's"
                self.counts["same"] += 1
                path.unlink()
                continue
            self.counts["removed by the primary"] += 1
            path.unlink()


@contextlib.contextmanager
def load(primary: PostgresServer, seconds: float) -> Iterator[threading.Event]:
    """Run both loads for so long; the event is set when they are to end, or have failed."""
    done = threading.Event()

    def write_bulk() -> None:
        with primary.connect() as session:
            while not done.is_set():
                for _ in range(ROUNDS_KEPT):
                    session.execute(BULK.encode())
                    session.execute(b"UPDATE bulk SET i = i + 1 WHERE i % 3 = 0")
                session.execute(b"TRUNCATE bulk")

    arguments = ["-n", "-c", "4", "-T", str(round(seconds)), primary.dsn()]
    pgbench = subprocess.Popen(
        [program("pgbench"), *arguments],
        env=server_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    writer = threading.Thread(target=write_bulk)
    writer.start()
    try:
        yield done
    finally:
        done.set()
        writer.join()
        _, said = pgbench.communicate(timeout=CATCH_UP_S)
    assert pgbench.returncode == 0, said.decode()


@contextlib.contextmanager
def cascade_of(primary: PostgresServer, upstream: PostgresServer) -> Iterator[PostgresServer]:
    """Yield a standby of a standby, which has replayed the backup's WAL."""
    standby = primary.base_backup()
    try:
        feed_from(standby, upstream.port)
        (standby.data / "standby.signal").touch()
        wait_replayed(upstream, lsn_of(primary.sql(FLUSHED)))
        standby.start()
        yield standby
    finally:
        standby.delete()


def play(minutes: float) -> dict[str, object]:
    """Run all, and return the figures."""
    with contextlib.ExitStack() as stack:
        primary = stack.enter_context(PostgresServer.create(SETTINGS))
        cluster = stack.enter_context(Cluster.create(primary))
        primary.sql("CREATE TABLE bulk (i int, v text)")
        run_as_server_user([program("pgbench"), "-iq", "-s", "2", primary.dsn()])
        fed = stack.enter_context(standby_of(primary, cluster.ports[0]))
        direct = stack.enter_context(standby_of(primary, primary.port))
        cascade = stack.enter_context(cascade_of(primary, fed))
        received = stack.enter_context(pg_receivewal(cluster.ports[1]))
        standbys = {"safekeeper": fed, "primary": direct, "cascade": cascade}
        for standby in standbys.values():
            wait_replayed(standby, lsn_of(primary.sql(FLUSHED)))
        lags = Lags(primary, standbys)
        stack.callback(lags.close)
        segments = Segments(received, primary)
        began_lsn, began_s = lsn_of(primary.sql(FLUSHED)), time.monotonic()
        with load(primary, minutes * 60):
            while time.monotonic() - began_s < minutes * 60:
                lags.sample()
                segments.compare()
                time.sleep(PAUSE_S)
        end_lsn = lsn_of(primary.sql(FLUSHED))
        for standby in standbys.values():
            wait_replayed(standby, end_lsn)
        segments.compare()
        means = {name: round(fmean(values)) for name, values in lags.bytes.items()}
        a_second = (end_lsn - began_lsn) / (minutes * 60)
        return {
            "minutes": minutes,
            "wal_bytes": end_lsn - began_lsn,
            "wal_bytes_a_second": round(a_second),
            "samples": len(lags.bytes["primary"]),
            "mean_lag_bytes": means,
            "mean_lag_bytes_max": round(RATIO_MAX * means["primary"] + ALLOWED_S * a_second),
            "median_lag_bytes": {name: median(values) for name, values in lags.bytes.items()},
            "most_lag_bytes": {name: max(values) for name, values in lags.bytes.items()},
            "segments": dict(segments.counts),
            "streams": {n: s.log_text().count(STREAMS) for n, s in standbys.items()},
            "lines": {n: unhealthy_lines(s.log_text()) for n, s in standbys.items()},
            "received": refusals((received / "said").read_text()),
        }


def refusals(said: str) -> list[str]:
    """Return the lines of pg_receivewal that are no progress."""
    quiet = ("starting log streaming", "finished segment", "switched to timeline")
    return [line for line in said.splitlines() if not any(word in line for word in quiet)]


def flaws(found: dict[str, object]) -> list[str]:
    """Return what did not hold, in words."""
    streams, lines = found["streams"], found["lines"]
    assert isinstance(streams, dict) and isinstance(lines, dict)
    means, most = found["mean_lag_bytes"], found["mean_lag_bytes_max"]
    assert isinstance(means, dict) and isinstance(most, int)
    named = [f"{name}: {line}" for name in lines for line in lines[name][:5]]
    named += [f"{name}: {count} streams" for name, count in streams.items() if count != 1]
    named += [f"pg_receivewal: {line}" for line in sequence(found["received"])[:5]]
    if means["safekeeper"] > most:
        named.append(f"behind a safekeeper: {means['safekeeper']} bytes of lag, at most {most}")
    return named


def sequence(value: object) -> Sequence[str]:
    assert isinstance(value, list)
    return value


def main() -> int:
    parser = program_parser("tests.with_postgres.busy_standbys", __doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="of load (default: 20)")
    found = play(parser.parse_args().minutes)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    named = flaws(found)
    sys.stdout.write("\n".join(named) + "\n" if named else "all held\n")
    return 1 if named else 0


if __name__ == "__main__":
    sys.exit(main())
