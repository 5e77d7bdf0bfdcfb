"""A primary made again from an older base backup and the WAL of some safekeepers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.cluster import Cluster, lsn_of
from tests.support.postgres_server import PostgresServer, make_directory, own, run_as_server_user
from tests.support.segment_files import segments


def assembled_wal(cluster: Cluster, numbers: Sequence[int]) -> Path:
    """Assemble the WAL of these safekeepers: each segment is from the one with more WAL.

    The caller has settled, so they do not differ below the settled end.
    """
    flushed = cluster.flush_lsns()
    target = make_directory("walkeeper_assembled_")
    for number in sorted(numbers, key=lambda n: lsn_of(flushed[n])):
        for name in segments(cluster.wal_dir(number)):
            shutil.copy(cluster.wal_dir(number) / name, target / name)
    own(target)
    return target


@contextlib.contextmanager
def recovered(backup: PostgresServer, wal: Path) -> Iterator[PostgresServer]:
    """Yield a copy of `backup`, recovered to the end of `wal` and open for writes."""
    directory = make_directory("walkeeper_recovered_")
    run_as_server_user(["cp", "-a", str(backup.data), str(directory / "data")])
    # It is read and thrown away: before a recovery PostgreSQL would sync each of its files.
    restore = {"restore_command": f'cp "{wal}/%f" "%p"', "fsync": "off"}
    server = PostgresServer(directory, restore)
    (server.data / "recovery.signal").touch()
    own(server.data)
    try:
        server.start()
        yield server
    finally:
        server.delete()
