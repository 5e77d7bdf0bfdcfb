"""Changes of a heap page's items, as bufpage.c makes them. Part of _redo.pyx."""


cdef int64_t add_item(Bytes page, int64_t number, int64_t size) noexcept nogil:
    """Add an item at a free place or the next one; return its bytes' place, or an error.

    This is PageAddItem.
    """
    cdef int64_t lower = get16(page, LOWER), upper = get16(page, UPPER)
    cdef int64_t count = item_count(page), item
    if number < 1 or number > count + 1:
        return NO_ITEM
    if number == count + 1:
        lower += 4
    else:
        item = get_item(page, number)
        if item >> 15 & 3 != UNUSED or item >> 17 != 0:
            return TAKEN
    upper -= (size + 7) & ~<int64_t>7
    if lower > upper:
        return NO_ROOM
    put_item(page, number, upper | NORMAL << 15 | size << 17)
    put16(page, LOWER, lower)
    put16(page, UPPER, upper)
    return upper


cdef void truncate_items(Bytes page) noexcept nogil:
    """Remove unused items at the end, except the first item, as PageTruncateLinePointerArray
    does."""
    cdef int64_t count = item_count(page)
    while count > 1 and get_item(page, count) >> 15 & 3 == UNUSED:
        count -= 1
    put16(page, LOWER, HEADER_BYTES + 4 * count)


cdef void sort_by_place(Bytes page, int64_t *numbers, int64_t count) noexcept nogil:
    """Sort items by their places, the highest first; they nearly are so already."""
    cdef int64_t k, z, number, place
    for k in range(1, count):
        number = numbers[k]
        place = get_item(page, number) & 0x7FFF
        z = k
        while z > 0 and get_item(page, numbers[z - 1]) & 0x7FFF < place:
            numbers[z] = numbers[z - 1]
            z -= 1
        numbers[z] = number


cdef int64_t repair_fragmentation(Bytes page, Bytes scratch, int64_t major) noexcept nogil:
    """Move tuples to the end of the page, without gaps, as PageRepairFragmentation does.

    Tuples move in the order of their items since 14, by their place in 13. Since 15 unused items at
    the end go, too.
    """
    cdef int64_t numbers[ITEMS_MAX]
    cdef int64_t count = item_count(page), stored = 0, last = 0
    cdef int64_t k, number, item, place, length, upper
    if count > ITEMS_MAX:
        return NO_ITEM
    for number in range(1, count + 1):
        item = get_item(page, number)
        if item >> 15 & 3 == UNUSED:
            put_item(page, number, 0)
            continue
        last = number
        if item >> 17 != 0:
            if (item & 0x7FFF) + (item >> 17) > PAGE_BYTES:
                return NO_ITEM
            numbers[stored] = number
            stored += 1
    upper = get16(page, SPECIAL)
    if stored:
        if major < 14:
            sort_by_place(page, numbers, stored)
        copy(scratch, 0, page, 0, PAGE_BYTES)
        for k in range(stored):
            number = numbers[k]
            item = get_item(page, number)
            place, length = item & 0x7FFF, item >> 17
            upper -= (length + 7) & ~<int64_t>7
            if upper < get16(page, LOWER):
                return NO_ROOM
            # Padding is no part of a tuple: it becomes zeros.
            copy(page, upper, scratch, place, length)
            zero(page, upper + length, -length & 7)
            put_item(page, number, upper | item & ~<int64_t>0x7FFF)
    put16(page, UPPER, upper)
    if last != count and major >= 15:
        put16(page, LOWER, HEADER_BYTES + 4 * last)
    return 0


cdef void set_prunable(Bytes page, int64_t xid) noexcept nogil:
    """Set the oldest transaction whose tuples can be pruned later, as PageSetPrunable does."""
    cdef int64_t known = get32(page, PRUNE_XID)
    if known < 3 or (xid - known) & <int64_t>0xFFFFFFFF >= <int64_t>0x80000000:
        put32(page, PRUNE_XID, xid)
