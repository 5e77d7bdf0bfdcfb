"""A file system of its own for each safekeeper: it can be filled to the brim, and lose its power.

    disk = LoopDisk(image, mount_point); disk.make(); disk.fill(); disk.release()
    disk.power_cut()        loses the bytes without a sync, as a machine without power does

The image is sparse, so a large disk costs only the bytes written to it. The power cut is ext4's own
shutdown without a flush of its journal. Dirty pages never reach the image, every later operation
fails, and the next mount replays the journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from tests.proof.chaos.namespaces import run, succeeds
from tests.support.waiting import wait_until

DISK_BYTES = 4 << 30
BALLAST = "ballast"
EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), linux/fs/ext4/ext4.h
NO_LOG_FLUSH = 2
HELD_S = 60


class LoopDisk:
    """ext4 on a loop device."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self.image, self.mount_point = image, mount_point

    def make(self) -> None:
        with self.image.open("wb") as file:
            file.truncate(DISK_BYTES)
        self.mount_point.mkdir()
        # No blocks only for root: a safekeeper that runs as root must find the disk full, too.
        run("mkfs.ext4", "-q", "-m", "0", str(self.image))
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop,discard", str(self.image), str(self.mount_point))

    def unmount(self) -> None:
        run("umount", str(self.mount_point))

    def close(self) -> None:
        """Unmount it, even while a process has a file open."""
        succeeds("umount", "--lazy", str(self.mount_point))

    def fill(self) -> None:
        """Fill it until no block is free."""
        descriptor = os.open(self.mount_point / BALLAST, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            end, step = 0, 1 << 30
            while step >= 4096:
                try:
                    os.posix_fallocate(descriptor, end, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    os.ftruncate(descriptor, end)
                    step //= 2
                else:
                    end += step
        finally:
            os.close(descriptor)

    def release(self) -> None:
        (self.mount_point / BALLAST).unlink(missing_ok=True)

    def power_cut(self) -> None:
        """Cut the power. All processes that use the disk must end before `restore_power`."""
        descriptor = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("=I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        self.unmount()
        # A process with mounts of its own (unshare, ip netns exec) that started meanwhile holds the
        # dead file system. The next mount would be of that one.
        wait_until(lambda: not self._is_held(), HELD_S)
        self.mount()

    def _is_held(self) -> bool:
        return bool(run("losetup", "--associated", str(self.image)))


def remove_leftover_mounts(prefix: str) -> None:
    """Unmount all below directories whose name starts so."""
    lines = Path("/proc/mounts").read_text().splitlines()
    for mount_point in (line.split()[1] for line in lines):
        if mount_point.startswith(prefix):
            succeeds("umount", "--lazy", mount_point)
