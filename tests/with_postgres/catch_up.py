"""How fast a standby catches up: from a safekeeper against the primary, by restore against cp.

    python -m tests.with_postgres.catch_up                          one pair of each
    python -m tests.with_postgres.catch_up --megabytes 896 --rounds 5
    python -m tests.with_postgres.catch_up --cold               restore and cp, from the disk alone

Pairs, one after the other on the same WAL and the same base backup, so that what the machine does
beside it meets both. The order turns with each round. The WAL is made of messages that replay does
not look into: what is measured is how it gets there. The primary, three safekeepers and the standby
share this machine.

    streaming    from START_REPLICATION on, until the standby has flushed all of it; MB/s. It has a
                 slot, as docs/standbys.md says, and writes into segments that are there, as a
                 standby does that has recycled its own
    restore      until a standby without a primary_conninfo has replayed all whole segments, of
                 16 MB each; segments/s. cp copies them from a directory on the same disk
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import (
    PostgresServer,
    make_directory,
    own,
    program,
    run_as_server_user,
)
from tests.support.program_parser import program_parser
from tests.support.restore_installation import installed
from tests.support.waiting import wait_until
from walkeeper_common.lsn import parse_segment_name, segment_name
from walkeeper_lab.bench.pairs import order_of
from walkeeper_lab.bench.rounds import FORGOTTEN_S

MB = 1 << 20
SEGMENT_BYTES = 16 * MB
MESSAGE_BYTES = 256 << 10
PATIENCE_S = 300.0
SLOT = "catch_up"
KEPT_SLOT = "catch_up_kept"
"""It never moves. So the safekeepers keep the WAL that a standby before has received."""
FILL = """
SELECT txid_current(), pg_logical_emit_message(false, 'catch_up', repeat('x', %s))
FROM generate_series(1, %s)
"""
"""Each statement commits. By a commit `restore` proves its branch, and then prefetches (R23)."""
CP, RESTORE = "cp, segments/s", "restore, segments/s"
RECEIVED = "SELECT coalesce(pg_last_wal_receive_lsn(), '0/0')::text"
REPLAYED = "SELECT coalesce(pg_last_wal_replay_lsn(), '0/0')::text"


@contextlib.contextmanager
def standby(
    backup: PostgresServer, settings: dict[str, str], recycled_up_to: int = 0
) -> Iterator[PostgresServer]:
    """Yield a copy of `backup`, started and in its recovery."""
    directory = make_directory("walkeeper_catch_up_")
    run_as_server_user(["cp", "-a", str(backup.data), str(directory / "data")])
    recycle(directory / "data" / "pg_wal", recycled_up_to)
    quick = {"synchronous_standby_names": "", "wal_retrieve_retry_interval": "100ms"}
    server = PostgresServer(directory, {**quick, **settings})
    (server.data / "standby.signal").touch()
    own(server.data)
    try:
        server.start()
        yield server
    finally:
        server.delete()


def recycle(wal: Path, end_lsn: int) -> None:
    """Make the segments of zeros from the last one there to `end_lsn`, on disk and in memory.

    A new file takes memory that the machine may first have to get from its host. This costs one run
    a quarter of a second a GB, and the next one two seconds.
    """
    last = max(path.name for path in wal.iterdir() if len(path.name) == 24)
    timeline, lsn = parse_segment_name(last, SEGMENT_BYTES)
    while (lsn := lsn + SEGMENT_BYTES) < end_lsn:
        with (wal / segment_name(timeline, lsn, SEGMENT_BYTES)).open("xb") as file:
            file.write(bytes(SEGMENT_BYTES))
            file.flush()
            os.fsync(file.fileno())


def seconds_until(server: PostgresServer, what: str, end_lsn: int) -> float:
    """Return the seconds from now on, without the server's start."""
    began_s = time.monotonic()
    wait_until(lambda: lsn_of(server.sql(what)) >= end_lsn, PATIENCE_S)
    return time.monotonic() - began_s


def make_slots(primary: PostgresServer, cluster: Cluster) -> None:
    """Make the slots of standbys that are away, and wait until all safekeepers share theirs."""
    for port in (primary.port, cluster.ports[0]):
        for slot in (SLOT, KEPT_SLOT):
            asked(port, f"CREATE_REPLICATION_SLOT {slot} PHYSICAL RESERVE_WAL")

    def all_share() -> bool:
        answers = [
            asked(port, f"READ_REPLICATION_SLOT {slot}")
            for port in cluster.ports
            for slot in (SLOT, KEPT_SLOT)
        ]
        return all("physical" in answer for answer in answers)

    wait_until(all_share)


def asked(port: int, command: str) -> str:
    """Return the answer to a replication command."""
    upstream = f"host=127.0.0.1 port={port} user=postgres dbname=replication replication=true"
    return run_as_server_user([program("psql"), "-XAt", "-d", upstream, "-c", command]).stdout


def streaming(backup: PostgresServer, port: int, end_lsn: int) -> float:
    """Return MB/s of a standby that gets its upstream when it is up."""
    with standby(backup, {}, recycled_up_to=end_lsn) as server:
        begin_lsn = lsn_of(server.sql(REPLAYED))
        upstream = f"host=127.0.0.1 port={port} user=postgres"
        server.configure({"primary_conninfo": upstream, "primary_slot_name": SLOT})
        server.reload()
        return (end_lsn - begin_lsn) / MB / seconds_until(server, RECEIVED, end_lsn)


def restoring(backup: PostgresServer, command: str, end_lsn: int) -> float:
    """Return segments/s of a standby that gets its restore_command when it is up."""
    with standby(backup, {"restore_command": "false"}) as server:
        begin_lsn = lsn_of(server.sql(REPLAYED))
        server.configure({"restore_command": command})
        server.reload()
        segments = (end_lsn - begin_lsn) / SEGMENT_BYTES
        return segments / seconds_until(server, REPLAYED, end_lsn)


def copied_segments(primary: PostgresServer) -> Path:
    """Return the directory that `cp` takes them from."""
    directory = make_directory("walkeeper_catch_up_wal_")
    for path in (primary.data / "pg_wal").iterdir():
        if len(path.name) == 24:
            shutil.copy(path, directory / path.name)
    own(directory)
    return directory


def from_disk(run: Callable[[], float], directories: list[Path]) -> float:
    """Return the figure of a run that finds no segment of these directories in the page cache."""
    os.sync()  # The kernel keeps what it has not written yet.
    for path in segments_of(directories):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    time.sleep(FORGOTTEN_S)
    return run()


def from_memory(run: Callable[[], float], directories: list[Path]) -> float:
    """Return the figure of a run that finds all segments of these directories in the page cache.

    A safekeeper lets old WAL leave it once a standby has read that. A kernel may drop a file that
    nobody has read for a minute.
    """
    for path in segments_of(directories):
        with contextlib.suppress(FileNotFoundError):
            path.read_bytes()
    return run()


def segments_of(directories: list[Path]) -> list[Path]:
    """Return the segments there now. A safekeeper may remove one that no slot needs."""
    return [path for each in directories for path in each.rglob("?" * 24)]


def measure(megabytes: int, rounds: int, *, is_cold: bool) -> dict[str, list[float]]:
    """Return every figure of every round, by its name."""
    found: dict[str, list[float]] = {}
    keep = {"wal_keep_size": f"{megabytes + 512}MB", "max_wal_size": "20GB"}
    with PostgresServer.create(keep) as primary, Cluster.create(primary) as cluster:
        make_slots(primary, cluster)
        # With WAL that the log keeps, so that the server can prove its branch at once (R23).
        backup = primary.base_backup()
        with installed() as walkeeper, primary.connect(options="") as connection:
            for _ in range(megabytes * MB // SEGMENT_BYTES):
                connection.execute(FILL, (MESSAGE_BYTES, SEGMENT_BYTES // MESSAGE_BYTES))
            primary.sql("SELECT pg_switch_wal()", "SELECT txid_current()")
            end = lsn_of(cluster.wait_all_equal(PATIENCE_S))
            whole = end - end % SEGMENT_BYTES - 1
            wal = copied_segments(primary)
            restore = f"{walkeeper.script} restore --safekeepers {cluster.addresses}"
            for number in range(rounds):
                safekeeper = cluster.ports[number % 3]
                runs: dict[str, Callable[[], float]] = {
                    "streaming from the primary, MB/s": partial(
                        streaming, backup, primary.port, end
                    ),
                    "streaming from a safekeeper, MB/s": partial(
                        streaming, backup, safekeeper, end
                    ),
                    CP: partial(restoring, backup, f"cp {wal}/%f %p", whole),
                    RESTORE: partial(restoring, backup, f"{restore} %f %p", whole),
                    "restore --prefetch 0, segments/s": partial(
                        restoring, backup, f"{restore} --prefetch 0 %f %p", whole
                    ),
                }  # fmt: skip
                names = [CP, RESTORE] if is_cold else list(runs)
                prepared = from_disk if is_cold else from_memory
                directories = [wal, cluster.directory, primary.data / "pg_wal"]
                for name in order_of(names, number):
                    figure = prepared(runs[name], directories)
                    found.setdefault(name, []).append(round(figure, 2))
                    say(f"round {number + 1}: {name}: {found[name][-1]}")
            shutil.rmtree(wal)
        backup.delete()
    return found


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = program_parser("tests.with_postgres.catch_up", __doc__)
    parser.add_argument("--megabytes", type=int, default=512, help="of WAL to catch up with")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cold", action="store_true", help="read the WAL from the disk")
    parser.add_argument("--json", type=Path, help="write all figures there as well")
    options = parser.parse_args()
    found = measure(options.megabytes, options.rounds, is_cold=options.cold)
    for name, values in found.items():
        say(f"{median(values):10.1f}  {name}  (median of {values})")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
