"""A folder that cannot be listed may hold the newest WAL: what is read without it is no answer."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.history.test_archives import files_of, lay, made_stream
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan
from walkeeper_wal.wal_errors import HistoryError


def refusing(monkeypatch: pytest.MonkeyPatch, refused: Path, error: type[OSError]) -> None:
    """Raise the kernel's error for others here, since root may list every folder."""
    scans = os.scandir

    def scan(path: Any) -> Any:
        if Path(path) == refused:
            raise error(13, "Permission denied", str(path))
        return scans(path)

    monkeypatch.setattr(os, "scandir", scan)


def test_a_folder_that_may_not_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was passed over, and older rows were called complete."""
    maker = made_stream()
    lay(tmp_path, {f"{name[:8]}/{name}": data for name, data in files_of(maker).items()})
    (tmp_path / "00000002").mkdir()
    refusing(monkeypatch, tmp_path / "00000002", PermissionError)
    with pytest.raises(HistoryError, match=f"^{tmp_path}/00000002: Permission denied$"):
        make_plan(open_files(str(tmp_path)))
    refusing(monkeypatch, tmp_path, PermissionError)
    with pytest.raises(HistoryError, match=f"^{tmp_path}: Permission denied$"):
        make_plan(open_files(str(tmp_path)))


def test_a_folder_that_goes_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = made_stream()
    lay(tmp_path, files_of(maker))
    (tmp_path / "archive_status").mkdir()
    refusing(monkeypatch, tmp_path / "archive_status", FileNotFoundError)
    assert len(make_plan(open_files(str(tmp_path))).segments) == 3


def test_a_folder_that_can_hold_no_wal_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is nothing but an archive."""
    lay(tmp_path, files_of(made_stream()))
    (tmp_path / "lost+found").mkdir()
    refusing(monkeypatch, tmp_path / "lost+found", PermissionError)
    assert len(make_plan(open_files(str(tmp_path))).segments) == 3


def test_an_error_has_its_file_beside_its_reason_also_in_another_process() -> None:
    error = HistoryError("not zstd after all", "/archive/a\nb.zst")
    copy = pickle.loads(pickle.dumps(error))
    for each in (error, copy):
        assert (each.file, each.reason) == ("/archive/a\nb.zst", "not zstd after all")
        assert str(each) == "/archive/a\\nb.zst: not zstd after all"
