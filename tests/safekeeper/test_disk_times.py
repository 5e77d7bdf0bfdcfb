"""The times and the room of a disk, as /metrics shows them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from walkeeper_common.metrics import Times
from walkeeper_safekeeper.disk.disk_space import DiskSpace
from walkeeper_safekeeper.disk.disk_times import DiskTimes
from walkeeper_safekeeper.disk.real_disk import RealDisk


def count(times: Times) -> float:
    return times.buckets()[-1][1]


def test_each_write_and_each_sync_of_a_log_is_timed(tmp_path: Path) -> None:
    times = DiskTimes()
    disk = RealDisk(str(tmp_path / "wal"), reserve_bytes=0, times=times)
    disk.allocate("segment", 8192)
    disk.write_at("segment", 0, [b"one"])
    disk.sync_data("segment")
    assert (count(times.write), count(times.fsync)) == (1, 1)
    tail = disk.writer("segment")
    tail.write(b"two", 3)
    tail.sync()
    tail.observe(0.001, 0.02)
    tail.close()
    assert (count(times.write), count(times.fsync)) == (2, 2)
    assert times.fsync.sum_s >= 0.02
    disk.close()


def test_free_space_is_known_after_a_sample_and_unknown_after_a_failed_one(tmp_path: Path) -> None:
    space = DiskSpace(str(tmp_path))
    assert space.free_bytes is None
    asyncio.run(space.sample())
    assert space.free_bytes is not None and space.size_bytes is not None
    assert 0 < space.free_bytes <= space.size_bytes
    gone = DiskSpace(str(tmp_path / "gone"))
    gone.free_bytes = 1
    asyncio.run(gone.sample())
    assert gone.free_bytes is None
