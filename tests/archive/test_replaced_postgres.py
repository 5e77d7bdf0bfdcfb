"""A member is replaced when the WAL that the newcomer lacks is in the archive alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.archive.archiving_cluster import ArchivingCluster
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres

MB = 1 << 20


def test_a_new_safekeeper_is_filled_from_the_archive(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url = f"file://{tmp_path}/archive"
    with (
        PostgresServer.create({"wal_keep_size": "1GB"}, initdb_options=["--wal-segsize=1"]) as p,
        ArchivingCluster.archiving(p, url, "--wal-keep-size", "0") as cluster,
    ):
        cluster.safekeepers[2].kill()
        shutil.rmtree(cluster.data_dir(3))
        began = cluster.oldest_kept(1)
        cluster.fill(12)
        cluster.wait_archived()
        wait_until(lambda: min(cluster.oldest_kept(n) for n in (1, 2)) >= began + 4 * MB)
        cluster.safekeepers[2].start()
        newcomer = f"3@127.0.0.1:{cluster.ports[2]}"
        done = cluster.try_command("replace", "--member", "3", "--with", newcomer)
        assert done.returncode == 0, done
        cluster.wait_all_equal()
        cluster.safekeepers[0].kill()
        with Journal(p) as journal:
            journal.wait_for_more(20)  # the newcomer's acknowledgement is the second one
        assert not journal.lost_in(p)
