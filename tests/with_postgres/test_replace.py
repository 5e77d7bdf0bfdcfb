"""`walkeeper replace` under load: nothing is lost, commits go on, and a wiped disk gets no vote."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from typing import Any

import pytest

from tests.support.cluster import WALKEEPER, Cluster, Daemon
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, server_environment
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from walkeeper_lab.local.tcp_ports import free_port

pytestmark = pytest.mark.postgres

PAUSE_S_MAX = 15.0  # on a busy machine; the figure says what it was


def lose_disk(cluster: Cluster, number: int) -> None:
    cluster.safekeepers[number - 1].kill()
    shutil.rmtree(cluster.data_dir(number))


def add_safekeeper(cluster: Cluster, number: int, *options: str) -> tuple[Daemon, int]:
    """Start a safekeeper of another machine; it ends with the cluster.

    The `options` are for its first run alone."""
    port = free_port()
    newcomer = cluster.new_safekeeper(number, port)
    cluster.safekeepers.append(newcomer)
    newcomer.start(*options)
    return newcomer, port


def replace_arguments(cluster: Cluster, member: int, newcomer: str) -> list[str]:
    with_whom = ["--member", str(member), "--with", newcomer]
    return ["replace", "--safekeepers", cluster.addresses, *with_whom, "--timeout", f"{LIMIT_S}s"]


def line_of(cluster: Cluster, number: int) -> dict[str, object]:
    lines = cluster.status()["safekeepers"]
    return next(line for line in lines if line["id"] == number)


def test_a_dead_disk_is_replaced_under_load_and_the_next_one_may_die(
    cluster: Cluster, figure: Figure
) -> None:
    """Then the two that are left hold every commit: one of them is the newcomer."""
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(200)
        lose_disk(cluster, 3)
        journal.wait_for_more(200)
        _, port = add_safekeeper(cluster, 4)
        started_s = time.monotonic()
        done = cluster.try_command("replace", "--member", "3", "--with", f"4@127.0.0.1:{port}",
                                   "--timeout", f"{LIMIT_S}s")  # fmt: skip
        assert done.returncode == 0, done
        assert "members are 1, 2, 4 (generation 4)" in done.stdout, done
        figure("replaced in s", time.monotonic() - started_s)
        journal.wait_for_more(200)
        gap_s = journal.longest_gap_s(started_s - 0.1, time.monotonic())
        figure("longest pause of commits while a member is replaced, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        assert cluster.proposer.is_running, "it needs no restart"
        cluster.ports = [*cluster.ports[:2], port]
        cluster.wait_caught_up()
        assert cluster.status()["cluster"]["generation"] == 4
        cluster.safekeepers[0].kill()
        journal.wait_for_more(200)
        cluster.proposer.kill()
        second = cluster.new_proposer("second")
        second.start()
        journal.wait_for_more(200)
        cluster.safekeepers[0].start()
        journal.stop()
        cluster.wait_all_equal()
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)


def test_a_wiped_member_gets_no_vote_under_its_old_name_until_it_is_replaced(
    cluster: Cluster,
) -> None:
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(200)
        lose_disk(cluster, 3)
        wiped = cluster.safekeepers[2]
        wiped.start()
        journal.wait_for_more(100)
        cluster.safekeepers[1].kill()
        assert journal.is_silent_for(2.0), "two of three are lost, whatever the wiped one says"
        settled = cluster.try_command("settle", "--timeout", "3s")
        assert settled.returncode == 1, "no election with the wiped one's vote"
        cluster.safekeepers[1].start()
        cluster.proposer.kill()
        cluster.proposer.start()
        journal.wait_for_more(100)
        done = cluster.try_command("replace", "--member", "3", "--with",
                                   f"3@127.0.0.1:{cluster.ports[2]}")  # fmt: skip
        assert done.returncode == 0 and "nothing was changed" not in done.stderr, done
        cluster.safekeepers[1].kill()
        journal.wait_for_more(100)  # it counts now
        cluster.safekeepers[1].start()
        again = cluster.try_command("replace", "--member", "3", "--with",
                                    f"3@127.0.0.1:{cluster.ports[2]}")  # fmt: skip
        assert again.returncode == 0 and "generation 4" in again.stdout, "nothing is left to do"
        assert "nothing was changed" in again.stderr and "empty directory" in again.stderr
        journal.stop()
        cluster.wait_all_equal()
    assert not journal.lost_in(cluster.primary)


def test_a_killed_replace_goes_on_and_the_old_member_learns_its_successor(
    cluster: Cluster,
) -> None:
    old = cluster.safekeepers[2]
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(200)
        old.kill()
        newcomer, port = add_safekeeper(cluster, 4)
        newcomer.kill()  # so the first run gets no further than to the newcomer
        arguments = replace_arguments(cluster, 3, f"4@127.0.0.1:{port}")
        newcomer.start()
        generations = list[int]()
        while not generations or generations[-1] < 4:
            first = subprocess.Popen([*WALKEEPER, *arguments], env=server_environment(),
                                     stdout=subprocess.DEVNULL)  # fmt: skip
            wait_until(lambda: cluster.status()["cluster"]["generation"] not in generations)
            first.kill()
            first.wait()
            generations.append(cluster.status()["cluster"]["generation"])
            if generations[-1] == 2:
                rival = cluster.try_command("replace", "--member", "2", "--with",
                                            f"5@127.0.0.1:{port}")  # fmt: skip
                assert rival.returncode == 1, rival
        done = cluster.try_command("replace", "--member", "3", "--with", f"4@127.0.0.1:{port}")
        assert done.returncode == 0 and "generation 4" in done.stdout, done
        journal.wait_for_more(100)
        old.start()

        def is_told() -> bool:
            return "was replaced by 4#" in str(line_of(cluster, 3)["error"])

        wait_until(is_told)
        journal.wait_for_more(100)
    assert not journal.lost_in(cluster.primary)


@pytest.mark.soak
def test_an_idle_log_that_was_moved_to_other_machines_is_led_on(cluster: Cluster) -> None:
    """The log ends after a segment's end, or a record further, and begins there for a newcomer. The
    WAL that shows that the primary wrote it is in the segment before."""
    cluster.primary.sql("CREATE TABLE moved (id int)", "SELECT pg_switch_wal()")
    for number in (1, 2, 3):
        _, port = add_safekeeper(cluster, number + 3)
        with_whom = f"{number + 3}@127.0.0.1:{port}"
        cluster.command("replace", "--member", str(number), "--with", with_whom)
        cluster.safekeepers[number - 1].kill()
        cluster.ports[number - 1] = port
    proposer = cluster.proposer
    for record in ("SELECT", "SELECT pg_logical_emit_message(false, 'no', 'commit')"):
        cluster.primary.sql(record)
        proposer.kill()
        proposer = cluster.new_proposer("moved")
        proposer.start()
        cluster.primary.sql("SET statement_timeout = '20s'", "INSERT INTO moved VALUES (1)")
        cluster.primary.sql("SELECT pg_switch_wal()")


def settled_past(cluster: Cluster, generation: int) -> bool:
    """Settle, and return whether the members are a step further. A newcomer may join too late."""
    cluster.settle("--seal")
    current: int = cluster.status()["cluster"]["generation"]
    return current > generation


def test_settle_finishes_a_replacement_without_a_primary(cluster: Cluster) -> None:
    """Its own election brings the members to change under it."""
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
    cluster.primary.kill()
    cluster.proposer.kill()
    lose_disk(cluster, 3)
    _, port = add_safekeeper(cluster, 4)
    arguments = replace_arguments(cluster, 3, f"4@127.0.0.1:{port}")
    with subprocess.Popen(
        [*WALKEEPER, *arguments], env=server_environment(), stdout=subprocess.PIPE, text=True
    ) as replacing:
        cluster.ports.append(port)
        wait_until(lambda: cluster.status()["cluster"]["generation"] == 2)
        wait_until(lambda: settled_past(cluster, 2))  # the newcomer learns
        wait_until(lambda: settled_past(cluster, 3))  # the members are joint
        out, _ = replacing.communicate(timeout=LIMIT_S)
        assert replacing.returncode == 0 and "members are 1, 2, 4" in out, out

    def settled_whole() -> dict[str, Any] | None:
        settled = cluster.settle("--seal")
        assert settled["sealed"], settled
        return None if settled["behind"] else settled  # a member may connect too late

    wait_until(settled_whole)
    cluster.primary.start()
    assert not journal.lost_in(cluster.primary)


def members_of(cluster: Cluster) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.command("members", "--json"))["members"]
    return found


def test_a_replacement_whose_newcomer_dies_is_taken_back(primary: PostgresServer) -> None:
    """2 of 2, and commits go on: a newcomer is in no set before it has WAL. No command spins."""
    cluster = Cluster(primary)
    cluster.ports, cluster.safekeepers = cluster.ports[:2], cluster.safekeepers[:2]
    cluster.proposers.clear()
    cluster.proposer = cluster.new_proposer("proposer")
    try:
        cluster.start_safekeepers()
        cluster.make_log()
        cluster.proposer.start()
        cluster.attach()
        primary.sql("CREATE TABLE kept (i int)", "INSERT INTO kept VALUES (1)")
        newcomer, port = add_safekeeper(cluster, 9)
        cluster.proposer.kill()  # so that nobody fills the newcomer before it dies
        arguments = replace_arguments(cluster, 2, f"9@127.0.0.1:{port}")
        replacing = subprocess.Popen([*WALKEEPER, *arguments], env=server_environment(),
                                     stdout=subprocess.DEVNULL)  # fmt: skip
        wait_until(lambda: cluster.status()["cluster"]["generation"] == 2)
        newcomer.kill()
        replacing.kill()
        replacing.wait()
        cluster.proposer.start()
        primary.sql("INSERT INTO kept VALUES (2)")
        (learner,) = (m for m in members_of(cluster) if m["role"] == "learner")
        assert learner["id"] == 9 and not learner["reachable"]
        started_s = time.monotonic()
        stuck = cluster.try_command("replace", "--member", "2", "--with",
                                    f"9@127.0.0.1:{port}", "--timeout", "2s")  # fmt: skip
        assert stuck.returncode == 1 and time.monotonic() - started_s < 2 * LIMIT_S
        assert "safekeeper 9 at 127.0.0.1" in stuck.stderr and "--cancel" in stuck.stderr, stuck
        back = ("replace", "--member", "2", "--with", f"2@127.0.0.1:{cluster.ports[1]}")
        refused = cluster.try_command(*back, "--instead", "--timeout", "2s")
        assert refused.returncode == 1 and "is a member still" in refused.stderr, refused
        assert "blocked" not in cluster.command("status")
        said = cluster.command("replace", "--cancel", "--timeout", f"{LIMIT_S}s")
        assert "members are 1, 2 (generation 3)" in said
        shutil.rmtree(cluster.data_dir(9))  # it may have joined before it died
        newcomer.start()
        done = cluster.try_command(*arguments[:1], *arguments[3:])
        assert "members are 1, 9 (generation 6)" in done.stdout, done
    finally:
        cluster.close()
