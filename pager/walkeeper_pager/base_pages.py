"""Read single pages of a base backup, and the LSN from which on the backup is consistent."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from struct import pack, unpack_from

import numpy as np

from walkeeper_pager.page_names import FORKS, Place
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_replay.redo.tablespaces import Tablespaces
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.wal_errors import HistoryError

_FILES_OPEN_MAX = 64
_FORK_NAMES = {number: name for name, number in FORKS.items()}
# pg_control.h has the state and checkPointCopy, followed by fields that differ between versions.
# The sizes follow this float: blcksz, relseg_size, xlog_blcksz, xlog_seg_size.
_FLOAT_FORMAT, _SEGMENT_BYTES = pack("<d", 1234567.0), 8 + 12


class BasePages:
    """Read blocks by number, in any thread; the files used last stay open."""

    def __init__(self, path: str) -> None:
        self.directory = BaseDirectory(path)
        self.shown = path
        is_backup = (self.directory.root / "backup_label").is_file()
        self._spaces = Tablespaces(self.directory.root, is_backup=is_backup)
        self._proven: set[Path] = set()
        self._files: dict[tuple[Place, int], int] = {}
        # Folding and requests read side by side. Without the lock, one could close the file that
        # the other reads, and its number would be that of another relation's file.
        self._lock = threading.Lock()
        control = (self.directory.root / "global" / "pg_control").read_bytes()
        self.system_id = int(unpack_from("<Q", control)[0])
        sizes = control.find(_FLOAT_FORMAT)
        if sizes < 0:
            raise HistoryError(
                f"{path}/global/pg_control is not that of PostgreSQL on this kind of machine"
            )
        self.segment_bytes = int(unpack_from("<I", control, sizes + _SEGMENT_BYTES)[0])
        self.redo_lsn = self.directory.redo_lsn
        self.ends_in_wal = self.directory.ends_in_wal
        """True if it is consistent only from its BACKUP_END record on."""
        self.consistent_lsn = self.directory.consistent_lsn

    def read(self, place: Place, block: int) -> Bytes | None:
        """Return a copy of the page, or None if the backup has no such block.

        Raise HistoryError for a page of the running server, to whose tablespace a link may lead.
        """
        number, within = divmod(block, self.directory.file_blocks)
        with self._lock:
            descriptor = self._descriptor(place, number)
            if descriptor is None:
                return None
            data = os.pread(descriptor, PAGE_BYTES, within * PAGE_BYTES)
        if len(data) < PAGE_BYTES:
            return None
        page = np.frombuffer(data, np.uint8).copy()
        if self.directory.end_lsn is not None:
            path = self._path(place, number)
            self._spaces.refuse_later(path, page.reshape(1, -1), self.directory.end_lsn)
        return page

    def is_unlogged(self, place: Place) -> bool:
        """Return whether this is the main fork of an unlogged relation: it has an init fork."""
        init = Place(place.tablespace, place.database, place.relfilenode, FORKS["init"])
        with self._lock:
            return place.fork == FORKS["main"] and self._descriptor(init, 0) is not None

    def verifies(self, page: Bytes, block: int) -> bool:
        """Return whether the page is as a server wrote it, by its checksum and its header."""
        return loops.verifies(page, block, self.directory.has_checksums)

    def places_of(self, tablespace: int, database: int) -> list[tuple[Place, int]]:
        """Return (place, number of its blocks) of the main and init forks of a database."""
        found = []
        folder = self.directory.directory(tablespace, database)
        for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
            node, _, fork = name.partition("_")
            if node.isdigit() and fork in ("", "init"):
                place = Place(tablespace, database, int(node), FORKS[fork or "main"])
                found.append((place, self._blocks(place)))
        return found

    def _blocks(self, place: Place) -> int:
        """Return the number of blocks up to the end of the first file that is not full."""
        total, number, full = 0, 0, self.directory.file_blocks
        with self._lock:
            while total == number * full and (found := self._descriptor(place, number)) is not None:
                total += os.fstat(found).st_size // PAGE_BYTES
                number += 1
        return total

    def _descriptor(self, place: Place, number: int) -> int | None:
        """Return the open file, or None if the backup has none; the caller holds the lock."""
        key = (place, number)
        found = self._files.pop(key, None)
        if found is None:
            path = self._path(place, number)
            if path not in self._proven:
                self._spaces.refuse_other(path)
            try:
                found = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            self._proven.add(path)
            while len(self._files) >= _FILES_OPEN_MAX:
                os.close(self._files.pop(next(iter(self._files))))
        self._files[key] = found
        return found

    def _path(self, place: Place, number: int) -> Path:
        folder = self.directory.directory(place.tablespace, place.database)
        fork = f"_{_FORK_NAMES[place.fork]}" if place.fork else ""
        return folder / (f"{place.relfilenode}{fork}" + (f".{number}" if number else ""))
