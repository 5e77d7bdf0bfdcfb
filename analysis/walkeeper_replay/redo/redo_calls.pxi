"""The functions that Python calls, with whole arrays. Part of _redo.pyx."""

cdef enum:
    SEQUENCE = 15
    NOT_REPLAYED = 4
    SEQUENCE_MAGIC = 0x1717
    LOCATOR_BYTES = 12
    SPECIAL_BYTES = 8


def numbers():
    """Return the numbers that Python modules have too, by name."""
    return {
        "XLOG": XLOG, "HEAP2": HEAP2, "HEAP": HEAP, "SEQUENCE": SEQUENCE, "HAS_IMAGE": HAS_IMAGE,
        "GENERIC": GENERIC, "CUSTOM_MIN": CUSTOM_MIN,
        "FORK_MASK": FORK_MASK, "BLOCKS_PER_PART": BLOCKS_PER_PART,
        "UNKNOWN": UNKNOWN, "KNOWN": KNOWN, "BROKEN": BROKEN, "NOT_REPLAYED": NOT_REPLAYED,
        "SEEN": SEEN, "INSERTED": INSERTED, "DELETED": DELETED, "OLD": OLD, "NEW": NEW,
        "UNDONE": UNDONE, "RECORD_NOTHING": RECORD_NOTHING, "RECORD_VERSIONS": RECORD_VERSIONS,
        "SLOTS": SLOTS, "EVENTS": EVENTS, "ARENA": ARENA, "APPLIED": APPLIED,
        "UNKNOWN_COUNT": UNKNOWN_COUNT, "BROKEN_COUNT": BROKEN_COUNT, "RELATIONS": RELATIONS,
        "COUNTS": COUNTS, "PAGE_BYTES": PAGE_BYTES, "LOWER": LOWER, "UPPER": UPPER,
        "SPECIAL": SPECIAL, "XMIN": XMIN, "XMAX": XMAX, "INFOMASK": INFOMASK,
        "DIFFERENT": DIFFERENT,
    }


cdef Log log_of(
    const uint8_t[::1] payload, records, blocks, const uint8_t[:, ::1] images, int64_t apply_flag,
    int64_t major
) except *:
    """Return the arrays as one struct, which lives no longer than they do."""
    cdef Log made
    cdef const uint8_t[::1] record_bytes = records.view(np.uint8)
    cdef const uint8_t[::1] block_bytes = blocks.view(np.uint8)
    assert images.shape[1] == PAGE_BYTES, f"{images.shape[1]=}"
    made.payload, made.size = first_of(payload), len(payload)
    made.records = <const RecordRow *>first_of(record_bytes)
    made.blocks = <const BlockRow *>first_of(block_bytes)
    made.block_count, made.image_count = len(blocks), len(images)
    made.images = &images[0, 0] if len(images) else NULL
    made.apply_flag, made.major = apply_flag, major
    return made


cdef Room room_of(int64_t[::1] counts, events, uint8_t[::1] arena) except *:
    cdef Room made
    cdef uint8_t[::1] event_bytes = events.view(np.uint8)
    assert len(counts) == COUNTS, f"{len(counts)=}"
    made.counts, made.events = &counts[0], <EventRow *>first_of(event_bytes)
    made.arena, made.arena_size = <uint8_t *>first_of(arena), len(arena)
    made.events_max = len(events)
    return made


def apply(
    const uint8_t[::1] payload, records, blocks, const int64_t[::1] starts,
    const int64_t[::1] ends, chosen, int64_t first, int64_t until,
    const uint8_t[:, ::1] images, int64_t apply_flag, int64_t major,
    const uint8_t[::1] recorded, uint8_t[:, ::1] pages, slots, int64_t[::1] hash_keys,
    int32_t[::1] hash_slots, int64_t[::1] counts, events, uint8_t[::1] arena,
    uint8_t[::1] scratch
):
    """Redo chosen[first:until]; return the end of the done part, below `until` without room."""
    cdef Log log = log_of(payload, records, blocks, images, apply_flag, major)
    cdef Slots held = slots_with(hash_keys, hash_slots, slots, counts)
    cdef Room room = room_of(counts, events, arena)
    cdef const uint8_t[::1] chosen_bytes = chosen.view(np.uint8)
    cdef const ChosenRow *wanted = <const ChosenRow *>first_of(chosen_bytes)
    assert 0 <= first <= until <= len(chosen), f"{first=} {until=} {len(chosen)=}"
    assert len(starts) == len(ends) == len(records), f"{len(starts)=} {len(records)=}"
    assert held.slots_max <= len(pages), f"{len(slots)=} {len(pages)=}"
    assert pages.shape[1] == len(scratch) == PAGE_BYTES, f"{pages.shape[1]=} {len(scratch)=}"
    if first == until:
        return until
    with nogil:
        first = apply_rows(
            &log, &starts[0], &ends[0], wanted, first, until, &recorded[0], &pages[0, 0], &held,
            &room, &scratch[0]
        )
    return first


def note_all(
    uint8_t[::1] page, int64_t block, int64_t relation, int64_t start_lsn, int64_t end_lsn,
    int64_t[::1] counts, events, uint8_t[::1] arena
):
    """Add an event for every tuple of a page that was not known before."""
    cdef bint misfit = False
    cdef Room room = room_of(counts, events, arena)
    cdef Noted at
    at.start_lsn, at.end_lsn, at.relation, at.block, at.xid = start_lsn, end_lsn, relation, block, 0
    assert len(page) == PAGE_BYTES, f"{len(page)=}"
    with nogil:
        note_page(bytes_at(&page[0], PAGE_BYTES, &misfit), &at, &room)


cdef bint redo_sequence(
    Bytes page, Bytes b, const RecordRow *record, int64_t end_lsn
) noexcept nogil:
    """Build the page anew, with its only tuple, as seq_redo() does; return False if it does not
    fit."""
    cdef int64_t begin = record.main_offset + <int64_t>LOCATOR_BYTES
    cdef int64_t length = record.main_length - <int64_t>LOCATOR_BYTES
    cdef int64_t special = PAGE_BYTES - SPECIAL_BYTES
    cdef int64_t upper = special - (length + 7 & ~<int64_t>7)
    if length <= 0 or upper < HEADER_BYTES + 4:
        return False
    initialise(page)
    put16(page, LOWER, HEADER_BYTES + 4)
    put16(page, UPPER, upper)
    put16(page, SPECIAL, special)
    put32(page, special, SEQUENCE_MAGIC)
    put_item(page, 1, upper | NORMAL << 15 | length << 17)
    copy(page, upper, b, begin, length)
    set_lsn(page, end_lsn)
    return not page.misfit[0]


cdef struct PageDone:
    int64_t state, culprit


cdef PageDone redo_rows(
    uint8_t *page, int64_t state, const Log *log, const int64_t *rows, int64_t count,
    const int32_t *image_numbers, const int64_t *ends, uint8_t *scratch
) noexcept nogil:
    cdef PageDone done
    cdef int64_t i, k, before
    cdef const RecordRow *record
    cdef bint misfit = False
    cdef Bytes own = bytes_at(page, PAGE_BYTES, &misfit)
    done.state, done.culprit = state, -1
    for i in range(count):
        k = rows[i]
        record = &log.records[log.blocks[k].record]
        before = done.state
        if (restores(log, k) or record.rmid == XLOG or record.rmid == HEAP
                or record.rmid == HEAP2):
            done.state = apply_one(
                page, done.state, log, k, image_numbers[i], ends[log.blocks[k].record], scratch
            ).state
            if done.state == KNOWN:
                done.culprit = -1
        elif record.rmid == SEQUENCE:
            misfit = False
            done.state = BROKEN
            if redo_sequence(
                own, bytes_at(log.payload, log.size, &misfit), record,
                ends[log.blocks[k].record],
            ):
                done.state = KNOWN
        elif done.state != KNOWN or get_lsn(own) < ends[log.blocks[k].record]:
            done.state = NOT_REPLAYED
        if done.state != before and (done.state == NOT_REPLAYED or done.state == BROKEN):
            done.culprit = i
    return done


def redo_page(
    uint8_t[::1] page, int64_t state, const uint8_t[::1] payload, records, blocks,
    const int64_t[::1] rows, const int32_t[::1] image_numbers, const uint8_t[:, ::1] images,
    const int64_t[::1] ends, int64_t apply_flag, uint8_t[::1] scratch, int64_t major
):
    """Return the page's state, and the one of `rows` that made it BROKEN or NOT_REPLAYED, or -1."""
    cdef Log log = log_of(payload, records, blocks, images, apply_flag, major)
    cdef PageDone done
    assert len(page) == len(scratch) == PAGE_BYTES, f"{len(page)=} {len(scratch)=}"
    assert len(rows) == len(image_numbers), f"{len(rows)=} {len(image_numbers)=}"
    assert len(ends) == len(records), f"{len(ends)=} {len(records)=}"
    if not len(rows):
        return state, -1
    with nogil:
        done = redo_rows(
            &page[0], state, &log, &rows[0], rows.shape[0], &image_numbers[0], &ends[0],
            &scratch[0]
        )
    return done.state, done.culprit


def mask_heap_page(uint8_t[::1] page, int64_t block):
    """Mask a page in place, as heap_mask() does."""
    cdef bint misfit = False
    assert len(page) == PAGE_BYTES, f"{len(page)=}"
    mask_page(bytes_at(&page[0], PAGE_BYTES, &misfit), block)


def check(
    const uint8_t[::1] payload, records, blocks, const int64_t[::1] ends, chosen, int64_t first,
    const uint8_t[:, ::1] images, int64_t apply_flag, int64_t major, uint8_t[:, ::1] pages, slots,
    int64_t[::1] hash_keys, int32_t[::1] hash_slots, int64_t[::1] counts, uint8_t[::1] scratch,
    uint8_t[:, ::1] masked, int64_t[:, ::1] tally, int64_t[:, ::1] different
):
    """Redo chosen[first:], and compare with images; return the end of the done part."""
    cdef Log log = log_of(payload, records, blocks, images, apply_flag, major)
    cdef Slots held = slots_with(hash_keys, hash_slots, slots, counts)
    cdef const uint8_t[::1] chosen_bytes = chosen.view(np.uint8)
    cdef const ChosenRow *wanted = <const ChosenRow *>first_of(chosen_bytes)
    cdef int64_t until = len(chosen), total = 0, kind
    assert len(ends) == len(records), f"{len(ends)=} {len(records)=}"
    assert held.slots_max <= len(pages), f"{len(slots)=} {len(pages)=}"
    assert pages.shape[1] == len(scratch) == PAGE_BYTES, f"{pages.shape[1]=} {len(scratch)=}"
    assert masked.shape[0] == 2 and masked.shape[1] == PAGE_BYTES, f"{len(masked)=}"
    assert tally.shape[0] == 4096 and tally.shape[1] == 4, f"{len(tally)=}"
    assert different.shape[1] == 5, f"{different.shape[1]=}"
    if first >= until:
        return until
    with nogil:
        for kind in range(tally.shape[0]):
            total += tally[kind, DIFFERENT]
        first = check_rows(
            &log, &ends[0], wanted, first, until, &pages[0, 0], &held, &scratch[0], &masked[0, 0],
            &tally[0, 0], &different[0, 0], different.shape[0], total
        )
    return first


cdef bint pglz(Bytes source, Bytes into) noexcept nogil:
    """Return whether the whole source unpacks to these bytes, and no more."""
    cdef int64_t p = 0, q = 0, control, length, back, bit, k
    while p < source.size and q < into.size:
        control = get8(source, p)
        p += 1
        for bit in range(8):
            if p >= source.size or q >= into.size:
                break
            if control & 1:
                if p + 2 > source.size:
                    return False
                length = (get8(source, p) & 0x0F) + 3
                back = (get8(source, p) & 0xF0) << 4 | get8(source, p + 1)
                p += 2
                if length == 18:
                    if p >= source.size:
                        return False
                    length += get8(source, p)
                    p += 1
                if back == 0 or back > q or length > into.size - q:
                    return False
                for k in range(length):
                    put8(into, q, get8(into, q - back))
                    q += 1
            else:
                put8(into, q, get8(source, p))
                p += 1
                q += 1
            control >>= 1
    return p == source.size and q == into.size


def pglz_decompress(const uint8_t[::1] source, uint8_t[::1] into):
    """Fill `into`; return whether the source is its whole packed form."""
    cdef bint misfit = False
    cdef bint done
    with nogil:
        done = pglz(
            bytes_at(first_of(source), source.shape[0], &misfit),
            bytes_at(first_of(into), into.shape[0], &misfit),
        )
    return done


cdef int64_t lz4_length(Bytes b, int64_t *p, int64_t length) noexcept nogil:
    """Return a length with the bytes that go on with it, which `p` then has passed."""
    cdef int64_t more = 255
    if length < 15:
        return length
    while more == 255:
        more = get8(b, p[0])
        p[0] += 1
        length += more
    return length


cdef int64_t lz4_unpacked(Bytes b) noexcept nogil:
    cdef int64_t p = 0, total = 0, token
    while not b.misfit[0]:
        token = get8(b, p)
        p += 1
        length = lz4_length(b, &p, token >> 4)
        total += length
        p += length
        if p >= b.size:
            return total if p == b.size else -1
        p += 2
        total += lz4_length(b, &p, token & 15) + 4
    return -1


def lz4_size(const uint8_t[::1] source):
    """Return how many bytes an LZ4 block unpacks to, or -1 if it is none.

    Its decoder fills less than it was given room for, and pyarrow does not say how much.
    """
    cdef bint misfit = False
    cdef Bytes b = bytes_at(first_of(source), source.shape[0], &misfit)
    cdef int64_t size
    with nogil:
        size = lz4_unpacked(b)
    return -1 if misfit else size
