"""Load a segment's bytes: page headers into one array, everything else as one payload.

    room = Room(); loaded = room.load(files, path, segment_bytes)

The kernel scatters a plain local file (preadv: a header, a page, a header, a page), so its bytes
are copied once. The payload of a compressed or remote file is a second copy. Contract: one Room
serves one thread, and its loaded bytes are valid until the next load.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, SHORT_HEADER_BYTES
from walkeeper_wal.records.segment import (
    HEADER_ROW,
    LONG_HEADER_EXCESS,
    SLACK_BYTES,
    Bytes,
    Column,
    copy_payload,
    page_headers,
    page_offset,
    payload_bytes,
    whole_pages,
)
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import HistoryError

SPILL_BYTES_USUAL = 1 << 20  # room for most last records without another allocation
VECTORS_MAX = 1024  # the limit of one preadv: IOV_MAX
_PAGES_PER_CALL = VECTORS_MAX // 2 - 1  # the first page takes three


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded segment.

    `headers` are those of all pages that have one. `front` is the first page's, in its long form if
    it is there. `held` is the size of the payload, whose last page may be a part.
    """

    size: int
    headers: Column
    front: bytes
    held: int


class Room:
    """The payload of one segment and of the rest of its last record."""

    def __init__(self) -> None:
        self._payload: Bytes = np.empty(0, np.uint8)
        self._headers: Column = np.empty(0, HEADER_ROW)
        self._rest = bytearray(LONG_HEADER_EXCESS)
        self._vectors: list[memoryview] = []

    def payload(self, size: int) -> Bytes:
        """Return a buffer of at least `size` bytes and slack; it keeps its earlier content."""
        if len(self._payload) < size + SLACK_BYTES:
            grown = np.empty(size + SLACK_BYTES, np.uint8)
            grown[: len(self._payload)] = self._payload
            self._payload, self._vectors = grown, []
        return self._payload

    def load(self, files: WalFiles, path: str, segment_bytes: int) -> Loaded:
        """Load at most `segment_bytes` of a file; the result's size shows whether it has more or
        less."""
        self.payload(payload_bytes(segment_bytes) + SPILL_BYTES_USUAL)
        descriptor = files.open_plain(path)
        if descriptor is None:
            data = files.read(path)
            kept, held = whole_pages(data[:segment_bytes])
            copy_payload(kept, self._payload)
            front = kept[:LONG_HEADER_BYTES].tobytes()
            return Loaded(len(data), page_headers(kept), front, held)
        try:
            return self._scatter(descriptor, segment_bytes)
        except OSError as error:
            raise HistoryError(error.strerror or str(error), files.shown(path)) from error
        finally:
            os.close(descriptor)

    def _scatter(self, descriptor: int, segment_bytes: int) -> Loaded:
        size = os.fstat(descriptor).st_size
        pages = min(size, segment_bytes) // WAL_PAGE_BYTES
        if len(self._headers) < segment_bytes // WAL_PAGE_BYTES:
            self._headers, self._vectors = np.empty(segment_bytes // WAL_PAGE_BYTES, HEADER_ROW), []
        if not self._vectors:
            self._vectors = self._make_vectors(segment_bytes // WAL_PAGE_BYTES)
        done = 0
        for page in range(0, pages, _PAGES_PER_CALL):
            end = min(page + _PAGES_PER_CALL, pages)
            first, last = (n * 2 + (n > 0) for n in (page, end))
            wanted = (end - page) * WAL_PAGE_BYTES
            got = os.preadv(descriptor, self._vectors[first:last], page * WAL_PAGE_BYTES)
            done += got
            if got < wanted:
                size = done  # it has become shorter since
                break
        whole = done // WAL_PAGE_BYTES
        held = payload_bytes(done)
        if whole == pages and size < segment_bytes:
            rest = os.pread(descriptor, size - whole * WAL_PAGE_BYTES, whole * WAL_PAGE_BYTES)
            if len(rest) >= (SHORT_HEADER_BYTES if whole else LONG_HEADER_BYTES):
                held = self._add_part_of_page(rest, whole)
                whole += 1
        front = self._headers[:1].tobytes() + self._rest if whole else b""
        return Loaded(size, self._headers[:whole], front, held)

    def _add_part_of_page(self, data: bytes, page: int) -> int:
        """Add a cut-off page, as in an archived tail, and return the end of the payload."""
        self._headers.view(np.uint8)[page * SHORT_HEADER_BYTES :][:SHORT_HEADER_BYTES] = (
            np.frombuffer(data[:SHORT_HEADER_BYTES], np.uint8)
        )
        begin = SHORT_HEADER_BYTES
        if not page:
            self._rest[:], begin = data[SHORT_HEADER_BYTES:LONG_HEADER_BYTES], LONG_HEADER_BYTES
        at = page_offset(page)
        self._payload[at : at + len(data) - begin] = np.frombuffer(data[begin:], np.uint8)
        return at + len(data) - begin

    def _make_vectors(self, pages: int) -> list[memoryview]:
        """Return header and page by turns; the first page's header is two pieces."""
        headers, payload = self._headers.view(np.uint8).data, self._payload.data
        vectors = [headers[:SHORT_HEADER_BYTES], memoryview(self._rest)]
        vectors.append(payload[: page_offset(1)])
        for page in range(1, pages):
            at = page * SHORT_HEADER_BYTES
            vectors.append(headers[at : at + SHORT_HEADER_BYTES])
            vectors.append(payload[page_offset(page) : page_offset(page + 1)])
        return vectors
