# cython: language_level=3
"""Bytes that no access leaves, and a heap page in them, for the compiled loops.

Contract: a read outside the bytes gives 0, and a write outside does nothing. Both set `*misfit`, so
that the caller gives up the page. Functions that give places return a negative number for a misfit.
Layout: bufpage.h, itemid.h, htup_details.h. Behaviour: bufpage.c of each version (`major`). page.py
has the same numbers for Python, and a test compares them.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memmove, memset

cdef struct Bytes:
    uint8_t *at
    int64_t size
    bint *misfit

cdef enum:
    PAGE_BYTES = 8192
    HEADER_BYTES = 24
    ITEMS_MAX = 2042
    # In a page's header.
    FLAGS = 10
    LOWER = 12
    UPPER = 14
    SPECIAL = 16
    SIZE_VERSION = 18
    PRUNE_XID = 20
    ALL_VISIBLE = 4
    # An item's flags.
    UNUSED = 0
    NORMAL = 1
    REDIRECT = 2
    DEAD = 3
    # In a tuple's header.
    XMIN = 0
    XMAX = 4
    CID = 8
    CTID = 12
    INFOMASK2 = 18
    INFOMASK = 20
    HOFF = 22
    TUPLE_HEADER_BYTES = 23
    NO_ROOM = -1
    NO_ITEM = -2
    TAKEN = -3


cdef inline Bytes bytes_at(const uint8_t *at, int64_t size, bint *misfit) noexcept nogil:
    cdef Bytes made
    made.at, made.size, made.misfit = <uint8_t *>at, size, misfit
    return made


cdef inline bint holds(Bytes b, int64_t p, int64_t size) noexcept nogil:
    """Return whether [p, p + size) is within the bytes; note a misfit if it is not."""
    if p < 0 or size < 0 or p > b.size - size:
        b.misfit[0] = True
        return False
    return True


cdef inline int64_t get8(Bytes b, int64_t p) noexcept nogil:
    return b.at[p] if holds(b, p, 1) else 0


cdef inline int64_t get16(Bytes b, int64_t p) noexcept nogil:
    if not holds(b, p, 2):
        return 0
    return b.at[p] | <int64_t>b.at[p + 1] << 8


cdef inline int64_t get32(Bytes b, int64_t p) noexcept nogil:
    if not holds(b, p, 4):
        return 0
    return (
        b.at[p] | <int64_t>b.at[p + 1] << 8 | <int64_t>b.at[p + 2] << 16
        | <int64_t>b.at[p + 3] << 24
    )


cdef inline void put8(Bytes b, int64_t p, int64_t value) noexcept nogil:
    if holds(b, p, 1):
        b.at[p] = value & 255


cdef inline void put16(Bytes b, int64_t p, int64_t value) noexcept nogil:
    if holds(b, p, 2):
        b.at[p] = value & 255
        b.at[p + 1] = value >> 8 & 255


cdef inline void put32(Bytes b, int64_t p, int64_t value) noexcept nogil:
    if holds(b, p, 4):
        b.at[p] = value & 255
        b.at[p + 1] = value >> 8 & 255
        b.at[p + 2] = value >> 16 & 255
        b.at[p + 3] = value >> 24 & 255


cdef inline void copy(
    Bytes into, int64_t at, Bytes source, int64_t begin, int64_t size
) noexcept nogil:
    """Copy bytes, all or none; the two may overlap."""
    if size and holds(into, at, size) and holds(source, begin, size):
        memmove(into.at + at, source.at + begin, size)


cdef inline void zero(Bytes b, int64_t p, int64_t size) noexcept nogil:
    if holds(b, p, size):
        memset(b.at + p, 0, size)


cdef inline void set_lsn(Bytes page, int64_t lsn) noexcept nogil:
    put32(page, 0, lsn >> 32)
    put32(page, 4, lsn & <int64_t>0xFFFFFFFF)


cdef inline int64_t get_lsn(Bytes page) noexcept nogil:
    return <int64_t>(<uint64_t>get32(page, 0) << 32 | <uint64_t>get32(page, 4))


cdef inline void initialise(Bytes page) noexcept nogil:
    zero(page, 0, PAGE_BYTES)
    put16(page, LOWER, HEADER_BYTES)
    put16(page, UPPER, PAGE_BYTES)
    put16(page, SPECIAL, PAGE_BYTES)
    put16(page, SIZE_VERSION, PAGE_BYTES | 4)


cdef inline bint is_sane(Bytes page) noexcept nogil:
    """Return whether the page can have items and tuples; a new page is all zeros."""
    cdef int64_t lower = get16(page, LOWER)
    cdef int64_t upper = get16(page, UPPER), special = get16(page, SPECIAL)
    return HEADER_BYTES <= lower and lower <= upper and upper <= special and special <= PAGE_BYTES


cdef inline bint has_own_size(Bytes page) noexcept nogil:
    """Return whether a server with blocks of this size wrote the page; a new page has no size."""
    return get16(page, UPPER) == 0 or get16(page, SIZE_VERSION) & 0xFF00 == PAGE_BYTES


cdef inline int64_t item_count(Bytes page) noexcept nogil:
    return (get16(page, LOWER) - HEADER_BYTES) >> 2


cdef inline int64_t get_item(Bytes page, int64_t number) noexcept nogil:
    return get32(page, HEADER_BYTES + 4 * (number - 1))


cdef inline void put_item(Bytes page, int64_t number, int64_t item) noexcept nogil:
    put32(page, HEADER_BYTES + 4 * (number - 1), item)


cdef inline bint has_item(Bytes page, int64_t number) noexcept nogil:
    return number >= 1 and number <= item_count(page)


cdef inline int64_t tuple_at(Bytes page, int64_t number) noexcept nogil:
    """Return the place of a normal item's tuple, or NO_ITEM if there is none."""
    cdef int64_t item, place, length
    if not has_item(page, number):
        return NO_ITEM
    item = get_item(page, number)
    if item >> 15 & 3 != NORMAL:
        return NO_ITEM
    place, length = item & 0x7FFF, item >> 17
    if length < TUPLE_HEADER_BYTES or place + length > PAGE_BYTES:
        return NO_ITEM
    return place


cdef inline int64_t tuple_length(Bytes page, int64_t number) noexcept nogil:
    return get_item(page, number) >> 17


cdef inline void set_ctid(Bytes page, int64_t place, int64_t block, int64_t number) noexcept nogil:
    put16(page, place + CTID, block >> 16 & 0xFFFF)
    put16(page, place + CTID + 2, block & 0xFFFF)
    put16(page, place + CTID + 4, number)
