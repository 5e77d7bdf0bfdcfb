"""Redo of Heap records on one page: insert, delete, update, lock, in-place, confirm.

Part of _redo.pyx.

Contract: `redo_heap` changes a page as PostgreSQL 13 to 18 do in recovery, and returns 0. It
returns a negative number if the page is not as the record found it. The page's content must then
not be used. Each block's page follows from its own earlier state and the record alone. Prefix and
suffix of an update are taken from the same page. So blocks can be redone in any order, and in
parallel. References to blocks of other forks never come here. Source: heapam_xlog.h, heapam.c.
"""

cdef enum:
    INSERT = 0x00
    DELETE = 0x10
    UPDATE = 0x20
    HOT_UPDATE = 0x40
    CONFIRM = 0x50
    LOCK = 0x60
    INPLACE = 0x70
    # t_infomask and t_infomask2.
    COMBOCID = 0x0020
    XMAX_EXCL = 0x0040
    XMAX_KEYSHR = 0x0010
    XMAX_LOCK_ONLY = 0x0080
    XMAX_IS_MULTI = 0x1000
    MOVED = 0xC000
    XMAX_BITS = 0x1CD0
    KEYS_UPDATED = 0x2000
    HOT_UPDATED = 0x4000
    MOVED_PARTITIONS_NUMBER = 0xFFFD
    # Flags of xl_heap_insert and similar records.
    VISIBLE_CLEARED = 1
    NEW_VISIBLE_CLEARED = 2
    ALL_FROZEN_SET = 32
    DELETE_IS_SUPER = 8
    DELETE_IS_PARTITION_MOVE = 16
    PREFIX_FROM_OLD = 0x20
    SUFFIX_FROM_OLD = 0x40
    # The pages of an update.
    SAME_PAGE = 0
    NEW_PAGE = 1
    OLD_PAGE = 2

cdef int64_t MOVED_PARTITIONS_BLOCK = 0xFFFFFFFF


cdef int64_t set_infobits(Bytes page, int64_t place, int64_t infobits) noexcept nogil:
    """Set the record's bits of xmax, after clearing HEAP_XMAX_BITS and HEAP_MOVED."""
    mask = get16(page, place + INFOMASK) & ~(XMAX_BITS | MOVED)
    mask2 = get16(page, place + INFOMASK2) & ~<int64_t>KEYS_UPDATED
    if infobits & 1:
        mask |= XMAX_IS_MULTI
    if infobits & 2:
        mask |= XMAX_LOCK_ONLY
    if infobits & 4:
        mask |= XMAX_EXCL
    if infobits & 8:
        mask |= XMAX_KEYSHR
    if infobits & 16:
        mask2 |= KEYS_UPDATED
    put16(page, place + INFOMASK, mask)
    put16(page, place + INFOMASK2, mask2)
    return mask


cdef void set_cmax(Bytes page, int64_t place) noexcept nogil:
    """Set cmax to FirstCommandId."""
    put32(page, place + CID, 0)
    put16(page, place + INFOMASK, get16(page, place + INFOMASK) & ~<int64_t>COMBOCID)


cdef void clear_all_visible(Bytes page) noexcept nogil:
    put8(page, FLAGS, get8(page, FLAGS) & ~<int64_t>ALL_VISIBLE)


cdef void set_all_visible(Bytes page) noexcept nogil:
    put8(page, FLAGS, get8(page, FLAGS) | ALL_VISIBLE)


cdef void put_header(
    Bytes page, int64_t place, Bytes b, int64_t header, int64_t xid, int64_t block, int64_t number
) noexcept nogil:
    """Write a new tuple's header from an xl_heap_header {infomask2, infomask, hoff}."""
    zero(page, place, TUPLE_HEADER_BYTES)
    put32(page, place + XMIN, xid)
    put16(page, place + INFOMASK2, get16(b, header))
    put16(page, place + INFOMASK, get16(b, header + 2))
    put8(page, place + HOFF, get8(b, header + 4))
    set_ctid(page, place, block, number)


cdef int64_t _insert(
    Bytes page, Bytes b, int64_t block, int64_t data, int64_t data_end, int64_t main, int64_t xid
) noexcept nogil:
    number, flags = get16(b, main), get8(b, main + 2)
    size = data_end - data - 5 + TUPLE_HEADER_BYTES
    if data_end - data < 5:
        return NO_ROOM
    place = add_item(page, number, size)
    if place < 0:
        return place
    put_header(page, place, b, data, xid, block, number)
    copy(page, place + TUPLE_HEADER_BYTES, b, data + 5, data_end - data - 5)
    if flags & VISIBLE_CLEARED:
        clear_all_visible(page)
    if flags & ALL_FROZEN_SET:
        set_all_visible(page)
    return 0


cdef int64_t _delete(Bytes page, Bytes b, int64_t block, int64_t main, int64_t xid) noexcept nogil:
    number, flags = get16(b, main + 4), get8(b, main + 7)
    place = tuple_at(page, number)
    if place < 0:
        return place
    mask2 = get16(page, place + INFOMASK2) & ~<int64_t>HOT_UPDATED
    put16(page, place + INFOMASK2, mask2)
    set_infobits(page, place, get8(b, main + 6))
    if flags & DELETE_IS_SUPER:
        put32(page, place + XMIN, 0)
    else:
        put32(page, place + XMAX, get32(b, main))
    set_cmax(page, place)
    set_prunable(page, xid)
    if flags & VISIBLE_CLEARED:
        clear_all_visible(page)
    if flags & DELETE_IS_PARTITION_MOVE:
        set_ctid(page, place, MOVED_PARTITIONS_BLOCK, MOVED_PARTITIONS_NUMBER)
    else:
        set_ctid(page, place, block, number)
    return 0


cdef int64_t _update_old(
    Bytes page, Bytes b, int64_t new_block, int64_t main, int64_t xid, bint is_hot
) noexcept nogil:
    """Update the old version's header; return its place."""
    flags = get8(b, main + 7)
    place = tuple_at(page, get16(b, main + 4))
    if place < 0:
        return place
    set_infobits(page, place, get8(b, main + 6))
    mask2 = get16(page, place + INFOMASK2) & ~<int64_t>HOT_UPDATED
    put16(page, place + INFOMASK2, mask2 | HOT_UPDATED if is_hot else mask2)
    put32(page, place + XMAX, get32(b, main))
    set_cmax(page, place)
    set_ctid(page, place, new_block, get16(b, main + 12))
    set_prunable(page, xid)
    if flags & VISIBLE_CLEARED:
        clear_all_visible(page)
    return place


cdef int64_t _update_new(
    Bytes page, Bytes b, int64_t block, int64_t data, int64_t data_end, int64_t main, int64_t xid,
    int64_t old, int64_t old_length
) noexcept nogil:
    """Write the new version. `old` is the old one's place, if on this page, for shared bytes."""
    flags, number = get8(b, main + 7), get16(b, main + 12)
    p, prefix, suffix = data, 0, 0
    if flags & PREFIX_FROM_OLD:
        prefix = get16(b, p)
        p += 2
    if flags & SUFFIX_FROM_OLD:
        suffix = get16(b, p)
        p += 2
    header = p
    p += 5
    own = data_end - p
    if own < 0 or (prefix + suffix and old < 0):
        return NO_ROOM
    size = TUPLE_HEADER_BYTES + own + prefix + suffix
    start = old + get8(page, old + HOFF) if old >= 0 else 0
    if start + prefix > PAGE_BYTES or old_length < suffix:
        return NO_ITEM
    place = add_item(page, number, size)
    if place < 0:
        return place
    put_header(page, place, b, header, xid, block, number)
    put32(page, place + XMAX, get32(b, main + 8))
    at = place + TUPLE_HEADER_BYTES
    before = get8(b, header + 4) - TUPLE_HEADER_BYTES if prefix else own
    if before < 0 or before > own:
        return NO_ITEM
    copy(page, at, b, p, before)
    at += before
    copy(page, at, page, start, prefix)
    at += prefix
    copy(page, at, b, p + before, own - before)
    at += own - before
    copy(page, at, page, old + old_length - suffix, suffix)
    if flags & NEW_VISIBLE_CLEARED:
        clear_all_visible(page)
    return 0


cdef int64_t _update(
    Bytes page, Bytes b, int64_t block, int64_t data, int64_t data_end, int64_t main, int64_t xid,
    bint is_hot, int64_t role, int64_t new_block
) noexcept nogil:
    old, length = -1, 0
    if role != NEW_PAGE:
        old = _update_old(page, b, new_block, main, xid, is_hot)
        if old < 0:
            return old
        length = tuple_length(page, get16(b, main + 4))
    if role == OLD_PAGE:
        return 0
    return _update_new(page, b, block, data, data_end, main, xid, old, length)


cdef int64_t _lock(Bytes page, Bytes b, int64_t block, int64_t main) noexcept nogil:
    cdef bint excl_only
    number = get16(b, main + 4)
    place = tuple_at(page, number)
    if place < 0:
        return place
    mask = set_infobits(page, place, get8(b, main + 6))
    excl_only = mask & (XMAX_IS_MULTI | XMAX_EXCL | XMAX_KEYSHR) == XMAX_EXCL
    if mask & XMAX_LOCK_ONLY or excl_only:
        put16(page, place + INFOMASK2, get16(page, place + INFOMASK2) & ~<int64_t>HOT_UPDATED)
        set_ctid(page, place, block, number)
    put32(page, place + XMAX, get32(b, main))
    set_cmax(page, place)
    return 0


cdef int64_t redo_heap(
    Bytes page, Bytes b, int64_t op, int64_t block, int64_t data, int64_t data_end, int64_t main,
    int64_t xid, int64_t role, int64_t new_block
) noexcept nogil:
    """Redo one Heap record on one page; see the module. `op` is its info without +INIT."""
    if op == INSERT:
        return _insert(page, b, block, data, data_end, main, xid)
    if op == DELETE:
        return _delete(page, b, block, main, xid)
    if op in (UPDATE, HOT_UPDATE):
        return _update(
            page, b, block, data, data_end, main, xid, op == HOT_UPDATE, role, new_block
        )
    if op == LOCK:
        return _lock(page, b, block, main)
    if op == CONFIRM:
        place = tuple_at(page, get16(b, main))
        if place >= 0:
            set_ctid(page, place, block, get16(b, main))
        return min(place, 0)
    if op == INPLACE:
        number = get16(b, main)
        place = tuple_at(page, number)
        if place < 0:
            return place
        start = place + get8(page, place + HOFF)
        if start + data_end - data > place + tuple_length(page, number):
            return NO_ROOM
        copy(page, start, b, data, data_end - data)
    return 0
