"""The form of a logical log in its segments: frames of entries, with a header before each. Pure.

    EntryWalk                frames from a segment's or an entry's start on, each one checked
    record_end_before, scan  the answers that walformat gives for WAL (docs/protocol.md R9, R18)

An *entry* is one transaction (or a progress or settings entry) and takes the place of a record. It
is a run of frames from FIRST to LAST. Frames follow each other without gaps. A SegmentHeader stands
at the start of every segment, also where that start lies inside a frame. Positions are byte offsets
in the log, typed as Lsn because the consensus addresses bytes by them. A name `…_lsn` here means
an LSN of PostgreSQL. The reasons are in docs/logical.md.

Contract: a frame counts when its position, its CRC-32C and its place in its entry are right.
Headers are checked likewise. The walk reads no byte above the limit and keeps at most a chunk and
a frame in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import ClassVar

from crc32c import crc32c

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.walformat import InvalidWal, RecordEnd, ScanEnd
from walkeeper_common.postgres.walpages import WalBytes

FRAME_BYTES_MAX = 256 << 10
CHUNK_BYTES = 1 << 20
SEGMENT_MAGIC = b"WKENTRY1"
FIRST, LAST = 1, 2


def is_of_entries(front: Buffer) -> bool:
    """Return True if a file that begins so is a logical log's segment; WAL has the same names."""
    return bytes(front[: len(SEGMENT_MAGIC)]) == SEGMENT_MAGIC


class EntryKind(IntEnum):
    """The kind of a frame. The LAST frame's kind is the entry's.

    TRANSACTION has messages. PROGRESS says that up to its end LSN nothing else was published.
    SETTINGS has LogSettings. ABANDONED ends a transaction whose connection was lost in the middle.
    The part that arrived is void, and the transaction comes again as another entry.
    """

    TRANSACTION = 1
    PROGRESS = 2
    SETTINGS = 3
    ABANDONED = 4


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first bytes of every segment: enough to go on reading, and the index by LSN.

    frame_rest    how many bytes of a frame that began earlier follow
    entry_start   where the entry began that goes on here, or ZERO_LSN if none does
    end_lsn       the end of the last entry that ended before this header
    rest_end_lsn  the end LSN of the entry whose last frame goes on here, or ZERO_LSN if none does
    """

    LAYOUT: ClassVar[Struct] = Struct("!8sQQQQQI")
    BYTES: ClassVar[int] = Struct("!8sQQQQQII").size
    position: Lsn
    frame_rest: int
    entry_start: Lsn
    end_lsn: Lsn
    rest_end_lsn: Lsn
    timeline: int

    def pack(self) -> bytes:
        body = self.LAYOUT.pack(
            SEGMENT_MAGIC,
            self.position,
            self.frame_rest,
            self.entry_start,
            self.end_lsn,
            self.rest_end_lsn,
            self.timeline,
        )
        return body + crc32c(body).to_bytes(4, "big")

    @classmethod
    def unpack(cls, data: Buffer, position: Lsn) -> SegmentHeader:
        """Parse the header at `position`; raise InvalidWal if these are not its bytes."""
        body = bytes(data[: cls.LAYOUT.size])
        if not any(data):
            raise InvalidWal("zeros instead of a segment header", position)
        magic, at, rest, start, end, rest_end, timeline = cls.LAYOUT.unpack(body)
        crc = int.from_bytes(data[cls.LAYOUT.size : cls.BYTES], "big")
        if magic != SEGMENT_MAGIC or crc32c(body) != crc or at != position:
            raise InvalidWal(f"no segment header of position {position}", position)
        if start >= at or (rest and not start) or (rest_end and not rest):
            raise InvalidWal(f"the segment header of position {position} makes no sense", position)
        return cls(Lsn(at), rest, Lsn(start), Lsn(end), Lsn(rest_end), timeline)


@dataclass(frozen=True, slots=True)
class Frame:
    """`position` is where its entry's bytes go on: before a segment header, if one is there.

    end_lsn is known in the LAST frame and ZERO_LSN before. `payload` is CopyData messages as a
    server sends them; a message may go on in the next frame.
    """

    LAYOUT: ClassVar[Struct] = Struct("!IIQBBxxIQQ")  # size, crc, position, kind, flags, …
    CHECKED: ClassVar[int] = 8  # the CRC covers the header from here on, then the payload
    BYTES: ClassVar[int] = LAYOUT.size
    position: Lsn
    end_position: Lsn
    kind: EntryKind
    flags: int
    timeline: int
    begin_lsn: Lsn
    end_lsn: Lsn
    payload: memoryview

    @property
    def is_first(self) -> bool:
        return bool(self.flags & FIRST)

    @property
    def is_last(self) -> bool:
        return bool(self.flags & LAST)


def pack_frame_header(
    *,
    position: Lsn,
    kind: EntryKind,
    flags: int,
    timeline: int,
    begin_lsn: Lsn,
    end_lsn: Lsn,
    payload: bytes,
) -> bytes:
    """Return the header; `position` is the frame's own first byte, after any segment header."""
    size = len(payload)
    head = Frame.LAYOUT.pack(size, 0, position, kind, flags, timeline, begin_lsn, end_lsn)
    crc = crc32c(payload, crc32c(head[Frame.CHECKED :], size))
    return head[:4] + crc.to_bytes(4, "big") + head[8:]


class OutOfBytes(Exception):
    """The limit was reached in the middle of something."""


class EntryWalk:
    """An iterable of a logical log's entries, from `position` on.

    `position` is a segment's start or an entry's, and moves with what was read. The walk ends at
    the limit, and `record` is the last whole entry by then. Raise the limit and iterate again, to
    go on. The iteration raises InvalidWal at the first thing that is not a frame in its place.
    """

    def __init__(self, wal: WalBytes, position: Lsn, limit: Lsn, segment_bytes: int) -> None:
        self.position, self.limit = position, limit
        self.record: RecordEnd | None = None
        self.end_lsn, self.timeline = ZERO_LSN, 0  # those of the last whole entry seen, if any
        self.entry_start: Lsn | None = None  # where the entry began that goes on here
        self._wal, self._segment_bytes = wal, segment_bytes
        self._chunk, self._chunk_begin = memoryview(b""), position
        self._has_entered = position % segment_bytes != 0

    def __iter__(self) -> Iterator[Frame]:
        try:
            if not self._has_entered:
                self._enter_segment()
            while True:
                frame = self._frame()
                self._count(frame)
                yield frame
        except OutOfBytes:
            return

    def last_record(self) -> RecordEnd | None:
        """Walk to the limit; return the last whole entry, or None."""
        for _ in self:
            pass
        return self.record

    def _enter_segment(self) -> None:
        """Read the header and skip the rest of a frame that goes on after it."""
        start = self.position
        header = self._header()
        self.end_lsn, self.timeline = header.end_lsn, header.timeline
        if not header.frame_rest and not header.entry_start:
            self._has_entered = True  # an entry starts here, and with it this header
            return
        self.position, self.entry_start = start + SegmentHeader.BYTES, header.entry_start
        rest = header.frame_rest
        try:
            while rest:
                rest -= len(self._some(rest))
        except OutOfBytes:
            self.position = start
            raise
        self._has_entered = True
        if header.rest_end_lsn:
            self.record = RecordEnd(header.entry_start, self.position)
            self.end_lsn, self.entry_start = header.rest_end_lsn, None

    def _header(self) -> SegmentHeader:
        at = self.position
        if at + SegmentHeader.BYTES > self.limit:
            raise OutOfBytes
        data = self._at(at, SegmentHeader.BYTES)
        return SegmentHeader.unpack(data, at)

    def _frame(self) -> Frame:
        start = self.position
        try:
            return self._read_frame(start)
        except OutOfBytes:
            self.position = start
            raise

    def _read_frame(self, start: Lsn) -> Frame:
        if start % self._segment_bytes == 0:
            self._header()
            self.position = start + SegmentHeader.BYTES
        at = self.position
        head = self._take(Frame.BYTES)
        size, crc, position, kind, flags, timeline, begin, end = Frame.LAYOUT.unpack(head)
        if position != at or size > FRAME_BYTES_MAX or kind not in _KINDS:
            what = "zeros" if not any(head) else "no frame"
            raise InvalidWal(f"{what} at {at}", at)
        payload = self._take(size)
        if crc32c(payload, crc32c(head[Frame.CHECKED :], size)) != crc:
            raise InvalidWal(f"the frame at {at} does not match its CRC", at)
        return Frame(
            start,
            self.position,
            _KINDS[kind],
            flags,
            timeline,
            Lsn(begin),
            Lsn(end),
            memoryview(payload),
        )

    def _count(self, frame: Frame) -> None:
        if frame.is_first != (self.entry_start is None):
            text = f"the frame at {frame.position} is out of its entry's order"
            raise InvalidWal(text, frame.position)
        if frame.is_first:
            self.entry_start = frame.position
        if frame.is_last:
            self.record = RecordEnd(self.entry_start, self.position)
            self.end_lsn, self.timeline, self.entry_start = frame.end_lsn, frame.timeline, None

    # Bytes

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes of frames, segment headers left out."""
        begin = self.position
        offset, end = begin - self._chunk_begin, begin + size
        if (
            0 <= offset <= len(self._chunk) - size  # else the walk was set back to an earlier frame
            and begin % self._segment_bytes + size <= self._segment_bytes
        ):
            self.position = end
            return bytes(self._chunk[offset : offset + size])
        pieces = []
        while size:
            pieces.append(self._some(size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _some(self, size: int) -> memoryview:
        """Return at most `size` bytes out of one segment and one chunk."""
        if self.position % self._segment_bytes == 0:
            self._header()
            self.position = self.position + SegmentHeader.BYTES
        segment_end = self.position.round_down(self._segment_bytes) + self._segment_bytes
        room = min(size, segment_end - self.position, self.limit - self.position)
        if room <= 0:
            raise OutOfBytes
        data = self._at(self.position, min(room, CHUNK_BYTES))
        self.position = self.position + len(data)
        return data

    def _at(self, begin: Lsn, size: int) -> memoryview:
        """Return bytes of the log, headers included, through the chunk."""
        offset = begin - self._chunk_begin
        if offset < 0 or offset + size > len(self._chunk):
            end = min(begin + max(size, CHUNK_BYTES), self.limit)
            segment_end = begin.round_down(self._segment_bytes) + self._segment_bytes
            end = min(end, segment_end)
            self._chunk, self._chunk_begin = memoryview(self._wal.read(begin, end)), begin
            offset = 0
        return self._chunk[offset : offset + size]


_KINDS = {int(kind): kind for kind in EntryKind}


def record_end_before(
    wal: WalBytes, *, first_lsn: Lsn, flush_lsn: Lsn, segment_bytes: int
) -> RecordEnd:
    """Return the last whole entry at or below `flush_lsn`; a prefix of one entry may follow it.

    Read the segment of flush_lsn, or back to the start of the entry that goes on there. Return
    first_lsn (the log's first segment, or any entry's end) until an entry after it is whole.
    Raise InvalidWal if the bytes are anything else.
    """
    assert first_lsn <= flush_lsn, f"{first_lsn=} {flush_lsn=}"
    if flush_lsn == first_lsn:
        return RecordEnd(None, first_lsn)
    limit = flush_lsn
    while limit > first_lsn:
        segment = Lsn(limit - 1).round_down(segment_bytes)
        walk = EntryWalk(wal, segment, limit, segment_bytes)
        record = walk.last_record()
        if record is not None:
            start = record.start_lsn
            if start is None or start < first_lsn:
                return RecordEnd(None, record.end_lsn)
            if start < segment:  # only its last bytes were seen: walk it to check the others
                EntryWalk(wal, start, record.end_lsn, segment_bytes).last_record()
            return record
        # No entry ends here, so the previous entry ends where the one that goes on here began.
        limit = segment if walk.entry_start is None else walk.entry_start
    return RecordEnd(None, first_lsn)


def scan(wal: WalBytes, *, start_lsn: Lsn, limit_lsn: Lsn, segment_bytes: int) -> ScanEnd:
    """Return how far entries are whole and valid from `start_lsn` (an entry's or the log's start).

    The result also has the reason why the scan ended there.
    """
    walk = EntryWalk(wal, start_lsn, limit_lsn, segment_bytes)
    reason = f"the log is valid up to its limit {limit_lsn}"
    try:
        walk.last_record()
    except InvalidWal as error:
        reason = str(error)
    if walk.record is None:
        return ScanEnd(start_lsn, reason, None)
    return ScanEnd(walk.record.end_lsn, reason, walk.record.start_lsn)
