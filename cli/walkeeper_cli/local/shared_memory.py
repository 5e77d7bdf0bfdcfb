"""The System V segment of 56 bytes that a killed postmaster leaves in the kernel.

The segment marks the data directory as in use while any process is attached to it. The next start
in that directory removes it. If the directory is deleted instead, the segment stays for good. A
kernel has at most 4096 segments (SHMMNI). After that, no PostgreSQL of the machine starts any more,
with "No space left on device".

    segment = segment_of(data)      before the kill; None if the server does not run
    remove(segment)                 once every process of the server is gone
"""

from __future__ import annotations

import ctypes
from pathlib import Path

IPC_RMID = 0
# Lines of postmaster.pid, counted from 0 (miscadmin.h: LOCK_FILE_LINE_…).
DATA_DIRECTORY_LINE, KEY_AND_ID_LINE = 1, 6


def segment_of(data: Path) -> int | None:
    """Return the segment that the lock file of a data directory names.

    Return None if there is no lock file, or if it is the copy of another directory's.
    """
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        _, segment = lines[KEY_AND_ID_LINE].split()
        return int(segment) if Path(lines[DATA_DIRECTORY_LINE]) == data.absolute() else None
    except (OSError, ValueError, IndexError):
        return None


def remove(segment: int | None) -> None:
    """Remove the segment; do nothing if it is gone, or if this user may not remove it."""
    if segment is not None:
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)
