"""Segments from one safekeeper, as files. A shell.

The socket blocks, because PostgreSQL waits for this process anyway. Every wait has a limit.
"""

from __future__ import annotations

import os
from contextlib import suppress

from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.safekeeper_links.committed_wal import Safekeeper

ZEROS_BYTES = 1 << 20


def fetch(source: Safekeeper, begin_lsn: Lsn, end_lsn: Lsn, path: str, size: int) -> None:
    """Write [begin_lsn, end_lsn) into a file of `size` bytes, padded with zeros.

    PostgreSQL recycles segments, and a hole would need disk space at that time. So the zeros are
    written. The file gets its space first, if the file system can do that. A write then takes two
    thirds of its processor time.
    """
    with open(path, "wb", buffering=0) as file:
        with suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, size)
        for lsn, wal in source.read(begin_lsn, end_lsn):
            file.seek(lsn - begin_lsn)
            while wal:
                wal = wal[file.write(wal) :]
        at = file.seek(end_lsn - begin_lsn)
        while at < size:
            at += file.write(bytes(min(size - at, ZEROS_BYTES)))
