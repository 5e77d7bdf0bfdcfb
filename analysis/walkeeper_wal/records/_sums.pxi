"""The sums of a whole segment, from its file to numbers by kind, without an object for a record.

It is the short way of walkeeper_wal.sources.reading for segments that are as they should be. Each
other segment is deferred: the caller reads it by that module, which names what is wrong. Pages go
through a buffer that stays in the processor's cache. walk_rows walks over them, as over a payload.
"""

cdef packed struct PageHeader:
    uint16_t magic, info
    uint32_t timeline
    uint64_t lsn
    uint32_t rem_len, padding

cdef packed struct LongRest:
    uint64_t system_id
    uint32_t segment_bytes, page_bytes

cdef struct Sum:
    int64_t count, size, fpi_size

cdef struct Source:
    int descriptor
    int64_t first_lsn
    uint32_t timeline
    bint is_last

cdef struct Found:
    int64_t records, record_bytes, fpi_bytes, start_lsn, prev_lsn, last_lsn, end_lsn
    int how
    uint16_t magic

cdef enum:
    PAGES_MAX = 32  # of one read: 256 kB
    ROWS_MAX = 512
    BLOCKS_MAX = 2 * ROWS_MAX
    CARRIED_MAX = 1 << 20  # a longer record is deferred
    SLACK = 64
    PAYLOAD_MAX = 2 * CARRIED_MAX + PAGES_MAX * PAGE_BYTES + SLACK
    FIRST_IS_CONTRECORD = 0x0001
    LONG_HEADER = 0x0002
    FIRST_IS_OVERWRITE = 0x0008
    ALL_FLAGS = 0x000F
    COMPLETE = 0
    SWITCHED = 1
    OPEN = 2
    DEFERRED = 3

STATUSES = ("complete", "switched", "open")

cdef struct Room:
    uint8_t payload[PAYLOAD_MAX]
    PageHeader headers[PAGES_MAX]
    LongRest rest
    RecordRow rows[ROWS_MAX]
    BlockRow blocks[BLOCKS_MAX]
    Sum sums[KINDS]
    uint8_t masks[256]
    uint64_t system_id
    uint32_t segment_bytes
    uint8_t transaction


cdef bint read_pages(
    Room *room, int descriptor, int64_t page, int64_t count, uint8_t *into
) noexcept nogil:
    """Scatter pages: headers into the room's, the bytes between them to `into`."""
    cdef iovec vectors[2 * PAGES_MAX + 1]
    cdef int64_t k, payload
    cdef int used = 0
    for k in range(count):
        vectors[used].iov_base, vectors[used].iov_len = &room.headers[k], PAGE_HEADER_BYTES
        used += 1
        payload = PAGE_PAYLOAD
        if page + k == 0:
            vectors[used].iov_base, vectors[used].iov_len = &room.rest, EXCESS
            used += 1
            payload -= EXCESS
        vectors[used].iov_base, vectors[used].iov_len = into, payload
        used += 1
        into += payload
    return preadv(descriptor, vectors, used, page * PAGE_BYTES) == count * PAGE_BYTES


cdef bint is_good(
    const PageHeader *header, int64_t page, const Source *source, uint16_t magic
) noexcept nogil:
    """Return whether a page is WAL of its place, by the rules of segment.inspect_pages."""
    return (
        header.magic == magic
        and header.lsn == <uint64_t>(source.first_lsn + page * PAGE_BYTES)
        and not header.info & ~ALL_FLAGS
        and (header.info & LONG_HEADER != 0) == (page == 0)
        and header.timeline <= source.timeline
    )


cdef int64_t good_pages(
    const Room *room, int64_t page, int64_t count, const Source *source, uint16_t magic
) noexcept nogil:
    """Return the number of pages from `page` on that continue the log; -1 if one overwrites."""
    cdef int64_t k
    for k in range(count):
        if not is_good(&room.headers[k], page + k, source, magic):
            return k
        if room.headers[k].info & FIRST_IS_OVERWRITE:
            return -1
    return count


cdef bint any_good(
    const Room *room, int64_t page, int64_t begin, int64_t count, const Source *source,
    uint16_t magic
) noexcept nogil:
    cdef int64_t k
    for k in range(begin, count):
        if is_good(&room.headers[k], page + k, source, magic):
            return True
    return False


cdef int walk_and_add(Room *room, Place *place, Found *found) noexcept nogil:
    """Walk over what is in the buffer and add it; leave the place of the stop in `place.begin`."""
    cdef Done done
    cdef int64_t i
    cdef RecordRow *row
    cdef Sum *to
    done.stop = FULL
    while done.stop == FULL:
        done = walk_rows(room.payload, place[0], room.rows, room.blocks)
        for i in range(done.records):
            row = &room.rows[i]
            to = &room.sums[kind_of(row, room.transaction)]
            to.count += 1
            to.size += row.length - row.fpi_length
            to.fpi_size += row.fpi_length
            found.record_bytes += row.length
            found.fpi_bytes += row.fpi_length
        if done.records:
            if not found.records:
                found.start_lsn = lsn_at(room.rows[0].offset + place.base, place.first_lsn)
                found.prev_lsn = room.rows[0].prev_lsn
            found.records += done.records
            row = &room.rows[done.records - 1]
            place.previous = lsn_at(row.offset + place.base, place.first_lsn)
        place.begin = done.offset
    return done.stop


cdef bint begin_segment(Room *room, Place *place, Found *found) noexcept nogil:
    """Take the front of a segment's first page; return False for what the reader has to judge."""
    cdef PageHeader *header = &room.headers[0]
    found.magic = header.magic
    if header.magic >> 8 != 0xD1 or room.masks[header.magic & 255] == 0:
        return False
    if room.rest.system_id != room.system_id or room.rest.segment_bytes != room.segment_bytes:
        return False
    place.mask = room.masks[header.magic & 255]
    if header.info & FIRST_IS_CONTRECORD:
        place.begin = (<int64_t>header.rem_len + 7) & ~<int64_t>7
    return True


cdef bint carry(Room *room, Place *place) noexcept nogil:
    """Move a record's beginning to the buffer's front; return False if it is too long."""
    cdef int64_t left = place.available - place.begin
    if left <= 0:  # nothing, or all of it was of a record before
        place.base += place.available
        place.begin, place.available = -left, 0
        return True
    if left > CARRIED_MAX:
        return False
    memmove(room.payload, room.payload + place.begin, left)
    place.base += place.begin
    place.begin, place.available = 0, left
    return True


cdef int64_t spill(Room *room, Place *place, Found *found, Source *next) noexcept nogil:
    """Finish the last record with the pages after it; return its bytes there, -1 to defer it."""
    cdef int64_t rest, pages, page, count, at = place.available, wanted = place.available
    cdef int stop
    if next.descriptor < 0 or not read_pages(room, next.descriptor, 0, 1, room.payload + at):
        return -1
    if good_pages(room, 0, 1, next, found.magic) != 1 or room.rest.system_id != room.system_id:
        return -1
    rest = room.headers[0].rem_len
    if not room.headers[0].info & FIRST_IS_CONTRECORD or not 0 < rest <= CARRIED_MAX:
        return -1
    pages, page = (rest - 1 + EXCESS) // PAGE_PAYLOAD + 1, 1
    if pages * PAGE_BYTES > room.segment_bytes:
        return -1
    while page < pages:
        count = min(pages - page, <int64_t>PAGES_MAX)
        if not read_pages(
            room, next.descriptor, page, count, room.payload + at + payload_at(page)
        ) or good_pages(room, page, count, next, found.magic) != count:
            return -1
        page += count
    place.end, place.available = wanted, at + rest
    count = found.records
    stop = walk_and_add(room, place, found)
    if stop not in (END, SWITCH) or found.records != count + 1:
        return -1
    if stop == SWITCH:
        found.how = SWITCHED
    return place.begin - at


cdef bint any_link(
    const uint8_t *payload, int64_t begin, int64_t end, int64_t low, int64_t high
) noexcept nogil:
    """Return whether a word of [begin, end) is an LSN of [low, high): log_end.py looks closer."""
    cdef int64_t at
    for at in range((begin + 7) & ~<int64_t>7, end - 7, 8):
        if low <= <int64_t>u64(payload + at) < high:
            return True
    return False


cdef bint end_log(
    const Room *room, const Place *place, const Found *found, int stop, int64_t page, int64_t good,
    int64_t count, const Source *source
) noexcept nogil:
    """Return whether the log ends here: in the last segment, after a record, at zeros or a page
    of another place, and without a page of this log after it."""
    cdef int64_t later
    if not source.is_last or not found.records:
        return False
    if stop == ZERO:
        later = (place.begin + place.base + EXCESS) // PAGE_PAYLOAD + 1 - page
    elif stop == END and good < count:
        later = good
    else:
        return False
    return not any_good(room, page, later, count, source, found.magic)


cdef void sum_segment(Room *room, Place *place, Source *source, Source *next, Found *found
                      ) noexcept nogil:
    """Sum up a segment; `found.how` is DEFERRED if anything about it is not as usual."""
    cdef int64_t size = room.segment_bytes, pages = size // PAGE_BYTES, piece, page, count, good
    cdef int64_t beyond = 0, held, ended_at = 0
    cdef int stop = END
    cdef bint ended = False
    for piece in range((pages + PAGES_MAX - 1) // PAGES_MAX):
        page = piece * PAGES_MAX
        count = min(<int64_t>PAGES_MAX, pages - page)
        if not read_pages(room, source.descriptor, page, count, room.payload + place.available):
            return
        if page == 0 and not begin_segment(room, place, found):
            return
        if ended:
            held = place.available + payload_at(page + count) - payload_at(page)
            if any_good(room, page, 0, count, source, found.magic) or any_link(
                room.payload, place.available, held, ended_at, source.first_lsn + size
            ):
                return
            continue
        good = good_pages(room, page, count, source, found.magic)
        if good < 0 or not (good or page):
            return
        held = place.available + payload_at(page + count) - payload_at(page)
        place.available += payload_at(page + good) - payload_at(page)
        place.end = place.available
        stop = walk_and_add(room, place, found) if place.begin < place.available else END
        if stop == SWITCH:
            break
        if stop == ZERO or good < count:
            if not end_log(room, place, found, stop, page, good, count, source):
                return
            ended, ended_at = True, lsn_at(place.begin + place.base, place.first_lsn)
            ended_at &= ~<int64_t>(PAGE_BYTES - 1)  # a page of another place begins there
            if any_link(room.payload, place.begin, held, ended_at, source.first_lsn + size):
                return
        elif stop not in (END, INCOMPLETE) or not carry(room, place):
            return
    found.last_lsn = place.previous
    found.how = SWITCHED if stop == SWITCH else OPEN if ended else COMPLETE
    if found.how == COMPLETE and place.available:
        beyond = spill(room, place, found, next)
    if not found.records or beyond < 0:
        found.how = DEFERRED
    elif beyond:
        found.end_lsn = lsn_at(beyond - 8, next.first_lsn) + 8
        found.last_lsn = place.previous
    else:
        found.end_lsn = lsn_at(place.begin + place.base - 8, place.first_lsn) + 8
    if found.how == SWITCHED:
        found.end_lsn = (found.end_lsn + size - 1) & ~(size - 1)


cdef class SegmentSums:
    """The sums of one thread's segments; see the .pyi for the contract."""

    cdef Room *room
    cdef bint checks_crc

    def __cinit__(self, bytes masks, uint8_t transaction, bint check_crc):
        assert len(masks) == 256, f"{len(masks)=}"
        self.room = <Room *>malloc(sizeof(Room))
        if self.room is NULL:
            raise MemoryError()
        for number in range(256):
            self.room.masks[number] = masks[number]
        self.room.transaction, self.checks_crc = transaction, check_crc

    def __dealloc__(self):
        free(self.room)

    def of(self, int descriptor, segment, int next_descriptor, following):
        """Return what there is of a segment, or None if it is not as usual."""
        cdef Source source, next
        cdef Place place
        cdef Found found
        cdef int64_t kind
        cdef Room *room = self.room
        room.system_id, room.segment_bytes = segment.system_id, segment.segment_bytes
        source.descriptor, source.first_lsn = descriptor, segment.first_lsn
        source.timeline = segment.timeline
        source.is_last = segment.is_last and not segment.known_end_lsn  # else the reader judges
        next.descriptor, next.first_lsn, next.timeline = next_descriptor, 0, 0
        if next_descriptor >= 0:
            next.first_lsn, next.timeline = following.first_lsn, following.timeline
        memset(&found, 0, sizeof(found))
        memset(&place, 0, sizeof(place))
        memset(room.sums, 0, sizeof(room.sums))
        found.how = DEFERRED
        place.first_lsn, place.previous = source.first_lsn, -1
        place.records_max, place.blocks_max = ROWS_MAX, BLOCKS_MAX
        place.checks_crc = self.checks_crc
        with nogil:
            sum_segment(room, &place, &source, &next, &found)
        if found.how == DEFERRED:
            return None
        kinds = {
            kind: (room.sums[kind].count, room.sums[kind].size, room.sums[kind].fpi_size)
            for kind in range(KINDS) if room.sums[kind].count
        }
        return found, STATUSES[found.how], kinds
