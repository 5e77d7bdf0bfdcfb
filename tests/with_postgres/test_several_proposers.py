"""Two proposers on one log, however it comes about: at most one acknowledges, nothing is lost."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import pq

from tests.support.cluster import Cluster, Daemon, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

MEMORY_MB_MAX = 150


def only_survivor(proposers: list[Daemon]) -> Daemon:
    """Wait until one of them is left; the others have ended with a reason."""
    wait_until(lambda: sum(p.is_running for p in proposers) == 1)
    for ended in (p for p in proposers if not p.is_running):
        assert ended.ended() == 1
        assert "proposer" in ended.output().splitlines()[-1], ended.output()
    return next(p for p in proposers if p.is_running)


def test_a_second_proposer_is_refused_and_says_why_while_the_first_goes_on(
    cluster: Cluster,
) -> None:
    second = cluster.new_proposer("second")
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        term = cluster.status()["cluster"]["term"]
        second.start(wait=False)
        assert second.ended() == 1
        assert "another proposer" in second.output(), second.output()
        assert "--take-over" in second.output(), second.output()
        journal.wait_for_more(50)
    assert cluster.proposer.is_running
    assert cluster.status()["cluster"]["term"] == term
    assert not journal.cancelled


def test_take_over_deposes_the_first_and_loses_nothing(cluster: Cluster) -> None:
    second = cluster.new_proposer("second", "--take-over")
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(200)
        second.start()
        assert cluster.proposer.ended() == 1
        assert "deposed" in cluster.proposer.output(), cluster.proposer.output()
        journal.wait_for_more(200)
        assert second.is_running
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)


def test_one_of_several_take_overs_at_once_is_left_and_acknowledges(cluster: Cluster) -> None:
    others = [cluster.new_proposer(f"other{n}", "--take-over") for n in range(2)]
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        for other in others:
            other.start(wait=False)
        survivor = only_survivor([cluster.proposer, *others])
        journal.wait_for_more(200)
        assert survivor.is_running
    assert not journal.cancelled


def test_a_proposer_that_vanished_without_a_word_is_replaced_after_its_lease(
    cluster: Cluster,
) -> None:
    successor = cluster.new_proposer("successor")
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
        cluster.proposer.signal(signal.SIGSTOP)
        assert journal.is_silent_for(0.5)
        successor.start()  # without --take-over
        journal.wait_for_more(100)
        cluster.proposer.signal(signal.SIGCONT)
        assert cluster.proposer.ended() == 1
        assert "deposed" in cluster.proposer.output(), cluster.proposer.output()
        journal.wait_for_more(100)
        assert successor.is_running
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)


def test_two_settles_at_once_end_at_one_lsn_after_every_acknowledged_commit(
    cluster: Cluster, primary: PostgresServer
) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(200)
        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(lambda _: cluster.settle(), range(2))
        assert (one["lsn"], one["timeline"]) == (other["lsn"], other["timeline"])
        assert cluster.proposer.ended() == 1
        assert "deposed" in cluster.proposer.output(), cluster.proposer.output()
        assert journal.is_silent_for(1.0)
        count = len(journal.entries)
        last = max(lsn_of(line["commit_lsn"]) for line in cluster.status()["safekeepers"])
        assert last >= lsn_of(one["lsn"])
        cluster.proposer.start()
        journal.wait_for_more(count + 100 - len(journal.entries))
    assert not journal.lost_in(primary)


def test_a_reader_that_never_reads_stops_nobody(cluster: Cluster, primary: PostgresServer) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(100)
        readers = []
        for port in cluster.ports:
            dsn = f"host=127.0.0.1 port={port} user=postgres replication=true"
            reader = pq.PGconn.connect(dsn.encode())
            assert reader.status == pq.ConnStatus.OK, reader.error_message
            first = next(iter(cluster.status()["safekeepers"]))["restart_lsn"]
            started = reader.exec_(f"START_REPLICATION PHYSICAL {first}".encode())
            assert started.status == pq.ExecStatus.COPY_BOTH, started.error_message
            readers.append(reader)
        primary.sql("SELECT pg_logical_emit_message(true, 'x', repeat('x', 64 << 20))")
        journal.wait_for_more(300)
        assert cluster.status()["cluster"]["quorum"]
        journal.stop()
        cluster.wait_all_equal()
        assert all(s.most_memory_mb() < MEMORY_MB_MAX for s in cluster.safekeepers)
        for reader in readers:
            reader.finish()
    assert not journal.cancelled


def test_a_frozen_safekeeper_stops_nobody(cluster: Cluster, primary: PostgresServer) -> None:
    frozen = cluster.safekeepers[0]
    with Journal(primary) as journal:
        journal.wait_for_more(100)
        frozen.signal(signal.SIGSTOP)
        primary.sql("SELECT pg_logical_emit_message(true, 'x', repeat('x', 64 << 20))")
        journal.wait_for_more(300)
        frozen.signal(signal.SIGCONT)
        cluster.wait_caught_up()
    assert not journal.cancelled


def test_a_second_log_on_one_primary_is_refused_while_the_first_streams(
    cluster: Cluster, primary: PostgresServer
) -> None:
    """Else two proposers with one slot and one name fight, and each says that all is well."""
    second = ("create", "--dsn", primary.dsn(), "--cluster", "second")
    done = cluster.try_command(*second, "--slot", "walkeeper")
    assert done.returncode == 1, done
    assert "slot walkeeper is in use by walkeeper (PID" in done.stderr, done
    assert "another log's proposer streams from this primary" in done.stderr, done
    done = cluster.try_command(*second)
    assert done.returncode == 0, "a slot of its own"


def test_two_logs_on_one_slot_do_not_fight_for_ever(
    cluster: Cluster, primary: PostgresServer
) -> None:
    """`create` could not see the first one, which was down then."""
    cluster.proposer.kill()
    primary.wait_unused("walkeeper")
    slot = ("--slot", "walkeeper")
    made = cluster.try_command("create", "--dsn", primary.dsn(), *slot, "--cluster", "second")
    assert made.returncode == 0, made
    name = ("--application-name", "walkeeper")
    rival = cluster.new_proposer("rival", *slot, *name, cluster="second")
    cluster.proposer.start()
    rival.start(wait=False)
    both = (cluster.proposer, rival)
    wait_until(lambda: not all(each.is_running for each in both))
    said = [each.output() for each in both if not each.is_running]
    assert "FATAL:  slot walkeeper was taken 5 times" in said[0], said
    rival.kill()
