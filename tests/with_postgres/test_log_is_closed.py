"""`walkeeper logs close` on real daemons: the log ends for good, and goes on being served."""

from __future__ import annotations

import json

import pytest

from tests.support.change_consumer import create_slot, receive, transactions
from tests.support.cluster import Cluster, Daemon, lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.standbys import standby_of, wait_replayed
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.logical_cluster import SETTINGS as LOGICAL_SETTINGS
from tests.with_postgres.logical_cluster import LogicalCluster, inserts
from tests.with_postgres.test_refusals import assert_refused
from tests.with_postgres.test_replace import add_safekeeper, lose_disk, replace_arguments
from walkeeper_common.errors import LogClosed

pytestmark = pytest.mark.postgres


def closed_lsn(cluster: Cluster, *options: str) -> str:
    """Close the log, and return its last LSN."""
    words = ("logs", "close", "--yes", "--json", "--safekeepers", cluster.addresses)
    done = walkeeper(*words, cluster.name, *options)
    assert done.returncode == 0, done
    document = json.loads(done.stdout)
    assert document["closed"], document
    lsn: str = document["lsn"]
    return lsn


def assert_closed(proposer: Daemon) -> None:
    """Check that a proposer that starts ends with the code that its unit knows."""
    assert_refused(proposer, "was closed at", "`walkeeper logs close`", code=LogClosed.exit_code)


def test_a_closed_log_is_served_to_its_end_and_never_written_again(cluster: Cluster) -> None:
    primary = cluster.primary
    with standby_of(primary, cluster.ports[0]) as standby:
        with Journal(primary) as journal:
            journal.wait_for_more(50)
            cluster.safekeepers[2].kill()
            journal.wait_for_more(20)
            end = closed_lsn(cluster)
        assert cluster.proposer.ended() == 1
        assert_closed(cluster.proposer)
        assert_closed(cluster.new_proposer("eager", "--take-over", "--resume"))
        wait_replayed(standby, lsn_of(end))
        assert not journal.lost_in(standby)
    status = cluster.status()
    assert status["cluster"]["closed_lsn"] == end and not status["cluster"]["is_closing"]
    assert not any(reason["code"] == "no_proposer" for reason in status["reasons"])
    cluster.safekeepers[2].start()
    (reason,) = cluster.status()["reasons"]
    assert reason["code"] == "closing" and "safekeeper 3 does not know" in reason["text"]
    assert closed_lsn(cluster) == end
    for safekeeper in cluster.safekeepers:
        safekeeper.kill()
    cluster.start_safekeepers()
    wait_until(lambda: f"closed at {end}" in cluster.status()["verdict"]["text"])
    assert cluster.status()["verdict"]["exit_code"] == 0
    assert {line["flush_lsn"] for line in cluster.status()["safekeepers"]} == {end}
    assert closed_lsn(cluster) == end


def checked(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return the state and the text of each line of `walkeeper check` that is of the primary."""
    words = ("check", "--json", "--safekeepers", cluster.addresses, "--dsn", cluster.primary.dsn())
    found = json.loads(walkeeper(*words).stdout)["checks"]
    assert not any(each["check"] in ("commit", "quorum", "restore") for each in found), found
    names = ("primary", "primary slot", "attached")
    return {
        each["check"]: (each["state"], each["text"]) for each in found if each["check"] in names
    }


def test_check_tells_a_primary_to_leave_a_closed_log(cluster: Cluster) -> None:
    """It commits no marker there, which would hang."""
    closed_lsn(cluster)
    cluster.proposer.ended()
    attached = checked(cluster)
    assert attached["attached"][0] == "FAILED" and "closed log" in attached["attached"][1]
    dsn = cluster.primary.dsn()
    assert walkeeper("detach", "--dsn", dsn).returncode == 0
    assert checked(cluster)["primary slot"][0] == "WARNING"
    assert walkeeper("detach", "--dsn", dsn, "--drop-slot").returncode == 0
    assert checked(cluster)["primary"][0] == "OK"


def test_a_lost_member_of_a_closed_log_is_replaced(cluster: Cluster) -> None:
    """No proposer leads this log: the command holds the elections itself."""
    end = closed_lsn(cluster)
    lose_disk(cluster, 3)
    _, port = add_safekeeper(cluster, 4)
    done = walkeeper(*replace_arguments(cluster, 3, f"4@127.0.0.1:{port}"), timeout_s=LIMIT_S)
    assert done.returncode == 0 and "members are 1, 2, 4" in done.stdout, done
    cluster.ports[2] = port
    assert closed_lsn(cluster) == end
    assert cluster.status()["verdict"]["exit_code"] == 0, cluster.status()
    assert {line["closed_lsn"] for line in cluster.status()["safekeepers"]} == {end}


def test_a_closed_logical_log_is_served_to_its_end() -> None:
    with PostgresServer.create(LOGICAL_SETTINGS, initdb_options=["--wal-segsize=1"]) as primary:
        primary.sql("CREATE PUBLICATION p FOR ALL TABLES")
        with LogicalCluster.create(primary) as cluster:
            primary.sql("CREATE TABLE kept (id int PRIMARY KEY)", "INSERT INTO kept VALUES (1)")
            create_slot(cluster.ports[0], "late")
            primary.sql("INSERT INTO kept VALUES (2)")
            at = cluster.end_lsn()
            end = closed_lsn(cluster)
            assert cluster.proposer.ended() == 1
            assert_closed(cluster.proposer)
            received = receive(cluster.ports[1], "late", at)
            assert [row["id"] for row in inserts(transactions(received), "public.kept")] == ["2"]
            assert closed_lsn(cluster) == end
