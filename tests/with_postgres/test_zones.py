"""Zones with real daemons: a whole zone is killed under load, and then two of three."""

from __future__ import annotations

import time

import pytest

from tests.support.cluster import Cluster
from tests.support.journal import Journal
from tests.support.waiting import wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.test_members import change, newcomer, shown, take_along
from tests.with_postgres.test_replace import PAUSE_S_MAX
from walkeeper_admin.status import verdict
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres


def test_a_commit_that_returned_survives_a_whole_zone(cluster: Cluster, figure: Figure) -> None:
    """Members 1 and 4 are in zone a, 2 in b and 3 in c; two acknowledge, of two zones."""
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        started_s = time.monotonic()
        said = change(cluster, "set-zone", "1=a", "2=b", "3=c", "--ack-zones", "2")
        assert "ack quorum 2 of 2 zones" in said
        coming = newcomer(cluster, 4)
        change(cluster, "add", f"{coming}/zone=a", "--ack-quorum", "2")
        take_along(cluster, coming)
        gap_s = journal.longest_gap_s(started_s, time.monotonic())
        figure("longest pause of commits while zones are set and a member is added, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        (only,) = shown(cluster)["sets"]
        assert only == {
            "members": [1, 2, 3, 4], "ack_quorum": 2, "vote_quorum": 3, "ack_zones": 2,
            "zones": ["a", "b", "c", "a"],
        }  # fmt: skip
        wait_until(lambda: cluster.status()["cluster"]["zone_failures"]
                   == {"a": None, "b": None, "c": None})  # fmt: skip
        one, two, three, four = cluster.safekeepers
        two.kill()
        three.kill()
        assert journal.is_silent_for(1.5), "1 and 4 are two members of one zone"
        code, text = verdict(cluster.status())
        assert code == 2 and "and only zone a does" in text, text
        two.start()
        three.start()
        journal.wait_for_more(50)
        one.kill()
        four.kill()
        journal.wait_for_more(50)
        failures = cluster.status()["cluster"]["zone_failures"]
        assert failures["a"] is None and failures["b"] is not None, failures
        one.start()
        four.start()
        journal.wait_for_more(50)
        journal.stop()
    assert not journal.cancelled and not journal.lost_in(cluster.primary)
    returned_lsn = Lsn.parse(cluster.status()["cluster"]["commit_lsn"])
    for process in (cluster.proposer, one, four):
        process.kill()
    cluster.primary.kill()
    settled = cluster.settle("--yes")
    assert Lsn.parse(settled["consensus_lsn"]) >= returned_lsn, (
        "zones b and c elect, and have it all"
    )
