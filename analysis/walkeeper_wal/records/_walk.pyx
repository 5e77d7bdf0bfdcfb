# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The walk as compiled C, and the sums of `history stats`: the quickest of the engines.

It is optional, as the compiled fast path of commits is. walk_numpy has the same output and is the
oracle of its tests. It does not hold the global interpreter lock, so threads walk segments side by
side. The CRC takes x86's instruction where the machine has it, else a table.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

import numpy as np

from walkeeper_wal.records import walk as _rules
from walkeeper_wal.records.segment import LONG_HEADER_EXCESS, PAGE_PAYLOAD_BYTES, payload_bytes

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    static uint32_t crc_table[256];
    static uint32_t one_lane[4][256], two_lanes[4][256];
    #define LANE_WORDS 64

    static uint32_t table_bytes(uint32_t crc, const uint8_t *at, int64_t size)
    {
        while (size-- > 0)
            crc = crc >> 8 ^ crc_table[(crc ^ *at++) & 255];
        return crc;
    }

    static void make_moved(uint32_t moved[4][256], int words)
    {
        uint32_t basis[32];
        for (int bit = 0; bit < 32; bit++) {
            uint32_t value = 1u << bit;
            for (int i = 0; i < 8 * words; i++)
                value = value >> 8 ^ crc_table[value & 255];
            basis[bit] = value;
        }
        for (int k = 0; k < 4; k++)
            for (int byte = 0; byte < 256; byte++) {
                moved[k][byte] = 0;
                for (int bit = 0; bit < 8; bit++)
                    if (byte >> bit & 1)
                        moved[k][byte] ^= basis[8 * k + bit];
            }
    }

    static void make_tables(void)
    {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t value = byte;
            for (int i = 0; i < 8; i++)
                value = value >> 1 ^ (value & 1 ? 0x82F63B78u : 0);
            crc_table[byte] = value;
        }
        make_moved(one_lane, LANE_WORDS);
        make_moved(two_lanes, 2 * LANE_WORDS);
    }

    #if defined(__x86_64__)
    #include <nmmintrin.h>

    static inline uint32_t moved(uint32_t table[4][256], uint32_t crc)
    {
        return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255]
            ^ table[3][crc >> 24];
    }

    static inline uint64_t word_at(const uint8_t *at)
    {
        uint64_t word;
        memcpy(&word, at, 8);
        return word;
    }

    /* An instruction takes three cycles and one can start in each: three lanes of a stretch. */
    __attribute__((target("sse4.2")))
    static uint32_t instruction_bytes(uint32_t crc, const uint8_t *at, int64_t size)
    {
        while (size >= 3 * 8 * LANE_WORDS) {
            uint64_t first = crc, second = 0, third = 0;
            for (int k = 0; k < LANE_WORDS; k++, at += 8) {
                first = _mm_crc32_u64(first, word_at(at));
                second = _mm_crc32_u64(second, word_at(at + 8 * LANE_WORDS));
                third = _mm_crc32_u64(third, word_at(at + 16 * LANE_WORDS));
            }
            crc = moved(two_lanes, first) ^ moved(one_lane, second) ^ (uint32_t) third;
            at += 16 * LANE_WORDS;
            size -= 24 * LANE_WORDS;
        }
        for (; size >= 8; size -= 8, at += 8)
            crc = (uint32_t) _mm_crc32_u64(crc, word_at(at));
        while (size-- > 0)
            crc = _mm_crc32_u8(crc, *at++);
        return crc;
    }

    static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
    #else
    #define instruction_bytes table_bytes
    static int has_instruction(void) { return 0; }
    #endif

    static int uses_instruction;
    static uint32_t crc_of(const uint8_t *record, int64_t length)
    {
        uint32_t (*bytes)(uint32_t, const uint8_t *, int64_t)
            = uses_instruction ? instruction_bytes : table_bytes;
        return ~bytes(bytes(~0u, record + 24, length - 24), record, 20);
    }
    """
    void make_tables() nogil
    int has_instruction() nogil
    int uses_instruction
    uint32_t table_bytes(uint32_t crc, const uint8_t *at, int64_t size) nogil
    uint32_t crc_of(const uint8_t *record, int64_t length) nogil

cdef packed struct RecordRow:
    uint64_t prev_lsn
    uint32_t offset, length, xid, toplevel_xid, main_offset, main_length, fpi_length
    uint16_t origin
    uint8_t block_count, info, rmid
    uint8_t padding[3]

cdef packed struct BlockRow:
    uint32_t record, tablespace, database, relfilenode, block_number, data_offset, image_offset
    uint16_t data_length, image_length, hole_offset, hole_length
    uint8_t block_id, flags, image_info, padding

cdef struct Place:
    int64_t begin, end, available, first_lsn, previous
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

cdef int64_t RECORD_BYTES_MAX = _rules.RECORD_BYTES_MAX
cdef int64_t EXCESS = LONG_HEADER_EXCESS
cdef int64_t PAGE_PAYLOAD = PAGE_PAYLOAD_BYTES
cdef int END = _rules.Stop.END, FULL = _rules.Stop.FULL, SWITCH = _rules.Stop.SWITCH
cdef int ZERO = _rules.Stop.ZERO, INCOMPLETE = _rules.Stop.INCOMPLETE
cdef int LENGTH = _rules.Stop.LENGTH, PREV_LINK = _rules.Stop.PREV_LINK
cdef int CRC = _rules.Stop.CRC, HEADERS = _rules.Stop.HEADERS

make_tables()
uses_instruction = has_instruction()


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
    const uint8_t *b, int64_t p, int64_t stop, uint8_t mask, BlockRow *rows, int64_t k, int64_t first
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
        prev, lsn = <int64_t>u64(b + offset + 8), lsn_at(offset, place.first_lsn)
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


def walk(request, buffers):
    """See walkeeper_wal.records.walk."""
    cdef const uint8_t[::1] payload = request.payload
    cdef uint8_t[::1] records = buffers.records.view(np.uint8), blocks = buffers.blocks.view(np.uint8)
    cdef Place place
    cdef Done done
    assert request.available + 8 <= len(request.payload), f"{request.available=}"
    held = payload_bytes(request.segment_bytes)
    assert request.end <= held, f"{request.end=} {held=}"
    place.begin, place.available = request.begin, request.available
    place.end = min(request.end, request.available)
    place.first_lsn = request.first_lsn
    place.previous = -1 if request.prev_lsn is None else request.prev_lsn
    place.records_max, place.blocks_max = len(buffers.records), len(buffers.blocks)
    place.mask, place.checks_crc = request.image_compressed_mask, request.check_crc
    with nogil:
        done = walk_rows(&payload[0], place, <RecordRow *>&records[0], <BlockRow *>&blocks[0])
    return _rules.Walked(
        buffers.records[: done.records], buffers.blocks[: done.blocks],
        _rules.Stop(done.stop), done.offset,
    )


def add_kinds(rows, uint8_t transaction, int64_t[::1] counts, int64_t[::1] sizes,
              int64_t[::1] fpi_sizes):
    """Add records to the sums by kind, as walkeeper_history.rows.stats does; sizes are whole."""
    cdef const uint8_t[::1] data = rows.view(np.uint8)
    cdef int64_t i, kind, count = len(rows)
    cdef const RecordRow *row
    assert len(counts) == len(sizes) == len(fpi_sizes) == KINDS, f"{len(counts)=}"
    if not count:
        return
    row = <const RecordRow *>&data[0]
    with nogil:
        for i in range(count):
            kind = row[i].info >> 4
            if row[i].rmid == transaction:
                kind &= 7
            kind |= <int64_t>row[i].rmid << 4
            counts[kind] += 1
            sizes[kind] += row[i].length
            fpi_sizes[kind] += row[i].fpi_length


def crc_by_table(const uint8_t[::1] data):
    """Return the CRC-32C of bytes by the table, for tests on machines with the instruction."""
    return ~table_bytes(0xFFFFFFFF, &data[0] if len(data) else NULL, len(data)) & 0xFFFFFFFF
