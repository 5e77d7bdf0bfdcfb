"""`walkeeper archive repair`: what an archive has lost comes back from the safekeepers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster, archived_digests
from tests.archive.test_verification import SYSTEM_ID, wal_of
from tests.cli.status_documents import DOWN, document, line
from tests.support.cluster import walkeeper
from tests.support.postgres_server import PostgresServer
from walkeeper_admin.archive_repair import Flaw, refuse_another_log, repair, why_not_fetched
from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import ArchivedObject, segment_file
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
        repair(archive, Flaw(file, "damaged"), lambda name: b"b" * MB, segment_bytes=MB)
    assert archive.read(file) == b"a" * MB


def test_wal_of_another_system_repairs_nothing(tmp_path: Path) -> None:
    """It was put, since a segment that is missing has no receipt, and only verify saw it."""
    archive = Archive(open_store(str(tmp_path)), "main", SYSTEM_ID)
    file = segment_file(1, Lsn(MB), MB)
    flaw = Flaw(file, "missing")
    other = wal_of(Lsn(MB), system_id=SYSTEM_ID + 1)
    with pytest.raises(Refused, match=f"database system {SYSTEM_ID + 1}; the archive is unchanged"):
        repair(archive, flaw, lambda name: other, segment_bytes=MB)
    assert not list(archive.objects(1))
    repair(archive, flaw, lambda name: wal_of(Lsn(MB)), segment_bytes=MB)
    assert archive.read(file) == wal_of(Lsn(MB))


def test_a_file_whose_upload_has_ended_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The safekeepers may have removed that WAL by then, so the archive's copy is the only one."""
    archive = Archive(open_store(str(tmp_path)), "main", SYSTEM_ID)
    file, wal = segment_file(1, Lsn(MB), MB), wal_of(Lsn(MB))

    def fetch(name: str) -> bytes:
        archive.put(file, wal)
        return wal

    monkeypatch.setattr(archive, "delete", lambda found: pytest.fail(f"{found} was removed"))
    assert not repair(archive, Flaw(file, "has no receipt"), fetch, segment_bytes=MB)
    assert archive.read(file) == wal


def test_a_receipt_that_comes_while_its_object_is_removed_is_no_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(open_store(str(tmp_path)), "main", SYSTEM_ID)
    file, wal = segment_file(1, Lsn(MB), MB), wal_of(Lsn(MB))
    archive.store.put_new(f"main/{SYSTEM_ID}/{file.path}", wal)

    def delete(found: ArchivedObject) -> None:
        archive.put(file, wal)  # the offloader ends its upload
        Archive.delete(archive, found)

    monkeypatch.setattr(archive, "delete", delete)
    with pytest.raises(Refused, match="another upload of it ended meanwhile; repeat the command"):
        repair(archive, Flaw(file, "has no receipt"), lambda name: wal, segment_bytes=MB)
    monkeypatch.undo()
    assert repair(archive, Flaw(file, "is gone"), lambda name: wal, segment_bytes=MB)
    assert archive.read(file) == wal


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (document(line(1), DOWN), None),
        (document(line(1), system_id=7), "hold the log of system 7, and the archive is that of 6"),
        (document(DOWN, DOWN, system_id=None), "hNone:1 (unreachable), hNone:1 (unreachable)"),
    ],
    ids=("same", "another system", "nobody"),
)
def test_safekeepers_of_another_log_are_refused_at_once(
    document: dict[str, Any], text: str | None
) -> None:
    """Each segment waited a minute for safekeepers that nobody had started."""
    if text is None:
        refuse_another_log(document, 6)
        return
    with pytest.raises(Refused, match=re.escape(text)) as refused:
        refuse_another_log(document, 6)
    assert "--safekeepers" in str(refused.value) and "unchanged" in str(refused.value)


@pytest.mark.parametrize(
    ("code", "remedy"), [(1, "a base backup from after this segment"), (126, "repeat the command")]
)
def test_the_reason_of_a_fetch_is_whole_and_its_remedy_fits(code: int, remedy: str) -> None:
    """The text began inside a word, and named a base backup while nobody answered."""
    said = "walkeeper restore: 0A: waiting\nwalkeeper restore: 0A: gave up after 60 s: no quorum\n"
    text = why_not_fetched("0A", code, said)
    assert text.startswith("0A: ") and "0A: gave up after 60 s: no quorum" in text
    assert "waiting" not in text and remedy in text
