"""The frames of an append and an ack: where their fields stand, and checks of their WAL. Pure."""

# AppendRequest: its length, what is the same in all appends of a term, four LSNs, a CRC, the WAL.
# AppendResponse: what is the same in all acks of a term, flush_lsn, and what the core has said.
# test_fast_append.py holds the numbers against messages.py.
cdef enum:
    LENGTH_BYTES = 4
    TERM_AT = 4
    TERM_BYTES = 33
    BEGIN_AT = 37
    END_AT = 45
    COMMIT_AT = 53
    RESTART_AT = 61
    CRC_AT = 69
    APPEND_BYTES = 73
    ACK_FLUSH_AT = 33
    ACK_BYTES = 73
    PAGE_BYTES = 8192
    PAGE_START_BYTES = 16
    PIECES_MAX = 256
    MEMBERS_MAX = 16
    RECORD_BYTES_MAX = 1 << 14  # the most plaintext of one record of TLS
    TIMES_MAX = 64
    PUT_OFFS_MAX = 4
    ACK_COMMIT_AT = 41
    ACK_FEEDBACK_AT = 49
    ACK_TERM_BYTES = 33


cdef inline uint32_t be32(const unsigned char *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t be64(const unsigned char *at) noexcept nogil:
    return (<uint64_t>be32(at) << 32) | be32(at + 4)


cdef inline void put_be64(unsigned char *at, uint64_t number) noexcept nogil:
    cdef int i
    for i in range(8):
        at[i] = <unsigned char>(number >> (56 - 8 * i))


cdef inline void put_be32(unsigned char *at, uint32_t number) noexcept nogil:
    cdef int i
    for i in range(4):
        at[i] = <unsigned char>(number >> (24 - 8 * i))


cdef bint has_usual_pages(
    const unsigned char *wal, uint64_t size, uint64_t begin_lsn, bint knows_pages
) noexcept nogil:
    """Return True if each page that starts in this WAL starts like most of them do.

    The core looks at any other: zeros, a page that cuts off a record, half a header."""
    cdef uint64_t at = begin_lsn % PAGE_BYTES
    if 0 < at < PAGE_START_BYTES:
        return False
    at = (PAGE_BYTES - at) % PAGE_BYTES
    while at < size:
        if size - at < PAGE_START_BYTES:
            return False
        if wal[at + 2] & 0x08:  # XLP_FIRST_IS_OVERWRITE_CONTRECORD
            return False
        if knows_pages and (wal[at + 1] != 0xD1 or wal[at + 8] or wal[at + 9] & 0x1F):
            return False  # the magic, and an address of a page
        at += PAGE_BYTES
    return True


cdef inline uint64_t crc_of(const unsigned char *wal, Py_ssize_t size) except? 0:
    return crc32c(PyMemoryView_FromMemory(<char *>wal, size, PyBUF_READ))
