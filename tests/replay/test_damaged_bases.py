"""Damaged and cut files of a base backup: an error names the file and the remedy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from walkeeper_common.lsn import Lsn
from walkeeper_replay.redo.backup_label import BackupLabel, read_label
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.tablespaces import Tablespaces
from walkeeper_wal.wal_errors import HistoryError

LABEL = """START WAL LOCATION: 0/6000028 (file 000000020000000000000006)
CHECKPOINT LOCATION: 0/6000060
BACKUP METHOD: streamed
BACKUP FROM: primary
START TIME: 2026-11-01 12:00:00 UTC
LABEL: pg_basebackup base backup
START TIMELINE: 2
"""
OF_REWIND = LABEL.replace("streamed", "pg_rewind").replace("primary", "standby")
OF_REWIND = OF_REWIND[: OF_REWIND.index("LABEL: ")]
AT = Lsn(0x6000060)
REMEDY = "; read another copy of the base backup"


def label_of(directory: Path, text: str) -> BackupLabel | None:
    (directory / "backup_label").write_text(text)
    return read_label(directory)


def test_a_whole_label_is_read(tmp_path: Path) -> None:
    assert read_label(tmp_path) is None
    assert label_of(tmp_path, LABEL) == BackupLabel(Lsn(0x6000028), AT, 2, is_of_standby=False)
    assert label_of(tmp_path, OF_REWIND) == BackupLabel(
        Lsn(0x6000028), AT, None, is_of_standby=True
    )


@pytest.mark.parametrize("whole", [LABEL, OF_REWIND], ids=("of a backup", "of pg_rewind"))
def test_a_cut_label_is_refused(whole: str, tmp_path: Path) -> None:
    """A cut LSN counted as it was, and the cut label of a standby as that of a primary."""
    for size in range(len(whole)):
        with pytest.raises(HistoryError) as caught:
            label_of(tmp_path, whole[:size])
        said = str(caught.value)
        assert said.startswith(f"{tmp_path}/backup_label: damaged") and said.endswith(REMEDY)


@pytest.mark.parametrize("lsn", ["123456789/28", "0/", "0/600002x", ""])
@pytest.mark.parametrize("whole", ["0/6000028", "0/6000060"], ids=("start", "checkpoint"))
def test_a_label_with_a_damaged_lsn_is_refused(lsn: str, whole: str, tmp_path: Path) -> None:
    """The first one was a traceback of ValueError."""
    with pytest.raises(HistoryError, match="backup_label: damaged: .*" + REMEDY):
        label_of(tmp_path, LABEL.replace(whole, lsn))


@pytest.mark.parametrize("content", [b"", b"\n", b"x15\n", b"\xff\xfe", b"123456\n"])
def test_a_damaged_version_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_bytes(content)
    with pytest.raises(HistoryError, match="PG_VERSION: damaged: .*" + REMEDY):
        BaseDirectory(str(tmp_path))


def with_manifest(directory: Path) -> tuple[Path, Path]:
    """Make a backup with one file behind a link; return that file and the manifest."""
    file, outside = directory / "base/pg_tblspc/16400/5/1", directory / "outside"
    (outside / "5").mkdir(parents=True)
    (directory / "base" / "pg_tblspc").mkdir(parents=True)
    (directory / "base" / "pg_tblspc" / "16400").symlink_to(outside)
    file.write_bytes(b"page")
    entry = {
        "Path": "pg_tblspc/16400/5/1", "Size": 4, "Checksum-Algorithm": "SHA256",
        "Checksum": hashlib.sha256(b"page").hexdigest(),
    }  # fmt: skip
    lines = f'{{ "Files": [\n{json.dumps(entry)}\n],\n'
    manifest = directory / "base" / "backup_manifest"
    checksum = hashlib.sha256(lines.encode()).hexdigest()
    manifest.write_text(f'{lines}"Manifest-Checksum": "{checksum}"}}\n')
    return file, manifest


def look_up(file: Path, manifest: Path) -> None:
    Tablespaces(manifest.parent, is_backup=True).refuse_other(file)


def test_a_damaged_or_cut_manifest_is_refused(tmp_path: Path) -> None:
    """A flipped byte of a name was a traceback of KeyError, or a link to another server."""
    file, manifest = with_manifest(tmp_path)
    look_up(file, manifest)
    whole = manifest.read_bytes()
    flipped = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    for content in (*flipped, *(whole[:size] for size in range(len(whole) - 1))):
        manifest.write_bytes(content)
        with pytest.raises(HistoryError, match="backup_manifest: damaged or cut: .*" + REMEDY):
            look_up(file, manifest)
