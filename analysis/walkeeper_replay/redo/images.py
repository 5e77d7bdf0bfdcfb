"""Page images of a batch, unpacked, for redo to restore and for consistency checking to compare.

    unpack_images(batch, rows, into) -> how many

Contract: plain images stay where they are in the payload. Each compressed one becomes a whole page
of `into`. pglz is decoded by _redo.pyx (pg_lzcompress.c); lz4 and zstd are pyarrow's.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.records.walk import HAS_IMAGE
from walkeeper_wal.sources.reading import Batch
from walkeeper_wal.wal_errors import DamagedWal

_CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


def unpack(packed: Bytes, size: int, method: str) -> Bytes | None:
    """Return `size` unpacked bytes, or None if the data does not unpack to just as many."""
    if method == "pglz":
        unpacked: Bytes = np.empty(size, np.uint8)
        return unpacked if loops.pglz_decompress(packed, unpacked) else None
    if method == "lz4" and loops.lz4_size(packed) != size:
        return None
    try:
        data = pa.Codec(_CODECS[method]).decompress(pa.py_buffer(packed), decompressed_size=size)
    except (OSError, pa.ArrowException):
        return None
    return np.frombuffer(data, np.uint8)


def unpack_images(batch: Batch, rows: Column, into: Bytes) -> tuple[Column, Bytes]:
    """Return each block reference's page of `into` (-1 for none), and `into`, which may have
    grown."""
    version, blocks = batch.version, batch.blocks[rows]
    packed = (blocks["flags"] & HAS_IMAGE != 0) & (
        blocks["image_info"] & version.image_compressed_mask != 0
    )
    places: Column = np.full(len(rows), -1, np.int32)
    found = np.flatnonzero(packed)
    if not len(found):
        return places, into
    places[found] = np.arange(len(found))
    if len(into) < len(found):
        into = np.empty((max(len(found), 2 * len(into)), PAGE_BYTES), np.uint8)
    methods = version.image_methods().items()
    for number, row in enumerate(found.tolist()):
        block = blocks[row]
        method = next(name for flag, name in methods if int(block["image_info"]) & flag)
        begin, length = int(block["image_offset"]), int(block["image_length"])
        hole, gap = int(block["hole_offset"]), int(block["hole_length"])
        page = unpack(batch.payload[begin : begin + length], PAGE_BYTES - gap, method)
        if page is None:
            lsn = int(batch.start_lsn()[int(block["record"])])
            raise DamagedWal(f"the page image in the record at {lsn:X} does not unpack ({method})")
        into[number, :hole] = page[:hole]
        into[number, hole : hole + gap] = 0
        into[number, hole + gap :] = page[hole:]
    return places, into
