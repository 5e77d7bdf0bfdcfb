"""The bounded window of WAL that was received and is not on every safekeeper yet.

Chunks are kept as they came from the primary, never copied, never joined; a safekeeper's next
range is a view into one of them. WAL that has left the window is read from a safekeeper that has
it. So a laggard costs no memory (the seed's stated limitation; Neon #1012).

Invariants: chunks are contiguous from begin_lsn to end_lsn. Uncommitted WAL stays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.wal_crc import crc_of

WINDOW_BYTES_MAX = 48 << 20
CHUNK_OVERHEAD_BYTES = 512  # a chunk's cost beside its WAL; many small commits count as well


@dataclass(slots=True)
class Chunk:
    """One piece of WAL; its CRC is computed once, for all safekeepers."""

    begin_lsn: Lsn
    end_lsn: Lsn
    wal: memoryview
    crc: int | None = None


class WalWindow:
    """[begin_lsn, end_lsn) of the primary's WAL in memory."""

    def __init__(self, start_lsn: Lsn, *, bytes_max: int = WINDOW_BYTES_MAX) -> None:
        self.begin_lsn = self.end_lsn = start_lsn
        self.bytes_max = bytes_max
        self._chunks: deque[Chunk] = deque()

    @property
    def is_full(self) -> bool:
        """True if the primary should wait."""
        overhead = len(self._chunks) * CHUNK_OVERHEAD_BYTES
        return int(self.end_lsn) - self.begin_lsn + overhead >= self.bytes_max

    def append(self, begin_lsn: Lsn, wal: memoryview, crc: int | None = None) -> Lsn:
        """Append contiguous WAL of the primary; return the window's new end."""
        assert begin_lsn == self.end_lsn, f"{begin_lsn=} {self.end_lsn=}"
        self.end_lsn = end_lsn = Lsn(int(begin_lsn) + len(wal))
        self._chunks.append(Chunk(begin_lsn, end_lsn, wal, crc))
        return end_lsn

    def slice(self, begin_lsn: Lsn, size_max: int) -> tuple[memoryview, int]:
        """Return WAL at begin_lsn, from one chunk, and its CRC-32C."""
        assert self.begin_lsn <= begin_lsn < self.end_lsn, f"{begin_lsn=} {self.end_lsn=}"
        last = self._chunks[-1]
        if last.begin_lsn <= begin_lsn:  # nearly always: a safekeeper that keeps up
            chunk = last
        else:
            at = bisect_right(self._chunks, begin_lsn, key=lambda c: c.begin_lsn) - 1
            chunk = self._chunks[at]
        if begin_lsn == chunk.begin_lsn and len(chunk.wal) <= size_max:
            if chunk.crc is None:
                chunk.crc = crc_of(chunk.wal)
            return chunk.wal, chunk.crc
        offset = begin_lsn - chunk.begin_lsn
        view = chunk.wal[offset : offset + size_max]
        return view, crc_of(view)

    def trim(self, *, needed_lsn: Lsn, commit_lsn: Lsn) -> bool:
        """Forget committed chunks below needed_lsn, and beyond bytes_max those of laggards too.

        Return True if the window is full then."""
        chunks = self._chunks
        while chunks:
            end_lsn = chunks[0].end_lsn
            if end_lsn > commit_lsn or (end_lsn > needed_lsn and not self.is_full):
                return self.is_full
            chunks.popleft()
            self.begin_lsn = end_lsn
        return False
