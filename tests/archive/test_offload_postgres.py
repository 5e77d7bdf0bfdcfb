"""Offload on real safekeepers, behind a real PostgreSQL: archive, safekeepers and primary agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive.archiving import FAST_TAIL, ArchivingCluster, archived_digests, digests
from tests.postgres_server import PostgresServer
from tests.waiting import wait_until
from tests.with_postgres.cluster import lsn_of

pytestmark = pytest.mark.postgres


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer.create({"wal_keep_size": "1GB"}, initdb_options=["--wal-segsize=1"]) as s:
        yield s


def test_archive_safekeepers_and_primary_agree_byte_for_byte(
    primary: PostgresServer, tmp_path: Path
) -> None:
    with ArchivingCluster.archiving(primary, f"file://{tmp_path}", *FAST_TAIL) as cluster:
        cluster.fill(16000)
        archived_lsn = cluster.wait_archived()
        assert set(cluster.archived_lsns().values()) == {archived_lsn}
        there = archived_digests(cluster.archive())
        assert len(there) >= 5
        own = digests(primary.data / "pg_wal")
        assert {name: own[name] for name in there} == there
        for number in (1, 2, 3):
            kept = digests(cluster.wal_dir(number))
            assert {name: kept[name] for name in there} == there
        assert [cluster.archive_of(n)["failure"] for n in (1, 2, 3)] == [None] * 3
        assert sum(cluster.archive_of(n)["offloading"] for n in (1, 2, 3)) == 1
        # The tail, up to what is committed, soon after.
        end = lsn_of(primary.sql("SELECT pg_current_wal_flush_lsn()"))
        segment = primary.sql("SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
        target = tmp_path / "tail"
        archive = cluster.archive()
        wait_until(lambda: (archive.fetch_tail(segment, str(target), 1 << 20) or 0) >= end)
        tail = (primary.data / "pg_wal" / segment).read_bytes()
        assert target.read_bytes()[: end % (1 << 20)] == tail[: end % (1 << 20)]
