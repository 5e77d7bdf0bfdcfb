"""The primary is gone for good: what was acknowledged is found again in any two safekeepers."""

from __future__ import annotations

import os
import shutil
import signal
from itertools import combinations

import psycopg
import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, children_of
from tests.support.recovery import assembled_wal, recovered
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

NOT_IN_RECOVERY = "SELECT NOT pg_is_in_recovery()"


def kill_postmaster_alone(server: PostgresServer) -> None:
    """Send SIGKILL as the kernel's OOM killer does: the postmaster's children end by themselves."""
    postmaster = server.postmaster_pid()
    assert postmaster is not None
    os.kill(postmaster, signal.SIGSTOP)  # it makes no more of them
    processes = children_of(postmaster)
    os.kill(postmaster, signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in [postmaster, *processes]))
    # Its parent may not have reaped it, and PostgreSQL takes a zombie for a live owner.
    (server.data / "postmaster.pid").unlink()
    (server.directory / f".s.PGSQL.{server.port}.lock").unlink(missing_ok=True)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_every_acknowledged_commit_survives_kills_and_the_loss_of_the_primary(
    cluster: Cluster, primary: PostgresServer
) -> None:
    backup = primary.base_backup()
    try:
        with Journal(primary, writers=6) as journal:
            _kill_everything_in_turn(cluster, journal)
            cluster.proposer.kill()
            primary.kill()
        shutil.rmtree(primary.data)
        assert len(journal.acknowledged) > 1000
        for pair in combinations((1, 2, 3), 2):
            _check_pair(cluster, journal, backup, pair)
    finally:
        backup.delete()


def _kill_everything_in_turn(cluster: Cluster, journal: Journal) -> None:
    """Kill each part, and start it again under load."""
    for safekeeper in cluster.safekeepers:
        journal.wait_for_more(200)
        safekeeper.kill()
        journal.wait_for_more(200)
        safekeeper.start()
    for way in (kill_postmaster_alone, PostgresServer.kill):
        journal.wait_for_more(200)
        way(cluster.primary)
        cluster.primary.start()
    for _ in range(2):
        journal.wait_for_more(200)
        cluster.proposer.kill()
        cluster.proposer.start()
    journal.wait_for_more(200)
    cluster.safekeepers[2].kill()
    journal.wait_for_more(200)
    cluster.safekeepers[2].start()
    journal.wait_for_more(50)


def _check_pair(
    cluster: Cluster, journal: Journal, backup: PostgresServer, pair: tuple[int, ...]
) -> None:
    """Recover the primary with these two safekeepers alone."""
    absent = next(s for n, s in enumerate(cluster.safekeepers, 1) if n not in pair)
    absent.kill()
    settled = cluster.settle()
    flushed = cluster.flush_lsns()
    assert max(lsn_of(flushed[n]) for n in pair) >= lsn_of(settled["lsn"])
    wal = assembled_wal(cluster, pair)
    try:
        with recovered(backup, wal) as server:
            wait_until(lambda: server.sql(NOT_IN_RECOVERY))
            assert not journal.lost_in(server), f"{pair=} {settled=} {flushed=}"
    finally:
        shutil.rmtree(wal)
    absent.start()


def test_a_backup_that_was_started_without_recovery_is_another_branch(
    cluster: Cluster, primary: PostgresServer
) -> None:
    backup = primary.base_backup()
    try:
        with Journal(primary) as journal:
            journal.wait_for_more(500)
        primary.kill()
        cluster.proposer.kill()
        backup.configure({"synchronous_standby_names": ""})
        backup.start()
        refused = cluster.new_proposer("older", dsn=backup.dsn())
        refused.start(wait=False)
        assert refused.ended() == 1
        assert "another branch with the same number" in refused.output(), refused.output()
        assert "walkeeper restore as restore_command" in refused.output(), refused.output()
        with pytest.raises(psycopg.errors.UndefinedTable):
            journal.ids_in(backup)
    finally:
        backup.delete()
