"""Reads of files without a wait for the disk."""

cdef extern from "<sys/uio.h>" nogil:
    int RWF_NOWAIT
    ssize_t preadv2(int descriptor, const iovec *parts, int count, off_t offset, int flags)


def read_cached(int descriptor, Py_ssize_t size, off_t offset):
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef iovec part
    cdef ssize_t done
    part.iov_base, part.iov_len = PyBytes_AS_STRING(data), size
    with nogil:
        done = preadv2(descriptor, &part, 1, offset, RWF_NOWAIT)
    return data if done == size else None
