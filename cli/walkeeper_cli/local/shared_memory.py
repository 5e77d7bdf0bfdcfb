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
# Of postmaster.pid, from 0 (miscadmin.h: LOCK_FILE_LINE_…).
DATA_DIRECTORY_LINE, KEY_AND_ID_LINE = 1, 6


def segment_of(data: Path) -> int | None:
    """By the lock file of a data directory, if it is not the copy of another one's."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        _, segment = lines[KEY_AND_ID_LINE].split()
        return int(segment) if Path(lines[DATA_DIRECTORY_LINE]) == data.absolute() else None
    except (OSError, ValueError, IndexError):
        return None


def remove(segment: int | None) -> None:
    """Nothing if it is gone, or not ours to remove."""
    if segment is not None:
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)
