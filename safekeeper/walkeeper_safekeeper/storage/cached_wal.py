"""WAL from the page cache, read on the loop: no thread, and no wait for the disk.

A reader at the tip wants WAL that was just written, which the page cache has. A read of it takes
0.1 ms for each megabyte. A worker's thread costs two wake-ups for each read, and on a busy machine
each wake-up takes milliseconds. The page cache may lack the WAL, or the file system may be unable
to say. Then the caller reads on its thread, which also finds and tells what is wrong.
"""

from __future__ import annotations

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.storage.wal_store import WalStore

CACHED_BYTES_MAX = 1 << 20


def cached_wal(store: WalStore, begin_lsn: Lsn, end_lsn: Lsn) -> Buffer | None:
    """Return [begin, end) if the page cache has all of it, in one file; else None. No wait."""
    size = end_lsn - begin_lsn
    if not 0 < size <= CACHED_BYTES_MAX:
        return None
    if begin_lsn < store.first_lsn or end_lsn > store.file_end(begin_lsn):
        return None
    offset = begin_lsn - store.segment_start(begin_lsn)
    return store.disk.read_cached(store.name_of(begin_lsn), offset, size)
