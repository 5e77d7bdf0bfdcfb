"""`walkeeper replace` of a member of a logical log: its consumers go on at the newcomer."""

from __future__ import annotations

import threading
from typing import Self

import psycopg
import pytest

from tests.support.change_consumer import (
    Replica,
    Transaction,
    create_slot,
    receive,
    transactions,
)
from tests.support.cluster import lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.logical_cluster import (  # noqa: F401
    LogicalCluster,
    cluster,
    inserts,
    primary,
    table_rows,
)
from tests.with_postgres.test_replace import add_safekeeper, lose_disk

pytestmark = pytest.mark.postgres

BULK = "INSERT INTO bulk SELECT nextval('numbers'), repeat('x', 1000) FROM generate_series(1, 1600)"


class LargeTransactions:
    """Each is longer than a segment of the log, so that most segments start inside of one."""

    def __init__(self, server: PostgresServer) -> None:
        server.sql("CREATE SEQUENCE numbers", "CREATE TABLE bulk (id int PRIMARY KEY, v text)")
        self._server, self._stopping = server, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.made = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(LIMIT_S)

    def _run(self) -> None:
        while not self._stopping.wait(0.3):
            try:
                self._server.sql(BULK)
                self.made += 1
            except psycopg.Error:
                continue


def test_a_consumer_of_a_lost_member_goes_on_at_its_replacement_and_has_each_change_once(
    cluster: LogicalCluster,  # noqa: F811
    primary: PostgresServer,  # noqa: F811
) -> None:
    create_slot(cluster.ports[2], "feed")
    create_slot(cluster.ports[2], "slow")
    with Journal(primary) as journal, LargeTransactions(primary) as large:
        journal.wait_for_more(50)
        wait_until(lambda: large.made > 1)
        feed = receive(cluster.ports[2], "feed", cluster.end_lsn())
        cluster.wait_confirmed("feed", feed, (1, 2, 3))
        lose_disk(cluster, 3)
        journal.wait_for_more(50)
        _, port = add_safekeeper(cluster, 4)
        done = cluster.try_command(
            "replace", "--member", "3", "--with", f"4@127.0.0.1:{port}", "--timeout", "60s"
        )
        assert done.returncode == 0 and "members are 1, 2, 4 (generation 4)" in done.stdout, done
        cluster.ports = [*cluster.ports[:2], port]
        assert cluster.proposer.is_running, "it needs no restart"
        # entries that the newcomer lacks
        more = receive(cluster.ports[1], "feed", cluster.end_lsn())
        cluster.wait_confirmed("feed", more, (2, 4))
        feed += more
        cluster.safekeepers[0].kill()  # the second and the newcomer are left
        journal.wait_for_more(50)
        cluster.proposer.kill()
        cluster.safekeepers[1].kill()
        cluster.safekeepers[0].start()
        again = cluster.new_proposer("again", "--logical", "--publication", "p")
        again.start()  # with the newcomer's vote and its log
        journal.wait_for_more(50)
    end_lsn = cluster.end_lsn()
    with pytest.raises(AssertionError, match="Another safekeeper may have them"):
        receive(port, "slow", end_lsn)
    slow = transactions(receive(cluster.ports[0], "slow", end_lsn))
    check_transactions(slow, primary, journal)
    assert transactions(feed + receive(port, "feed", end_lsn)) == slow
    wait_until(lambda: lsn_of(cluster.slot_lsns("feed")[1]) >= lsn_of(end_lsn))


def check_transactions(
    found: list[Transaction],
    primary: PostgresServer,  # noqa: F811
    journal: Journal,
) -> None:
    """Compare: each once, in commit order, and together they are the tables."""
    ends = [one.end_lsn for one in found]
    assert ends == sorted(set(ends)), "not in commit order, or twice"
    ids = {int(new["id"]) for new in inserts(found, "public.journal")}
    assert not {entry.id for entry in journal.entries} - ids and not journal.cancelled
    replica = Replica()
    for one in found:
        replica.apply(one)
    for table in ("journal", "bulk"):
        assert replica.rows(f"public.{table}") == table_rows(primary, table), table
