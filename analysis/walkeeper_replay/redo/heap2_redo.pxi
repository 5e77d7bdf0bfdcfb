"""Redo of Heap2 records on one page: prune, vacuum, freeze, visible, multi-insert, lock.

Part of _redo.pyx.

Contract: that of `heap_redo`. The names and layouts of these records differ between 13 and 18. 13
has CLEAN and FREEZE_PAGE. 14 and 15 have PRUNE, VACUUM, FREEZE_PAGE. 16 freezes by plans. 17 and 18
have one layout for three kinds of pruning. Source: heapam_xlog.h, heapam.c, pruneheap.c of each.
"""

cdef enum:
    REWRITE = 0x00
    VISIBLE = 0x40
    MULTI_INSERT = 0x50
    LOCK_UPDATED = 0x60
    NEW_CID = 0x70
    PRUNE = 0x10
    VACUUM = 0x20
    FREEZE = 0x30
    # xl_heap_prune's flags since 17.
    CLEANUP_LOCK = 4
    FREEZE_PLANS = 0x10
    REDIRECTIONS = 0x20
    DEAD_ITEMS = 0x40
    NOW_UNUSED = 0x80
    PLAN_BYTES = 12
    FREEZE_XVAC = 2
    INVALID_XVAC = 4
    FROZEN_XID = 2


cdef int64_t _redirect(Bytes page, Bytes b, int64_t p, int64_t count, int64_t end) noexcept nogil:
    """Redirect `count` pairs of item numbers; return the place after them, or an error."""
    if p + 4 * count > end:
        return NO_ROOM
    for _ in range(count):
        if not has_item(page, get16(b, p)):
            return NO_ITEM
        put_item(page, get16(b, p), get16(b, p + 2) | REDIRECT << 15)
        p += 4
    return p


cdef int64_t _set_items(
    Bytes page, Bytes b, int64_t p, int64_t count, int64_t end, int64_t item
) noexcept nogil:
    """Set `count` items to dead or unused; return the place after them, or an error."""
    if p + 2 * count > end:
        return NO_ROOM
    for _ in range(count):
        if not has_item(page, get16(b, p)):
            return NO_ITEM
        put_item(page, get16(b, p), item)
        p += 2
    return p


cdef int64_t _freeze(
    Bytes page, Bytes b, int64_t number, int64_t xmax, int64_t mask2, int64_t mask, int64_t flags
) noexcept nogil:
    place = tuple_at(page, number)
    if place < 0:
        return place
    put32(page, place + XMAX, xmax)
    if flags & FREEZE_XVAC:
        put32(page, place + CID, FROZEN_XID)
    if flags & INVALID_XVAC:
        put32(page, place + CID, 0)
    put16(page, place + INFOMASK2, mask2)
    put16(page, place + INFOMASK, mask)
    return 0


cdef int64_t _freeze_plans(
    Bytes page, Bytes b, int64_t plans, int64_t count, int64_t p, int64_t end
) noexcept nogil:
    """Apply each plan {xmax, infomask2, infomask, flags, ntuples}; tuples' numbers are at `p`."""
    for k in range(count):
        z = plans + PLAN_BYTES * k
        for _ in range(get16(b, z + 10)):
            if p + 2 > end:
                return NO_ROOM
            flags = get8(b, z + 8)
            done = _freeze(
                page, b, get16(b, p), get32(b, z), get16(b, z + 4), get16(b, z + 6), flags
            )
            if done < 0:
                return done
            p += 2
    return 0


cdef int64_t _prune_17(
    Bytes page, Bytes b, int64_t p, int64_t end, int64_t flags, Bytes scratch, int64_t major
) noexcept nogil:
    plans, count = 0, 0
    if flags & FREEZE_PLANS:
        count = get16(b, p)
        plans = p + 4
        p = plans + PLAN_BYTES * count
    if flags & REDIRECTIONS:
        p = _redirect(page, b, p + 2, get16(b, p), end)
        if p < 0:
            return p
    if flags & DEAD_ITEMS:
        p = _set_items(page, b, p + 2, get16(b, p), end, DEAD << 15)
        if p < 0:
            return p
    if flags & NOW_UNUSED:
        p = _set_items(page, b, p + 2, get16(b, p), end, 0)
        if p < 0:
            return p
    if flags & (REDIRECTIONS | DEAD_ITEMS | NOW_UNUSED):
        if flags & CLEANUP_LOCK:
            done = repair_fragmentation(page, scratch, major)
            if done < 0:
                return done
        else:
            truncate_items(page)
    return _freeze_plans(page, b, plans, count, p, end)


cdef int64_t _prune(
    Bytes page, Bytes b, int64_t p, int64_t end, int64_t main, Bytes scratch, int64_t major
) noexcept nogil:
    """Redo CLEAN of 13, PRUNE of 14 to 16: redirected, dead, and the rest unused."""
    p = _redirect(page, b, p, get16(b, main + 4), end)
    if p < 0:
        return p
    p = _set_items(page, b, p, get16(b, main + 6), end, DEAD << 15)
    if p < 0:
        return p
    p = _set_items(page, b, p, (end - p) >> 1, end, 0)
    if p < 0:
        return p
    return repair_fragmentation(page, scratch, major)


cdef int64_t _freeze_page(
    Bytes page, Bytes b, int64_t p, int64_t end, int64_t main, int64_t major
) noexcept nogil:
    count = get16(b, main + 4)
    if p + PLAN_BYTES * count > end:
        return NO_ROOM
    if major >= 16:
        return _freeze_plans(page, b, p, count, p + PLAN_BYTES * count, end)
    for _ in range(count):
        flags = get8(b, p + 10)
        done = _freeze(
            page, b, get16(b, p + 4), get32(b, p), get16(b, p + 6), get16(b, p + 8), flags
        )
        if done < 0:
            return done
        p += PLAN_BYTES
    return 0


cdef int64_t _multi_insert(
    Bytes page, Bytes b, int64_t block, int64_t data, int64_t end, int64_t main, int64_t xid,
    bint is_init
) noexcept nogil:
    flags, count, p = get8(b, main), get16(b, main + 2), data
    for k in range(count):
        number = k + 1 if is_init else get16(b, main + 4 + 2 * k)
        p += (p - data) & 1
        if p + 7 > end or p + 7 + get16(b, p) > end:
            return NO_ROOM
        length = get16(b, p)
        size = length + TUPLE_HEADER_BYTES
        place = add_item(page, number, size)
        if place < 0:
            return place
        put_header(page, place, b, p + 2, xid, block, number)
        p += 7
        copy(page, place + TUPLE_HEADER_BYTES, b, p, length)
        p += length
    if flags & 1:
        clear_all_visible(page)
    if flags & 32:
        set_all_visible(page)
    return 0


cdef int64_t _lock_updated(Bytes page, Bytes b, int64_t main) noexcept nogil:
    place = tuple_at(page, get16(b, main + 4))
    if place < 0:
        return place
    set_infobits(page, place, get8(b, main + 6))
    put32(page, place + XMAX, get32(b, main))
    return 0


cdef int64_t redo_heap2(
    Bytes page, Bytes b, int64_t op, int64_t block, int64_t data, int64_t end, int64_t main,
    int64_t xid, bint is_init, Bytes scratch, int64_t major
) noexcept nogil:
    """Redo one Heap2 record on one page, which is the heap page of a VISIBLE record."""
    if op == MULTI_INSERT:
        return _multi_insert(page, b, block, data, end, main, xid, is_init)
    if op == VISIBLE:
        set_all_visible(page)
        return 0
    if op == LOCK_UPDATED:
        return _lock_updated(page, b, main)
    if op in (REWRITE, NEW_CID):
        return 0
    if major >= 17:
        return _prune_17(page, b, data, end, get8(b, main + 1), scratch, major)
    if op == PRUNE:
        return _prune(page, b, data, end, main, scratch, major)
    if op == VACUUM and major >= 14:
        p = _set_items(page, b, data, get16(b, main), end, 0)
        if p < 0:
            return p
        truncate_items(page)
        return 0
    if (op == FREEZE and major >= 14) or (op == VACUUM and major == 13):
        return _freeze_page(page, b, data, end, main, major)
    return 0
