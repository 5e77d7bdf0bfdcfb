"""The fast engine: the walk as one compiled loop, a record after the other.

Contract: that of `walk`. walk_numpy has the same output and is tested against it. The code is
compiled at the first use (seconds) and kept in numba's cache (NUMBA_CACHE_DIR). It does not hold
the global interpreter lock, so threads walk segments side by side. The loop's callees are inlined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from walkeeper_common.postgres.walpages import RECORD_BYTES_MAX
from walkeeper_wal.records.crc32c_numba import update_byte, update_word, update_words
from walkeeper_wal.records.numba_kept import kept
from walkeeper_wal.records.segment import LONG_HEADER_EXCESS, PAGE_PAYLOAD_BYTES, payload_bytes
from walkeeper_wal.records.stops import Stop
from walkeeper_wal.records.walk import (
    BLOCK_ID_MAX,
    BLOCKS_PER_RECORD_MAX,
    HAS_DATA,
    HAS_IMAGE,
    ID_LONG_DATA,
    ID_ORIGIN,
    ID_SHORT_DATA,
    ID_TOPLEVEL_XID,
    IMAGE_HAS_HOLE,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RMGR_XLOG,
    SAME_REL,
    XLOG_SWITCH,
    Buffers,
    Walked,
    WalkRequest,
)

_END, _FULL, _SWITCH, _ZERO = int(Stop.END), int(Stop.FULL), int(Stop.SWITCH), int(Stop.ZERO)
_INCOMPLETE, _LENGTH = int(Stop.INCOMPLETE), int(Stop.LENGTH)
_PREV_LINK, _CRC, _HEADERS = int(Stop.PREV_LINK), int(Stop.CRC), int(Stop.HEADERS)
ANY_LOWER = -1


@njit(inline="always")
def _u16(b: Any, p: Any) -> Any:
    return np.int64(b[p]) | np.int64(b[p + 1]) << 8


@njit(inline="always")
def _u32(b: Any, p: Any) -> Any:
    return (
        np.int64(b[p])
        | np.int64(b[p + 1]) << 8
        | np.int64(b[p + 2]) << 16
        | np.int64(b[p + 3]) << 24
    )


@njit(inline="always")
def _lsn(offset: Any, first_lsn: Any) -> Any:
    place = offset + LONG_HEADER_EXCESS
    page = place // PAGE_PAYLOAD_BYTES
    return first_lsn + page * PAGE_BYTES + place - page * PAGE_PAYLOAD_BYTES + 24


@kept
def _crc_of(b: Any, w: Any, begin: Any, end: Any) -> Any:
    """Return the CRC over the data, then over the header up to the CRC itself."""
    crc = update_words(np.uint64(0xFFFFFFFF), w, (begin + RECORD_HEADER_BYTES) >> 3, end >> 3)
    for p in range(max(begin + RECORD_HEADER_BYTES, end & ~7), end):
        crc = update_byte(crc, b[p])
    crc = update_word(crc, w[begin >> 3])
    crc = update_word(crc, w[(begin >> 3) + 1])
    for q in range(begin + 16, begin + 20):
        crc = update_byte(crc, b[q])
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


@kept
def _block(b: Any, p: Any, stop: Any, mask: Any, blocks: Any, k: Any, first: Any) -> Any:
    """Read the block header at `p` into row `k`; return the place after it, -1 if it is wrong."""
    row = blocks[k]
    if stop - p < 4:
        return np.int64(-1)
    flags, data_length = np.int64(b[p + 1]), _u16(b, p + 2)
    if k > first and np.int64(b[p]) <= np.int64(blocks[k - 1].block_id):
        return np.int64(-1)
    if (flags & HAS_DATA != 0) != (data_length != 0):
        return np.int64(-1)
    row.block_id, row.flags, row.data_length, row.padding = b[p], b[p + 1], data_length, 0
    p += 4
    image_length, info, hole, hole_length = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if flags & HAS_IMAGE:
        if stop - p < 7:
            return np.int64(-1)
        image_length, hole, info = _u16(b, p), _u16(b, p + 2), np.int64(b[p + 4])
        p += 5
        if info & IMAGE_HAS_HOLE and info & mask:
            hole_length = _u16(b, p)
            p += 2
        elif info & IMAGE_HAS_HOLE:
            hole_length = PAGE_BYTES - image_length
        if image_length > PAGE_BYTES or hole + hole_length > PAGE_BYTES:
            return np.int64(-1)
    row.image_length, row.image_info = image_length, info
    row.hole_offset, row.hole_length = hole, hole_length
    if flags & SAME_REL:
        if k == first:
            return np.int64(-1)
        above = blocks[k - 1]
        row.tablespace, row.database = above.tablespace, above.database
        row.relfilenode = above.relfilenode
    else:
        if stop - p < 12:
            return np.int64(-1)
        row.tablespace, row.database = _u32(b, p), _u32(b, p + 4)
        row.relfilenode = _u32(b, p + 8)
        p += 12
    if stop - p < 4:
        return np.int64(-1)
    row.block_number = _u32(b, p)
    return p + 4


@kept
def _headers(
    b: Any, p: Any, stop: Any, mask: Any, records: Any, n: Any, blocks: Any, k: Any
) -> Any:
    """Read record `n`'s headers from `p` on; return its number of blocks, -1 if they are wrong."""
    row = records[n]
    row.origin, row.toplevel_xid, row.main_length = 0, 0, 0
    total, fpi, first = np.int64(0), np.int64(0), k
    while stop - p > total:
        kind, left = np.int64(b[p]), stop - p
        if kind <= BLOCK_ID_MAX:
            p = _block(b, p, stop, mask, blocks, k, first)
            if p < 0:
                return np.int64(-1)
            image_length = np.int64(blocks[k].image_length)
            fpi += image_length
            total += image_length + np.int64(blocks[k].data_length)
            k += 1
        elif kind == ID_SHORT_DATA and left >= 2:
            row.main_length = b[p + 1]
            total += np.int64(b[p + 1])
            p += 2
            break  # by PostgreSQL's convention the last of the headers
        elif kind == ID_LONG_DATA and left >= 5:
            row.main_length = _u32(b, p + 1)
            total += _u32(b, p + 1)
            p += 5
            break
        elif kind == ID_ORIGIN and left >= 3:
            row.origin = _u16(b, p + 1)
            p += 3
        elif kind == ID_TOPLEVEL_XID and left >= 5:
            row.toplevel_xid = _u32(b, p + 1)
            p += 5
        else:
            return np.int64(-1)
    if stop - p != total:
        return np.int64(-1)
    for j in range(first, k):
        blocks[j].record = n
        blocks[j].image_offset = p
        p += np.int64(blocks[j].image_length)
        blocks[j].data_offset = p
        p += np.int64(blocks[j].data_length)
    row.main_offset, row.fpi_length, row.block_count = p, fpi, k - first
    return k - first


@kept
def _walk(
    b: Any, w: Any, begin: Any, end: Any, available: Any, first_lsn: Any, previous: Any,
    check_crc: Any, mask: Any, records: Any, blocks: Any,
) -> Any:  # fmt: skip
    """Return (records, block references, the reason to stop, the place)."""
    n, k, offset = np.int64(0), np.int64(0), begin
    while offset < end:
        if n == len(records) or k + BLOCKS_PER_RECORD_MAX > len(blocks):
            return n, k, _FULL, offset
        length = _u32(b, offset)
        if length == 0:
            return n, k, _ZERO, offset
        if length < RECORD_HEADER_BYTES or length > RECORD_BYTES_MAX:
            return n, k, _LENGTH, offset
        if length > available - offset:
            return n, k, _INCOMPLETE, offset
        prev, lsn = np.int64(w[(offset >> 3) + 1]), _lsn(offset, first_lsn)
        if previous == ANY_LOWER:
            wrong = prev < 0 or prev >= lsn
        else:
            wrong = prev != previous
        if wrong:
            return n, k, _PREV_LINK, offset
        if check_crc and _crc_of(b, w, offset, offset + length) != _u32(b, offset + 20):
            return n, k, _CRC, offset
        row = records[n]
        p, stop = offset + RECORD_HEADER_BYTES, offset + length
        count = _headers(b, p, stop, mask, records, n, blocks, k)
        if count < 0:
            return n, k, _HEADERS, offset
        row.prev_lsn, row.offset, row.length, row.xid = prev, offset, length, _u32(b, offset + 4)
        row.info, row.rmid = b[offset + 16], b[offset + 17]
        n, k, previous = n + 1, k + count, lsn
        offset = (offset + length + 7) & ~7
        if row.rmid == RMGR_XLOG and row.info & 0xF0 == XLOG_SWITCH:
            return n, k, _SWITCH, offset
    return n, k, _END, offset


def walk(request: WalkRequest, buffers: Buffers) -> Walked:
    """See walkeeper_wal.records.walk."""
    payload = request.payload
    assert payload.ctypes.data % 8 == 0, "CRCs are made of whole words"
    assert request.available + 8 <= len(payload), f"{request.available=} {len(payload)=}"
    held = payload_bytes(request.segment_bytes)
    assert request.end <= held, f"{request.end=} {held=}"
    records, blocks, stop, offset = _walk(
        payload,
        payload[: len(payload) & ~7].view(np.uint64),
        request.begin,
        min(request.end, request.available),
        request.available,
        request.first_lsn,
        ANY_LOWER if request.prev_lsn is None else request.prev_lsn,
        request.check_crc,
        request.image_compressed_mask,
        buffers.records,
        buffers.blocks,
    )
    return Walked(buffers.records[:records], buffers.blocks[:blocks], Stop(stop), offset)
