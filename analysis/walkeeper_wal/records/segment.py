"""A WAL segment as one stretch of records: its page headers checked, then taken out. Pure.

    inspect_pages(headers, first_lsn) every page header at once: which pages are WAL of this place
    copy_payload(data, into)          the bytes between the headers, contiguous
    lsn_at, end_lsn_at, offset_of     payload offset ↔ LSN

Both header sizes are multiples of 8. So a record that is aligned to 8 in the file is so in the
payload, and every record is contiguous there. This is the same in 13 to 18 (xlog_internal.h). The
place of a byte is PostgreSQL's XLogBytePosToRecPtr. A record belongs to the segment in which it
starts. The payload of its rest, at the front of the segments that follow, is appended ("spill").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from walkeeper_common.lsn import WAL_PAGE_BYTES
from walkeeper_common.postgres.walpages import (
    ALL_FLAGS,
    FIRST_IS_CONTRECORD,
    FIRST_IS_OVERWRITE_CONTRECORD,
    LONG_HEADER,
    LONG_HEADER_BYTES,
    SHORT_HEADER_BYTES,
)

Bytes = npt.NDArray[np.uint8]
Column = npt.NDArray[Any]

PAGE_PAYLOAD_BYTES = WAL_PAGE_BYTES - SHORT_HEADER_BYTES
# A first page holds 16 bytes less: counted from there, all pages are alike.
LONG_HEADER_EXCESS = LONG_HEADER_BYTES - SHORT_HEADER_BYTES
# Room after a payload, so that whole words can be read at its end.
SLACK_BYTES = 64

HEADER_ROW = np.dtype(
    {
        "names": ["magic", "info", "timeline", "page_lsn", "rem_len"],
        "formats": ["<u2", "<u2", "<u4", "<u8", "<u4"],
        "offsets": [0, 2, 4, 8, 16],
        "itemsize": SHORT_HEADER_BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class Pages:
    """The page headers of a segment. `good`: the page is WAL of this place in this log."""

    magic: int
    info: Column
    timeline: Column
    rem_len: Column
    good: npt.NDArray[np.bool_]
    overwrites: npt.NDArray[np.bool_]
    """The record before was never finished; another one starts with this page."""

    @property
    def count(self) -> int:
        return len(self.good)

    def entry_offset(self, page: int) -> int:
        """Return the payload offset of the first record that starts at or after `page`."""
        skipped = 0
        if self.info[page] & FIRST_IS_CONTRECORD:
            skipped = (int(self.rem_len[page]) + 7) & ~7
        return page_offset(page) + skipped

    def breaks(self) -> list[int]:
        """Return the pages that do not continue the one before: damaged and overwriting ones."""
        found: list[int] = np.flatnonzero(~self.good | self.overwrites).tolist()
        return found


def page_headers(data: Bytes) -> Column:
    """Return rows of HEADER_ROW, one for each whole page; a view."""
    count = len(data) // WAL_PAGE_BYTES
    headers: Column = np.ndarray(
        shape=(count,), dtype=HEADER_ROW, buffer=data.data, strides=(WAL_PAGE_BYTES,)
    )
    return headers


def inspect_pages(headers: Column, first_lsn: int) -> Pages:
    """Return what the page headers of a segment show; the segment belongs at `first_lsn`."""
    count = len(headers)
    info = headers["info"].copy()
    expected = np.arange(count, dtype=np.uint64) * np.uint64(WAL_PAGE_BYTES) + np.uint64(first_lsn)
    is_first = np.arange(count) == 0
    good = (headers["page_lsn"] == expected) & (info & ~np.uint16(ALL_FLAGS) == 0)
    good &= ((info & LONG_HEADER) != 0) == is_first
    magics = headers["magic"]
    # One version wrote a segment. A first page of another magic is as damaged as any other.
    magic = int(magics[0]) if count and good[0] else 0
    alike = magics == magic
    if not alike.all():
        values, counts = np.unique(magics[good], return_counts=True)
        magic = int(values[counts.argmax()]) if len(values) else 0
        alike = magics == magic
    good &= alike
    overwrites = good & ((info & FIRST_IS_OVERWRITE_CONTRECORD) != 0)
    return Pages(
        magic, info, headers["timeline"].copy(), headers["rem_len"].copy(), good, overwrites
    )


def payload_bytes(size: int) -> int:
    """Return the payload's size in the first `size` bytes (whole pages) of a segment."""
    pages = size // WAL_PAGE_BYTES
    return pages * PAGE_PAYLOAD_BYTES - LONG_HEADER_EXCESS if pages else 0


def whole_pages(data: Bytes) -> tuple[Bytes, int]:
    """Return the data with a cut-off last page filled up, and the real size of the payload.

    The last page is filled up only if its header is there.
    """
    size = len(data)
    over = size % WAL_PAGE_BYTES
    if over < (SHORT_HEADER_BYTES if size > WAL_PAGE_BYTES else LONG_HEADER_BYTES):
        return data, payload_bytes(size)
    filled: Bytes = np.concatenate([data, np.zeros(WAL_PAGE_BYTES - over, np.uint8)])
    return filled, offset_of(size)


def copy_payload(data: Bytes, into: Bytes) -> int:
    """Copy whole pages, without headers, to the front of `into`; return the payload's size."""
    pages = len(data) // WAL_PAGE_BYTES
    if not pages:
        return 0
    first = WAL_PAGE_BYTES - LONG_HEADER_BYTES
    total = payload_bytes(len(data))
    into[:first] = data[LONG_HEADER_BYTES:WAL_PAGE_BYTES]
    rest = data[WAL_PAGE_BYTES : pages * WAL_PAGE_BYTES].reshape(pages - 1, WAL_PAGE_BYTES)
    into[first:total].reshape(pages - 1, PAGE_PAYLOAD_BYTES)[:] = rest[:, SHORT_HEADER_BYTES:]
    return total


def page_offset(page: int) -> int:
    """Return the payload offset of a page's first byte after its header."""
    return page * PAGE_PAYLOAD_BYTES - LONG_HEADER_EXCESS if page else 0


def page_at(offset: int) -> int:
    """Return the page that holds a payload offset."""
    return (offset + LONG_HEADER_EXCESS) // PAGE_PAYLOAD_BYTES


def offset_of(position: int) -> int:
    """Return the payload offset of the byte at `position`; for a header, that of the next byte."""
    page, within = divmod(position, WAL_PAGE_BYTES)
    header = SHORT_HEADER_BYTES if page else LONG_HEADER_BYTES
    return page_offset(page) + max(within - header, 0)


def lsn_at(offsets: Column, first_lsn: int, segment_bytes: int) -> Column:
    """Return the LSNs of payload offsets, as int64; those past the segment are the spill's."""
    held = payload_bytes(segment_bytes)
    places = offsets.astype(np.int64)
    if len(places) and places.max() >= held:
        segments = places // held
        places += segments * (segment_bytes - held)
        pages = (places - segments * segment_bytes + LONG_HEADER_EXCESS) // PAGE_PAYLOAD_BYTES
    else:
        pages = (places + LONG_HEADER_EXCESS) // PAGE_PAYLOAD_BYTES
    lsns: Column = places + pages * SHORT_HEADER_BYTES
    lsns += first_lsn + LONG_HEADER_BYTES
    return lsns


def lsn_of(offset: int, first_lsn: int, segment_bytes: int) -> int:
    """Return the same as lsn_at for one offset: without an array, twenty times faster."""
    segments, place = divmod(offset, payload_bytes(segment_bytes))
    page, within = divmod(place + LONG_HEADER_EXCESS, PAGE_PAYLOAD_BYTES)
    before = first_lsn + segments * segment_bytes
    return before + page * WAL_PAGE_BYTES + within + SHORT_HEADER_BYTES


def end_lsn_at(ends: Column, first_lsn: int, segment_bytes: int) -> Column:
    """Return EndRecPtr of records that end (aligned to 8) at payload offsets.

    If a record ends with its page, that is the page's boundary, not the end of the next header.
    """
    lsns: Column = lsn_at(ends.astype(np.int64) - 8, first_lsn, segment_bytes) + 8
    return lsns
