"""An archive of a logical log: its files have WAL's names, and nobody takes them for WAL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proposer.test_logical_check import SEGMENT, START, made_log
from walkeeper_archive.archive import Archive, open_archive
from walkeeper_archive.archive_errors import ArchiveError
from walkeeper_archive.layout import Packing, partial_file, segment_file
from walkeeper_archive.log_kind import holds_entries
from walkeeper_cli.archive.keep_values import KeepFrom
from walkeeper_cli.archive.ls import document, text
from walkeeper_cli.archive.prune import plan
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_restore.archive_source import ArchiveAlone
from walkeeper_restore.verdict import Misconfigured
from walkeeper_restore.wal_source import ArchivedWal

SYSTEM_ID = 7000000000000000001
WHOLE = "000000010000000000000001"
TAIL = "000000010000000000000002"
BEYOND = "00000001000000000000009F"


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """A whole segment and a tail."""
    (tmp_path / "archive").mkdir()
    made = open_archive(f"file://{tmp_path}/archive", "changes", SYSTEM_ID)
    log = made_log()
    entries = log.read(START, log.end)
    made.put(segment_file(1, START, SEGMENT), entries.ljust(SEGMENT, b"\0"), Packing.ZSTD)
    made.put(partial_file(1, START + SEGMENT + len(entries), SEGMENT), entries)
    return made


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory to be recovered, with a segment that shows the size of all."""
    (tmp_path / "data" / "pg_wal").mkdir(parents=True)
    (tmp_path / "data" / "pg_wal" / WHOLE).write_bytes(bytes(SEGMENT))
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data"


def restored(archive: Archive, name: str) -> str:
    source = ArchivedWal(archive.store.url, "changes", SYSTEM_ID)
    return ArchiveAlone(source, "key", partial=True, min_lsn=ZERO_LSN).run(name, "pg_wal/x", 0.0)


@pytest.mark.parametrize("name", [WHOLE, TAIL, BEYOND])
def test_a_recovery_is_refused_and_never_learns_that_the_wal_ends(
    archive: Archive, server: Path, name: str
) -> None:
    """`absent` of what lies beyond it would end the recovery as well."""
    with pytest.raises(Misconfigured, match=r"changes/7\d+: .* is logical: .* in --cluster"):
        restored(archive, name)
    assert [path.name for path in (server / "pg_wal").iterdir()] == [WHOLE]


def test_a_standby_that_asks_every_few_seconds_does_not_read_a_file_each_time(
    archive: Archive, server: Path
) -> None:
    (server / "standby.signal").touch()
    assert restored(archive, BEYOND) == "absent"
    with pytest.raises(Misconfigured):
        restored(archive, TAIL)


def test_a_base_backups_lsn_is_no_position_to_prune_by(archive: Archive) -> None:
    backup = KeepFrom("/backups/base", lsn=Lsn(9 * SEGMENT), of_backup=True)
    with pytest.raises(
        ArchiveError, match=r"--keep /backups/base is a base backup, .* is a logical log"
    ):
        plan(archive, [KeepFrom("7d", seconds=7.0), backup], 0.0)
    assert plan(archive, [KeepFrom(WHOLE, segment=WHOLE)], 0.0).keep_lsn == START


def test_ls_says_which_kind_of_log_it_is(archive: Archive, tmp_path: Path) -> None:
    assert document(archive)["kind"] == "logical"
    assert "segments of 1 MB of a logical log" in text(document(archive))[0]
    physical = open_archive(f"file://{tmp_path}/archive", "main", SYSTEM_ID)
    physical.put(segment_file(1, START, SEGMENT), bytes(SEGMENT))
    assert document(physical)["kind"] == "physical"


def test_an_archive_with_nothing_but_pruned_files_is_of_no_kind(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    assert not holds_entries(open_archive(f"file://{tmp_path}/archive", "changes", SYSTEM_ID))
