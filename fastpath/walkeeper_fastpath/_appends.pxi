"""The fast path of a safekeeper: appends of a steady leader in, durable WAL and an ack out.

The contract is in _fastpath.pyi.
"""

cdef extern from "<sys/uio.h>" nogil:
    ssize_t pwritev(int descriptor, const iovec *parts, int count, off_t offset)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)


cdef struct Appends:
    # What frames of the next WAL say, all of them together.
    uint64_t end_lsn
    uint64_t leader_commit_lsn
    uint64_t restart_lsn
    uint64_t wal_bytes
    int pieces


cdef class AppendPath:
    cdef unsigned char term[TERM_BYTES]
    cdef unsigned char ack[ACK_BYTES]
    cdef readonly uint64_t end_lsn
    cdef uint64_t limit_lsn, leader_commit_lsn, restart_lsn, file_lsn
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
        self.leader_commit_lsn = be64(<const unsigned char *>head + COMMIT_AT)
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
        self.leader_commit_lsn = found.leader_commit_lsn
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
        return self.end_lsn, self.leader_commit_lsn, self.restart_lsn

    cdef int took(self, double started_s, double written_s, double synced_s) except -1:
        """Keep the times of a write. Hand them over if it may end what the loop may wait for.

        While each is brief, so is their average. So `is_quick` can only end with a longer one."""
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
        found.end_lsn, found.leader_commit_lsn = self.end_lsn, self.leader_commit_lsn
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
            if commit < found.leader_commit_lsn:
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
            found.end_lsn, found.leader_commit_lsn = end, commit
            if restart > found.restart_lsn:
                found.restart_lsn = restart
            at = end_at
        if not found.pieces:
            # A heartbeat is answered, by the core, unless it brings a new commit_lsn.
            if at != APPEND_BYTES or self.leader_commit_lsn >= min(commit, found.end_lsn):
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
