"""Redo of records on pages, and the changes of tuples that they make. Part of _redo.pyx."""


cdef void restore_image(
    Bytes page, Bytes b, const BlockRow *block, int64_t image, const Log *log
) noexcept nogil:
    cdef int64_t begin = block.image_offset, hole = block.hole_offset
    cdef int64_t gap = block.hole_length, length = block.image_length
    if image >= 0:
        if image < log.image_count:
            memmove(page.at, log.images + image * PAGE_BYTES, PAGE_BYTES)
        else:
            page.misfit[0] = True
    elif length + gap != PAGE_BYTES:
        page.misfit[0] = True
    else:
        copy(page, 0, b, begin, hole)
        zero(page, hole, gap)
        copy(page, hole + gap, b, begin + hole, length - hole)
    # The length of a hole follows from the size of a page, which the record does not have.
    if not has_own_size(page):
        page.misfit[0] = True


cdef int64_t role_of(const Log *log, int64_t k) noexcept nogil:
    """Return which page of an UPDATE a reference is to: both, the new one's, or the old one's."""
    cdef int64_t behind = k + 1
    cdef const BlockRow *blocks = log.blocks
    if blocks[k].block_id == 1:
        return OLD_PAGE
    if behind == log.block_count or blocks[behind].record != blocks[k].record:
        return SAME_PAGE
    if blocks[behind].block_id == 1 and blocks[behind].flags & FORK_MASK == 0:
        return NEW_PAGE
    return SAME_PAGE


cdef inline bint restores(const Log *log, int64_t k) noexcept nogil:
    """Return whether the reference has an image that redo restores."""
    return log.blocks[k].flags & HAS_IMAGE and log.blocks[k].image_info & log.apply_flag


cdef inline bint initialises(const RecordRow *record, const BlockRow *block) noexcept nogil:
    """Return whether redo begins with an empty page."""
    return (
        (record.rmid == HEAP or record.rmid == HEAP2) and record.info & 0x80 and block.block_id == 0
    )


cdef inline bint resets(const Log *log, int64_t k) noexcept nogil:
    """Return whether the page's state after the reference is the same, whatever it was before."""
    return restores(log, k) or initialises(&log.records[log.blocks[k].record], &log.blocks[k])


cdef Redone redone(int64_t state, bint changed, int64_t wrong) noexcept nogil:
    cdef Redone made
    made.state, made.changed, made.wrong = state, changed, wrong
    return made


cdef Redone redo_one(
    Bytes page, int64_t state, Bytes b, const Log *log, int64_t k, int64_t image, int64_t end_lsn,
    Bytes scratch
) noexcept nogil:
    cdef const BlockRow *block = &log.blocks[k]
    cdef const RecordRow *record = &log.records[block.record]
    cdef int64_t info = record.info, op = record.info & 0x70, number = block.block_number
    cdef int64_t data = block.data_offset, end = data + block.data_length
    cdef int64_t main = record.main_offset, xid = record.xid, role, new_block, done
    cdef bint is_init = info & 0x80 != 0
    if restores(log, k):
        restore_image(page, b, block, image, log)
        if get16(page, UPPER) != 0:
            set_lsn(page, end_lsn)
        return redone(KNOWN, True, 0)
    if record.rmid == XLOG:
        return redone(state, False, 0)
    if record.rmid != HEAP and record.rmid != HEAP2:  # an extension's, which only it can redo
        if state != KNOWN or get_lsn(page) >= end_lsn:
            return redone(state, False, 0)
        return redone(BROKEN, True, NOT_SANE)
    if initialises(record, block):
        initialise(page)
        state = KNOWN
    if state != KNOWN or get_lsn(page) >= end_lsn:
        return redone(state, False, 0)
    if not is_sane(page):
        return redone(BROKEN, True, NOT_SANE)
    if record.rmid == HEAP:
        role, new_block = role_of(log, k), number
        if role == OLD_PAGE and k > 0:
            new_block = log.blocks[k - 1].block_number
        done = redo_heap(page, b, op, number, data, end, main, xid, role, new_block)
    else:
        done = redo_heap2(
            page, b, op, number, data, end, main, xid, is_init, scratch, log.major
        )
    if done < 0:
        return redone(BROKEN, True, done)
    if record.rmid == HEAP or op != VISIBLE:
        set_lsn(page, end_lsn)
    return redone(KNOWN, True, 0)


cdef Redone apply_one(
    uint8_t *page, int64_t state, const Log *log, int64_t k, int64_t image, int64_t end_lsn,
    uint8_t *scratch
) noexcept nogil:
    """Redo one record on one page; return (its state, whether it changed, 0 or the misfit)."""
    cdef bint misfit = False
    cdef Redone done = redo_one(
        bytes_at(page, PAGE_BYTES, &misfit), state, bytes_at(log.payload, log.size, &misfit), log,
        k, image, end_lsn, bytes_at(scratch, PAGE_BYTES, &misfit)
    )
    if misfit:  # the record is longer than its data, or names places that no page has
        return redone(BROKEN, True, NOT_SANE)
    return done


cdef void note(
    Bytes page, int64_t state, int64_t number, int64_t kind, const Noted *at, Room *room
) noexcept nogil:
    """Add one event, with a copy of the tuple as it is now.

    Without room for it, the record names more tuples than a page has: there is no such event.
    """
    cdef EventRow *event
    cdef int64_t place, length, begin = room.counts[ARENA]
    if room.counts[EVENTS] >= room.events_max:
        return
    event = &room.events[room.counts[EVENTS]]
    event.start_lsn, event.end_lsn, event.xid = at.start_lsn, at.end_lsn, at.xid
    event.relation, event.block = at.relation, at.block
    event.number, event.kind, event.place, event.length = number, kind, begin, 0
    room.counts[EVENTS] += 1
    if state != KNOWN:
        return
    place = tuple_at(page, number)
    if place < 0:
        return
    length = tuple_length(page, number)
    if begin + length > room.arena_size:
        return
    memmove(room.arena + begin, page.at + place, length)
    event.length = length
    room.counts[ARENA] = (begin + length + 7) & ~<int64_t>7


cdef void note_page(Bytes page, const Noted *at, Room *room) noexcept nogil:
    """Add an event for every tuple of a page that was not known before."""
    cdef int64_t number
    cdef Noted seen = at[0]
    seen.xid = 0
    for number in range(1, item_count(page) + 1):
        if tuple_at(page, number) >= 0:
            note(page, KNOWN, number, SEEN, &seen, room)


cdef void note_changes(
    Bytes page, int64_t state, Bytes b, const Log *log, int64_t k, const Noted *at, Room *room
) noexcept nogil:
    """Add events for the tuples that one record names, as they are after it."""
    cdef const RecordRow *record = &log.records[log.blocks[k].record]
    cdef int64_t op = record.info & 0x70, main = record.main_offset
    cdef int64_t first = 0, second = 0, kind = 0, i, number, role
    if record.rmid == HEAP2:
        if op != MULTI_INSERT:
            return
        for i in range(get16(b, main + 2)):
            number = i + 1 if record.info & 0x80 else get16(b, main + 4 + 2 * i)
            note(page, state, number, INSERTED, at, room)
        return
    if op == INSERT:
        first, kind = get16(b, main), INSERTED
    elif op == DELETE:
        first, kind = get16(b, main + 4), UNDONE if get8(b, main + 7) & 8 else DELETED
    elif op == UPDATE or op == HOT_UPDATE:
        role = role_of(log, k)
        if role != NEW_PAGE:
            first, kind = get16(b, main + 4), OLD
        if role != OLD_PAGE:
            second = get16(b, main + 12)
    if first:
        note(page, state, first, kind, at, room)
    if second:
        note(page, state, second, NEW, at, room)


cdef int64_t apply_rows(
    const Log *log, const int64_t *starts, const int64_t *ends, const ChosenRow *chosen,
    int64_t first, int64_t until, const uint8_t *recorded, uint8_t *pages, Slots *slots,
    Room *room, uint8_t *scratch
) noexcept nogil:
    cdef int64_t i, k, r, relation, slot, before
    cdef uint8_t level, rmid
    cdef Redone done
    cdef Noted at
    cdef Bytes page, b
    cdef bint misfit = False
    cdef int64_t *counts = slots.counts
    b = bytes_at(log.payload, log.size, &misfit)
    for i in range(first, until):
        relation, k = chosen[i].relation, chosen[i].row
        level = recorded[relation]
        if level and (
            counts[EVENTS] + EVENTS_MARGIN > room.events_max
            or counts[ARENA] + ARENA_MARGIN > room.arena_size
        ):
            return i
        slot = slot_for(slots, relation, log.blocks[k].block_number)
        if slot < 0:
            return i
        r = log.blocks[k].record
        before, rmid = slots.rows[slot].state, log.records[r].rmid
        page = bytes_at(pages + slot * PAGE_BYTES, PAGE_BYTES, &misfit)
        done = apply_one(page.at, before, log, k, chosen[i].image, ends[r], scratch)
        slots.rows[slot].state = done.state
        counts[APPLIED] += done.changed
        counts[UNKNOWN_COUNT] += done.state == UNKNOWN and rmid != XLOG
        counts[BROKEN_COUNT] += done.wrong < 0
        if level == RECORD_NOTHING or (not done.changed and done.state == KNOWN):
            continue
        at.start_lsn, at.end_lsn, at.xid = starts[r], ends[r], log.records[r].xid
        at.relation, at.block = relation, log.blocks[k].block_number
        if (level == RECORD_VERSIONS and before != KNOWN and done.state == KNOWN
                and is_sane(page)):
            note_page(page, &at, room)
        if rmid == HEAP or rmid == HEAP2:
            note_changes(page, done.state, b, log, k, &at, room)
    return until
