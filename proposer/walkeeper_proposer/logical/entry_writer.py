"""Turns messages into frames at the end of a logical log. Pure.

    EntryWriter(position, end_lsn, timeline, …)     starts where the log ends
    begin(kind) / add(data) / end(end_lsn)          one entry; take() returns the bytes made so far

Segment headers are put where segments start. An entry may be of any size. Data that exceeds a frame
leaves as a frame that is not the last. So no transaction is held in memory.
"""

from __future__ import annotations

from walkeeper_common.entries import (
    FIRST,
    FRAME_BYTES_MAX,
    LAST,
    EntryKind,
    SegmentHeader,
    pack_frame_header,
)
from walkeeper_common.lsn import ZERO_LSN, Lsn


class EntryWriter:
    """`position` is the end of the bytes made, `end_lsn` that of the last whole entry."""

    def __init__(self, position: Lsn, *, end_lsn: Lsn, timeline: int, segment_bytes: int) -> None:
        self.position, self.end_lsn = position, end_lsn
        self.timeline = timeline
        self._segment_bytes = segment_bytes
        self._kind: EntryKind | None = None  # the kind of the entry under way
        self._entry_start = ZERO_LSN
        self._flags = 0
        self._payload: list[bytes] = []
        self._payload_bytes = 0
        self._made: list[bytes] = []
        self._taken = position

    @property
    def is_inside(self) -> bool:
        """True while an entry is under way."""
        return self._kind is not None

    @property
    def made_bytes(self) -> int:
        """The number of bytes that `take` would return."""
        return self.position - self._taken

    @property
    def segment(self) -> Lsn:
        """The start of the segment that the next byte belongs to."""
        return self.position.round_down(self._segment_bytes)

    def begin(self, kind: EntryKind) -> None:
        assert self._kind is None, f"{self._kind=} at {self.position}"
        self._kind, self._flags, self._entry_start = kind, FIRST, self.position

    def add(self, data: bytes) -> None:
        """Add some of the entry's messages."""
        assert self._kind is not None, f"no entry at {self.position}"
        while self._payload_bytes + len(data) > FRAME_BYTES_MAX:
            room = FRAME_BYTES_MAX - self._payload_bytes
            self._payload.append(data[:room])
            data = data[room:]
            self._frame(ZERO_LSN)
        self._payload.append(data)
        self._payload_bytes += len(data)

    def end(self, end_lsn: Lsn) -> None:
        """End the entry: it is whole and reaches to `end_lsn`."""
        assert end_lsn >= self.end_lsn, f"{end_lsn=} {self.end_lsn=}"
        self._flags |= LAST
        self._frame(end_lsn)
        self.end_lsn, self._kind, self._entry_start = end_lsn, None, ZERO_LSN

    def abandon(self) -> None:
        """Give up the entry under way, which will never be whole.

        Forget its bytes if none has left as a frame, or mark those frames as void.
        """
        assert self._kind is not None, f"no entry at {self.position}"
        self._payload.clear()
        self._payload_bytes = 0
        if self._flags & FIRST:
            self._kind, self._entry_start = None, ZERO_LSN
            return
        self._kind = EntryKind.ABANDONED
        self.end(self.end_lsn)

    def take(self) -> tuple[Lsn, bytes]:
        """Return the bytes made since the last call, and the position where they begin."""
        data = b"".join(self._made)
        self._made.clear()
        begin, self._taken = self._taken, self.position
        return begin, data

    def _frame(self, end_lsn: Lsn) -> None:
        assert self._kind is not None, f"no entry at {self.position}"
        payload = b"".join(self._payload)
        self._payload.clear()
        self._payload_bytes = 0
        is_new = bool(self._flags & FIRST)
        if self.position % self._segment_bytes == 0:
            self._header(0, ZERO_LSN if is_new else self._entry_start, ZERO_LSN)
        head = pack_frame_header(
            position=self.position,
            kind=self._kind,
            flags=self._flags,
            timeline=self.timeline,
            begin_lsn=self.end_lsn,
            end_lsn=end_lsn,
            payload=payload,
        )
        self._flags &= ~FIRST
        self._lay(head + payload, end_lsn)

    def _lay(self, frame: bytes, end_lsn: Lsn) -> None:
        """Append the frame's bytes, with a header wherever a segment starts among them."""
        while True:
            room = self._segment_bytes - self.position % self._segment_bytes
            piece, frame = frame[:room], frame[room:]
            self._made.append(piece)
            self.position = self.position + len(piece)
            if not frame:
                return
            self._header(len(frame), self._entry_start, end_lsn)

    def _header(self, frame_rest: int, entry_start: Lsn, rest_end_lsn: Lsn) -> None:
        header = SegmentHeader(
            self.position, frame_rest, entry_start, self.end_lsn, rest_end_lsn, self.timeline
        )
        self._made.append(header.pack())
        self.position = self.position + SegmentHeader.BYTES
