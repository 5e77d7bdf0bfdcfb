"""Put a segment in front of a log that begins late (M5). Blocking, over the store's disk.

A log is filled downwards, a segment at a time. So it has no gap at any time, a start finds how far
it goes, and first_lsn says what is here. The WAL is committed, and so are the bytes of all members.

In a segment in which timelines change each has a file. The file of the segment's first byte comes
last. So a crash in between leaves what looks like an unfinished removal, and a start finishes that.
"""

from __future__ import annotations

from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_safekeeper.storage.disk_port import HALF_MADE
from walkeeper_safekeeper.storage.wal_store import WalStore


def fill_segment(store: WalStore, begin_lsn: Lsn, wal: bytes) -> Lsn:
    """Make the segment at begin_lsn the log's first, durably; return where the log begins then.

    Raise Refused if the log begins elsewhere by now, NoSpace, or StorageError."""
    size, timelines = store.segment_bytes, store.timelines
    assert len(wal) == size, f"{begin_lsn=} {len(wal)=}"
    files = set()
    for timeline in reversed(timelines.owners(begin_lsn, begin_lsn + size)):
        name = segment_name(timeline, begin_lsn, size)
        store.disk.allocate(name + HALF_MADE, size)
        held = wal[: min(size, timelines.end_of(timeline) - begin_lsn)]
        store.disk.write_at(name + HALF_MADE, 0, [held])
        store.disk.sync_data(name + HALF_MADE)
        store.disk.rename(name + HALF_MADE, name)
        store.disk.sync_directory()
        files.add((begin_lsn, timeline))
    if not store.begin_with(files, begin_lsn):
        store.unlink_files(files)
        raise Refused(f"the log begins at {store.first_lsn} now, not after {begin_lsn}")
    return begin_lsn
