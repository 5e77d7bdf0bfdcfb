"""The segments of a logical log: in a safekeeper's directory, or as safekeepers serve it.

    is_entry_log(url)            whether it has changes, and not WAL
    EntryFiles.open(url)         .first, .end: whole entries lie in [first, end); .read(begin, end)

A position is a byte's place in the log (docs/logical.md). LSNs are inside the entries. Contract: of
walkeeper://HOST:PORT,…/CLUSTER nothing is seen beyond what a quorum has. A directory shows what is
on that disk, perhaps with an entry at its end that no quorum has. So it is for logs at rest.
Segments must follow each other without a gap. Damage is a DamagedWal that names the file.
"""

from __future__ import annotations

import numpy as np

from walkeeper_common.entries import SEGMENT_MAGIC, EntryWalk, SegmentHeader, is_of_entries
from walkeeper_common.lsn import Lsn, is_segment_size, parse_segment_name
from walkeeper_common.postgres.walformat import InvalidWal
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.archive_names import ArchivedFile, archived_file
from walkeeper_wal.sources.live import LiveFiles
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.safekeeper_link import SafekeeperLink
from walkeeper_wal.sources.segment_timelines import Stretch
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

NO_TIMELINES = 1 << 64


class LiveEntries(LiveFiles):
    """The bytes of a logical log by position, which no promotion divides."""

    def _open(self, address: str) -> SafekeeperLink:
        return SafekeeperLink.open(address, self._cluster, entries=True)

    def _history(self, timeline: int) -> tuple[Stretch, ...]:
        return (Stretch(timeline, NO_TIMELINES),)

    def list_files(self) -> list[tuple[str, int]]:
        """Return the segments; a logical log has no histories of timelines."""
        return [file for file in super().list_files() if not file[0].endswith(".history")]


def is_entry_log(url: str) -> bool:
    """Return whether the log at `url` has changes; read one file's front, or ask a safekeeper."""
    return holds_entries(open_files(url))


def holds_entries(files: WalFiles) -> bool:
    """Return `is_entry_log` of open files."""
    if isinstance(files, LiveFiles):
        return files.is_logical()
    for path, size in files.list_files():
        file = archived_file(path, size)
        if file is not None and file.segment is not None:
            front = files.read_front(path, len(SEGMENT_MAGIC))
            if any(front):  # a segment that is prepared for later entries is zeros
                return is_of_entries(front)
    return False


class EntryFiles:
    """One log, as it was when it was opened. One thread."""

    def __init__(self, files: WalFiles, segments: dict[int, ArchivedFile], size: int) -> None:
        self._files, self._segments, self.segment_bytes = files, segments, size
        self._read: tuple[int, Bytes] = (-1, np.empty(0, np.uint8))
        self.system_id = files.system_id if isinstance(files, LiveFiles) else None
        self.first = Lsn(min(segments))
        self._limit = Lsn(max(segments) + size)
        self.end = self._whole_end()

    @classmethod
    def open(cls, url: str) -> EntryFiles:
        """Return the logical log at `url`; raise HistoryError if there is none, or several."""
        files: WalFiles = LiveEntries(url) if url.startswith("walkeeper://") else open_files(url)
        found = [archived_file(*each) for each in files.list_files()]
        kept = [file for file in found if file is not None and file.segment is not None]
        archives = sorted({file.archive for file in kept})
        if len(archives) != 1:
            shown = ", ".join(files.shown(archive) for archive in archives[:5])
            what = f"several logs below; name one of them: {shown}" if archives else "no log"
            raise HistoryError(f"{files.shown('')}: {what}")
        size = _segment_bytes(files, kept)
        if size is None:
            raise HistoryError(f"{files.shown('')}: nothing of a logical log is there yet")
        segments: dict[int, ArchivedFile] = {}
        for file in kept:  # the file of a segment that reaches further
            assert file.segment is not None, f"{file=}"
            begin = int(parse_segment_name(file.segment, size)[1])
            if begin not in segments or _reach(file) > _reach(segments[begin]):
                segments[begin] = file
        return cls(files, segments, size)

    def shown(self, position: int) -> str:
        """Return the name of the file with the byte at `position`."""
        file = self._segments.get(position // self.segment_bytes * self.segment_bytes)
        return self._files.shown(file.path if file is not None else "")

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        """Return a range inside one segment, for EntryWalk. The last segment is kept."""
        start = begin // self.segment_bytes * self.segment_bytes
        if self._read[0] != start:
            if start not in self._segments:
                raise DamagedWal(f"{self.shown(0)}: the segment at position {Lsn(start)} is gone")
            self._read = start, self._files.read(self._segments[start].path)
        data = self._read[1][begin - start : end - start].tobytes()
        if len(data) < end - begin:  # a tail that ends here: the rest is not there yet
            data += bytes(end - begin - len(data))
        return data

    def header(self, segment: int) -> SegmentHeader:
        """Return a segment's header, from the front of one file."""
        if segment not in self._segments:
            raise DamagedWal(f"{self.shown(0)}: the segment at position {Lsn(segment)} is gone")
        front = self._files.read_front(self._segments[segment].path, SegmentHeader.BYTES)
        try:
            return SegmentHeader.unpack(front, Lsn(segment))
        except InvalidWal as error:
            raise DamagedWal(f"{self.shown(segment)}: {error}") from error

    def start_for(self, lsn: int) -> Lsn:
        """Return the first segment with an entry that ends after `lsn`, PostgreSQL's."""
        low, high = int(self.first), int(Lsn(max(self.end - 1, 0)).round_down(self.segment_bytes))
        high = max(low, high)
        while low < high:  # headers' end LSNs never decrease
            middle = (low + high + self.segment_bytes) // 2 // self.segment_bytes
            middle *= self.segment_bytes
            if self.header(middle).end_lsn > lsn:
                high = middle - self.segment_bytes
            else:
                low = middle
        start = self.header(low).entry_start if low > self.first else Lsn(low)
        found = Lsn((start or low) // self.segment_bytes * self.segment_bytes)
        return max(found, self.first)

    def _whole_end(self) -> Lsn:
        """Return the end of the last whole entry; only the beginning of one may follow it."""
        size = self.segment_bytes
        for begin in sorted(self._segments, reverse=True):
            # a tail has all bytes up to the end in its name
            ends_at = self._segments[begin].end_lsn
            walk = EntryWalk(self, Lsn(begin), Lsn(ends_at or begin + size), size)
            try:
                walk.last_record()
            except InvalidWal as error:
                if ends_at is not None or isinstance(self._files, LiveFiles):
                    raise DamagedWal(f"{self.shown(begin)}: {error}") from error
                if walk.record is None and walk.entry_start is None and error.lsn == begin:
                    continue  # zeros, prepared for later entries
            if walk.record is not None:
                return walk.record.end_lsn
            return max(walk.entry_start or Lsn(begin), self.first)
        return self.first


def _segment_bytes(files: WalFiles, kept: list[ArchivedFile]) -> int | None:
    """Return the size of segments, since names count segments and headers have positions."""
    for file in kept:
        front = files.read_front(file.path, SegmentHeader.BYTES)
        if not is_of_entries(front) or len(front) < SegmentHeader.BYTES:
            continue
        assert file.segment is not None, f"{file=}"
        number = int(file.segment[16:], 16)
        position = int.from_bytes(front[8:16], "big")
        size = (position & 0xFFFFFFFF) // number if number else 0
        if is_segment_size(size):
            return size
    return None


def _reach(file: ArchivedFile) -> int:
    """Return a rank: a whole segment is above every tail of it, and tails go by their ends."""
    return file.end_lsn or 0 if file.is_partial else NO_TIMELINES
