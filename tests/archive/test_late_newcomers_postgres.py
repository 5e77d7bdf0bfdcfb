"""A newcomer's log begins late, and the archive holds the older WAL (M5)."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import ArchivingCluster
from tests.support.cluster import lsn_of
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from tests.with_postgres.test_other_members import streamed
from walkeeper_common.lsn import Lsn

pytestmark = pytest.mark.postgres

MB = 1 << 20
BEHIND_MB = 64  # more than a newcomer is fed first


def first_lsn(cluster: ArchivingCluster, number: int) -> int:
    """Return where the safekeeper's WAL begins, on its disk or in its archive."""
    return lsn_of(cluster.status()["safekeepers"][number - 1]["first_lsn"] or "0/0")


def test_the_archive_is_a_holder_of_what_all_disks_have_removed(tmp_path: Path) -> None:
    """It is away at first: the members keep the WAL, and the newcomer says what it lacks."""
    archive = tmp_path / "archive"
    archive.mkdir()
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        ArchivingCluster.archiving(primary, f"file://{archive}", "--wal-keep-size", "0") as cluster,
    ):
        began = cluster.oldest_kept(1)
        cluster.safekeepers[2].kill()
        shutil.rmtree(cluster.data_dir(3))
        cluster.fill(2)
        cluster.wait_archived()
        archive.rename(tmp_path / "away")
        cluster.fill(2 * BEHIND_MB)
        cluster.safekeepers[2].start()
        newcomer = f"3@127.0.0.1:{cluster.ports[2]}"
        done = cluster.try_command("replace", "--member", "3", "--with", newcomer)
        assert done.returncode == 0, done
        assert first_lsn(cluster, 3) > began + BEHIND_MB * MB // 2, "its log begins late"
        lacking = "under-replicated: safekeeper 3 lacks"
        wait_until(lambda: lacking in cluster.command("status"))
        (tmp_path / "away").rename(archive)
        half = began + BEHIND_MB * MB // 2
        wait_until(lambda: min(cluster.oldest_kept(n) for n in (1, 2, 3)) > half)
        wait_until(lambda: first_lsn(cluster, 3) <= began)
        wait_until(lambda: "under-replicated" not in cluster.command("status"))
        cluster.wait_all_equal()
        cluster.safekeepers[0].kill()
        cluster.safekeepers[1].kill()
        size = BEHIND_MB * MB // 2
        assert len(asyncio.run(streamed(cluster.ports[2], Lsn(began), size))) >= size
        cluster.safekeepers[1].start()
        with Journal(primary) as journal:
            journal.wait_for_more(20)
        assert not journal.lost_in(primary)
