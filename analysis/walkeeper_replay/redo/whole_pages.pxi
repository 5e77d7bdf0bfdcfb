"""Pages that come from files: their checksums and their layout. Part of _redo.pyx."""

cdef enum:
    LANES = 32
    LANE_WORDS = 64
    CHECKSUM = 8
    FLAG_BITS = 7

# checksum_impl.h
cdef uint32_t[LANES] LANE_SEEDS
LANE_SEEDS[:] = [
    0x5B1F36E9, 0xB8525960, 0x02AB50AA, 0x1DE66D2A, 0x79FF467A, 0x9BB9F8A3, 0x217E7CD2,
    0x83E13D2C, 0xF8D4474F, 0xE39EB970, 0x42C6AE16, 0x993216FA, 0x7B093B5D, 0x98DAFF3C,
    0xF718902A, 0x0B1C9CDB, 0xE58F764B, 0x187636BC, 0x5D7B3BB1, 0xE73DE7DE, 0x92BEC979,
    0xCCA6C0B2, 0x304A0979, 0x85AA43D4, 0x783125BB, 0x6CA8EAA2, 0xE407EAC6, 0x4B5CFC3E,
    0x9FBF8C76, 0x15CA20BE, 0xF2CA9FD3, 0x959BD756,
]


cdef inline uint32_t mixed(uint32_t sum, uint32_t word) noexcept nogil:
    cdef uint32_t both = sum ^ word
    return both * 16777619 ^ both >> 17


cdef int64_t checksum_of(const uint8_t *page, int64_t block) noexcept nogil:
    """Return the checksum that the page would have as this block."""
    cdef uint32_t sums[LANES]
    cdef uint32_t word, whole = 0
    cdef const uint32_t *words = <const uint32_t *>page
    cdef int64_t lane, row
    for lane in range(LANES):
        sums[lane] = LANE_SEEDS[lane]
    for row in range(LANE_WORDS):
        for lane in range(LANES):
            word = words[row * LANES + lane]
            if row == 0 and lane == CHECKSUM // 4:
                word = word >> 16 << 16
            sums[lane] = mixed(sums[lane], word)
    for lane in range(LANES):
        sums[lane] = mixed(mixed(sums[lane], 0), 0)
        whole ^= sums[lane]
    return (whole ^ <uint32_t>block) % 65535 + 1


cdef bint is_heap_layout(Bytes page) noexcept nogil:
    """Return whether each item of a heap page lies where a server puts it."""
    cdef int64_t number, item, place, length, count, upper = get16(page, UPPER)
    cdef int64_t special = get16(page, SPECIAL), hoff
    if not is_sane(page) or get16(page, SIZE_VERSION) != PAGE_BYTES | 4:
        return False
    if (get16(page, LOWER) - HEADER_BYTES) & 3:
        return False
    count = item_count(page)
    for number in range(1, count + 1):
        item = get_item(page, number)
        place, length = item & 0x7FFF, item >> 17
        if item >> 15 & 3 == REDIRECT and not (1 <= place <= count and length == 0):
            return False
        if item >> 15 & 3 != NORMAL:
            continue
        if place & 7 or place < upper or length < TUPLE_HEADER_BYTES + 1:
            return False
        if place + length > special:
            return False
        hoff = get8(page, place + HOFF)
        if hoff & 7 or hoff < TUPLE_HEADER_BYTES or hoff > length:
            return False
    return True


cdef bint is_verified(Bytes page, int64_t block, bint have_checksums) noexcept nogil:
    cdef int64_t k, lower = get16(page, LOWER), upper = get16(page, UPPER)
    cdef int64_t special = get16(page, SPECIAL)
    if upper == 0:
        for k in range(PAGE_BYTES):
            if page.at[k]:
                return False
        return True
    if have_checksums and get16(page, CHECKSUM) != checksum_of(page.at, block):
        return False
    if get16(page, FLAGS) & ~<int64_t>FLAG_BITS or special & 7:
        return False
    return lower <= upper and upper <= special and special <= PAGE_BYTES


def verifies(const uint8_t[::1] page, int64_t block, bint have_checksums):
    """Return whether a server would take the page of any relation from a file (PageIsVerified)."""
    cdef bint misfit = False
    assert len(page) == PAGE_BYTES, f"{len(page)=}"
    return is_verified(bytes_at(&page[0], PAGE_BYTES, &misfit), block, have_checksums)


def check_pages(
    const uint8_t[:, ::1] pages, const int64_t[::1] blocks, bint have_checksums, uint8_t[::1] out
):
    """Write 1 for each page that is not as a server writes a heap's; a new page is all zeros."""
    cdef bint misfit = False
    cdef int64_t i
    cdef Bytes page
    assert len(pages) == len(blocks) == len(out), f"{len(pages)=} {len(blocks)=} {len(out)=}"
    assert pages.shape[1] == PAGE_BYTES, f"{pages.shape[1]=}"
    with nogil:
        for i in range(pages.shape[0]):
            page = bytes_at(&pages[i, 0], PAGE_BYTES, &misfit)
            out[i] = not is_verified(page, blocks[i], have_checksums)
            if get16(page, UPPER) and not is_heap_layout(page):
                out[i] = 1
