"""What a postmaster that was killed leaves in the kernel: a System V segment of 56 bytes.

It marks the data directory as in use for as long as anybody is attached, and the next start there
removes it. A directory that is deleted instead leaves it for good, and a kernel has 4096 of them
(SHMMNI): then no PostgreSQL of the machine starts any more, with "No space left on device".

    segment = segment_of(data)      before the kill; None if it does not run
    remove(segment)                 once every process of it is gone
"""

from __future__ import annotations

import ctypes
from pathlib import Path

IPC_RMID = 0
KEY_AND_ID_LINE = 6  # of postmaster.pid, from 0 (miscadmin.h: LOCK_FILE_LINE_SHMEM_KEY)


def segment_of(data: Path) -> int | None:
    """By the lock file of a data directory."""
    try:
        _, segment = (data / "postmaster.pid").read_text().splitlines()[KEY_AND_ID_LINE].split()
        return int(segment)
    except (OSError, ValueError, IndexError):
        return None


def remove(segment: int | None) -> None:
    """Nothing if it is gone, or not ours to remove."""
    if segment is not None:
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)
