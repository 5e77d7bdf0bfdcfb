"""Pages that redo made beside the images of wal_consistency_checking. Part of _redo.pyx."""

cdef enum:
    CHECKED = 0x02
    EQUAL = 0
    DIFFERENT = 1
    NOT_KNOWN = 2
    NOT_REDONE = 3
    HINTS = 0x07
    FROZEN = 0x0300
    XMAX_HINTS = 0x0C00
    NO_XACT = 0x000F
    SPECULATIVE = 0xFFFE


cdef void mask_page(Bytes page, int64_t block) noexcept nogil:
    """Mask a page in place, as heap_mask() does."""
    cdef int64_t lower, upper, number, item, place, length, mask, stop
    zero(page, 0, FLAGS)
    put8(page, FLAGS, get8(page, FLAGS) & ~<int64_t>HINTS)
    zero(page, PRUNE_XID, 4)
    lower, upper = get16(page, LOWER), get16(page, UPPER)
    if lower < HEADER_BYTES or lower > upper or upper > PAGE_BYTES:
        return
    zero(page, lower, upper - lower)
    for number in range(1, item_count(page) + 1):
        item = get_item(page, number)
        place, length = item & 0x7FFF, item >> 17
        if tuple_at(page, number) >= 0:
            mask = get16(page, place + INFOMASK)
            if mask & FROZEN == FROZEN:
                mask &= ~<int64_t>XMAX_HINTS
            else:
                mask &= NO_XACT
            put16(page, place + INFOMASK, mask)
            put32(page, place + CID, 0)
            if get16(page, place + CTID + 4) == SPECULATIVE:
                set_ctid(page, place, block, number)
        stop = min(place + ((length + 7) & ~<int64_t>7), <int64_t>PAGE_BYTES)
        if length and place + length < stop:
            zero(page, place + length, stop - place - length)


cdef int64_t first_difference(const uint8_t *a, const uint8_t *b) noexcept nogil:
    cdef int64_t z
    if memcmp(a, b, PAGE_BYTES) == 0:
        return -1
    for z in range(PAGE_BYTES):
        if a[z] != b[z]:
            return z
    return -1


cdef int64_t check_rows(
    const Log *log, const int64_t *ends, const ChosenRow *chosen, int64_t first, int64_t until,
    uint8_t *pages, Slots *slots, uint8_t *scratch, uint8_t *masked, int64_t *tally,
    int64_t *different, int64_t different_max, int64_t total
) noexcept nogil:
    cdef int64_t i, k, r, number, slot, kind, place
    cdef uint8_t *page
    cdef Redone done
    cdef Bytes image, b
    cdef int64_t *row
    cdef bint misfit = False
    b = bytes_at(log.payload, log.size, &misfit)
    image = bytes_at(scratch, PAGE_BYTES, &misfit)
    for i in range(first, until):
        k = chosen[i].row
        number, r = log.blocks[k].block_number, log.blocks[k].record
        slot = slot_for(slots, chosen[i].relation, number)
        if slot < 0:
            return i
        page = pages + slot * PAGE_BYTES
        done = apply_one(
            page, slots.rows[slot].state, log, k, chosen[i].image, ends[r], scratch
        )
        slots.rows[slot].state = done.state
        kind = <int64_t>log.records[r].rmid * 16 + (log.records[r].info >> 4)
        tally[4 * kind + NOT_REDONE] += done.wrong < 0
        if restores(log, k) or not (
            log.blocks[k].flags & HAS_IMAGE and log.records[r].info & CHECKED
        ):
            continue
        misfit = False
        restore_image(image, b, &log.blocks[k], chosen[i].image, log)
        if misfit:
            slots.rows[slot].state = BROKEN
            tally[4 * kind + NOT_REDONE] += 1
            continue
        place = -1
        if done.state == KNOWN:
            memmove(masked, page, PAGE_BYTES)
            memmove(masked + PAGE_BYTES, scratch, PAGE_BYTES)
            mask_page(bytes_at(masked, PAGE_BYTES, &misfit), number)
            mask_page(bytes_at(masked + PAGE_BYTES, PAGE_BYTES, &misfit), number)
            place = first_difference(masked, masked + PAGE_BYTES)
            tally[4 * kind + (DIFFERENT if place >= 0 else EQUAL)] += 1
        else:
            tally[4 * kind + NOT_KNOWN] += 1
        if place >= 0:
            total += 1
            if total <= different_max:
                row = different + 5 * (total - 1)
                row[0], row[1], row[2], row[3], row[4] = ends[r], kind, place, k, number
        if done.state != KNOWN or place >= 0:
            memmove(page, scratch, PAGE_BYTES)
            slots.rows[slot].state = KNOWN
    return until
