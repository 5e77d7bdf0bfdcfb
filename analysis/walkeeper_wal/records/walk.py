"""The walk: from a payload's bytes to rows of records and of block references. Pure.

    walk(request, buffers) -> Walked        what an engine does (engines.py)

Contract: records are taken one after another, each checked as PostgreSQL's reader does. The checks
are the length, the prev-link, the CRC-32C over all of it (unless switched off), and headers within
bounds. The walk ends at the first record that is not whole and right, or at the requested end. It
also ends at an XLOG_SWITCH, or when the buffers are full. `stop` has the reason and `stop_offset`
the place. No read leaves its record, with any bytes in it. Rows are views of `buffers`: to keep
them, copy them. Layout: xlogrecord.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from walkeeper_wal.records.segment import Bytes, Column
from walkeeper_wal.records.stops import Stop

RECORD_HEADER_BYTES = 24
BLOCK_ID_MAX = 32
BLOCKS_PER_RECORD_MAX = BLOCK_ID_MAX + 1
ID_SHORT_DATA, ID_LONG_DATA, ID_ORIGIN, ID_TOPLEVEL_XID = 255, 254, 253, 252
HAS_IMAGE, HAS_DATA, SAME_REL = 0x10, 0x20, 0x80
IMAGE_HAS_HOLE = 0x01
PAGE_BYTES = 8192
RMGR_XLOG, XLOG_SWITCH = 0, 0x40

RECORDS_MAX = 1 << 18
BLOCKS_MAX = 1 << 19

# Offsets are into the payload. A row's fields are adjacent in memory, since a walk writes rows.
RECORD_ROW = np.dtype(
    [
        ("prev_lsn", np.uint64),
        ("offset", np.uint32),
        ("length", np.uint32),
        ("xid", np.uint32),
        ("toplevel_xid", np.uint32),
        ("main_offset", np.uint32),
        ("main_length", np.uint32),
        ("fpi_length", np.uint32),
        ("origin", np.uint16),
        ("block_count", np.uint8),
        ("info", np.uint8),
        ("rmid", np.uint8),
        ("padding", np.uint8, (3,)),
    ]
)
BLOCK_ROW = np.dtype(
    [
        ("record", np.uint32),  # its index in this walk
        ("tablespace", np.uint32),
        ("database", np.uint32),
        ("relfilenode", np.uint32),
        ("block_number", np.uint32),
        ("data_offset", np.uint32),
        ("image_offset", np.uint32),
        ("data_length", np.uint16),
        ("image_length", np.uint16),
        ("hole_offset", np.uint16),
        ("hole_length", np.uint16),
        ("block_id", np.uint8),
        ("flags", np.uint8),  # the fork in the low four bits
        ("image_info", np.uint8),
        ("padding", np.uint8),
    ]
)


@dataclass(frozen=True, slots=True)
class WalkRequest:
    """Records that start in [begin, end) of `payload`, of which `available` bytes are valid.

    `first_lsn` and `segment_bytes` give the payload's place, for prev-links. `prev_lsn` is the
    required prev-link of the first record, or None if any lower one will do.
    """

    payload: Bytes  # with SLACK_BYTES after `available`
    begin: int
    end: int
    available: int
    first_lsn: int
    segment_bytes: int
    prev_lsn: int | None
    check_crc: bool
    image_compressed_mask: int


@dataclass(frozen=True, slots=True)
class Walked:
    """Rows of RECORD_ROW and BLOCK_ROW, in the order of the log."""

    records: Column
    blocks: Column
    stop: Stop
    stop_offset: int


class Buffers:
    """Room for the rows of one walk. It is kept, since fresh memory costs more than the walk."""

    def __init__(self, records_max: int = RECORDS_MAX, blocks_max: int = BLOCKS_MAX) -> None:
        assert records_max > 0 and blocks_max >= BLOCKS_PER_RECORD_MAX, f"{blocks_max=}"
        self.records: Column = np.empty(records_max, RECORD_ROW)
        self.blocks: Column = np.empty(blocks_max, BLOCK_ROW)


Walk = Callable[[WalkRequest, Buffers], Walked]
