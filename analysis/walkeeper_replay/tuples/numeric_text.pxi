"""The text of numerics, all values of a column at once. Part of _tuples.pyx."""


cdef int64_t digits(int64_t value, Bytes into, int64_t at, bint skip) noexcept nogil:
    """Write four digits, without leading zeros if `skip`; return the place after them."""
    cdef int64_t divisor = 1000, digit
    while divisor:
        digit = value // divisor % 10
        if digit or not skip:
            put8(into, at, 48 + digit)
            at += 1
            skip = False
        divisor //= 10
    return at


cdef int64_t format_one(Bytes b, int64_t p, int64_t end, Bytes into, int64_t at) noexcept nogil:
    """Write one value's text; return the place after it, or -1 if it is not a usual one."""
    cdef int64_t header, scale, weight, count, begin, stop, k, group
    cdef bint negative
    if end - p < 2:
        return -1
    header = get16(b, p)
    if header & 0xC000 == 0xC000:
        return -1
    if header & 0x8000:
        negative, scale = header & 0x2000 != 0, header >> 7 & 0x3F
        weight = (header & 0x3F) - (64 if header & 0x40 else 0)
        p += 2
    else:
        if end - p < 4:
            return -1
        negative, scale, weight = header & 0x4000 != 0, header & 0x3FFF, get16(b, p + 2)
        weight -= 65536 if weight & 0x8000 else 0
        p += 4
    count = (end - p) >> 1
    if at + 8 + 4 * (max(weight, <int64_t>0) + 1) + scale + 4 > into.size:
        return -1
    if negative:
        put8(into, at, 45)
        at += 1
    begin = at
    for k in range(weight + 1):
        group = get16(b, p + 2 * k) if k < count else 0
        at = digits(group, into, at, at == begin)
    if at == begin:
        put8(into, at, 48)
        at += 1
    if scale:
        put8(into, at, 46)
        at += 1
        stop = at + scale
        k = weight + 1
        while at < stop:
            group = get16(b, p + 2 * k) if k >= 0 and k < count else 0
            at = digits(group, into, at, False)
            k += 1
        at = stop
    return at


def format_numerics(
    const uint8_t[::1] data, const int64_t[::1] offsets, const uint8_t[::1] absent,
    uint8_t[::1] into, int64_t[::1] ends
):
    """Write all texts, one after the other; return the number of values that were done."""
    cdef bint misfit = False
    cdef Bytes b = all_of(data, &misfit), made = all_of(into, &misfit)
    cdef int64_t at = 0, behind, t, count = len(absent)
    assert len(offsets) == len(ends) == count + 1, f"{len(offsets)=} {len(ends)=} {count=}"
    with nogil:
        for t in range(count):
            ends[t] = at
            if absent[t]:
                continue
            behind = format_one(b, offsets[t], offsets[t + 1], made, at)
            if behind < 0:
                count = t
                break
            at = behind
    if count == absent.shape[0]:
        ends[count] = at
    return count
