"""Positions in the write-ahead log, and the names of the files that hold them.

An LSN is a byte offset into the WAL of one cluster. It prints the way PostgreSQL prints it
(`0/16B3748`) and is an `int` everywhere else, so `struct` can pack it and `max` can compare it.
Names and arithmetic of segments follow PostgreSQL's xlog_internal.h.
"""

from __future__ import annotations

import re
from typing import overload

WAL_PAGE_BYTES = 8192
SEGMENT_BYTES_MIN = 1 << 20
SEGMENT_BYTES_MAX = 1 << 30
SEGMENT_NAME = re.compile(r"[0-9A-F]{24}")


class Lsn(int):
    """A position in the log. LSN + bytes is an LSN, and LSN - LSN is a number of bytes."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Parse `0/16B3748` (1 to 8 hexadecimal digits on each side), or raise ValueError."""
        if not re.fullmatch(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}", text):
            raise ValueError(f"not an LSN: {text!r}")
        high, _, low = text.partition("/")
        return cls(int(high, 16) << 32 | int(low, 16))

    def __add__(self, size: int) -> Lsn:
        return Lsn(int(self) + size)

    @overload
    def __sub__(self, other: Lsn) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __sub__(self, other: int) -> Lsn: ...
    def __sub__(self, other: int) -> int:
        difference = int(self) - int(other)
        return difference if isinstance(other, Lsn) else Lsn(difference)

    def round_down(self, unit: int) -> Lsn:
        """Return the last multiple of `unit` (a page, a segment) at or below this position."""
        return Lsn(int(self) - int(self) % unit)

    def round_up(self, unit: int) -> Lsn:
        """Return the first multiple of `unit` at or above this position."""
        return Lsn(-(-int(self) // unit) * unit)

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    __repr__ = __str__


ZERO_LSN = Lsn(0)
LSN_MAX = Lsn(2**64 - 1)


def segment_name(timeline: int, lsn: Lsn, segment_bytes: int) -> str:
    """Return the 24-digit name of the segment that holds `lsn`, as PostgreSQL writes it."""
    number = int(lsn) // segment_bytes
    per_log = (1 << 32) // segment_bytes
    return f"{timeline:08X}{number // per_log:08X}{number % per_log:08X}"


def parse_segment_name(name: str, segment_bytes: int) -> tuple[int, Lsn]:
    """Return (timeline, first LSN) of a segment file's name, or raise ValueError if it is none."""
    if not SEGMENT_NAME.fullmatch(name):
        raise ValueError(f"not a WAL segment's name: {name!r}")
    log, offset = int(name[8:16], 16), int(name[16:24], 16)
    if offset >= (1 << 32) // segment_bytes:
        raise ValueError(f"{name} does not belong to segments of {segment_bytes} bytes")
    return int(name[:8], 16), Lsn((log << 32) + offset * segment_bytes)


def is_segment_size(size: int) -> bool:
    """Return True if initdb --wal-segsize takes this size: a power of two, 1 MiB to 1 GiB."""
    return SEGMENT_BYTES_MIN <= size <= SEGMENT_BYTES_MAX and size & (size - 1) == 0
