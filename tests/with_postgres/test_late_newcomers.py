"""A newcomer enters the new set at once, whatever the backlog, and older WAL is copied later."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.segment_files import assert_same_wal, segments
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.test_replace import PAUSE_S_MAX, add_safekeeper
from walkeeper_admin.status import gather

pytestmark = pytest.mark.postgres

# A commit of so many megabytes of WAL.
MESSAGE = (
    "SELECT count(pg_logical_emit_message(true, 'fill', repeat('x', 1 << 20))) "
    "FROM generate_series(1, {})"
)
# More than a newcomer would be fed first (48 MiB); thousands for the figures of docs/members.md.
BEHIND_MB = int(os.environ.get("WALKEEPER_TEST_BEHIND_MB", "64"))
BATCH_MB = 64
SEGMENT_MB = 16 if BEHIND_MB >= 1000 else 1  # PostgreSQL's own, for the figures
COPY_S = BEHIND_MB / 32  # at the default of --fill-rate


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    options = [f"--wal-segsize={SEGMENT_MB}"]
    with PostgresServer.create(initdb_options=options) as server:
        yield server


def first_segment(cluster: Cluster, number: int) -> str:
    """Return the name of the segment with which a safekeeper's log begins."""
    return segments(cluster.wal_dir(number))[0]


def lacks(cluster: Cluster, number: int) -> int | None:
    """Return how much older WAL a safekeeper has still to copy, or None without an answer."""
    lines = cluster.status()["safekeepers"]
    return next((line["lacks_bytes"] for line in lines if line["id"] == number), None)


class Steps:
    """Watches a newcomer, and remembers when it had new WAL, was counted, and was a member."""

    NAMES = ("it has new WAL", "the members are joint", "the new set is final")

    def __init__(self, cluster: Cluster, port: int) -> None:
        document = cluster.status()
        self._commit_lsn = lsn_of(document["cluster"]["commit_lsn"])
        self._generation: int = document["cluster"]["generation"]
        self._cluster = (*cluster.pairs(), ("127.0.0.1", port)), cluster.name
        self._at_s: dict[str, float] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def ended(self) -> dict[str, float]:
        """Stop, and return the time of each step that was seen."""
        self._ending.set()
        self._thread.join()
        return self._at_s

    def _watch(self) -> None:
        while not self._ending.wait(0.05):
            document = asyncio.run(gather(*self._cluster, 3.0))
            lsn = document["safekeepers"][-1]["flush_lsn"]
            steps = (document["cluster"]["generation"] or 0) - self._generation
            seen = (lsn is not None and lsn_of(lsn) > self._commit_lsn, steps >= 2, steps >= 3)
            for name in itertools.compress(self.NAMES, seen):
                self._at_s.setdefault(name, time.monotonic())


def test_a_member_is_replaced_without_a_copy_and_filled_later(
    cluster: Cluster, figure: Figure
) -> None:
    cluster.safekeepers[2].kill()
    for _ in range(max(1, BEHIND_MB // BATCH_MB)):
        cluster.primary.sql(MESSAGE.format(min(BEHIND_MB, BATCH_MB)))
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        # It copies nothing before its restart, however long the command takes.
        newcomer, port = add_safekeeper(cluster, 4, "--fill-rate", "0")
        steps = Steps(cluster, port)
        started_s = time.monotonic()
        done = cluster.try_command("replace", "--member", "3", "--with", f"4@127.0.0.1:{port}",
                                   "--timeout", f"{LIMIT_S}s")  # fmt: skip
        assert done.returncode == 0, done
        ended_s = time.monotonic()
        begun = first_segment(cluster, 4)
        assert begun > first_segment(cluster, 1), "nothing was copied before"
        figure("replaced without a copy in s", ended_s - started_s)
        for name, at_s in steps.ended().items():
            figure(f"{name} after s", at_s - started_s)
        cluster.ports = [*cluster.ports[:2], port]
        wait_until(lambda: lacks(cluster, 4) is not None)
        figure("older WAL to copy, MB", (lacks(cluster, 4) or 0) / 1e6)
        newcomer.kill()
        newcomer.start()
        cluster.safekeepers[1].kill()
        cluster.safekeepers[1].start()
        cluster.proposer.kill()
        cluster.proposer.start()
        journal.wait_for_more(50)
        wait_until(lambda: first_segment(cluster, 4) < begun)
        half = first_segment(cluster, 4)
        newcomer.kill()
        newcomer.start()
        assert first_segment(cluster, 4) <= half, "what was copied is there after a restart"
        again_s, left = time.monotonic(), lacks(cluster, 4) or 0
        wait_until(lambda: lacks(cluster, 4) == 0, 4 * LIMIT_S + 2 * COPY_S)
        if left:
            figure("older WAL copied, MB/s", left / 1e6 / (time.monotonic() - again_s))
        gap_s = journal.longest_gap_s(started_s, ended_s)
        figure("longest pause of commits while a member is replaced without a copy, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        journal.stop()
        end_lsn = lsn_of(cluster.wait_all_equal())
    assert not journal.lost_in(cluster.primary)
    assert first_segment(cluster, 4) < begun
    assert assert_same_wal(cluster.wal_dir(1), cluster.wal_dir(4), end_lsn, SEGMENT_MB << 20)
