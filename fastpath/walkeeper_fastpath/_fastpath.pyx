# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled fast path: bytes of a steady leader in, durable WAL and an ack out.

It holds no rule of its own. The core says what the next frames look like, byte by byte, while
nothing is under way. A frame that does not match is not touched, and the core decides about it.
The contract of each class is in _fastpath.pyi.

The first functions are pure: they look at bytes and positions. The rest is system calls around
them. A disk without a descriptor, as in the simulator, gets the same calls as Python methods.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.buffer cimport (
    PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
)
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset
from posix.types cimport off_t

import os

from crc32c import crc32c
from walkeeper_common.errors import StorageError, WalkeeperError
from walkeeper_common.metrics import Times

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t pwritev(int descriptor, const iovec *parts, int count, off_t offset)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int descriptor, const msghdr *message, int flags)
    ssize_t send(int descriptor, const void *data, size_t size, int flags)

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


cdef class Channel:
    """A connection: bytes go to its socket at once while that is free, else to `write`.

    Over TLS, Python's own ssl encrypts them before."""
    cdef int socket
    cdef object connection, unsent_bytes, is_closing, sealed, seal, take

    def __cinit__(self, connection):
        self.connection, self.socket, self.sealed = connection, -1, None
        direct = connection.direct()
        if direct is None:
            self.sealed = connection.sealed()
            if self.sealed is not None:
                self.seal, self.take = self.sealed.seal, self.sealed.take
                direct = self.sealed.direct()
        if direct is not None:
            self.socket, self.unsent_bytes, self.is_closing = direct

    cdef int write(
        self, const unsigned char *head, Py_ssize_t head_bytes,
        const unsigned char *body, Py_ssize_t body_bytes, object wal
    ) except -1:
        """Write both; `wal` is the object that holds the body."""
        cdef ssize_t sent = 0
        cdef iovec parts[2]
        cdef msghdr message
        if self.socket >= 0 and not self.is_closing() and not self.unsent_bytes():
            if self.sealed is not None:
                return self.write_sealed(head, head_bytes, body, body_bytes, wal)
            parts[0].iov_base, parts[0].iov_len = <void *>head, head_bytes
            parts[1].iov_base, parts[1].iov_len = <void *>body, body_bytes
            memset(&message, 0, sizeof(message))
            message.msg_iov, message.msg_iovlen = parts, 2 if body_bytes else 1
            sent = sendmsg(self.socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent == head_bytes + body_bytes:
                return 0
            if sent < 0:
                sent = 0  # full, or lost: the connection finds out which
        rest = []
        if sent < head_bytes:
            rest.append((<const char *>head)[sent:head_bytes])
            if body_bytes:
                rest.append(wal)
        else:
            rest.append(memoryview(wal)[sent - head_bytes:])
        self.connection.write(rest, head_bytes + body_bytes - sent)
        return 0

    cdef int write_sealed(
        self, const unsigned char *head, Py_ssize_t head_bytes,
        const unsigned char *body, Py_ssize_t body_bytes, object wal
    ) except -1:
        """Encrypt both, as one record if they fit, and write them with one system call."""
        cdef Py_ssize_t joined_bytes = head_bytes
        cdef ssize_t sent
        if head_bytes + body_bytes <= RECORD_BYTES_MAX:
            joined_bytes += body_bytes
        cdef bytes first = PyBytes_FromStringAndSize(NULL, joined_bytes)
        memcpy(PyBytes_AS_STRING(first), head, head_bytes)
        if joined_bytes > head_bytes:
            memcpy(PyBytes_AS_STRING(first) + head_bytes, body, body_bytes)
        try:
            self.seal(first)
            if joined_bytes < head_bytes + body_bytes:
                while len(wal):
                    wal = wal[self.seal(wal):]
        except OSError as error:  # ssl.SSLError
            self.sealed.on_refused(error)
            return 0
        cdef bytes data = self.take()
        sent = send(
            self.socket, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
            MSG_DONTWAIT | MSG_NOSIGNAL
        )
        if sent < PyBytes_GET_SIZE(data):
            self.sealed.write_rest(memoryview(data)[max(sent, 0):])
        return 0


cdef class Feed:
    """The two calls by which a loop hands over received bytes; `take` gets them first.

    The connection gets what `take` leaves, and each rest of a frame."""
    cdef object connection, reader
    cdef public object take

    def __init__(self, connection, reader):
        self.connection, self.reader, self.take = connection, reader, None

    def get_buffer(self, sizehint):
        reader = self.reader
        return reader.buffer() if reader.held_bytes else reader.view

    def buffer_updated(self, Py_ssize_t nbytes):
        cdef bytearray memory
        cdef Py_ssize_t taken = 0
        if self.take is None or self.reader.held_bytes:
            return self.connection.on_received(nbytes)
        memory = self.reader.memory
        try:
            taken = self.take(memory, nbytes)
        except WalkeeperError:
            taken = 0  # it raises it again to the owner
        if taken == nbytes != PyByteArray_GET_SIZE(memory):
            return
        if taken:
            self.connection.on_taken(taken, nbytes)
        else:
            self.connection.on_received(nbytes)


cdef struct Appends:
    # What frames of the next WAL say, all of them together.
    uint64_t end_lsn
    uint64_t told_commit_lsn
    uint64_t restart_lsn
    uint64_t wal_bytes
    int pieces


cdef class AppendPath:
    cdef unsigned char term[TERM_BYTES]
    cdef unsigned char ack[ACK_BYTES]
    cdef readonly uint64_t end_lsn
    cdef uint64_t limit_lsn, told_commit_lsn, restart_lsn, file_lsn
    cdef bint knows_pages, has_news, is_quick
    cdef int descriptor
    cdef object tail, now_s
    cdef double write_s[TIMES_MAX]
    cdef double sync_s[TIMES_MAX]
    cdef double brief_s
    cdef int times
    cdef Channel channel
    cdef iovec parts[PIECES_MAX]
    cdef readonly Py_ssize_t taken
    cdef readonly long groups_written
    cdef public object on_news
    cdef object failure

    def __init__(self, expected, tail, answer):
        cdef bytes head = expected.append, ack = expected.ack
        if len(head) != APPEND_BYTES or len(ack) != ACK_BYTES:
            raise ValueError(f"{len(head)=} {len(ack)=}")
        memcpy(self.term, <const unsigned char *>head + TERM_AT, TERM_BYTES)
        memcpy(self.ack, <const unsigned char *>ack, ACK_BYTES)
        self.end_lsn = be64(<const unsigned char *>head + BEGIN_AT)
        self.told_commit_lsn = be64(<const unsigned char *>head + COMMIT_AT)
        self.restart_lsn = be64(<const unsigned char *>head + RESTART_AT)
        self.limit_lsn = min(expected.limit_lsn, tail.end_lsn)
        self.knows_pages = expected.knows_pages
        self.tail, self.now_s, self.channel = tail, tail.pace.now_s, Channel(answer)
        self.is_quick, self.brief_s, self.times = tail.is_quick, tail.pace.brief_s, 0
        self.descriptor, self.file_lsn = tail.descriptor, tail.begin_lsn
        if not self.file_lsn <= self.end_lsn:
            raise ValueError(f"{self.file_lsn=} {self.end_lsn=}")

    def take(self, bytearray memory not None, Py_ssize_t size):
        cdef Appends found
        cdef Py_ssize_t at
        if not 0 <= size <= PyByteArray_GET_SIZE(memory):
            raise ValueError(f"{size=} {len(memory)=}")
        if self.failure is not None:
            raise self.failure
        at = self.matched(<const unsigned char *>PyByteArray_AS_STRING(memory), size, &found)
        if at == 0:
            return 0
        if found.pieces:
            if not self.is_quick:
                return 0
            self.taken = at
            try:
                self.make_durable(memory, &found)
            except StorageError as error:
                self.failure = error
                raise
            self.acknowledge(found.end_lsn)  # R9: only now, and before all work that can wait
            self.groups_written += 1
            self.end_lsn = found.end_lsn
        self.told_commit_lsn = found.told_commit_lsn
        if found.restart_lsn > self.restart_lsn:
            self.restart_lsn = found.restart_lsn
        if not self.has_news:
            self.has_news = True
            if self.on_news is not None:
                self.on_news()
        return at

    def settled(self):
        if self.times:
            self.hand_over_times()
        if not self.has_news:
            return None
        self.has_news = False
        return self.end_lsn, self.told_commit_lsn, self.restart_lsn

    cdef int took(self, double started_s, double written_s, double synced_s) except -1:
        """Keep the times of a write. Hand them over if it may end what the loop may wait for.

        While each is brief, so is their average. So `is_quick` can only end with one that is not."""
        self.write_s[self.times] = written_s - started_s
        self.sync_s[self.times] = synced_s - written_s
        self.times += 1
        if self.times == TIMES_MAX or synced_s - started_s >= self.brief_s:
            self.hand_over_times()
        return 0

    cdef int hand_over_times(self) except -1:
        cdef int i
        times = [(self.write_s[i], self.sync_s[i]) for i in range(self.times)]
        self.times = 0
        self.tail.took(times)
        self.is_quick = self.tail.is_quick
        return 0

    cdef Py_ssize_t matched(
        self, const unsigned char *memory, Py_ssize_t size, Appends *found
    ) except -1:
        """Return the bytes of whole frames that are the next WAL of this leader; 0 if one differs.

        No position moves."""
        cdef Py_ssize_t at = 0, end_at
        cdef uint64_t begin, end, restart, length, wal_bytes, commit = 0
        cdef const unsigned char *frame
        cdef const unsigned char *wal
        found.end_lsn, found.told_commit_lsn = self.end_lsn, self.told_commit_lsn
        found.restart_lsn = found.wal_bytes = 0
        found.pieces = 0
        while size - at >= APPEND_BYTES and found.pieces < PIECES_MAX:
            frame = memory + at
            length = be32(frame)
            begin, end = be64(frame + BEGIN_AT), be64(frame + END_AT)
            commit, restart = be64(frame + COMMIT_AT), be64(frame + RESTART_AT)
            if memcmp(frame + TERM_AT, self.term, TERM_BYTES) != 0:
                return 0
            if length < APPEND_BYTES - LENGTH_BYTES:
                return 0
            wal_bytes = length - (APPEND_BYTES - LENGTH_BYTES)
            if begin != found.end_lsn:
                return 0
            if end < begin or end - begin != wal_bytes:
                return 0
            if end >= self.limit_lsn:
                return 0
            if commit < found.told_commit_lsn:
                return 0
            if wal_bytes > <uint64_t>(size - at - APPEND_BYTES):
                break
            end_at = at + APPEND_BYTES + <Py_ssize_t>wal_bytes
            if wal_bytes:
                wal = frame + APPEND_BYTES
                if crc_of(wal, <Py_ssize_t>wal_bytes) != be32(frame + CRC_AT):
                    return 0
                if not has_usual_pages(wal, wal_bytes, begin, self.knows_pages):
                    return 0
                self.parts[found.pieces].iov_base = <void *>wal
                self.parts[found.pieces].iov_len = wal_bytes
                found.pieces += 1
                found.wal_bytes += wal_bytes
            found.end_lsn, found.told_commit_lsn = end, commit
            if restart > found.restart_lsn:
                found.restart_lsn = restart
            at = end_at
        if not found.pieces:
            # A heartbeat is answered, by the core, unless it came to tell of commit_lsn.
            if at != APPEND_BYTES or self.told_commit_lsn >= min(commit, found.end_lsn):
                return 0
        return at

    cdef int make_durable(self, bytearray memory, Appends *found) except -1:
        """Write the pieces and sync them; raise StorageError if that is not all done (R15)."""
        cdef uint64_t offset = self.end_lsn - self.file_lsn
        cdef ssize_t written
        cdef int write_error = 0, sync_error = 0
        cdef double started_s = self.now_s(), written_s
        if self.descriptor >= 0:
            with nogil:
                written = pwritev(self.descriptor, self.parts, found.pieces, <off_t>offset)
                while written < 0 and errno == EINTR:
                    written = pwritev(self.descriptor, self.parts, found.pieces, <off_t>offset)
                if written < 0:
                    write_error = errno
            if write_error:
                raise self.tail.failed(OSError(write_error, os.strerror(write_error)), self.end_lsn)
        else:
            written = self.write_by_method(found, offset)
        if <uint64_t>written != found.wal_bytes:
            raise self.tail.cut_short(self.end_lsn, written, found.wal_bytes)
        written_s = self.now_s()
        if self.descriptor >= 0:
            with nogil:
                while fdatasync(self.descriptor) != 0:
                    if errno != EINTR:
                        sync_error = errno
                        break
            if sync_error:
                raise self.tail.failed(OSError(sync_error, os.strerror(sync_error)), self.end_lsn)
        else:
            self.sync_by_method()
        return self.took(started_s, written_s, self.now_s())

    cdef ssize_t write_by_method(self, Appends *found, uint64_t offset) except -1:
        cdef int i
        pieces = [
            PyMemoryView_FromMemory(
                <char *>self.parts[i].iov_base, <Py_ssize_t>self.parts[i].iov_len, PyBUF_READ
            )
            for i in range(found.pieces)
        ]
        try:
            return self.tail.write(b"".join(pieces), offset)
        except (OSError, StorageError) as error:
            raise self.tail.failed(error, self.end_lsn) from error

    cdef int sync_by_method(self) except -1:
        try:
            self.tail.sync()
        except (OSError, StorageError) as reason:
            raise self.tail.failed(reason, self.end_lsn) from reason
        return 0

    cdef int acknowledge(self, uint64_t flush_lsn) except -1:
        """Send the ack now."""
        put_be64(self.ack + ACK_FLUSH_AT, flush_lsn)
        return self.channel.write(self.ack, ACK_BYTES, NULL, 0, None)


cdef inline uint64_t crc_of(const unsigned char *wal, Py_ssize_t size) except? 0:
    return crc32c(PyMemoryView_FromMemory(<char *>wal, size, PyBUF_READ))


cdef inline void put_be32(unsigned char *at, uint32_t number) noexcept nogil:
    cdef int i
    for i in range(4):
        at[i] = <unsigned char>(number >> (24 - 8 * i))


cdef class PrimaryPath  # _primary.pxi


cdef class StreamPath:
    cdef unsigned char head[APPEND_BYTES]
    cdef unsigned char acks[MEMBERS_MAX][ACK_BYTES]
    cdef uint64_t flush_lsns[MEMBERS_MAX]
    cdef uint64_t durable_commit_lsns[MEMBERS_MAX]
    cdef bint has_acked[MEMBERS_MAX]
    cdef int links[MEMBERS_MAX]
    cdef int sets[2][2 * MEMBERS_MAX]
    cdef int set_sizes[2]
    cdef int ack_quorums[2]
    cdef int zones[2][2 * MEMBERS_MAX]
    cdef int ack_zones[2]
    cdef int set_count, member_count
    cdef uint64_t start_lsn, restart_lsn_max, restart_lsn, told_commit_lsn
    cdef uint64_t wal_bytes_max, in_flight_bytes_max, unsettled_bytes_max, unsettled_bytes
    cdef bint has_news, has_told
    cdef list channels, sent
    cdef object leader, waiting  # the driver, until the template is void, and its events
    cdef PrimaryPath primary
    cdef readonly uint64_t end_lsn
    cdef readonly uint64_t commit_lsn
    cdef readonly object feedback

    def __init__(self, expected, connections):
        cdef bytes frame = expected.append
        cdef int i, k
        if not len(expected.links) == len(expected.acks) == len(connections) <= MEMBERS_MAX:
            raise ValueError(f"{expected.links=} {connections=}")
        if not 1 <= len(expected.sets) <= 2 or len(frame) != APPEND_BYTES:
            raise ValueError(f"{expected.sets=} {len(frame)=}")
        memcpy(self.head, <const unsigned char *>frame, APPEND_BYTES)
        self.end_lsn, self.commit_lsn = be64(self.head + BEGIN_AT), be64(self.head + COMMIT_AT)
        self.told_commit_lsn, self.restart_lsn = self.commit_lsn, be64(self.head + RESTART_AT)
        self.member_count = len(expected.links)
        for i in range(self.member_count):
            frame = expected.acks[i]
            if len(frame) != ACK_BYTES:
                raise ValueError(f"{len(frame)=}")
            memcpy(self.acks[i], <const unsigned char *>frame, ACK_BYTES)
            self.links[i], self.has_acked[i] = expected.links[i], False
            self.flush_lsns[i] = be64(self.acks[i] + ACK_FLUSH_AT)
            self.durable_commit_lsns[i] = be64(self.acks[i] + ACK_COMMIT_AT)
        self.set_count = len(expected.sets)
        for k in range(self.set_count):
            ack_quorum, counted = expected.sets[k]
            if not 1 <= ack_quorum <= len(counted) <= 2 * MEMBERS_MAX:
                raise ValueError(f"{expected.sets=}")
            self.ack_quorums[k], self.set_sizes[k] = ack_quorum, len(counted)
            for i in range(self.set_sizes[k]):
                if not -1 <= counted[i] < self.member_count:
                    raise ValueError(f"{expected.sets=}")
                self.sets[k][i] = counted[i]
            self.ack_zones[k] = 0
        if expected.zones:
            self.take_zones(expected.zones)
        self.start_lsn, self.restart_lsn_max = expected.start_lsn, expected.restart_lsn_max
        self.wal_bytes_max = expected.wal_bytes_max
        self.in_flight_bytes_max = expected.in_flight_bytes_max
        self.unsettled_bytes_max, self.unsettled_bytes = expected.unsettled_bytes_max, 0
        self.feedback = expected.feedback
        self.channels, self.sent = [Channel(one) for one in connections], []

    def lead(self, leader):
        self.leader, self.waiting = leader, leader.waiting

    def end(self):
        self.leader = None

    def stream(self, begin_lsn, memoryview wal not None):
        return self.send_led(begin_lsn, wal)

    cdef bint send_led(self, uint64_t begin_lsn, memoryview wal) except -1:
        """Send, and tell the leader that there is news; do nothing if the template is void."""
        leader = self.leader
        if leader is None or leader.is_running:
            return False
        leader.is_running = True
        try:
            is_sent = self.send(begin_lsn, wal)
            if is_sent:
                self.tell(leader)
        finally:
            leader.is_running = False
        if self.waiting:
            leader.run_waiting()
        return is_sent

    def acknowledge(self, int link, bytearray memory not None, Py_ssize_t size):
        cdef uint64_t told_lsn = 0
        leader = self.leader
        if leader is None or leader.is_running:
            return 0
        if not self.take_acks(link, memory, size, &told_lsn):
            return 0
        leader.is_running = True
        try:
            if told_lsn:  # commits wait for this
                if self.primary is None or not self.primary.report(told_lsn, self.feedback):
                    leader.report(told_lsn, self.feedback)
            self.tell(leader)
        finally:
            leader.is_running = False
        if self.waiting:
            leader.run_waiting()
        return size

    cdef int tell(self, leader) except -1:
        """Tell the leader once that `settled` has news."""
        if self.has_news and not self.has_told:
            self.has_told = True
            leader.on_news()
        return 0

    cdef take_zones(self, given):
        """Take the ack rule of each set that counts zones: number, then each member's zone."""
        cdef int i, k
        if len(given) != self.set_count:
            raise ValueError(f"{given=}")
        for k in range(self.set_count):
            ack_zones, zones = given[k]
            known = set(zones)
            if not ack_zones:
                continue
            if len(zones) != self.set_sizes[k] or not 1 <= ack_zones <= len(known):
                raise ValueError(f"{given=}")
            if known != set(range(len(known))):
                raise ValueError(f"{given=}")
            self.ack_zones[k] = ack_zones
            for i in range(self.set_sizes[k]):
                self.zones[k][i] = zones[i]

    def send(self, uint64_t begin_lsn, memoryview wal not None):
        cdef Py_buffer data
        PyObject_GetBuffer(wal, &data, PyBUF_SIMPLE)
        try:
            return self.send_bytes(begin_lsn, <const unsigned char *>data.buf, data.len, wal)
        finally:
            PyBuffer_Release(&data)

    cdef object send_bytes(
        self, uint64_t begin_lsn, const unsigned char *wal, Py_ssize_t size, memoryview held
    ):
        cdef int i
        cdef uint64_t crc
        if size == 0 or begin_lsn != self.end_lsn:
            return False
        if <uint64_t>size > self.wal_bytes_max:
            return False
        if self.unsettled_bytes + <uint64_t>size > self.unsettled_bytes_max:
            return False
        for i in range(self.member_count):
            if begin_lsn - self.flush_lsns[i] >= self.in_flight_bytes_max:
                return False
        crc = crc_of(wal, size)
        put_be32(self.head, <uint32_t>(APPEND_BYTES - LENGTH_BYTES + size))
        put_be64(self.head + BEGIN_AT, begin_lsn)
        put_be64(self.head + END_AT, begin_lsn + <uint64_t>size)
        put_be64(self.head + COMMIT_AT, self.commit_lsn)
        put_be64(self.head + RESTART_AT, self.restart_lsn)
        put_be32(self.head + CRC_AT, <uint32_t>crc)
        self.end_lsn = begin_lsn + <uint64_t>size
        self.told_commit_lsn, self.has_news = self.commit_lsn, True
        self.unsettled_bytes += <uint64_t>size
        self.sent.append((held, crc))
        for channel in self.channels:
            (<Channel>channel).write(self.head, APPEND_BYTES, wal, size, held)
        return True

    def take(self, int link, bytearray memory not None, Py_ssize_t size):
        cdef uint64_t told_lsn = 0
        return told_lsn if self.take_acks(link, memory, size, &told_lsn) else None

    cdef bint take_acks(
        self, int link, bytearray memory, Py_ssize_t size, uint64_t *told_lsn
    ) except -1:
        """Take whole acks. `told_lsn` becomes the LSN to report if commit_lsn moves."""
        cdef int i
        cdef Py_ssize_t at
        cdef uint64_t flush_lsn, durable_commit_lsn = 0
        cdef const unsigned char *frame = <const unsigned char *>PyByteArray_AS_STRING(memory)
        if not 0 <= size <= PyByteArray_GET_SIZE(memory):
            raise ValueError(f"{size=} {len(memory)=}")
        if size == 0 or size % ACK_BYTES:
            return False
        for i in range(self.member_count):
            if self.links[i] == link:
                break
        else:
            return False
        flush_lsn = self.flush_lsns[i]
        for at in range(0, size, ACK_BYTES):
            if memcmp(frame + at, self.acks[i], ACK_TERM_BYTES) != 0:
                return False
            if memcmp(
                frame + at + ACK_FEEDBACK_AT, self.acks[i] + ACK_FEEDBACK_AT,
                ACK_BYTES - ACK_FEEDBACK_AT
            ) != 0:
                return False
            if be64(frame + at + ACK_FLUSH_AT) < flush_lsn:
                return False
            flush_lsn = be64(frame + at + ACK_FLUSH_AT)
            durable_commit_lsn = be64(frame + at + ACK_COMMIT_AT)
        if flush_lsn > self.end_lsn:
            return False
        self.flush_lsns[i], self.durable_commit_lsns[i] = flush_lsn, durable_commit_lsn
        self.has_acked[i] = self.has_news = True
        if self.commit_moves():
            flush_lsn = min(self.commit_lsn, self.end_lsn)
            if flush_lsn >= self.start_lsn:
                told_lsn[0] = flush_lsn
        return True

    cdef bint commit_moves(self) noexcept:
        """Move commit_lsn to what a quorum of each set has in this term (R10)."""
        cdef uint64_t ascending[2 * MEMBERS_MAX]
        cdef uint64_t lsn, restart_lsn = self.restart_lsn_max, commit_lsn = <uint64_t>-1
        cdef int i, j, k
        for k in range(self.set_count):
            for i in range(self.set_sizes[k]):
                lsn = self.counted(k, i)
                j = i
                while j > 0 and ascending[j - 1] > lsn:
                    ascending[j] = ascending[j - 1]
                    j -= 1
                ascending[j] = lsn
            restart_lsn = min(restart_lsn, ascending[0])
            commit_lsn = min(commit_lsn, ascending[self.set_sizes[k] - self.ack_quorums[k]])
            if self.ack_zones[k]:
                commit_lsn = min(commit_lsn, self.acknowledged_by_zones(k))
        if restart_lsn > self.restart_lsn:
            self.restart_lsn = restart_lsn
        if commit_lsn <= self.commit_lsn:
            return False
        self.commit_lsn = commit_lsn
        return True

    cdef inline uint64_t counted(self, int k, int i) noexcept:
        """Return what member i of set k has in this term; 0 if it has not attached."""
        cdef uint64_t lsn = self.flush_lsns[self.sets[k][i]] if self.sets[k][i] >= 0 else 0
        if lsn < self.start_lsn:
            lsn = 0
        return lsn

    cdef uint64_t acknowledged_by_zones(self, int k) noexcept:
        """Return the greatest LSN that enough zones of set k have (MemberSet.acknowledged)."""
        cdef uint64_t farthest[2 * MEMBERS_MAX]
        cdef uint64_t lsn
        cdef int i, j, zone, count = 0
        for i in range(self.set_sizes[k]):
            zone = self.zones[k][i]
            lsn = self.counted(k, i)
            while count <= zone:
                farthest[count] = 0
                count += 1
            farthest[zone] = max(farthest[zone], lsn)
        for i in range(1, count):
            lsn, j = farthest[i], i
            while j > 0 and farthest[j - 1] > lsn:
                farthest[j] = farthest[j - 1]
                j -= 1
            farthest[j] = lsn
        return farthest[count - self.ack_zones[k]]

    def settled(self):
        cdef int i
        if not self.has_news:
            return None
        acks = [
            (self.links[i], self.flush_lsns[i], self.durable_commit_lsns[i])
            for i in range(self.member_count) if self.has_acked[i]
        ]
        for i in range(self.member_count):
            self.has_acked[i] = False
        sent, self.sent = self.sent, []
        self.has_news = self.has_told = False
        self.unsettled_bytes = 0
        return self.commit_lsn, self.told_commit_lsn, sent, acks


include "_primary.pxi"
