"""`orphans/` on a disk that keeps only what it promised: the `Shelf` port for tests and simulator.

A directory of files is one file of a FaultyDisk, replaced whole; `files` takes it apart again.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable

from tests.support.faulty_disk import FaultyDisk
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.storage.disk_port import HALF_MADE
from walkeeper_safekeeper.storage.orphans import File
from walkeeper_safekeeper.storage.wal_store import WalStore

ENDLESS_BYTES = 1 << 40


class FaultyShelf:
    """A shelf of which a power cut leaves what `disk.crash()` leaves."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk

    def names(self) -> list[str]:
        return [name for name in self.disk.names() if not name.endswith(HALF_MADE)]

    def size(self, name: str) -> int:
        return sum(len(data.rstrip(b"\0")) for data in self.files(name).values())

    def room_bytes(self) -> int:
        limit = self.disk.capacity_bytes
        return ENDLESS_BYTES if limit is None else limit - sum(map(self.size, self.names()))

    def put(self, name: str, files: Iterable[File]) -> None:
        held = {}
        for file, size, chunks in files:
            data = bytearray(size)
            for offset, chunk in chunks:
                data[offset : offset + len(chunk)] = chunk
            held[file] = bytes(data)
        self.disk.replace(name, pickle.dumps(held))

    def remove(self, name: str) -> None:
        self.disk.unlink(name)
        self.disk.sync_directory()

    def files(self, name: str) -> dict[str, bytes]:
        """Return all files in one directory."""
        held: dict[str, bytes] = pickle.loads(self.disk.read_at(name, 0, self.disk.size(name)))
        return held


def holds_tail(files: dict[str, bytes], store: WalStore, begin_lsn: Lsn, wal: bytes) -> bool:
    """Return True if these files have the bytes of a tail where they belong."""
    lsn, end_lsn, found = begin_lsn, begin_lsn + len(wal), b""
    while lsn < end_lsn:
        upto, offset = min(store.file_end(lsn), end_lsn), lsn - store.segment_start(lsn)
        found += files.get(store.name_of(lsn), b"")[offset : offset + (upto - lsn)]
        lsn = upto
    return found == wal
