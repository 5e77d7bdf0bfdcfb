"""The disk of a benchmark: its file system, its time of fdatasync, its number of flushes. A shell.

On tmpfs fdatasync does nothing, so that figures from there are worthless. A benchmark refuses it.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from walkeeper_common.errors import Refused

SYNCS = 200
BLOCK = b"w" * 8192
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
# The field of /sys/dev/block/MAJOR:MINOR/stat, counted from 0 (Documentation/block/stat.rst).
FLUSHES_FIELD = 15


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of a directory.

    `fdatasync_ms` is the median time to make a rewrite of 8 kB in an allocated file durable.
    """

    file_system: str
    device: str
    fdatasync_ms: float

    def __str__(self) -> str:
        return f"{self.file_system} on {self.device}, fdatasync {self.fdatasync_ms:.2f} ms"


def disk_of(directory: Path) -> Disk:
    """Return the disk of a directory; raise Refused on tmpfs."""
    file_system, device = _mount_of(directory)
    if file_system in IN_MEMORY:
        raise Refused(
            f"{directory} is on {file_system}, where fdatasync does nothing: name a directory on a "
            "disk with --dir"
        )
    return Disk(file_system, device, _fdatasync_ms(directory))


def _mount_of(directory: Path) -> tuple[str, str]:
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        text = ""  # not Linux
    return mount_above(directory.resolve(), text)


def mount_above(directory: Path, mountinfo: str) -> tuple[str, str]:
    """Return (type, device) of the mount with the longest path above the directory.

    In a chroot there may be no such mount; then both are unknown.
    """
    mounts = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        mount_point = left.split()[4].replace("\\040", " ")
        file_system, device, *_ = right.split()
        mounts.append((Path(mount_point), file_system, device))
    above = [m for m in mounts if directory.is_relative_to(m[0])]
    nothing = (directory, "unknown file system", "unknown device")
    _, file_system, device = max(above, key=lambda mount: len(mount[0].parts), default=nothing)
    return file_system, device


def _fdatasync_ms(directory: Path) -> float:
    path = directory / "fdatasync"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(64):
            os.write(descriptor, BLOCK)
        os.fsync(descriptor)
        times_s = []
        for number in range(SYNCS):
            os.pwrite(descriptor, BLOCK, number % 64 * len(BLOCK))
            began_s = time.perf_counter()
            os.fdatasync(descriptor)
            times_s.append(time.perf_counter() - began_s)
        return 1000 * statistics.median(times_s)
    finally:
        os.close(descriptor)
        path.unlink()


def flushes(directory: Path) -> int | None:
    """Return the number of cache flushes that the directory's device has finished.

    Return None if the device does not count them.
    """
    number = os.stat(directory).st_dev
    folder = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    for found in (folder / "stat", folder.resolve().parent / "stat"):
        try:
            fields = found.read_text().split()
        except OSError:
            continue
        if len(fields) > FLUSHES_FIELD and int(fields[FLUSHES_FIELD]):
            return int(fields[FLUSHES_FIELD])
    return None
