"""The twin of walformat's walk: WAL read a byte after the other, as its format is described.

It has no fast path, no chunks and no arithmetic of positions. A cursor steps over page headers, and
checks what each of them must say. It is slow, and short enough to be compared with the description
of the format (xlog_internal.h, xlogrecord.h) by eye.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from crc32c import crc32c

from walkeeper_common.lsn import Lsn

PAGE = 8192
CONTRECORD, LONG, OVERWRITE = 1, 2, 8


class Stopped(Exception):
    """`cut` if only the limit ended it: what is there may be the beginning of something valid."""

    def __init__(self, *, cut: bool, in_header: bool = False) -> None:
        super().__init__(f"{cut=} {in_header=}")
        self.cut, self.in_header = cut, in_header


@dataclass
class NaiveWalk:
    """`data` is WAL from `base` to the limit."""

    data: bytes
    base: int
    segment_bytes: int
    start: int | None = None  # the start of the last record that has ended
    end: int = 0
    previous: int | None = None
    magic: int | None = None
    timeline: int = 0
    cut_at: int | None = None  # the page that cut off a record last

    def walk(self, begin: int) -> Stopped:
        """Walk to the first bytes that are not whole and valid; `start` and `end` say where."""
        self.begin = self.at = self.end = begin
        try:
            if begin % PAGE == 0:
                self._enter()
            while True:
                self._record()
        except Stopped as stopped:
            return stopped

    def _bytes(self, at: int, size: int) -> bytes:
        piece = self.data[at - self.base : at - self.base + size]
        if len(piece) < size:
            raise Stopped(cut=True)
        return piece

    def _header(self) -> tuple[int, int]:
        """Step over the page header here; return its flags and rem_len."""
        page = self.at
        at_start = page % self.segment_bytes == 0
        size = 40 if at_start else 24
        try:
            head = self._bytes(page, size)
        except Stopped:
            raise Stopped(cut=True, in_header=True) from None
        magic, info, timeline, address, rem_len, padding = struct.unpack("<HHIQII", head[:24])
        good = magic != 0 and info < 16 and bool(info & LONG) == at_start and address == page
        if at_start:
            good = good and struct.unpack("<II", head[32:]) == (self.segment_bytes, PAGE)
        wanted = range(1, (1 << 30) + 1) if info & CONTRECORD else range(1)
        good = good and padding == 0 and rem_len in wanted
        good = good and self.magic in (None, magic) and timeline >= self.timeline
        if not good:
            raise Stopped(cut=False)
        self.magic, self.timeline = magic, timeline
        self.at = page + size
        return info, rem_len

    def _continue(self, remaining: int) -> bool:
        """Continue a record at a page's start. Return False if it is cut off, and ends here."""
        page = self.at
        info, rem_len = self._header()
        if info & OVERWRITE:
            self.at = self.cut_at = page
            return False
        if not info & CONTRECORD or rem_len != remaining:
            raise Stopped(cut=False)
        return True

    def _enter(self) -> None:
        """Pass the end of a record that started before the walk."""
        page = self.at
        info, remaining = self._header()
        if not info & CONTRECORD:
            self.at = page
            return
        # Padding counts here: a page that ends with the record ends with its padding as well.
        padded = (remaining + 7) & ~7
        tail = b""
        while True:
            room = PAGE - self.at % PAGE
            if padded <= room:
                tail = self.data[self.at - self.base : self.at - self.base + padded]
                if any(tail[remaining:]):
                    raise Stopped(cut=False)
                self.at += len(self._bytes(self.at, padded))
                break
            self.at += room
            padded, remaining = padded - room, remaining - room
            if not self._continue(remaining):
                return
        self.end = self.at
        if remaining in (8, 16) and self.at - page < PAGE:
            head = bytes(24 - remaining) + tail[:remaining]
            if head[17] == 0 and head[16] & 0xF0 == 0x40 and head[18:20] == b"\0\0":
                self.previous = page - (24 - remaining)
                self._skip_segment()

    def _record(self) -> None:
        if self.at % PAGE == 0:
            page, (info, _) = self.at, self._header()
            if info & CONTRECORD or (info & OVERWRITE and page not in (self.begin, self.cut_at)):
                raise Stopped(cut=False)
        start = self.at
        (size,) = struct.unpack("<I", self._bytes(start, 4))
        if not 24 <= size <= 1 << 30:
            raise Stopped(cut=False)
        record = b""
        while len(record) < size:
            room = PAGE - self.at % PAGE
            wanted = min(room, size - len(record))
            there = self.data[self.at - self.base : self.at - self.base + wanted]
            record += there
            self._check_link(start, record)
            if len(there) < wanted:
                raise Stopped(cut=True)
            self.at += wanted
            if len(record) < size and not self._continue(size - len(record)):
                return  # cut off: it ends nothing, and the next record goes on from here
        crc = struct.unpack("<I", record[20:24])[0]
        if crc32c(record[:20], crc32c(record[24:])) != crc:
            raise Stopped(cut=False)
        behind = (self.at + 7) & ~7
        if any(self.data[self.at - self.base : behind - self.base]):
            raise Stopped(cut=False)
        self.at = behind
        is_switch = record[17] == 0 and record[16] & 0xF0 == 0x40
        if is_switch and size != 24:
            raise Stopped(cut=False)
        if self.at - self.base > len(self.data):
            raise Stopped(cut=True)
        self.start = self.previous = start
        self.end = self.at
        if is_switch:
            self._skip_segment()

    def _skip_segment(self) -> None:
        """Skip what follows a switch record: no reader looks at it."""
        self.at += -self.at % self.segment_bytes

    def _check_link(self, start: int, record: bytes) -> None:
        if len(record) < 16:
            return
        (link,) = struct.unpack("<Q", record[8:16])
        if link != self.previous and (self.previous is not None or link >= start):
            raise Stopped(cut=False)


def naive_end(
    data: bytes, *, base: Lsn, begin: Lsn, segment_bytes: int
) -> tuple[int | None, int, Stopped]:
    """Return (start, end) of the last record that has ended, and why the walk did."""
    walk = NaiveWalk(data, base, segment_bytes)
    stopped = walk.walk(begin)
    return walk.start, walk.end, stopped
