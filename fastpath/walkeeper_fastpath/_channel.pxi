"""A connection of the fast path: frames to its socket, received bytes from its loop."""

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "<sys/socket.h>" nogil:
    int MSG_DONTWAIT
    int MSG_NOSIGNAL
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int descriptor, const msghdr *message, int flags)
    ssize_t send(int descriptor, const void *data, size_t size, int flags)


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
