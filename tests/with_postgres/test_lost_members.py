"""A safekeeper that comes back without its log has lost its promises: it counts for nothing."""

from __future__ import annotations

import shutil

import pytest

from tests.support.cluster import Cluster, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

HANG_S = 2.0


def wipe(cluster: Cluster, number: int) -> None:
    """Replace its disk by an empty one."""
    safekeeper = cluster.safekeepers[number - 1]
    safekeeper.kill()
    shutil.rmtree(cluster.data_dir(number))
    safekeeper.start()


def test_a_wiped_safekeeper_does_not_count_and_create_does_not_make_it_anew(
    cluster: Cluster,
) -> None:
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
        wipe(cluster, 1)
        journal.wait_for_more(100)
        for option in ((), ("--if-not-exists",)):
            done = cluster.try_command("create", "--dsn", cluster.primary.dsn(), *option)
            assert done.returncode == 1, done
            assert f"127.0.0.1:{cluster.ports[0]}" in done.stderr or "safekeeper 1" in done.stderr
            assert "replace" in done.stderr, done.stderr
        cluster.safekeepers[1].kill()
        assert journal.is_silent_for(HANG_S)
        cluster.proposer.kill()
        cluster.proposer.start("--take-over", wait=False)
        assert journal.is_silent_for(HANG_S)
        assert cluster.proposer.is_running, cluster.proposer.output()
        cluster.safekeepers[1].start()
        journal.wait_for_more(100)
    assert not journal.lost_in(cluster.primary)


def test_create_does_not_take_another_servers_log_for_its_own(cluster: Cluster) -> None:
    """A script goes on to `proposer` and `attach` when --if-not-exists ends with 0."""
    again = ("create", "--if-not-exists", "--dsn")
    wait_until(lambda: cluster.try_command(*again, cluster.primary.dsn()).returncode == 0)
    initdb = ["--wal-segsize=2"]  # another identifier
    with PostgresServer.create(initdb_options=initdb) as other:
        for option in ((), ("--if-not-exists",)):
            done = cluster.try_command("create", "--dsn", other.dsn(), *option)
            assert done.returncode == 1, done
            assert "the log belongs to the PostgreSQL cluster with system identifier" in done.stderr
        assert other.sql("SELECT count(*) FROM pg_replication_slots") == 0
    done = cluster.try_command(*again, other.dsn())
    assert done.returncode == 0 and "exists and is in use" in done.stdout, "it may be starting"
    done = cluster.try_command(*again, cluster.primary.dsn(), "--ack-quorum", "3")
    assert done.returncode == 1 and "exists with ack quorum 2, not 3" in done.stderr, done
    two = ",".join(cluster.addresses.split(",")[:2])
    done = walkeeper("create", "--safekeepers", two, *again[1:], cluster.primary.dsn())
    assert done.returncode == 1 and "--safekeepers names 1, 2: name its members" in done.stderr
    done = cluster.try_command(*again, cluster.primary.dsn(), "--logical")
    assert done.returncode == 1 and "is physical, and a log's kind is fixed" in done.stderr, done


def test_status_says_who_is_down_and_how_bad_that_is(cluster: Cluster) -> None:
    def check() -> tuple[int, str]:
        done = cluster.try_command("status", "--check")
        return done.returncode, done.stdout + done.stderr

    wait_until(lambda: check()[0] == 0)
    cluster.safekeepers[2].kill()
    code, said = check()
    assert code == 1 and f"127.0.0.1:{cluster.ports[2]}" in said, said
    cluster.safekeepers[0].kill()
    code, said = check()
    assert code == 2 and f"127.0.0.1:{cluster.ports[0]}" in said, said
    settled = cluster.try_command("settle", "--timeout", "2s")
    assert settled.returncode == 1 and "quorum" in settled.stderr, settled


def test_detach_works_while_commits_hang_and_attach_brings_the_quorum_back(
    cluster: Cluster,
) -> None:
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        for daemon in [cluster.proposer, *cluster.safekeepers]:
            daemon.kill()
        assert journal.is_silent_for(HANG_S)
        done = walkeeper("detach", "--dsn", cluster.primary.dsn())
        assert done.returncode == 0, done
        journal.wait_for_more(50)
        cluster.start_safekeepers()
        cluster.proposer.start()
        cluster.attach()
        journal.wait_for_more(50)
        journal.stop()
        cluster.wait_all_equal()
