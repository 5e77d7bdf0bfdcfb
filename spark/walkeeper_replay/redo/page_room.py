"""Room for pages that grows without being copied: address space, filled as pages come.

    room(pages_min) -> array of pages, of which those never written cost no memory

If the system gives address space without memory (Linux, MAP_NORESERVE), the room has the size of
the machine's memory. Otherwise it has the requested size, and the caller copies it to grow.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys

import numpy as np

from walkeeper_history.records.segment import Bytes
from walkeeper_replay.redo.page import PAGE_BYTES

_LINUX_NORESERVE = 0x4000  # mmap has no name for it before Python 3.13


def room(pages_min: int) -> Bytes:
    """Return room for at least so many pages."""
    if sys.platform != "linux":
        return np.empty((pages_min, PAGE_BYTES), np.uint8)
    with contextlib.suppress(OSError, ValueError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        size = max(memory // PAGE_BYTES, pages_min) * PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _LINUX_NORESERVE
        mapped = mmap.mmap(-1, size, flags=flags)
        with contextlib.suppress(OSError, ValueError):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8).reshape(-1, PAGE_BYTES)
    return np.empty((pages_min, PAGE_BYTES), np.uint8)
