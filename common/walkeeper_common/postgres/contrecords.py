"""The end of a record that goes on at some place, read from the header of one page alone. Pure.

    unfinished_end      the end of the record that goes on where the WAL ends
    head_end            the end of the record inside which a log starts
    is_switch_tail      whether the end of a record is that of an XLOG_SWITCH

If a record goes on from the page before, rem_len in a page's header is the size of its rest:
PostgreSQL's "contrecord" (xlog_internal.h). Only the header itself is checked here; walformat walks
the records.
"""

from __future__ import annotations

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import (
    LONG_HEADER_BYTES,
    WalBytes,
    aligned,
    header_bytes,
    header_error,
    page_header,
    skip_payload,
)

RECORD_HEADER_BYTES = 24
RMGR_XLOG = 0
XLOG_SWITCH = 0x40


def unfinished_end(wal: WalBytes, *, limit_lsn: Lsn, segment_bytes: int) -> Lsn | None:
    """Return where the record will end that goes on at `limit_lsn`.

    Return None if no record goes on there, or if the last page's header is not there yet. That
    header alone is read.
    """
    page_lsn = Lsn(limit_lsn - 1).round_down(WAL_PAGE_BYTES)
    size = header_bytes(page_lsn, segment_bytes)
    if page_lsn + size > limit_lsn:
        return None
    header = page_header(wal.read(page_lsn, page_lsn + size))
    if header_error(header, page_lsn, segment_bytes) or not header.continues_record:
        return None
    end = skip_payload(page_lsn, aligned(header.rem_len), segment_bytes)
    return end if end > limit_lsn else None


def head_end(wal: WalBytes, *, first_lsn: Lsn, segment_bytes: int) -> Lsn:
    """Return where the record ends inside which a log starts.

    Return `first_lsn` if the log starts with a record, or if its first page is not there. Only the
    beginning of that page is read.
    """
    header = page_header(wal.read(first_lsn, first_lsn + LONG_HEADER_BYTES))
    if header_error(header, first_lsn, segment_bytes) or not header.continues_record:
        return first_lsn
    return skip_payload(first_lsn, aligned(header.rem_len), segment_bytes)


def is_switch_tail(page: memoryview, offset: int, rem_len: int) -> bool:
    """Return True if an XLOG_SWITCH that started on an earlier page ends here.

    A switch is a bare header, so 8 or 16 bytes of it can come over, with info and rmid in them.
    """
    if rem_len not in (8, 16):
        return False
    head = bytes(16 - (rem_len - 8)) + bytes(page[offset : offset + rem_len])
    info, rmid, padding = head[16], head[17], head[18:20]
    return rmid == RMGR_XLOG and info & 0xF0 == XLOG_SWITCH and not any(padding)
