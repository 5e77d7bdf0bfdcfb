"""A newcomer enters the new set at once, whatever the backlog, and older WAL is copied later."""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from tests.support.cluster import Cluster
from tests.support.journal import Journal
from tests.support.waiting import LIMIT_S, wait_until
from tests.with_postgres.conftest import Figure
from tests.with_postgres.test_replace import PAUSE_S_MAX, add_safekeeper

pytestmark = pytest.mark.postgres

MESSAGE = "SELECT pg_logical_emit_message(false, 'fill', repeat('x', 1 << 20))"
# More than a newcomer would be fed first (48 MiB); thousands for the figures of docs/members.md.
BEHIND_MB = int(os.environ.get("WALKEEPER_TEST_BEHIND_MB", "64"))


def segments(cluster: Cluster, number: int) -> dict[str, bytes]:
    """Return the segment files of a safekeeper, without those prepared ahead."""
    paths = (p for p in cluster.wal_dir(number).iterdir() if len(p.name) == 24)
    found: dict[str, bytes] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # retention was faster
            found[path.name] = path.read_bytes()
    return {name: data for name, data in found.items() if any(data[:16])}


def test_a_member_is_replaced_without_a_copy_and_filled_later(
    cluster: Cluster, figure: Figure
) -> None:
    cluster.safekeepers[2].kill()
    for _ in range(BEHIND_MB):
        cluster.primary.sql(MESSAGE)
    with Journal(cluster.primary) as journal:
        journal.wait_for_more(50)
        newcomer, port = add_safekeeper(cluster, 4)
        started_s = time.monotonic()
        done = cluster.try_command("replace", "--member", "3", "--with", f"4@127.0.0.1:{port}",
                                   "--timeout", f"{LIMIT_S}s")  # fmt: skip
        assert done.returncode == 0, done
        ended_s = time.monotonic()
        begun = min(segments(cluster, 4))
        assert begun > min(segments(cluster, 1)), "nothing was copied before"
        figure("replaced without a copy in s", ended_s - started_s)
        cluster.ports = [*cluster.ports[:2], port]
        newcomer.kill()
        newcomer.start()
        cluster.safekeepers[1].kill()
        cluster.safekeepers[1].start()
        cluster.proposer.kill()
        cluster.proposer.start()
        journal.wait_for_more(50)
        wait_until(lambda: "older WAL was copied" in newcomer.output(), 4 * LIMIT_S)
        gap_s = journal.longest_gap_s(started_s, ended_s)
        figure("longest pause of commits while a member is replaced without a copy, s", gap_s)
        assert gap_s < PAUSE_S_MAX
        journal.stop()
        cluster.wait_all_equal()
    assert not journal.lost_in(cluster.primary)
    one, four = segments(cluster, 1), segments(cluster, 4)
    held = one.keys() & four.keys()
    assert min(held) < begun and all(one[name] == four[name] for name in held)
