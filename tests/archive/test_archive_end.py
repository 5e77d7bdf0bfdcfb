"""`walkeeper restore --archive` alone: a hole in an archive is not the end of the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.layout import WalFile, history_file, partial_file, segment_file
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import ZERO_LSN, Lsn, segment_name
from walkeeper_restore.archive_source import ArchiveAlone
from walkeeper_restore.wal_source import ArchivedWal

MB = 1 << 20
SYSTEM_ID = 7000000000000000001
FIRST_FORK, SECOND_FORK = Lsn(5 * MB + 512), Lsn(7 * MB + 1024)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Timeline 1 from segment 3 to its fork in 5, 2 to its fork in 7, and 3 with a tail in 9."""
    (tmp_path / "archive").mkdir()
    made = open_archive(f"file://{tmp_path}/archive", "main", SYSTEM_ID)
    made.put(history_file(2), f"1\t{FIRST_FORK}\tno reason\n".encode())
    parents = f"1\t{FIRST_FORK}\tno reason\n2\t{SECOND_FORK}\tno reason\n"
    made.put(history_file(3), parents.encode())
    for timeline, numbers in ((1, (3, 4)), (2, (5, 6)), (3, (7, 8))):
        for number in numbers:
            made.put(segment_file(timeline, Lsn(number * MB), MB), bytes(MB))
    for timeline, end_lsn in ((1, FIRST_FORK), (2, SECOND_FORK), (3, Lsn(9 * MB + 40))):
        made.put(partial_file(timeline, end_lsn, MB), bytes(end_lsn % MB))
    return made


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory to be recovered, with a segment that shows the size of all."""
    (tmp_path / "data" / "pg_wal").mkdir(parents=True)
    (tmp_path / "data" / "pg_wal" / segment_name(1, Lsn(MB), MB)).write_bytes(bytes(MB))
    (tmp_path / "data" / "recovery.signal").touch()
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data"


def restored(archive: Archive, name: str, *, partial: bool = True) -> str:
    source = ArchivedWal(archive.store.url, "main", SYSTEM_ID)
    return ArchiveAlone(source, "key", partial=partial, min_lsn=ZERO_LSN).run(name, "pg_wal/x", 0.0)


def segment(timeline: int, number: int) -> str:
    return segment_name(timeline, Lsn(number * MB), MB)


def remove(archive: Archive, *names: str) -> None:
    """Remove these files with all of their packings, tails and receipts."""
    for name in names:
        for found in list(archive.objects(int(name[:8], 16))):
            if found.file.name.startswith(name):
                archive.delete(found)


FOUND = [(1, 3), (1, 4), (1, 5), (2, 5), (2, 6), (2, 7), (3, 7), (3, 8), (3, 9)]
BEYOND = [(1, 6), (1, 7), (1, 9), (2, 4), (2, 3), (2, 8), (2, 9), (3, 3), (3, 6), (3, 10), (4, 9)]


def test_a_timeline_ends_after_its_last_part_and_is_not_there_before_it_starts(
    archive: Archive,
) -> None:
    """PostgreSQL tries a segment on each timeline, the newest first."""
    for at in FOUND:
        assert restored(archive, segment(*at)) == "found"
    for at in BEYOND:
        assert restored(archive, segment(*at)) == "absent", f"{at=}"
    for at in ((1, 5), (2, 7), (3, 9)):
        assert restored(archive, segment(*at), partial=False) == "absent"
    assert restored(archive, "00000004.history") == "absent"


@pytest.mark.parametrize(
    ("removed", "asked"),
    [
        ((segment(1, 4),), (1, 4)),  # the timeline's last part is behind it
        ((segment(2, 5),), (2, 5)),
        ((segment(3, 8),), (3, 8)),  # only a tail is behind it
        ((segment(1, 3), segment(1, 4), segment(1, 5)), (1, 4)),  # all of it: pruned past the fork
        ((segment(1, 5),), (1, 5)),  # a last part that the history tells of
        ((), (1, 2)),  # below the oldest: pruned, or from before the log
    ],
)
def test_a_hole_stops_a_recovery(
    archive: Archive, removed: tuple[str, ...], asked: tuple[int, int]
) -> None:
    remove(archive, *removed)
    with pytest.raises(Refused, match=r"lost here: the archive goes on to 0/.*newer base backup"):
        restored(archive, segment(*asked))


def test_a_tail_that_a_later_segment_follows_is_no_end(archive: Archive, server: Path) -> None:
    archive.put(segment_file(3, Lsn(10 * MB), MB), bytes(MB))
    with pytest.raises(Refused, match="goes on to 0/B00000 on timeline 3"):
        restored(archive, segment(3, 9))
    assert not (server / "pg_wal" / "x").exists()


def test_a_segment_in_pg_wal_is_not_missing_and_a_standby_gets_the_advice_to_stream_it(
    archive: Archive, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove(archive, segment(1, 4))
    (server / "pg_wal" / segment(1, 4)).write_bytes(bytes(MB))
    assert restored(archive, segment(1, 4)) == "absent"
    (server / "pg_wal" / segment(1, 4)).unlink()
    (server / "recovery.signal").rename(server / "standby.signal")
    conninfo = {"primary_conninfo": "host=upstream"}
    where = "walkeeper_restore.restored_server.setting"
    monkeypatch.setattr(where, lambda name: conninfo.get(name, ""))
    assert restored(archive, segment(1, 4)) == "absent"


def test_a_missing_history_would_end_a_recovery_on_an_older_timeline(archive: Archive) -> None:
    archive.delete(next(o for o in archive.objects(2) if o.path.endswith("history.sha256")))
    archive.delete(next(o for o in archive.objects(2) if o.path.endswith(".history")))
    with pytest.raises(Refused, match="goes on after that promotion"):
        restored(archive, "00000002.history")
    remove(archive, segment(1, 3), segment(1, 4), segment(1, 5))
    for folder in Path(archive.url.removeprefix("file://")).iterdir():
        if not any(folder.iterdir()):
            folder.rmdir()
    assert restored(archive, "00000002.history") == "absent", "the log began on timeline 2"


def test_an_archive_that_stops_in_the_middle_of_an_upload_ends_there(archive: Archive) -> None:
    """The history of timeline 2 is put first, then the last part of 1, then WAL of 2."""
    for timeline in (3, 2):
        for found in list(archive.objects(timeline)):
            if timeline == 3 or not found.file.name.endswith(".history"):
                archive.delete(found)
    remove(archive, segment(1, 5))
    assert restored(archive, segment(2, 5)) == "absent"
    assert restored(archive, segment(1, 5)) == "absent"
    assert WalFile(2, "00000002.history") in {found.file for found in archive.objects(2)}
