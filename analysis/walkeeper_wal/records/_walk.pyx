# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True
"""The walk as compiled C, and the sums of `history stats`: the quickest of the engines.

It is optional, as the compiled fast path of commits is. walk_numpy has the same output and is the
oracle of its tests. It does not hold the global interpreter lock, so threads walk segments side by
side. The CRC takes x86's instruction where the machine has it, else a table.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset

from walkeeper_wal.records.rows cimport BlockRow, RecordRow

import os

from walkeeper_common.postgres.walpages import RECORD_BYTES_MAX as _RECORD_BYTES_MAX
from walkeeper_wal.records.stops import Stop

cdef extern from "crc32c.h":
    void make_tables() nogil
    uint32_t crc_bytes(uint32_t crc, const uint8_t *at, int64_t size) nogil
    uint32_t table_bytes(uint32_t crc, const uint8_t *at, int64_t size) nogil
    uint32_t crc_of(const uint8_t *record, int64_t length) nogil

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv(int descriptor, const iovec *vectors, int count, int64_t offset)

cdef struct Place:
    int64_t begin, end, available, first_lsn, previous
    int64_t base  # the segment's payload offset at which the buffer begins
    int64_t records_max, blocks_max
    uint8_t mask
    bint checks_crc

cdef struct Done:
    int64_t records, blocks, offset
    int stop

# test_reading.py holds the rows against those of walk_numpy.
cdef enum:
    HEADER_BYTES = 24
    PAGE_BYTES = 8192
    BLOCK_ID_MAX = 32
    BLOCKS_PER_RECORD_MAX = 33
    HAS_IMAGE = 0x10
    HAS_DATA = 0x20
    SAME_REL = 0x80
    HAS_HOLE = 0x01
    ID_TOPLEVEL_XID = 252
    ID_ORIGIN = 253
    ID_LONG_DATA = 254
    ID_SHORT_DATA = 255
    XLOG_SWITCH = 0x40
    KINDS = 4096
    PAGE_HEADER_BYTES = 24
    EXCESS = 16  # of a segment's first header
    PAGE_PAYLOAD = PAGE_BYTES - PAGE_HEADER_BYTES

cdef int64_t RECORD_BYTES_MAX = _RECORD_BYTES_MAX
cdef int END = Stop.END, FULL = Stop.FULL, SWITCH = Stop.SWITCH
cdef int ZERO = Stop.ZERO, INCOMPLETE = Stop.INCOMPLETE
cdef int LENGTH = Stop.LENGTH, PREV_LINK = Stop.PREV_LINK
cdef int CRC = Stop.CRC, HEADERS = Stop.HEADERS

make_tables()


cdef inline uint32_t u16(const uint8_t *at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8


cdef inline uint32_t u32(const uint8_t *at) noexcept nogil:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef inline uint64_t u64(const uint8_t *at) noexcept nogil:
    return u32(at) | <uint64_t>u32(at + 4) << 32


cdef inline int64_t lsn_at(int64_t offset, int64_t first_lsn) noexcept nogil:
    cdef int64_t place = offset + EXCESS
    cdef int64_t page = place // PAGE_PAYLOAD
    return first_lsn + page * PAGE_BYTES + place - page * PAGE_PAYLOAD + 24


cdef int64_t block_header(
    const uint8_t *b, int64_t p, int64_t stop, uint8_t mask, BlockRow *rows, int64_t k,
    int64_t first
) noexcept nogil:
    """Read the block header at `p` into row `k`; return the place after it, -1 if it is wrong."""
    cdef BlockRow *row = &rows[k]
    cdef uint8_t flags, info = 0
    cdef uint32_t image_length = 0, hole = 0, hole_length = 0
    if stop - p < 4:
        return -1
    flags = b[p + 1]
    if k > first and b[p] <= rows[k - 1].block_id:
        return -1
    row.block_id, row.flags, row.data_length, row.padding = b[p], flags, u16(b + p + 2), 0
    if (flags & HAS_DATA != 0) != (row.data_length != 0):
        return -1
    p += 4
    if flags & HAS_IMAGE:
        if stop - p < 7:
            return -1
        image_length, hole, info = u16(b + p), u16(b + p + 2), b[p + 4]
        p += 5
        if info & HAS_HOLE and info & mask:
            hole_length = u16(b + p)
            p += 2
        elif info & HAS_HOLE:
            hole_length = PAGE_BYTES - image_length
        if image_length > PAGE_BYTES or hole + hole_length > PAGE_BYTES:
            return -1
    row.image_length, row.image_info = image_length, info
    row.hole_offset, row.hole_length = hole, hole_length
    if flags & SAME_REL:
        if k == first:
            return -1
        row.tablespace, row.database = rows[k - 1].tablespace, rows[k - 1].database
        row.relfilenode = rows[k - 1].relfilenode
    else:
        if stop - p < 12:
            return -1
        row.tablespace, row.database = u32(b + p), u32(b + p + 4)
        row.relfilenode = u32(b + p + 8)
        p += 12
    if stop - p < 4:
        return -1
    row.block_number = u32(b + p)
    return p + 4


cdef int64_t record_headers(
    const uint8_t *b, int64_t p, int64_t stop, uint8_t mask, RecordRow *row, uint32_t n,
    BlockRow *blocks, int64_t k
) noexcept nogil:
    """Read a record's headers from `p` on; return its number of blocks, -1 if they are wrong."""
    cdef int64_t total = 0, first = k, j
    cdef uint32_t fpi = 0
    cdef uint8_t kind
    row.origin, row.toplevel_xid, row.main_length = 0, 0, 0
    while stop - p > total:
        kind = b[p]
        if kind <= BLOCK_ID_MAX:
            p = block_header(b, p, stop, mask, blocks, k, first)
            if p < 0:
                return -1
            fpi += blocks[k].image_length
            total += <int64_t>blocks[k].image_length + blocks[k].data_length
            k += 1
        elif kind == ID_SHORT_DATA and stop - p >= 2:
            row.main_length = b[p + 1]
            total += row.main_length
            p += 2
            break  # by PostgreSQL's convention the last of the headers
        elif kind == ID_LONG_DATA and stop - p >= 5:
            row.main_length = u32(b + p + 1)
            total += row.main_length
            p += 5
            break
        elif kind == ID_ORIGIN and stop - p >= 3:
            row.origin = u16(b + p + 1)
            p += 3
        elif kind == ID_TOPLEVEL_XID and stop - p >= 5:
            row.toplevel_xid = u32(b + p + 1)
            p += 5
        else:
            return -1
    if stop - p != total:
        return -1
    for j in range(first, k):
        blocks[j].record = n
        blocks[j].image_offset = p
        p += blocks[j].image_length
        blocks[j].data_offset = p
        p += blocks[j].data_length
    row.main_offset, row.fpi_length, row.block_count = p, fpi, k - first
    return k - first


cdef Done walk_rows(
    const uint8_t *b, Place place, RecordRow *records, BlockRow *blocks
) noexcept nogil:
    cdef Done done
    cdef int64_t offset = place.begin, length, prev, lsn, count
    cdef RecordRow *row
    done.records, done.blocks, done.stop = 0, 0, END
    while offset < place.end:
        done.offset = offset
        if (done.records == place.records_max
                or done.blocks + BLOCKS_PER_RECORD_MAX > place.blocks_max):
            done.stop = FULL
            return done
        length = u32(b + offset)
        if length == 0:
            done.stop = ZERO
            return done
        if length < HEADER_BYTES or length > RECORD_BYTES_MAX:
            done.stop = LENGTH
            return done
        if length > place.available - offset:
            done.stop = INCOMPLETE
            return done
        prev, lsn = <int64_t>u64(b + offset + 8), lsn_at(offset + place.base, place.first_lsn)
        if (prev < 0 or prev >= lsn) if place.previous < 0 else prev != place.previous:
            done.stop = PREV_LINK
            return done
        if place.checks_crc and crc_of(b + offset, length) != u32(b + offset + 20):
            done.stop = CRC
            return done
        row = &records[done.records]
        count = record_headers(
            b, offset + HEADER_BYTES, offset + length, place.mask, row, done.records,
            blocks, done.blocks
        )
        if count < 0:
            done.stop = HEADERS
            return done
        row.prev_lsn, row.offset, row.length, row.xid = prev, offset, length, u32(b + offset + 4)
        row.info, row.rmid = b[offset + 16], b[offset + 17]
        done.records += 1
        done.blocks += count
        place.previous = lsn
        offset = (offset + length + 7) & ~<int64_t>7
        if row.rmid == 0 and row.info & 0xF0 == XLOG_SWITCH:
            done.stop = SWITCH
            break
    done.offset = offset
    return done


cdef inline int64_t payload_at(int64_t page) noexcept nogil:
    """Return the payload offset of a page's first byte after its header."""
    return page * PAGE_PAYLOAD - EXCESS if page else 0


cdef inline int64_t kind_of(const RecordRow *row, uint8_t transaction) noexcept nogil:
    cdef int64_t nibble = row.info >> 4
    if row.rmid == transaction:
        nibble &= 7
    return <int64_t>row.rmid << 4 | nibble


def walk(request, buffers):
    """See walkeeper_wal.records.walk."""
    from walkeeper_wal.records.walk import Walked  # with numpy, which a count does without
    cdef const uint8_t[::1] payload = request.payload
    cdef uint8_t[::1] records = buffers.records.view("u1"), blocks = buffers.blocks.view("u1")
    cdef Place place
    cdef Done done
    assert request.available + 8 <= len(request.payload), f"{request.available=}"
    held = payload_at(request.segment_bytes // PAGE_BYTES)
    assert request.end <= held, f"{request.end=} {held=}"
    place.begin, place.available = request.begin, request.available
    place.end = min(request.end, request.available)
    place.first_lsn, place.base = request.first_lsn, 0
    place.previous = -1 if request.prev_lsn is None else request.prev_lsn
    place.records_max, place.blocks_max = len(buffers.records), len(buffers.blocks)
    place.mask, place.checks_crc = request.image_compressed_mask, request.check_crc
    with nogil:
        done = walk_rows(&payload[0], place, <RecordRow *>&records[0], <BlockRow *>&blocks[0])
    return Walked(
        buffers.records[: done.records], buffers.blocks[: done.blocks],
        Stop(done.stop), done.offset,
    )


def add_kinds(rows, uint8_t transaction, int64_t[::1] counts, int64_t[::1] sizes,
              int64_t[::1] fpi_sizes):
    """Add records to the sums by kind, as walkeeper_history.rows.stats does; sizes are whole."""
    cdef const uint8_t[::1] data = rows.view("u1")
    cdef int64_t i, kind, count = len(rows)
    cdef const RecordRow *row
    assert len(counts) == len(sizes) == len(fpi_sizes) == KINDS, f"{len(counts)=}"
    if not count:
        return
    row = <const RecordRow *>&data[0]
    with nogil:
        for i in range(count):
            kind = kind_of(&row[i], transaction)
            counts[kind] += 1
            sizes[kind] += row[i].length
            fpi_sizes[kind] += row[i].fpi_length


def crc_by_table(const uint8_t[::1] data):
    """Return the CRC-32C of bytes by the table, for tests on machines with the instruction."""
    return ~table_bytes(0xFFFFFFFF, &data[0] if len(data) else NULL, len(data)) & 0xFFFFFFFF


def crc_by_best(const uint8_t[::1] data):
    """Return the CRC-32C of bytes by the instruction, or by the table where there is none."""
    return ~crc_bytes(0xFFFFFFFF, &data[0] if len(data) else NULL, len(data)) & 0xFFFFFFFF


include "_sums.pxi"
