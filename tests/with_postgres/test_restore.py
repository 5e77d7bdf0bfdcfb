"""restore_command = 'walkeeper restore …' on real servers: nothing acknowledged is left out.

The primary is gone, and what brings a base backup to its last acknowledged commit is restore alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer, own, run_as_server_user
from tests.restore_installation import Installation, installed
from tests.waiting import wait_until
from tests.with_postgres.cluster import Cluster
from tests.with_postgres.journal import Journal

pytestmark = pytest.mark.postgres

NOT_IN_RECOVERY = "SELECT NOT pg_is_in_recovery()"
REPLAYED = "SELECT pg_last_wal_replay_lsn()"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed() as made:
        yield made


def restore_command(installation: Installation, cluster: Cluster, *options: str) -> str:
    more = "".join(f"{option} " for option in options)
    return f"{installation.script} restore --safekeepers {cluster.addresses} {more}%f %p"


@contextmanager
def copied(backup: PostgresServer, command: str, signal_file: str) -> Iterator[PostgresServer]:
    """A copy of a base backup, not started."""
    directory = Path(f"{backup.directory}_{signal_file}")
    directory.mkdir(mode=0o755)
    own(directory)
    run_as_server_user(["cp", "-a", str(backup.data), str(directory / "data")])
    settings = {"restore_command": command, "fsync": "off", "synchronous_standby_names": ""}
    server = PostgresServer(directory, settings)
    (server.data / signal_file).touch()
    own(server.data)
    try:
        yield server
    finally:
        server.delete()


@pytest.fixture
def backup(cluster: Cluster, primary: PostgresServer) -> Iterator[PostgresServer]:
    """Taken before the load."""
    taken = primary.base_backup()
    yield taken
    taken.delete()


def test_each_pair_of_safekeepers_restores_every_acknowledged_commit(
    cluster: Cluster, primary: PostgresServer, backup: PostgresServer, installation: Installation
) -> None:
    with Journal(primary, writers=6) as journal:
        journal.wait_for_more(3000)
        cluster.proposer.kill()
        primary.kill()
    shutil.rmtree(primary.data)
    for pair in combinations((1, 2, 3), 2):
        absent = next(s for n, s in enumerate(cluster.safekeepers, 1) if n not in pair)
        absent.kill()
        cluster.settle()
        command = restore_command(installation, cluster)
        with copied(backup, command, "recovery.signal") as server:
            server.start()
            wait_until(lambda server=server: server.sql(NOT_IN_RECOVERY), 60)  # type: ignore[misc]
            assert not journal.lost_in(server), f"{pair=}\n{server.log_text()[-4000:]}"
            assert not (server.data / "pg_wal" / ".walkeeper_prefetch").exists()
        absent.start()
