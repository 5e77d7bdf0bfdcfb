"""`walkeeper spare` under load: a member dies with its disk, and nobody does anything about it."""

from __future__ import annotations

import time

import pytest

from tests.support.cluster import Cluster, walkeeper
from tests.support.journal import Journal
from tests.support.segment_files import assert_same_wal
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.test_members import TIMEOUT, newcomer, shown, take_along
from tests.with_postgres.test_replace import PAUSE_S_MAX, lose_disk
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres

GRACE_S = 2


def spare(cluster: Cluster, *words: str) -> str:
    """Run the command to its end; return what it prints."""
    arguments = ("spare", *words, "--safekeepers", cluster.addresses, *TIMEOUT)
    done = walkeeper(*arguments, timeout_s=4 * LIMIT_S)
    assert done.returncode == 0, done
    return done.stdout


def test_a_lost_member_is_replaced_without_a_hand_though_the_proposer_is_killed(
    cluster: Cluster, figure: Figure
) -> None:
    """The first spare is dead, too. Afterwards one more member may die, as before."""
    cluster.proposer.kill()
    watchful = cluster.new_proposer("watchful", "--repair-grace", str(GRACE_S))
    watchful.start()
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        coming = [newcomer(cluster, 4), newcomer(cluster, 5)]
        said = spare(cluster, "add", *coming)
        assert said == f"spares of cluster main: {', '.join(coming)} (generation 2)\n"
        assert [each["id"] for each in shown(cluster)["spares"]] == [4, 5]
        cluster.safekeepers[3].kill()
        started_s = time.monotonic()
        lose_disk(cluster, 3)
        wait_until(lambda: cluster.status()["cluster"]["replacing"] is not None)
        watchful.kill()
        watchful.start()
        take_along(cluster, *coming)
        wait_until(lambda: [each["role"] for each in shown(cluster)["members"]] == ["member"] * 3
                   and shown(cluster)["sets"][0]["members"] == [1, 2, 5], 3 * LIMIT_S)  # fmt: skip
        figure("replaced by the second spare after, s", time.monotonic() - started_s)
        gap_s = journal.longest_gap_s(started_s, time.monotonic())
        figure("longest pause of commits in a repair, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        assert [each["id"] for each in shown(cluster)["spares"]] == [4], "5 is a member now"
        cluster.safekeepers[0].kill()
        journal.wait_for_more(50)  # 2 and 5 are two of three
        journal.stop()
        end_lsn = int(Lsn.parse(cluster.status()["cluster"]["commit_lsn"]))
        assert assert_same_wal(cluster.wal_dir(2), cluster.wal_dir(5), end_lsn)
    texts = (
        "replacing safekeeper 3 by spare 4",
        "could not replace safekeeper 3",
        "replaced safekeeper 3 by spare 5",
    )
    wait_until(lambda: all(text in watchful.log.read_text() for text in texts))
    assert not journal.cancelled
    assert not journal.lost_in(cluster.primary)
