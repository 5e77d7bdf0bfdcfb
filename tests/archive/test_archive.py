"""Archive: put once and verified, fetched and compared, conflicts loud, absence never guessed."""

from __future__ import annotations

import shutil
import subprocess
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.s3_server import S3Server, s3_server
from walkeeper_archive.archive import (
    TAIL_READS_MAX,
    Archive,
    ArchivePlace,
    Put,
    archives_at,
    open_archive,
)
from walkeeper_archive.archive_errors import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveError,
    ArchiveUnavailable,
    ForeignArchive,
)
from walkeeper_archive.layout import (
    Packing,
    WalFile,
    history_file,
    parse_object,
    partial_file,
    segment_file,
)
from walkeeper_archive.open_store import open_store
from walkeeper_archive.receipt import Receipt, parse_receipt
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn

MB = 1 << 20
SYSTEM_ID = 7000000000000000001
SEGMENT = segment_file(1, Lsn(3 * MB), MB)
WAL = Random(1).randbytes(1000) + bytes(MB - 1000)
PACKINGS = list(Packing)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    (tmp_path / "archive").mkdir()
    return open_archive(f"file://{tmp_path}/archive", "main", SYSTEM_ID)


def folder_of(archive: Archive) -> Path:
    return Path(archive.url.removeprefix("file://"))


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_file_that_was_put_is_fetched_by_postgresqls_name(
    archive: Archive, tmp_path: Path, packing: Packing
) -> None:
    target = tmp_path / "RECOVERYXLOG"
    assert archive.put(SEGMENT, WAL, packing) is Put.STORED
    assert archive.put(history_file(2), b"1\t0/3000000\tno recovery target\n") is Put.STORED
    assert archive.fetch("000000010000000000000003", str(target))
    assert target.read_bytes() == WAL
    assert archive.fetch("00000002.history", str(target))
    assert target.read_bytes().startswith(b"1\t0/3000000")
    assert not archive.fetch("000000010000000000000004", str(target))
    assert not archive.fetch("00000003.history", str(target))
    assert not archive.fetch("000000010000000000000003.00000028.backup", str(target))


def test_segments_read_back_are_not_held_in_memory(archive: Archive) -> None:
    """A safekeeper puts several at once, and may have 128 MB."""
    wal = Random(1).randbytes(16 * MB)
    archive.put(segment_file(1, Lsn(0), 16 * MB), bytes(16 * MB))  # imports, buffers
    tracemalloc.start()
    try:
        assert archive.put(segment_file(1, Lsn(16 * MB), 16 * MB), wal) is Put.STORED
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * MB


def test_names_and_folders_are_those_of_the_interface(archive: Archive) -> None:
    archive.put(SEGMENT, WAL)
    archive.put(segment_file(2, Lsn(0x1_00400000), MB), WAL, Packing.ZSTD)
    archive.put(partial_file(2, Lsn(0x1_00512345), MB), WAL[:0x12345])
    archive.put(history_file(2), b"1\t0/3000000\t\n")
    root = folder_of(archive)
    assert root.parts[-2:] == ("main", str(SYSTEM_ID))
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "00000001/000000010000000000000003",
        "00000001/000000010000000000000003.sha256",
        "00000002/00000002.history",
        "00000002/00000002.history.sha256",
        "00000002/000000020000000100000004.sha256",
        "00000002/000000020000000100000004.zst",
        "00000002/000000020000000100000005.0000000100512345.partial",
        "00000002/000000020000000100000005.0000000100512345.partial.sha256",
    ]


@pytest.mark.parametrize("packing", PACKINGS)
def test_sha256sum_checks_the_receipts(archive: Archive, packing: Packing) -> None:
    archive.put(SEGMENT, WAL, packing)
    found = subprocess.run(
        ["sha256sum", "--check", "--ignore-missing", "--strict", f"{SEGMENT.name}.sha256"],
        cwd=folder_of(archive) / "00000001",
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == f"{SEGMENT.name}{packing.value}: OK\n"


@pytest.mark.parametrize("first", PACKINGS)
@pytest.mark.parametrize("second", PACKINGS)
def test_the_same_content_twice_is_archived_once(
    archive: Archive, first: Packing, second: Packing
) -> None:
    archive.put(SEGMENT, WAL, first)
    assert archive.put(SEGMENT, WAL, second) is Put.THERE_ALREADY
    assert len(list(archive.objects())) == 2


@pytest.mark.parametrize("packing", PACKINGS)
def test_other_content_is_a_loud_conflict_and_nothing_is_overwritten(
    archive: Archive, packing: Packing
) -> None:
    archive.put(SEGMENT, WAL)
    with pytest.raises(ArchiveConflict, match=r"00000001/000000010000000000000003 has other"):
        archive.put(SEGMENT, bytes(MB), packing)
    assert archive.read(SEGMENT) == WAL


def test_an_upload_that_ended_before_its_receipt_is_finished_by_the_next(archive: Archive) -> None:
    archive.store.put_new(f"main/{SYSTEM_ID}/{SEGMENT.path}", WAL)
    with pytest.raises(ArchiveDamaged, match="no receipt"):
        archive.read(SEGMENT)
    assert archive.put(SEGMENT, WAL) is Put.THERE_ALREADY
    assert archive.read(SEGMENT) == WAL


def test_an_object_without_receipt_and_with_other_content_is_a_conflict(archive: Archive) -> None:
    archive.store.put_new(f"main/{SYSTEM_ID}/{SEGMENT.path}", WAL[:-1])
    with pytest.raises(ArchiveConflict, match=f"{MB - 1} bytes are there, {MB} are ours"):
        archive.put(SEGMENT, WAL)
    assert (folder_of(archive) / SEGMENT.path).read_bytes() == WAL[:-1]
    assert archive.receipt(SEGMENT) is None


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("at", [0, 500, -1])
def test_a_flipped_byte_is_never_fetched(
    archive: Archive, tmp_path: Path, packing: Packing, at: int
) -> None:
    archive.put(SEGMENT, WAL, packing)
    path = folder_of(archive) / (SEGMENT.path + packing.value)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    target = tmp_path / "target"
    with pytest.raises(ArchiveDamaged, match="not what its receipt says"):
        archive.fetch(SEGMENT.name, str(target))
    assert not target.exists()


def test_a_lost_object_is_damage_and_not_absence(archive: Archive, tmp_path: Path) -> None:
    archive.put(SEGMENT, WAL)
    (folder_of(archive) / SEGMENT.path).unlink()
    with pytest.raises(ArchiveDamaged, match="is gone"):
        archive.fetch(SEGMENT.name, str(tmp_path / "target"))


def test_only_a_store_with_this_archive_reports_absence(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url = f"{tmp_path}/archive"
    target = str(tmp_path / "target")
    with pytest.raises(ArchiveError, match="no archive of cluster 'main'"):
        open_archive(url, "main", SYSTEM_ID).fetch(SEGMENT.name, target)
    with pytest.raises(ArchiveError, match="no archive of cluster 'main'"):
        open_archive(url)
    open_archive(url, "main", SYSTEM_ID).put(SEGMENT, WAL)
    assert open_archive(url).fetch(SEGMENT.name, target)
    assert not open_archive(url).fetch("000000010000000000000004", target)
    with pytest.raises(ArchiveError, match="with the system identifier 5"):
        open_archive(url, "main", 5).fetch(SEGMENT.name, target)
    shutil.rmtree(url)
    with pytest.raises(ArchiveUnavailable):
        open_archive(url, "main", SYSTEM_ID).fetch(SEGMENT.name, target)


def test_the_number_separates_several_systems_under_one_name(archive: Archive) -> None:
    archive.put(SEGMENT, WAL)
    other = Archive(archive.store, "main", 5)
    other.put(SEGMENT, bytes(MB))
    with pytest.raises(ArchiveError, match="5, 7000000000000000001"):
        open_archive(archive.store.url)
    assert other.read(SEGMENT) == bytes(MB)
    assert archives_at(archive.store) == [ArchivePlace("main", 5), ArchivePlace("main", SYSTEM_ID)]


def test_a_place_of_another_system_is_refused(archive: Archive) -> None:
    archive.refuse_foreign()
    archive.put(SEGMENT, WAL)
    archive.refuse_foreign()
    with pytest.raises(ForeignArchive, match=r"7000000000000000001; this one is 5"):
        Archive(archive.store, "main", 5).refuse_foreign()
    Archive(archive.store, "other", 5).refuse_foreign()


def test_the_tail_is_the_partial_that_goes_furthest_padded(
    archive: Archive, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    segment = segment_file(1, Lsn(3 * MB), MB).name
    assert archive.newest_partial(segment) is None
    for size, packing in ((300, Packing.PLAIN), (900, Packing.ZSTD), (8192, Packing.PLAIN)):
        archive.put(partial_file(1, Lsn(3 * MB + size), MB), WAL[:size], packing)
    archive.put(partial_file(1, Lsn(4 * MB + 7), MB), WAL[:7])
    assert archive.fetch_tail(segment, str(target), MB) == Lsn(3 * MB + 8192)
    assert target.read_bytes() == WAL[:8192] + bytes(MB - 8192)
    assert archive.fetch_tail(segment_file(1, Lsn(5 * MB), MB).name, str(target), MB) is None


def test_a_tail_that_a_later_one_replaces_meanwhile_is_read_from_that_one(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = (partial_file(1, Lsn(3 * MB + size), MB) for size in (300, 900))
    archive.put(first, WAL[:300])
    was_read: list[WalFile] = []
    read = archive.read

    def replaced_before(file: WalFile) -> Buffer | None:
        if not was_read:
            archive.put(later, WAL[:900])
            (folder_of(archive) / first.receipt_path).unlink()
        was_read.append(file)
        return read(file)

    monkeypatch.setattr(archive, "read", replaced_before)
    assert archive.fetch_tail(first.segment, str(tmp_path / "tail"), MB) == Lsn(3 * MB + 900)
    assert was_read == [first, later]


def test_listings_that_stay_older_than_the_store_are_an_error(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for the tail had no end."""
    gone = partial_file(1, Lsn(3 * MB + 300), MB)
    archive.put(SEGMENT, WAL)
    was_read: list[WalFile] = []
    read = archive.read

    def counted(file: WalFile) -> Buffer | None:
        was_read.append(file)
        assert len(was_read) <= TAIL_READS_MAX, "without a bound"
        return read(file)

    monkeypatch.setattr(archive, "newest_partial", lambda segment: gone)
    monkeypatch.setattr(archive, "read", counted)
    with pytest.raises(ArchiveUnavailable, match=r"its listings are older .* Try again later"):
        archive.fetch_tail(gone.segment, str(tmp_path / "tail"), MB)
    assert was_read == [gone] * TAIL_READS_MAX and not (tmp_path / "tail").exists()


def test_other_peoples_files_are_passed_over(archive: Archive) -> None:
    archive.put(SEGMENT, WAL)
    root = folder_of(archive)
    for name in ("README", "00000001/notes.txt", "00000002/000000010000000000000003"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("mine")
    assert [o.path for o in archive.objects()] == [SEGMENT.path, SEGMENT.receipt_path]


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\n", b"nonsense\n", b"0" * 64 + b"  000000010000000000000003",
        b"0" * 64 + b"  000000010000000000000004\n", b"0" * 63 + b"  000000010000000000000003\n",
        (b"0" * 64 + b"  000000010000000000000003\n") * 3,
        b"0" * 64 + b"  000000010000000000000003\n" + b"0" * 64 + b"  x\n", b"\xff\xfe\n",
    ],
)  # fmt: skip
def test_a_damaged_receipt_is_damage(archive: Archive, text: bytes) -> None:
    archive.put(SEGMENT, WAL)
    (folder_of(archive) / SEGMENT.receipt_path).write_bytes(text)
    with pytest.raises(ArchiveDamaged, match=r"3\.sha256"):
        archive.read(SEGMENT)


@pytest.mark.parametrize("packing", PACKINGS)
def test_receipts_and_names_survive_a_round_trip(packing: Packing) -> None:
    partial = partial_file(0x1F, Lsn(0xA_00012345), 16 * MB)
    for file in (SEGMENT, partial, history_file(0x1F)):
        wal = "a" * 64
        receipt = Receipt(file, packing, wal, wal if packing is Packing.PLAIN else "b" * 64)
        assert parse_receipt(file, receipt.format()) == receipt
        found = parse_object(receipt.object_path, 5, 7.0)
        assert found is not None and (found.file, found.packing) == (file, packing)
        assert not found.is_receipt
        found = parse_object(file.receipt_path, 5, 7.0)
        assert found is not None and found.is_receipt and found.file == file
    assert partial.end_lsn == Lsn(0xA_00012345)
    assert partial.begin_lsn(16 * MB) == Lsn(0xA_00000000)


@pytest.mark.parametrize(
    "path",
    [
        "000000010000000000000003", "00000001/0000000100000000000003", "1/00000002.history",
        "00000001/00000002.history", "00000001/000000010000000000000003.partial",
        "00000001/000000010000000000000003.gz", "00000001/x/000000010000000000000003",
        "00000001/000000010000000000000003.zst.sha256",
    ],
)  # fmt: skip
def test_names_of_other_tools_are_not_ours(path: str) -> None:
    assert parse_object(path, 1, 0.0) is None


def test_a_name_that_cannot_be_a_cluster_is_refused() -> None:
    for name in ("", "a/b", "..", ".", "a b"):
        with pytest.raises(Refused):
            open_archive("file:///tmp", name, 1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as served, pytest.MonkeyPatch.context() as patch:
        for name, value in served.environment.items():
            patch.setenv(name, value)
        yield served


def test_a_store_that_lies_about_length_is_found_out_before_the_receipt(server: S3Server) -> None:
    archive = Archive(open_store(f"{server.url}/lies"), "main", SYSTEM_ID)
    server.faults.truncate_puts = True
    with pytest.raises(ArchiveDamaged, match=f"{MB // 2} bytes are there, {MB} are ours"):
        archive.put(SEGMENT, WAL)
    server.faults.truncate_puts = False
    assert archive.receipt(SEGMENT) is None
    with pytest.raises(ArchiveConflict, match="without a receipt"):
        archive.put(SEGMENT, WAL)
    archive.store.delete(f"main/{SYSTEM_ID}/{SEGMENT.path}")
    assert archive.put(SEGMENT, WAL) is Put.STORED


def test_a_store_that_cuts_its_answers_gets_no_receipt_until_it_does_not(server: S3Server) -> None:
    archive = Archive(open_store(f"{server.url}/cuts"), "main", SYSTEM_ID)
    server.faults.cut_answers = True
    with pytest.raises(ArchiveUnavailable):
        archive.put(SEGMENT, WAL)
    server.faults.cut_answers = False
    assert archive.receipt(SEGMENT) is None
    assert archive.put(SEGMENT, WAL) in (Put.THERE_ALREADY, Put.STORED)
    assert archive.read(SEGMENT) == WAL


def test_every_file_of_the_archive_is_read_by_wal_history(archive: Archive) -> None:
    from walkeeper_wal.sources.archive_names import archived_file

    archive.put(SEGMENT, WAL, Packing.ZSTD)
    archive.put(partial_file(1, Lsn(4 * MB + 7), MB), WAL[:7])
    archive.put(history_file(2), b"1\t0/3000000\t\n")
    for found in archive.objects():
        read = archived_file(f"main/{SYSTEM_ID}/{found.path}", found.size)
        assert (read is None) == found.is_receipt
        if read is not None:
            assert read.timeline == found.file.timeline
            assert read.archive == f"main/{SYSTEM_ID}"
            assert read.segment == (None if read.segment is None else found.file.segment)
            assert read.end_lsn == (found.file.end_lsn if read.is_partial else None)


def test_files_sort_as_wal_does() -> None:
    files = [segment_file(1, Lsn(n * MB), MB) for n in range(0xFFE, 0x1003)]
    assert files == sorted(files)
    assert isinstance(files[0], WalFile)


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_file_greater_than_the_clusters_segments_is_refused(
    archive: Archive, tmp_path: Path, packing: Packing
) -> None:
    """32 KB of zstd became a segment of 1 GiB for a cluster of 16 MiB, and took 1.07 GB."""
    archive.put(SEGMENT, bytes(2 * MB), packing)
    assert archive.read(SEGMENT) is not None
    archive.segment_bytes = MB
    with pytest.raises(ArchiveDamaged, match=f"greater than {MB} bytes"):
        archive.fetch(SEGMENT.name, str(tmp_path / "RECOVERYXLOG"))
    assert not (tmp_path / "RECOVERYXLOG").exists()
