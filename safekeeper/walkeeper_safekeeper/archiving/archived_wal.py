"""Read WAL that has left this disk back from the archive, as if it were still here.

    read(begin, end)    all of [begin, end); blocks; on a thread of its own

The driver calls it when the store raises WalRemoved. The readers are standbys, tools, and a
proposer that feeds a laggard, through the usual START_REPLICATION and ReadRequest. These bytes are
committed for good, and were compared with our own before those were removed, so R13 holds.

Segments are fetched whole into `fetched/`, which keeps the last four, since a reader comes back for
the next 128 KiB. A request to an unavailable archive is repeated for some minutes. After that the
reader gets Refused and has to come back. WalRemoved means that the archive lacks the WAL, too (it
was pruned).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from threading import Event

from walkeeper_archive.archive import Archive
from walkeeper_archive.archive_errors import ArchiveError, ArchiveUnavailable
from walkeeper_archive.layout import WalFile
from walkeeper_common.errors import Refused, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.process.worker_thread import WorkerThread
from walkeeper_safekeeper.archiving.guarded_job import without_defects
from walkeeper_safekeeper.storage.wal_store import WalStore

SEGMENTS_KEPT = 4
PAUSES_S = (1, 2, 4, 8, 15, 30, 60, 60, 60)


class ArchivedWal:
    """Keep fetched segments in `folder`, without those of an earlier run. One thread reads."""

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
        """End the pauses between requests: a read that waits for the archive fails at once."""
        self._stopping.set()

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return all of [begin_lsn, end_lsn).

        Raise Refused if the archive does not answer or is damaged there, and WalRemoved if the WAL
        was pruned.
        """
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


class ArchivedWalReader:
    """The driver's OlderWal, on a thread of its own: a slow store keeps no other reader waiting."""

    def __init__(self, archived: ArchivedWal, thread: WorkerThread) -> None:
        self._archived, self._thread = archived, thread

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, done: Callable[[object], None]) -> None:
        self._thread.submit(without_defects(lambda: self._archived.read(begin_lsn, end_lsn)), done)

    def stop(self) -> None:
        self._archived.stop()
        self._thread.stop()
