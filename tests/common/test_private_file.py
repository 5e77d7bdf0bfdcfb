"""A file with secrets outlives a power cut once it was written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from walkeeper_common.shell.files.private_file import write_private


def test_the_name_of_a_private_file_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut brought back the users, or the list of revoked certificates, from before."""
    path = tmp_path / "users"
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        synced.append((kind, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_private(str(path), b"new")
    assert path.read_bytes() == b"new" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert synced == [("file", False), ("folder", True)]
