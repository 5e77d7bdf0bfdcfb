"""Received WAL in PostgreSQL's segment files; a crash can only damage the end of it.

    wal = ReceivedWal(directory, segment_bytes)
    wal.write(timeline, lsn, data); wal.sync(); wal.read(begin, end); wal.remove_before(lsn)

Contract: `end_lsn` is the place of the next byte, or None without any file. The last file ends at
the end of the WAL, so that walkeeper_history can read the directory as an archive. A crash may tear
WAL that was written but not synced. The owner then finds the last whole record and calls `cut`. A
timeline's first file begins with its parent's part of that segment, as PostgreSQL's does. One
thread writes; other threads may read, sync and remove.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import SEGMENT_NAME, Lsn, parse_segment_name, segment_name
from walkeeper_common.shell.files.sync_path import sync_path
from walkeeper_common.timelines import timeline_file_name
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

FILE_MODE = 0o600
FILES_OPEN_MAX = 8


class ReceivedWal:
    """The segment files in `root`, and the history files of their timelines."""

    def __init__(self, root: Path, segment_bytes: int) -> None:
        self.root, self.segment_bytes = root, segment_bytes
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._open: dict[str, int] = {}
        self._unsynced: set[str] = set()
        self._names: dict[int, str] = {}
        for name in sorted(os.listdir(root)):
            if SEGMENT_NAME.fullmatch(name):
                _, begin = parse_segment_name(name, segment_bytes)
                self._names[int(begin)] = name  # sorted, so that the newer of two timelines stays
        self.synced_lsn = 0
        """All WAL below it is durable."""
        self.end_lsn: int | None = None
        if self._names:
            last = max(self._names)
            self.end_lsn = last + (root / self._names[last]).stat().st_size

    @property
    def timeline(self) -> int | None:
        """The timeline of the last file."""
        return int(self._names[max(self._names)][:8], 16) if self._names else None

    @property
    def first_lsn(self) -> int | None:
        """The begin of the first file, or None without any file."""
        return min(self._names, default=None)

    def write(self, timeline: int, lsn: int, data: Buffer) -> None:
        """Append data at `lsn`, which is `end_lsn`, or a segment's start if there is no file."""
        at = lsn if self.end_lsn is None else self.end_lsn
        assert at == lsn, f"{at=} {lsn=}"
        assert self.end_lsn is not None or lsn % self.segment_bytes == 0, f"{lsn=}"
        view = memoryview(data)
        while len(view):
            begin = at // self.segment_bytes * self.segment_bytes
            piece = view[: begin + self.segment_bytes - at]
            with self._lock:
                self._names[begin] = segment_name(timeline, Lsn(begin), self.segment_bytes)
                descriptor = self._descriptor(self._names[begin])
                self._unsynced.add(self._names[begin])
                _write_all(descriptor, piece, at - begin)
            at += len(piece)
            view = view[len(piece) :]
            self.end_lsn = at

    def switch(self, timeline: int, history: bytes) -> None:
        """Write what follows the present end on another timeline, whose history file is `history`.

        Raise HistoryError if a file cannot be written.
        """
        _write_whole(self.root / timeline_file_name(timeline), history)
        if self.end_lsn is None or self.end_lsn % self.segment_bytes == 0:
            return
        begin = self.end_lsn // self.segment_bytes * self.segment_bytes
        name = segment_name(timeline, Lsn(begin), self.segment_bytes)
        _write_whole(self.root / name, self.read(begin, self.end_lsn))
        with self._lock:
            self._names[begin] = name

    def sync(self) -> None:
        """Make all that was written durable."""
        with self._lock:
            waiting, self._unsynced = self._unsynced, set()
            end = self.end_lsn or 0
            descriptors = [os.dup(self._descriptor(name)) for name in waiting]
        for descriptor in descriptors:  # other threads read meanwhile
            os.fsync(descriptor)
            os.close(descriptor)
        if waiting:
            sync_path(self.root)
        self.synced_lsn = end

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes of [begin, end) as they are in the files, with page headers.

        Raise DamagedWal if a file is missing or short.
        """
        pieces, at = [], begin
        while at < end:
            first = at // self.segment_bytes * self.segment_bytes
            size = min(end, first + self.segment_bytes) - at
            with self._lock:
                name = self._names.get(first)
                if name is None:
                    raise DamagedWal(f"{self.root}: the segment of {Lsn(at)} is not there")
                piece = os.pread(self._descriptor(name), size, at - first)
            if len(piece) != size:
                raise DamagedWal(f"{self.root / name}: ends before {Lsn(at + size)}")
            pieces.append(piece)
            at += size
        return b"".join(pieces)

    def cut(self, lsn: int) -> None:
        """Remove all WAL at or after `lsn`, durably."""
        with self._lock:
            for begin in [each for each in self._names if each >= lsn]:
                self._remove(begin)
            begin = lsn // self.segment_bytes * self.segment_bytes
            if begin in self._names:
                os.ftruncate(self._descriptor(self._names[begin]), lsn - begin)
                self._unsynced.add(self._names[begin])
            self.end_lsn = lsn if begin in self._names or self._names else None
        self.sync()

    def remove_before(self, lsn: int) -> None:
        """Remove the segments that end at or below `lsn`."""
        with self._lock:
            for begin in [each for each in self._names if each + self.segment_bytes <= lsn]:
                self._remove(begin)
            if not self._names:
                self.end_lsn = None
            kept = set(self._names.values())
        for name in os.listdir(self.root):  # the parents' copies of shared segments
            if SEGMENT_NAME.fullmatch(name) and name not in kept:
                _, begin = parse_segment_name(name, self.segment_bytes)
                if int(begin) + self.segment_bytes <= lsn:
                    (self.root / name).unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            for descriptor in self._open.values():
                os.close(descriptor)
            self._open.clear()

    def _remove(self, begin: int) -> None:
        name = self._names.pop(begin)
        if name in self._open:
            os.close(self._open.pop(name))
        self._unsynced.discard(name)
        (self.root / name).unlink(missing_ok=True)

    def _descriptor(self, name: str) -> int:
        """Return an open descriptor; those used last stay open."""
        found = self._open.pop(name, None)
        if found is None:
            while len(self._open) >= FILES_OPEN_MAX:
                oldest = next(iter(self._open))
                descriptor = self._open.pop(oldest)
                if oldest in self._unsynced:
                    os.fsync(descriptor)
                    self._unsynced.discard(oldest)
                os.close(descriptor)
            found = os.open(self.root / name, os.O_RDWR | os.O_CREAT, FILE_MODE)
        self._open[name] = found
        return found


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all."""
    scratch = path.with_name(path.name + ".new")
    try:
        with open(scratch, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror or error}") from error
    sync_path(path.parent)
