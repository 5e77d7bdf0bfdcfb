"""Commits go on while a quorum lives, hang without one, and resume by themselves."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.support.cluster import Cluster
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.conftest import Figure

pytestmark = pytest.mark.postgres

LINKS_RETURN_S = 2.0  # the proposer tries again every second at least
HANG_S = 3.0
RESUME_S_MAX = 10.0  # on a busy machine; the figures say what it was


def test_commits_hang_without_a_quorum_and_resume_by_themselves(cluster: Cluster) -> None:
    first, second, _ = cluster.safekeepers
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
        first.kill()
        journal.wait_for_more(100)
        second.kill()
        assert journal.is_silent_for(HANG_S)
        assert cluster.try_command("status", "--check").returncode == 2
        # Not at once: the primary may write a record in between, which the third one then has.
        wait_until(lambda: json.loads(cluster.command("status", "--json")) == cluster.status())
        first.start()
        journal.wait_for_more(100)
        second.start()
        journal.wait_for_more(100)
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)


def silent(cluster: Cluster, number: int) -> bool:
    """Return True if `status` names this member by its id, and says since when it is away."""
    reasons = cluster.status()["reasons"]
    found = [each for each in reasons if each["code"] == "unreachable"]
    return [each["member"] for each in found] == [number] and found[0]["since"] is not None


class LocalJournal(Journal):
    """Commits that wait for the primary's own disk alone: their pauses are the machine's."""

    table = "alone"
    create = "CREATE TABLE IF NOT EXISTS alone (id bigint PRIMARY KEY)"

    def transact(self, connection: psycopg.Connection[Any], new_id: int) -> None:
        connection.execute("SET synchronous_commit = local")
        connection.execute("INSERT INTO alone VALUES (%s)", (new_id,))


def test_killing_a_safekeeper_does_not_stop_commits(cluster: Cluster, figure: Figure) -> None:
    alone = LocalJournal(cluster.primary, writers=1, pause_s=0.02)
    with alone, Journal(cluster.primary, writers=8) as journal:
        journal.wait_for_more(500)
        for number, safekeeper in enumerate(cluster.safekeepers, 1):
            killed_s = time.monotonic()
            safekeeper.kill()
            journal.wait_for_more(1000)
            until_s = time.monotonic()
            gap_s = journal.longest_gap_s(killed_s - 0.1, until_s)
            figure(f"longest gap when {safekeeper.name} is killed, s", gap_s)
            figure("p99.9 latency meanwhile, s", journal.latency_s(0.999, killed_s))
            assert gap_s - alone.longest_gap_s(killed_s - 0.1, until_s) < 5.0
            wait_until(partial(silent, cluster, number))
            safekeeper.start()
            cluster.wait_caught_up()
    assert not journal.cancelled


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], id=""),
        pytest.param(["--take-over"], id="take over", marks=pytest.mark.soak),
    ],
)
def test_commits_resume_soon_after_a_killed_proposer_has_a_successor(
    cluster: Cluster, figure: Figure, options: list[str]
) -> None:
    with Journal(cluster.primary) as journal:
        for _ in range(3):
            journal.wait_for_more(100)
            cluster.proposer.kill()
            assert journal.is_silent_for(0.2)
            count = len(journal.entries)
            started_s = time.monotonic()
            cluster.proposer.start(*options)
            journal.wait_for_more(count + 1 - len(journal.entries))
            resumed_s = journal.entries[count].at_s - started_s
            figure("commits resume after a successor's start, s", resumed_s)
            assert resumed_s < RESUME_S_MAX
    assert not journal.cancelled


def test_primary_goes_on_after_a_kill(cluster: Cluster, primary: PostgresServer) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(200)
        primary.kill()
        primary.start()
        journal.wait_for_more(200)
        primary.stop("immediate")
        primary.start()
        journal.wait_for_more(200)
    assert not journal.lost_in(primary)


def test_safekeepers_that_return_before_the_primary_does_are_fed_again(
    cluster: Cluster, primary: PostgresServer
) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(100)
        primary.kill()
        for safekeeper in cluster.safekeepers:
            safekeeper.kill()
            safekeeper.start()
        journal.goes_on_for(LINKS_RETURN_S)
        primary.start()
        journal.wait_for_more(100)
    assert not journal.lost_in(primary)
