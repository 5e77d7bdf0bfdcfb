"""A standby with several hosts goes on at another safekeeper, with the slot that it had (D8)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cluster import Cluster, lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.standbys import wait_replayed
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.test_open_transaction import KEPT, MEGABYTE
from tests.with_postgres.test_replace import lose_disk

pytestmark = pytest.mark.postgres

SLOT = "standby_1"


@pytest.fixture
def cluster(primary: PostgresServer) -> Iterator[Cluster]:
    """Its safekeepers keep hardly any WAL that nobody needs."""
    made = Cluster(primary)
    try:
        for safekeeper in made.safekeepers:
            safekeeper.arguments += KEPT
        made.start_safekeepers()
        made.make_log()
        made.proposer.start()
        made.attach()
        yield made
    finally:
        made.close()


def lines_of(cluster: Cluster) -> dict[int, dict[str, Any]]:
    """Return the status of each safekeeper that answers, by its number."""
    found = cluster.status()["safekeepers"]
    return {number: line for number, line in enumerate(found, 1) if line["reachable"]}


def holders(cluster: Cluster) -> list[int]:
    return [number for number, line in lines_of(cluster).items()
            if SLOT in {slot["slot_name"] for slot in line["slots"]}]  # fmt: skip


def active_at(cluster: Cluster) -> list[int]:
    return [number for number, line in lines_of(cluster).items()
            if any(slot["active_pid"] for slot in line["slots"])]  # fmt: skip


def test_a_standby_goes_on_with_its_slot_when_its_safekeeper_is_lost(
    primary: PostgresServer, cluster: Cluster
) -> None:
    where = ["-h", "127.0.0.1", "-p", str(cluster.ports[0]), "-U", "postgres", "-D", "/dev/null"]
    words = [program("pg_receivewal"), *where, "--create-slot", "--slot", SLOT]
    subprocess.run(words, check=True, env=server_environment(), capture_output=True)
    wait_until(lambda: holders(cluster) == [1, 2, 3])
    hosts, ports = ",".join(["127.0.0.1"] * 3), ",".join(map(str, cluster.ports))
    standby = primary.base_backup()
    try:
        primary.sql("CREATE TABLE big (i int, t text)")
        standby.configure(
            {
                "primary_conninfo": f"host={hosts} port={ports} user=postgres",
                "primary_slot_name": SLOT,
                "wal_retrieve_retry_interval": "200ms",
            }
        )
        (standby.data / "standby.signal").touch()
        standby.start()
        wait_until(lambda: active_at(cluster) == [1])
        standby.stop()
        for _ in range(6):
            primary.sql(MEGABYTE.format(1))
        wait_until(lambda: all(line["kept_for"] == f"slot {SLOT}"
                               for line in lines_of(cluster).values()), 2 * LIMIT_S)  # fmt: skip
        with Journal(primary) as journal:
            standby.start()
            wait_until(lambda: active_at(cluster) == [1])
            journal.wait_for_more(50)
            lose_disk(cluster, 1)
            wait_until(lambda: active_at(cluster) == [2])
            journal.wait_for_more(50)
            journal.stop()
            wait_replayed(standby, lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()::text")))
            assert not journal.lost_in(standby)
        assert "has already been removed" not in standby.log_text()
        standby.stop()
        wait_until(lambda: active_at(cluster) == [])
        dropped = walkeeper("slots", "drop", "--safekeepers", cluster.addresses, SLOT)
        assert dropped.returncode == 0 and dropped.stdout.count("dropped slot") >= 1, dropped
        wait_until(lambda: holders(cluster) == [])
    finally:
        standby.delete()
