"""The setting of glibc's malloc that keeps freed memory in the process. A shell."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
HEAP_KEPT_BYTES, HEAP_BUFFER_BYTES_MAX = 64 << 20, 1 << 20


def keep_heap(
    *, kept_bytes: int = HEAP_KEPT_BYTES, buffer_bytes_max: int = HEAP_BUFFER_BYTES_MAX
) -> None:
    """Let glibc keep freed buffers, all of which are bounded, in the process.

    By default it gives every freed buffer of 128 KiB back to the kernel. The kernel zeroes the
    pages for the next one, which took a quarter of the CPU of bulk WAL.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, kept_bytes)
        mallopt(M_MMAP_THRESHOLD, buffer_bytes_max)
