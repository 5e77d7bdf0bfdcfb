"""`walkeeper archive repair`: what an archive has lost comes back from the safekeepers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster, archived_digests
from tests.support.cluster import walkeeper
from tests.support.postgres_server import PostgresServer
from walkeeper_admin.archive_repair import Flaw, repair
from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import segment_file
from walkeeper_archive.open_store import open_store
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn

MB = 1 << 20


@pytest.mark.postgres
def test_damaged_and_missing_segments_come_back(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url = f"file://{tmp_path}/archive"
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        ArchivingCluster.archiving(primary, url, *FAST_TAIL) as cluster,
    ):
        cluster.fill(12)
        cluster.wait_archived()
        archive = cluster.archive()
        before = archived_digests(archive)
        names = sorted(before)
        folder = tmp_path / "archive/main" / str(archive.system_id) / names[0][:8]
        flipped = bytearray((folder / names[1]).read_bytes())
        flipped[5000] ^= 1
        (folder / names[1]).write_bytes(flipped)
        (folder / names[2]).unlink()
        (folder / names[2]).with_name(f"{names[2]}.sha256").unlink()
        (folder / names[3]).unlink()
        where = ("--safekeepers", cluster.addresses)
        planned = walkeeper("archive", "repair", url, *where, "--dry-run")
        assert planned.returncode == 1 and planned.stdout.count("would repair") == 3, planned
        done = walkeeper("archive", "repair", url, *where)
        assert done.returncode == 0 and done.stdout.count("repaired") == 3, done
        assert {name: archived_digests(archive)[name] for name in names} == before
        assert walkeeper("archive", "verify", url).returncode == 0


def test_wal_that_is_not_the_receipts_repairs_nothing(tmp_path: Path) -> None:
    """The archive and the log have parted, and nobody can say which is right."""
    archive = Archive(open_store(str(tmp_path)), "main", 7)
    file = segment_file(1, Lsn(MB), MB)
    archive.put(file, b"a" * MB)
    with pytest.raises(Refused, match="is not what the receipt says"):
        repair(archive, Flaw(file, "damaged"), lambda name: b"b" * MB)
    assert archive.read(file) == b"a" * MB
