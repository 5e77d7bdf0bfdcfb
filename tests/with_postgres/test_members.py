"""`walkeeper members` under load: sets of other sizes, another ack quorum, and kills in between."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from tests.support.cluster import WALKEEPER, Cluster, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.test_replace import PAUSE_S_MAX, add_safekeeper

pytestmark = pytest.mark.postgres

TIMEOUT = ("--timeout", f"{LIMIT_S}s")


def members(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    arguments = ("members", *words, "--safekeepers", cluster.addresses)
    return walkeeper(*arguments, timeout_s=4 * LIMIT_S)


def change(cluster: Cluster, *words: str) -> str:
    """Run the command to its end; return what it prints."""
    done = members(cluster, *words, *TIMEOUT)
    assert done.returncode == 0, done
    return done.stdout


def shown(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(members(cluster, "--json").stdout)
    return found


def begun(cluster: Cluster, *words: str) -> subprocess.Popen[str]:
    """Start the command, and return it once its change is decided."""
    generation = cluster.status()["cluster"]["generation"]
    arguments = ["members", *words, "--safekeepers", cluster.addresses, *TIMEOUT]
    running = subprocess.Popen([*WALKEEPER, *arguments], env=server_environment(),
                               stdout=subprocess.DEVNULL, text=True)  # fmt: skip
    wait_until(lambda: cluster.status()["cluster"]["generation"] > generation)
    return running


def newcomer(cluster: Cluster, number: int) -> str:
    """Start a safekeeper, and return it as the command takes it."""
    _, port = add_safekeeper(cluster, number)
    return f"{number}@127.0.0.1:{port}"


def take_along(cluster: Cluster, *newcomers: str) -> None:
    """Name these with --safekeepers from now on."""
    cluster.ports += [int(each.rpartition(":")[2]) for each in newcomers]


def test_three_become_five_and_three_again_under_load(cluster: Cluster, figure: Figure) -> None:
    """The command is killed when it has begun, and the proposer when five commit. Two may die."""
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
        coming = [newcomer(cluster, 4), newcomer(cluster, 5)]
        started_s = time.monotonic()
        killed = begun(cluster, "add", *coming)
        killed.kill()
        killed.wait()
        said = change(cluster, "add", *coming)
        assert "members are 1, 2, 3, 4, 5 (generation 4), ack quorum 3" in said
        gap_s = journal.longest_gap_s(started_s, time.monotonic())
        figure("longest pause of commits from 3 to 5 members, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        assert change(cluster, "add", *coming) == said, "nothing is left to do"
        take_along(cluster, *coming)
        document = shown(cluster)
        assert document["state"] == "final" and document["sets"] == [
            {"members": [1, 2, 3, 4, 5], "ack_quorum": 3, "vote_quorum": 3}
        ]
        journal.wait_for_more(100)
        for safekeeper in cluster.safekeepers[:2]:
            safekeeper.kill()
        journal.wait_for_more(100)
        cluster.proposer.kill()
        second = cluster.new_proposer("second")
        second.start()
        journal.wait_for_more(100)
        for safekeeper in cluster.safekeepers[:2]:
            safekeeper.start()
        started_s = time.monotonic()
        said = change(cluster, "remove", "2", "4")
        assert "members are 1, 3, 5 (generation 6), ack quorum 2" in said
        gap_s = journal.longest_gap_s(started_s, time.monotonic())
        figure("longest pause of commits from 5 to 3 members, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        assert shown(cluster)["others"] == [2, 4], "they answer, and are none"
        cluster.safekeepers[1].kill()
        cluster.safekeepers[3].kill()
        cluster.safekeepers[0].kill()
        journal.wait_for_more(100)  # 3 and 5 are two of three
        journal.stop()
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)


def test_the_ack_quorum_goes_up_and_down_under_load(cluster: Cluster, figure: Figure) -> None:
    """With 3/3 one member that is away holds up all commits, and with 3/2 it does not."""
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
        started_s = time.monotonic()
        running = begun(cluster, "set-ack-quorum", "3")
        cluster.proposer.kill()
        cluster.proposer.start()
        assert running.wait(timeout=LIMIT_S) == 0
        journal.wait_for_more(100)
        gap_s = journal.longest_gap_s(started_s, time.monotonic())
        figure("longest pause while the ack quorum changes and the proposer is killed, s", gap_s)
        (only,) = shown(cluster)["sets"]
        assert (only["ack_quorum"], only["vote_quorum"]) == (3, 1)
        cluster.safekeepers[2].kill()
        assert journal.is_silent_for(1.5), "all three have to acknowledge"
        stuck = members(cluster, "set-ack-quorum", "2", "--timeout", "2s")
        assert stuck.returncode == 1 and "no progress for 2 s" in stuck.stderr, stuck
        cluster.safekeepers[2].start()
        assert "ack quorum 2" in change(cluster, "set-ack-quorum", "2")
        journal.wait_for_more(100)
        cluster.safekeepers[2].kill()
        journal.wait_for_more(100)
        journal.stop()
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)


def test_a_newcomer_that_dies_is_seen_and_the_change_is_taken_back(cluster: Cluster) -> None:
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        coming = newcomer(cluster, 4)
        running = begun(cluster, "add", coming, "--ack-quorum", "4")
        cluster.safekeepers[-1].kill()
        running.kill()
        running.wait()
        document = shown(cluster)
        if document["state"] != "final":  # it may have been quicker than the kill
            assert document["sets"][1]["members"] == [1, 2, 3, 4]
            role = {"learning": "learner", "joint": "joining"}[document["state"]]
            assert [each["role"] for each in document["members"]][-1] == role
            words = "the members change to 1, 2, 3, 4 (ack quorum 4)"
            # Until the proposer is elected again, the status says that commits wait for this.
            wait_until(lambda: words in cluster.try_command("status").stdout)
            rival = members(cluster, "remove", "3", *TIMEOUT)
            assert rival.returncode == 1 and "a change of members is under way" in rival.stderr
            last = document["generation"] + 1
            said = change(cluster, "cancel")
            assert f"members are 1, 2, 3 (generation {last}), ack quorum 2" in said
            journal.wait_for_more(50)
        journal.stop()
    assert not journal.lost_in(cluster.primary)


def test_one_becomes_two_and_three_and_the_first_may_go(primary: PostgresServer) -> None:
    """A log of one safekeeper gets copies under load, and in the end runs without that one."""
    cluster = Cluster(primary)
    cluster.ports, cluster.safekeepers = cluster.ports[:1], cluster.safekeepers[:1]
    cluster.proposer = cluster.new_proposer("one")
    try:
        cluster.start_safekeepers()
        cluster.make_log()
        cluster.proposer.start()
        cluster.attach()
        with Journal(primary) as journal:
            journal.wait_for_more(50)
            for number, ack_quorum in ((2, 2), (3, 2)):
                coming = newcomer(cluster, number)
                assert f"ack quorum {ack_quorum}" in change(cluster, "add", coming)
                take_along(cluster, coming)
                journal.wait_for_more(50)
            cluster.proposer.kill()
            cluster.safekeepers[0].kill()
            second = cluster.new_proposer("second")
            second.start()
            journal.wait_for_more(50)
            journal.stop()
        assert not journal.lost_in(primary)
    finally:
        cluster.close()
