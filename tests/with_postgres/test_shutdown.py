"""A fast shutdown of the primary waits for its walsender; that must not become a hang."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize(
    "dead",
    [
        pytest.param(0, id="all alive", marks=pytest.mark.soak),
        pytest.param(1, id="one safekeeper dead"),
    ],
)
def test_fast_shutdown_ends_under_load_while_a_quorum_lives(
    cluster: Cluster, primary: PostgresServer, dead: int
) -> None:
    primary.configure({"wal_sender_timeout": "0"})  # a walsender that hangs does so for ever
    primary.reload()
    for safekeeper in cluster.safekeepers[:dead]:
        safekeeper.kill()
    with Journal(primary) as journal:
        journal.wait_for_more(200)
        primary.stop("fast")
        assert not primary.is_running
        primary.start()
        journal.wait_for_more(200)
        primary.restart("fast")
        journal.wait_for_more(200)
    assert not journal.lost_in(primary)
    assert cluster.proposer.is_running


def test_daemons_stop_cleanly_under_load(cluster: Cluster) -> None:
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(100)
        for daemon in [cluster.proposer, *cluster.safekeepers]:
            assert daemon.terminate() == 0, daemon.output()
        cluster.start_safekeepers()
        cluster.proposer.start()
        journal.wait_for_more(100)
    assert not journal.cancelled
