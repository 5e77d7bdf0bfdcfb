# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, infer_types=True
"""The compiled loops over tuples: those of pages listed, taken apart, their values gathered.

Contract: _tuples.pyi names the functions. The loops do not hold the global interpreter lock. Bytes
of pages are reached by heap_page.pxd alone, which checks each place: a read outside gives zeros.
Columns are checked once for each call.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memmove

from walkeeper_replay.redo.heap_page cimport *

# test_compiled_redo.py holds these against deform.py.
cdef enum:
    NULL_VALUE = -1
    ABSENT = -2
    MALFORMED = -3
    HAS_NULLS = 0x0001
    NATTS_MASK = 0x07FF
    PLAIN = 0
    COMPRESSED = 1
    EXTERNAL = 2
    WRONG = 3
    EXTERNAL_BYTES = 18
    VARTAG_ONDISK = 18

cdef struct Value:
    int64_t place, behind


def numbers():
    """Return the numbers that deform.py has too, by name."""
    return {
        "NULL": NULL_VALUE, "ABSENT": ABSENT, "MALFORMED": MALFORMED, "PLAIN": PLAIN,
        "COMPRESSED": COMPRESSED, "EXTERNAL": EXTERNAL, "WRONG": WRONG,
    }


cdef inline Bytes all_of(const uint8_t[::1] data, bint *misfit) noexcept nogil:
    return bytes_at(&data[0] if data.shape[0] else NULL, data.shape[0], misfit)


cdef int64_t varlena_size(Bytes b, int64_t p, int64_t end) noexcept nogil:
    """Return a varlena's size with its header, or -1 if it is not all there."""
    cdef int64_t first, size
    if p >= end:
        return -1
    first = get8(b, p)
    if first == 1:
        size = EXTERNAL_BYTES
    elif first & 1:
        size = first >> 1
    elif p + 4 > end:
        return -1
    else:
        size = get32(b, p) >> 2
    if size < 1 or p + size > end or (first & 1 == 0 and size < 4):
        return -1
    return size


cdef Value value_at(
    Bytes b, int64_t start, int64_t p, int64_t end, int64_t length, int64_t alignment
) noexcept nogil:
    """Return (a value's place, the place after it or -1); places are aligned from `start` on."""
    cdef Value found
    cdef int64_t size
    if not (length == -1 and p < end and get8(b, p) != 0):
        p = start + ((p - start + alignment - 1) & ~(alignment - 1))
    found.place, found.behind = p, -1
    if length >= 0:
        if p + length <= end:
            found.behind = p + length
    elif length == -1:
        size = varlena_size(b, p, end)
        if size >= 0:
            found.behind = p + size
    else:
        while p < end and get8(b, p) != 0:
            p += 1
        if p < end:
            found.behind = p + 1
    return found


cdef void deform_one(
    Bytes b, int64_t at, int64_t length, const int64_t *lengths, const int64_t *alignments,
    int64_t columns, int64_t *out, int64_t step
) noexcept nogil:
    cdef int64_t end = at + length, natts = get16(b, at + INFOMASK2) & NATTS_MASK
    cdef int64_t hoff = get8(b, at + HOFF), start = at + hoff, p = start, c
    cdef bint nulls = get16(b, at + INFOMASK) & HAS_NULLS != 0
    cdef bint broken = start > end or (nulls and TUPLE_HEADER_BYTES + (natts + 7) // 8 > hoff)
    cdef Value found
    for c in range(columns):
        if c >= natts:
            out[c * step] = ABSENT
        elif broken:
            out[c * step] = MALFORMED
        elif nulls and not get8(b, at + TUPLE_HEADER_BYTES + (c >> 3)) >> (c & 7) & 1:
            out[c * step] = NULL_VALUE
        else:
            found = value_at(b, start, p, end, lengths[c], alignments[c])
            broken = found.behind < 0
            out[c * step] = MALFORMED if broken else found.place
            p = found.behind


def deform_all(
    const uint8_t[::1] data, const int64_t[::1] places, const int64_t[::1] sizes,
    const int64_t[::1] lengths, const int64_t[::1] alignments, int64_t[:, ::1] out
):
    """Write the place of each value, or the reason why it has none, by column and tuple."""
    cdef bint misfit = False
    cdef Bytes b = all_of(data, &misfit)
    cdef int64_t t, c, tuples = len(places), columns = len(lengths)
    assert tuples == len(sizes) == out.shape[1], f"{len(places)=} {len(sizes)=}"
    assert columns == len(alignments) == out.shape[0], f"{len(lengths)=} {len(alignments)=}"
    if not tuples or not columns:
        return
    with nogil:
        for t in range(tuples):
            misfit = places[t] < 0 or places[t] > b.size - sizes[t]
            if misfit or sizes[t] < TUPLE_HEADER_BYTES:
                for c in range(columns):
                    out[c, t] = MALFORMED
            else:
                deform_one(
                    b, places[t], sizes[t], &lengths[0], &alignments[0], columns, &out[0, t],
                    tuples
                )


def varlena_parts(
    const uint8_t[::1] data, const int64_t[::1] places, int64_t[::1] begins, int64_t[::1] sizes,
    uint8_t[::1] kinds
):
    """Write where the bytes after each value's own header are, how many, and of which kind."""
    cdef bint misfit = False
    cdef Bytes b = all_of(data, &misfit)
    cdef int64_t t, p, first
    assert len(places) == len(begins) == len(sizes) == len(kinds), f"{len(places)=} {len(sizes)=}"
    with nogil:
        for t in range(places.shape[0]):
            p = places[t]
            begins[t], sizes[t], kinds[t] = 0, 0, PLAIN
            if p < 0:
                continue
            first = get8(b, p)
            if first == 1:
                begins[t], sizes[t] = p + 2, 16
                kinds[t] = EXTERNAL if get8(b, p + 1) == VARTAG_ONDISK else WRONG
            elif first & 1:
                begins[t], sizes[t] = p + 1, (first >> 1) - 1
            else:
                begins[t], sizes[t] = p + 4, (get32(b, p) >> 2) - 4
                kinds[t] = COMPRESSED if first & 2 else PLAIN


def copy_values(
    const uint8_t[::1] data, const int64_t[::1] rows, const int64_t[::1] begins,
    const int64_t[::1] offsets, uint8_t[::1] into
):
    """For each row i, copy the bytes from begins[i] on to into[offsets[i] : offsets[i + 1]]."""
    cdef bint misfit = False
    cdef Bytes b = all_of(data, &misfit), made = all_of(into, &misfit)
    cdef int64_t k, t
    assert len(offsets) == len(begins) + 1, f"{len(offsets)=} {len(begins)=}"
    with nogil:
        for k in range(rows.shape[0]):
            t = rows[k]
            if 0 <= t < begins.shape[0]:
                copy(made, offsets[t], b, begins[t], offsets[t + 1] - offsets[t])
    assert not misfit, "a value of a tuple leaves its page"


def gather(const uint8_t[::1] data, const int64_t[::1] places, uint8_t[:, ::1] into):
    """Copy the bytes of each value of one size; a value without a place has any bytes."""
    cdef bint misfit = False
    cdef Bytes b = all_of(data, &misfit), made
    cdef int64_t t, size = into.shape[1]
    assert len(places) == len(into), f"{len(places)=} {len(into)=}"
    if not len(places) or not size:
        return
    made = bytes_at(&into[0, 0], into.shape[0] * size, &misfit)
    with nogil:
        for t in range(places.shape[0]):
            copy(made, t * size, b, max(places[t], 0), size)


def count_tuples(const uint8_t[:, ::1] pages, const int64_t[::1] slots):
    """Return how many items the pages in these slots have."""
    cdef bint misfit = False
    cdef int64_t i, count = 0
    cdef Bytes page
    assert pages.shape[1] == PAGE_BYTES, f"{pages.shape[1]=}"
    with nogil:
        for i in range(slots.shape[0]):
            if 0 <= slots[i] < pages.shape[0]:
                page = bytes_at(&pages[slots[i], 0], PAGE_BYTES, &misfit)
                count += item_count(page) if is_sane(page) else 0
    return count


def list_tuples(
    const uint8_t[:, ::1] pages, const int64_t[::1] slots, int64_t[::1] places,
    int64_t[::1] lengths, uint32_t[::1] xmins, uint32_t[::1] xmaxs, uint16_t[::1] masks,
    uint16_t[::1] numbers, int64_t[::1] owners
):
    """Write the tuples of the pages in these slots; return their number."""
    cdef bint misfit = False
    cdef int64_t i, number, place, count = 0, room = len(places)
    cdef Bytes page
    assert pages.shape[1] == PAGE_BYTES, f"{pages.shape[1]=}"
    assert room == len(lengths) == len(xmins) == len(xmaxs), f"{len(places)=} {len(xmins)=}"
    assert room == len(masks) == len(numbers) == len(owners), f"{len(places)=} {len(masks)=}"
    with nogil:
        for i in range(slots.shape[0]):
            if not 0 <= slots[i] < pages.shape[0]:
                continue
            page = bytes_at(&pages[slots[i], 0], PAGE_BYTES, &misfit)
            if not is_sane(page):
                continue
            for number in range(1, item_count(page) + 1):
                place = tuple_at(page, number)
                if place < 0 or count == room:
                    continue
                places[count] = slots[i] * PAGE_BYTES + place
                lengths[count] = tuple_length(page, number)
                xmins[count], xmaxs[count] = get32(page, place + XMIN), get32(page, place + XMAX)
                masks[count], numbers[count] = get16(page, place + INFOMASK), number
                owners[count] = i
                count += 1
    return count


include "numeric_text.pxi"
