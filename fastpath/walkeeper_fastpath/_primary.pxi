"""The primary's side of a proposer: WAL from libpq to all members, a commit back to libpq.

The contracts are in _fastpath.pyi. What is not as expected goes to the owner, untouched.
"""

cdef extern from "<time.h>" nogil:
    ctypedef long time_t
    ctypedef int clockid_t
    struct timespec:
        time_t tv_sec
        long tv_nsec
    int CLOCK_REALTIME
    int CLOCK_MONOTONIC
    int clock_gettime(clockid_t clock, timespec *now)

# A CopyData of the walsender: tag, start LSN, end LSN, time, WAL. StandbyStatus: tag, three LSNs,
# time, flag. test_fast_primary.py holds the numbers against pgwire.py.
cdef enum:
    XLOG_LSN_AT = 1
    XLOG_HEAD_BYTES = 25
    STATUS_LSNS_AT = 1
    STATUS_TIME_AT = 25
    STATUS_BYTES = 34
    EPOCH_S = 946684800


cdef inline double seconds() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec + now.tv_nsec * 1e-9


cdef inline uint64_t postgres_us() noexcept nogil:
    """Return the time of PostgreSQL's clock, in microseconds since 2000-01-01 UTC."""
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <uint64_t>(now.tv_sec - EPOCH_S) * 1000000 + <uint64_t>(now.tv_nsec // 1000)


cdef class CommitClock:
    cdef uint64_t end_lsn
    cdef double arrived_s
    cdef double taken_s[TIMES_MAX]
    cdef int count
    cdef object counted

    def __init__(self):
        self.end_lsn, self.count, self.counted = 0, 0, Times()

    @property
    def times(self):
        cdef int i
        for i in range(self.count):
            self.counted.observe(self.taken_s[i])
        self.count = 0
        return self.counted

    cpdef int on_wal(self, uint64_t end_lsn) except -1:
        if not self.end_lsn:
            self.end_lsn, self.arrived_s = end_lsn, seconds()
        return 0

    cpdef int on_commit(self, uint64_t commit_lsn) except -1:
        if self.end_lsn and commit_lsn >= self.end_lsn:
            self.taken_s[self.count] = seconds() - self.arrived_s
            self.count += 1
            self.end_lsn = 0
            if self.count == TIMES_MAX:
                self.times
        return 0

    def forget(self):
        self.end_lsn = 0


cdef class PrimaryPath:
    cdef public uint64_t received_lsn
    cdef public uint64_t flush_lsn
    cdef public uint64_t apply_lsn
    cdef public long silent_statuses
    cdef public object feedback
    cdef unsigned char status[STATUS_BYTES]
    cdef Py_ssize_t gathered_bytes_max, gathered_bytes
    cdef long silent_statuses_ask
    cdef object owner, connection, consume_input, get_copy_data, put_copy_data, flush
    cdef list gathered
    cdef StreamPath stream
    cdef CommitClock commits

    def __init__(self, owner, bytes status, *, gathered_bytes_max, silent_statuses_ask):
        if len(status) != STATUS_BYTES:
            raise ValueError(f"{len(status)=}")
        memcpy(self.status, <const unsigned char *>status, STATUS_BYTES)
        self.owner, self.gathered, self.gathered_bytes = owner, [], 0
        self.gathered_bytes_max = gathered_bytes_max
        self.silent_statuses_ask = silent_statuses_ask

    def open(self, connection, CommitClock commits not None):
        self.connection, self.commits = connection, commits
        calls = connection.libpq()
        self.consume_input, self.get_copy_data, self.put_copy_data, self.flush = calls

    def close(self):
        self.connection = self.stream = None

    def stream_first(self, StreamPath stream not None):
        self.stream, stream.primary = stream, self

    def on_readable(self):
        cdef Py_ssize_t size = 0
        cdef StreamPath stream = self.stream
        if self.connection is None or stream is None or stream.leader is None:
            return self.owner.on_readable()
        self.silent_statuses = 0
        error = rest = None
        try:
            self.consume_input()
            while True:
                size, data = self.get_copy_data(1)
                if size <= 0:
                    break
                if not self.gather(data):
                    rest = data
                    break
        except Exception as raised:  # libpq's; the owner raises any other again
            error = raised
        self.deliver()
        if rest is not None:
            self.owner.on_rest(rest)
        elif error is not None or size < 0:
            self.owner.on_stream_over(error)

    cdef bint gather(self, data) except -1:
        """Keep the WAL of a CopyData that follows what was received; return False for any other."""
        cdef Py_buffer payload
        cdef const unsigned char *head
        cdef Py_ssize_t wal_bytes
        PyObject_GetBuffer(data, &payload, PyBUF_SIMPLE)
        try:
            head, wal_bytes = <const unsigned char *>payload.buf, payload.len - XLOG_HEAD_BYTES
            if wal_bytes <= 0 or head[0] != b"w":
                return False
            if be64(head + XLOG_LSN_AT) != self.received_lsn:
                return False
        finally:
            PyBuffer_Release(&payload)
        if self.gathered_bytes + wal_bytes > self.gathered_bytes_max:
            self.deliver()
        self.received_lsn += <uint64_t>wal_bytes
        self.gathered.append(data)
        self.gathered_bytes += wal_bytes
        return True

    cdef int deliver(self) except -1:
        """Send the gathered WAL to all members, in one piece."""
        cdef list gathered = self.gathered
        cdef Py_ssize_t size = self.gathered_bytes
        cdef StreamPath stream = self.stream
        cdef uint64_t begin_lsn = self.received_lsn - <uint64_t>size
        if not gathered:
            return 0
        self.gathered, self.gathered_bytes = [], 0
        self.commits.on_wal(self.received_lsn)
        wal = gathered[0][XLOG_HEAD_BYTES:] if len(gathered) == 1 else joined(gathered, size)
        if stream is None or not stream.send_led(begin_lsn, wal):
            self.owner.on_wal(begin_lsn, wal)
        return 0

    cdef bint report(self, uint64_t commit_lsn, object feedback) except -1:
        """Report commit_lsn; return False if the owner has to."""
        if self.connection is None or feedback is not self.feedback:
            return False
        if not self.flush_lsn < commit_lsn <= self.received_lsn:
            return False
        if self.silent_statuses >= self.silent_statuses_ask:
            return False
        self.flush_lsn = self.apply_lsn = commit_lsn
        self.send_status(commit_lsn)
        self.commits.on_commit(commit_lsn)
        return True

    cdef int send_status(self, uint64_t lsn) except -1:
        cdef int i
        if self.connection.wants_write:
            return 0  # on_drained sends the newest
        for i in range(3):
            put_be64(self.status + STATUS_LSNS_AT + 8 * i, lsn)
        put_be64(self.status + STATUS_TIME_AT, postgres_us())
        try:
            self.put_copy_data(PyBytes_FromStringAndSize(<char *>self.status, STATUS_BYTES))
            if self.flush():
                self.connection.flush_rest()
        except Exception as error:
            self.owner.on_stream_over(error)
        return 0


cdef memoryview joined(list gathered, Py_ssize_t size):
    """Return the WAL of several CopyData, of `size` bytes in all."""
    cdef bytes wal = PyBytes_FromStringAndSize(NULL, size)
    cdef char *at = PyBytes_AS_STRING(wal)
    cdef Py_buffer payload
    for data in gathered:
        PyObject_GetBuffer(data, &payload, PyBUF_SIMPLE)
        memcpy(at, <char *>payload.buf + XLOG_HEAD_BYTES, payload.len - XLOG_HEAD_BYTES)
        at += payload.len - XLOG_HEAD_BYTES
        PyBuffer_Release(&payload)
    return memoryview(wal)
