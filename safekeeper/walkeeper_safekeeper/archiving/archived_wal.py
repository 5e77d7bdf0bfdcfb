"""WAL that has left this disk, read back from the archive as if it had not.

    read(begin, end)    all of [begin, end); blocks; on a thread of its own

The driver asks here when the store says WalRemoved: for standbys, for tools and for a proposer that
feeds a laggard, through the same START_REPLICATION and ReadRequest as ever. These bytes were
committed for good, and compared with our own before those were removed, so R13 holds.

Segments are fetched whole into `fetched/`, of which the last few are kept: readers come back for
the next 128 KiB. A store that does not answer is asked again for a while; then the reader is told
to come back. WalRemoved: the archive does not have it either (it was pruned).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Event

from walkeeper_archive.archive import Archive
from walkeeper_archive.errors import ArchiveError, ArchiveUnavailable
from walkeeper_archive.layout import WalFile
from walkeeper_common.errors import Refused, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.storage.wal_store import WalStore

SEGMENTS_KEPT = 4
PAUSES_S = (1, 2, 4, 8, 15, 30, 60, 60, 60)


class ArchivedWal:
    """`folder` is ours alone; what a crash left in it is removed. One thread reads."""

    def __init__(
        self, archive: Archive, store: WalStore, file_of: Callable[[Lsn], WalFile], folder: str
    ) -> None:
        self._archive, self._store, self._file_of = archive, store, file_of
        self._folder = folder
        self._fetched: dict[str, str] = {}  # by name, the path; the least recently used first
        self._stopping = Event()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))

    def stop(self) -> None:
        """Whoever waits for the archive waits no more."""
        self._stopping.set()

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Refused: the archive does not answer, or is damaged there; WalRemoved: pruned."""
        pieces, lsn = [], begin_lsn
        while lsn < end_lsn:
            start = self._store.segment_start(lsn)
            end = min(start + self._store.segment_bytes, end_lsn)
            try:
                pieces.append(self._store.read(lsn, end))
            except WalRemoved:
                pieces.append(self._read_fetched(lsn, end))
            lsn = end
        return b"".join(pieces)

    def _read_fetched(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        start = self._store.segment_start(begin_lsn)
        path = self._path_of(start)
        try:
            with open(path, "rb") as file:
                data = os.pread(file.fileno(), end_lsn - begin_lsn, begin_lsn - start)
        except OSError as error:
            raise Refused(f"reading {path}: {error.strerror}") from error
        assert len(data) == end_lsn - begin_lsn, f"{path=} {begin_lsn=} {end_lsn=} {len(data)=}"
        return data

    def _path_of(self, start: Lsn) -> str:
        file = self._file_of(start)
        path = self._fetched.pop(file.name, None)
        if path is None:
            path = os.path.join(self._folder, file.name)
            while len(self._fetched) >= SEGMENTS_KEPT:
                with suppress(FileNotFoundError):
                    os.unlink(self._fetched.pop(next(iter(self._fetched))))
            self._fetch(file, path, start)
        self._fetched[file.name] = path
        return path

    def _fetch(self, file: WalFile, path: str, start: Lsn) -> None:
        for pause_s in (*PAUSES_S, None):
            try:
                if not self._archive.fetch(file.name, path):
                    raise WalRemoved(start, self._store.first_lsn)
                return
            except ArchiveError as error:
                is_final = pause_s is None or not isinstance(error, ArchiveUnavailable)
                if is_final or self._stopping.wait(pause_s):
                    text = f"WAL from {start} on is in the archive, which cannot be read: {error}"
                    raise Refused(text) from error
