"""The pages of PostgreSQL's WAL: their headers, and the arithmetic of positions over them. Pure.

A page is 8192 bytes and starts with a header of 24 bytes, of 40 at the start of a segment. Records
flow around the headers. Both sizes are multiples of 8, so a record's alignment in the file is its
alignment without headers too. Contract: this module looks at one header at a time. `walformat`
checks a header against the record before it. Layout: xlog_internal.h, the same in 13 to 18 but for
the magic.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Protocol

from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn

RECORD_BYTES_MAX = 1 << 30
SHORT_HEADER_BYTES = 24
LONG_HEADER_BYTES = 40

FIRST_IS_CONTRECORD = 0x0001
LONG_HEADER = 0x0002
BKP_REMOVABLE = 0x0004  # on most pages, of no meaning here
FIRST_IS_OVERWRITE_CONTRECORD = 0x0008
ALL_FLAGS = 0x000F
FLAGS_OFFSET = 2  # the offset in a page's header

MAGICS = 0xD100  # PostgreSQL 13 to 18 differ in the last byte
PAGE_HEADER = Struct("<HHIQII")  # magic, info, timeline, pageaddr, rem_len, padding
PAGE_START = Struct("<HHIQ")  # the same without what follows pageaddr
LONG_HEADER_REST = Struct("<QII")  # system identifier, segment size, page size


class WalBytes(Protocol):
    """The source of WAL: `read` returns all of [begin, end), page headers included, or raises."""

    def read(self, begin: Lsn, end: Lsn) -> bytes: ...


@dataclass(frozen=True, slots=True)
class PageHeader:
    """The header in front of each page; `system_id` and the sizes only at a segment's start."""

    magic: int
    info: int
    timeline: int
    page_lsn: Lsn
    rem_len: int
    padding: int
    system_id: int | None = None
    segment_bytes: int | None = None
    page_bytes: int | None = None

    @property
    def continues_record(self) -> bool:
        return bool(self.info & FIRST_IS_CONTRECORD)

    @property
    def overwrites_record(self) -> bool:
        """The record before was never finished; it ends here, and another one starts."""
        return bool(self.info & FIRST_IS_OVERWRITE_CONTRECORD)


def page_header(data: Buffer) -> PageHeader:
    """Return the header at the front of a page. It needs 24 bytes, and the long one's rest 40."""
    magic, info, timeline, address, rem_len, padding = PAGE_HEADER.unpack_from(data)
    header = PageHeader(magic, info, timeline, Lsn(address), rem_len, padding)
    if not info & LONG_HEADER or len(data) < LONG_HEADER_BYTES:
        return header
    rest = LONG_HEADER_REST.unpack_from(data, SHORT_HEADER_BYTES)
    return PageHeader(magic, info, timeline, Lsn(address), rem_len, padding, *rest)


def overwriting_pages(position: int, wal: Buffer) -> list[int]:
    """List where pages with XLP_FIRST_IS_OVERWRITE_CONTRECORD start, as offsets in `wal`.

    `wal` lies at `position` of the log, or of a segment. An offset of -1 or -2 is a page that
    starts right before it.
    """
    found = []
    for flags in range((FLAGS_OFFSET - position) % WAL_PAGE_BYTES, len(wal), WAL_PAGE_BYTES):
        if wal[flags] & FIRST_IS_OVERWRITE_CONTRECORD:
            found.append(flags - FLAGS_OFFSET)
    return found


def page_flaw(begin_lsn: int, wal: Buffer) -> str | None:
    """Return why these bytes at an LSN are no WAL of 13 to 18, or None; in some us for 128 KiB.

    It looks at the first 16 bytes of each page that starts in them. Zeros pass, for pg_switch_wal
    pads with them. So does a header of another place: a server that dies in it leaves older pages.
    """
    for at in range(-begin_lsn % WAL_PAGE_BYTES, len(wal) - PAGE_START.size + 1, WAL_PAGE_BYTES):
        magic, _, _, page_lsn = PAGE_START.unpack_from(wal, at)
        if magic & 0xFF00 == MAGICS and page_lsn % WAL_PAGE_BYTES == 0:
            continue
        begins = bytes(wal[at : at + PAGE_START.size])
        if any(begins):
            return f"the page at {Lsn(begin_lsn + at)} begins with {begins.hex()}"
    return None


def header_bytes(page_lsn: Lsn, segment_bytes: int) -> int:
    """Return the size of the header at a page's start: the long one at a segment's first page."""
    return SHORT_HEADER_BYTES if page_lsn % segment_bytes else LONG_HEADER_BYTES


def aligned(size: int) -> int:
    """Align to MAXALIGN: records start at multiples of 8."""
    return (size + 7) & ~7


def skip_payload(page_lsn: Lsn, size: int, segment_bytes: int) -> Lsn:
    """Return where `size` bytes that begin at a page's start end, headers between them not counted.

    A page boundary if they end at a page's end, as in EndRecPtr; `page_lsn` itself for none.
    """
    assert page_lsn % WAL_PAGE_BYTES == 0, f"{page_lsn=}"
    pages = segment_bytes // WAL_PAGE_BYTES
    per_segment = segment_bytes - LONG_HEADER_BYTES - (pages - 1) * SHORT_HEADER_BYTES
    segment, offset = divmod(int(page_lsn), segment_bytes)
    page = offset // WAL_PAGE_BYTES
    before = page * (WAL_PAGE_BYTES - SHORT_HEADER_BYTES)
    before -= LONG_HEADER_BYTES - SHORT_HEADER_BYTES if page else 0
    whole, rest = divmod(segment * per_segment + before + size, per_segment)
    end = Lsn(whole * segment_bytes)
    if rest <= WAL_PAGE_BYTES - LONG_HEADER_BYTES:
        in_page = rest + LONG_HEADER_BYTES if rest else 0
        return end + in_page
    rest -= WAL_PAGE_BYTES - LONG_HEADER_BYTES
    pages, in_page = divmod(rest, WAL_PAGE_BYTES - SHORT_HEADER_BYTES)
    return end + (1 + pages) * WAL_PAGE_BYTES + (in_page + SHORT_HEADER_BYTES if in_page else 0)


def header_error(header: PageHeader, page_lsn: Lsn, segment_bytes: int) -> str | None:
    """Return the error in a whole page header, or None, without a look at what comes before it."""
    at_start = page_lsn % segment_bytes == 0
    if header.magic == 0:
        return f"no page header at {page_lsn}"
    if header.info & ~ALL_FLAGS or bool(header.info & LONG_HEADER) != at_start:
        return f"invalid flags {header.info:04X} in the page header at {page_lsn}"
    if header.page_lsn != page_lsn:
        return f"unexpected pageaddr {header.page_lsn} in the page at {page_lsn}"
    if at_start and (header.segment_bytes, header.page_bytes) != (segment_bytes, WAL_PAGE_BYTES):
        return (
            f"the page at {page_lsn} is of segments of {header.segment_bytes} bytes and pages of "
            f"{header.page_bytes}, not {segment_bytes} and {WAL_PAGE_BYTES}"
        )
    if header.continues_record and not 0 < header.rem_len <= RECORD_BYTES_MAX:
        return f"invalid contrecord length {header.rem_len} at {page_lsn}"
    if header.padding or (header.rem_len and not header.continues_record):
        return f"there is data where the page header at {page_lsn} has zeros"
    return None
