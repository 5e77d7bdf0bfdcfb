"""A message in the WAL that no other branch can have written (docs/protocol.md R22). Pure.

The proposer writes it with pg_logical_emit_message: not transactional, prefix `walkeeper`, a random
nonce. It has no transaction id, so it waits for no standby, and it works while commits hang. A
message of that prefix without a whole nonce tells nothing: a user's load may write it everywhere.

    is_nonce_message(data)      whether this data of an RMGR_LOGICAL_MESSAGE record is ours
    nonce_page(end_lsn)         the page that holds the message whole, or None
    lacks_nonce(...)            whether the segment that PostgreSQL writes should get one

Layout: replication/message.h (xl_logical_message), the same in 13 to 18.
"""

from __future__ import annotations

from struct import Struct

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn

RMGR_LOGICAL_MESSAGE = 21
PREFIX = "walkeeper"
NONCE_BYTES = 16
RECORD_BYTES_MAX = 128  # a nonce's record with its header has 80 bytes in 13 to 18
QUIET_BYTES_MAX = 64 << 10
OLD_SEGMENTS = 4

_SHORT_DATA = 255  # the id of main data below 256 bytes; its length follows in one byte
_MESSAGE = Struct("<BBI?3xQQ")  # that id and length, database, transactional, prefix, message
_PREFIX = PREFIX.encode() + b"\0"
_LONG_PAGE_HEADER_BYTES = 40


def is_nonce_message(data: memoryview) -> bool:
    """Return True if this is a message of ours with a whole nonce. Never raises."""
    if len(data) != _MESSAGE.size + len(_PREFIX) + NONCE_BYTES:
        return False
    kind, size, _, transactional, prefix_bytes, nonce_bytes = _MESSAGE.unpack_from(data)
    return (
        kind == _SHORT_DATA
        and size == len(data) - 2
        and not transactional
        and (prefix_bytes, nonce_bytes) == (len(_PREFIX), NONCE_BYTES)
        and bytes(data[_MESSAGE.size : _MESSAGE.size + len(_PREFIX)]) == _PREFIX
    )


def nonce_page(end_lsn: Lsn) -> Lsn | None:
    """Return the page that holds the whole record which ends at `end_lsn`, or None.

    None means that a page's end may cut the record. The comparison looks only at records that lie
    in one page.
    """
    page_lsn = Lsn(end_lsn - 1).round_down(WAL_PAGE_BYTES)
    is_whole = end_lsn - page_lsn >= _LONG_PAGE_HEADER_BYTES + RECORD_BYTES_MAX
    return page_lsn if is_whole else None


def lacks_nonce(insert_lsn: Lsn, last_lsn: Lsn | None, *, segment_bytes: int) -> bool:
    """Return True if the segment at `insert_lsn` should get a nonce; `last_lsn` ends the last one.

    archive_timeout counts a nonce's WAL. One in each segment, from its first byte on, would make an
    idle server switch segments for ever. So a segment gets one when it holds a little WAL of the
    server's own. Segments with less WAL get one in each OLD_SEGMENTS. Otherwise a server that
    switches often would keep WAL without end.
    """
    if last_lsn is None:
        return True
    start_lsn = insert_lsn.round_down(segment_bytes)
    written = insert_lsn - start_lsn
    if last_lsn > start_lsn or written <= _LONG_PAGE_HEADER_BYTES:
        return False
    is_busy = written >= min(QUIET_BYTES_MAX, segment_bytes // 16)
    return is_busy or insert_lsn - last_lsn >= OLD_SEGMENTS * segment_bytes
