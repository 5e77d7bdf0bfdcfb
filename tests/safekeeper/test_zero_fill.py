"""New segments are filled in steps while there is time, and then at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from walkeeper_safekeeper.disk import zero_fill
from walkeeper_safekeeper.disk.real_disk import RealDisk
from walkeeper_safekeeper.disk.zero_fill import STEP_BYTES

SEGMENT_BYTES = 16 << 20
SYNC_S = 0.001

Result = TypeVar("Result")


class Watched:
    """The bytes that each sync had to bring to the disk; only syncs and the test move the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.written, self.synced = 100.0, 0, list[int]()
        monkeypatch.setattr(zero_fill, "now_s", lambda: self.now_s)
        monkeypatch.setattr(os, "pwrite", self._counted(os.pwrite))
        for name in ("fdatasync", "fsync"):
            monkeypatch.setattr(os, name, self._timed(getattr(os, name)))

    def _counted(self, write: Callable[..., int]) -> Callable[..., int]:
        def counted(*arguments: object) -> int:
            written = write(*arguments)
            self.written += written
            return written

        return counted

    def _timed(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def timed(descriptor: int) -> None:
            sync(descriptor)
            self.synced.append(self.written)
            self.written = 0
            self.now_s += SYNC_S

        return timed

    def allocate(self, disk: RealDisk, name: str) -> list[int]:
        """Return the bytes that each sync of a new segment had to bring to the disk."""
        self.synced.clear()
        disk.allocate(name, SEGMENT_BYTES)
        assert disk.size(name) == sum(self.synced) == SEGMENT_BYTES
        return list(self.synced)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_no_sync_of_a_quiet_logs_segment_is_long(tmp_path: Path, watched: Watched) -> None:
    disk = RealDisk(str(tmp_path), reserve_bytes=0)
    watched.now_s += 10
    assert max(watched.allocate(disk, "first")) == STEP_BYTES
    watched.now_s += 10
    assert max(watched.allocate(disk, "second")) == STEP_BYTES


def test_steps_take_a_part_of_the_time_that_a_segment_lasts(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path), reserve_bytes=0)
    monkeypatch.setattr(f"{__name__}.SYNC_S", 0.01)
    watched.now_s += 0.8
    assert watched.allocate(disk, "first")[:-1] == [STEP_BYTES] * 10
    watched.now_s += 0.39  # after the 0.11 s of the first one
    assert watched.allocate(disk, "second")[:-1] == [STEP_BYTES] * 7


def test_a_bulk_load_gets_its_segments_at_once(tmp_path: Path, watched: Watched) -> None:
    """Steps would make it slower, and its commits do not wait for small syncs."""
    disk = RealDisk(str(tmp_path), reserve_bytes=0)
    for name in ("first", "second"):
        watched.now_s += 0.2
        assert watched.allocate(disk, name) == [SEGMENT_BYTES]


def test_a_slow_disk_gets_the_rest_at_once(
    tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path), reserve_bytes=0)
    monkeypatch.setattr(f"{__name__}.SYNC_S", 0.05)
    watched.now_s += 3600
    assert watched.allocate(disk, "first")[:-1] == [STEP_BYTES] * 5
