# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The compiled fast path: bytes of a steady leader in, durable WAL and an ack out.

It holds no rule of its own. The core says what the next frames look like, byte by byte, while
nothing is under way. A frame that does not match is not touched, and the core decides about it.
The contract of each class is in _fastpath.pyi.

_frames.pxi is pure: it looks at bytes and positions. The other files have system calls around it.
A disk without a descriptor, as in the simulator, gets the same calls as Python methods.
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

include "_frames.pxi"
include "_channel.pxi"
include "_files.pxi"
include "_appends.pxi"
include "_stream.pxi"
include "_primary.pxi"
