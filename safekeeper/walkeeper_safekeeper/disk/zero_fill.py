"""Zeros with real blocks, which the disk has when a call returns. Blocking.

A sync of much data holds up all other syncs of the disk, and commits wait for these. So a new
segment is filled in steps, each of which is synced. Steps need more time in all, and the log must
not wait for its next segment. So they may only take a part of the time that the segment before
lasted. The rest is then synced at once, as all of it is during a bulk load (docs/adr/0058).
"""

from __future__ import annotations

import errno
import os

from walkeeper_safekeeper.disk.disk_times import now_s

STEP_BYTES = 512 << 10
# The page cache keeps the bytes of one write as one folio. ext4 looks at all blocks of a folio for
# each small write and sync into it. With 1 MB they need 1.1 to 1.2 times the CPU.
_ZEROS = bytes(256 << 10)
_CANNOT_PREALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL)


class StepTime:
    """The time for the steps of each new segment of one directory."""

    BULK_S = 0.25  # a segment that lasts no longer is one of a bulk load
    PART = 8
    SECONDS_MAX = 0.25

    def __init__(self) -> None:
        """Let the time of the first segment run from now on."""
        self._began_s = now_s()

    def begin(self) -> float:
        """Begin a segment; return until when it may be filled in steps, by `now_s`."""
        began_s = now_s()
        lasted_s, self._began_s = began_s - self._began_s, began_s
        if lasted_s < self.BULK_S:
            return began_s
        return began_s + min(self.SECONDS_MAX, lasted_s / self.PART)


def write_zeros(descriptor: int, begin: int, size: int, *, steps_until_s: float = 0.0) -> None:
    """Write zeros from `begin` on, where the file ends, and sync them; raise OSError."""
    try:
        # Asks for all the space at once: a disk is not filled to the brim by a try.
        os.posix_fallocate(descriptor, begin, size)
    except OSError as error:
        if error.errno not in _CANNOT_PREALLOCATE:
            raise
    offset, end = begin, begin + size
    while offset < end:
        offset += os.pwrite(descriptor, _ZEROS[: end - offset], offset)
        if offset % STEP_BYTES == 0 and now_s() < steps_until_s:
            os.fdatasync(descriptor)
    os.fsync(descriptor)
