"""A segment that a disk has damaged is written again from the archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster, digests
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.postgres


def test_a_damaged_segment_comes_back_from_the_archive(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url, fast = f"file://{tmp_path}/archive", ("--scrub-rate", "100MB")
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        ArchivingCluster.archiving(primary, url, *FAST_TAIL, *fast) as cluster,
    ):
        cluster.fill(8)
        cluster.wait_archived()
        first = cluster.safekeepers[0]
        first.terminate()
        name = sorted(digests(cluster.wal_dir(1)))[1]
        segment = cluster.wal_dir(1) / name
        sound = segment.read_bytes()
        data = bytearray(sound)
        data[len(data) // 2] ^= 0x10
        segment.write_bytes(data)
        first.start()
        wait_until(lambda: "from the archive; it is read again" in first.output())
        assert segment.read_bytes() == sound
        wait_until(lambda: "the scrub finds no damage any more" in first.output())
        assert cluster.status()["safekeepers"][0]["damage"] is None
