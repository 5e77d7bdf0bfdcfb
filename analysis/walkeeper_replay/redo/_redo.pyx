# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: cdivision=True, infer_types=True
"""The compiled loops of redo: records chosen, redone on pages, recorded, compared.

Contract: _redo.pyi and apply.py name the functions and rows. The loops do not hold the global
interpreter lock, so threads redo parts of a relation side by side. Bytes of WAL and of pages are
reached by heap_page.pxd alone, which checks each place. Arrays that this product makes itself are
checked once for each call.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memmove, memset

from walkeeper_replay.redo.heap_page cimport *
from walkeeper_wal.records.rows cimport BlockRow, RecordRow

import numpy as np

from walkeeper_replay.redo import apply as _rows
from walkeeper_wal.records import walk as _walked

cdef packed struct ChosenRow:
    uint32_t row
    int32_t relation, image

cdef packed struct SlotRow:
    int32_t relation
    uint32_t block
    uint8_t state

cdef packed struct EventRow:
    int64_t start_lsn, end_lsn
    uint32_t xid
    int32_t relation
    uint32_t block
    uint16_t number
    uint8_t kind
    int64_t place
    int32_t length

cdef packed struct ResetRow:
    uint32_t tablespace, database, relfilenode, block
    uint64_t prev_lsn

# A store's slots, and the hash table that finds them.
cdef struct Slots:
    int64_t *hash_keys
    int32_t *hash_slots
    int64_t hash_rows, slots_max
    SlotRow *rows
    int64_t *counts

# A batch of records.
cdef struct Log:
    const uint8_t *payload
    int64_t size, block_count, image_count, apply_flag, major
    const RecordRow *records
    const BlockRow *blocks
    const uint8_t *images

cdef struct Chosen:
    int64_t count, behind

cdef struct Redone:
    int64_t state, wrong
    bint changed

# What the events of one record have in common.
cdef struct Noted:
    int64_t start_lsn, end_lsn, relation, block
    uint32_t xid

cdef struct Room:
    int64_t *counts
    EventRow *events
    uint8_t *arena
    int64_t events_max, arena_size

# test_compiled_redo.py holds these against apply.py.
cdef enum:
    XLOG = 0
    HEAP2 = 9
    HEAP = 10
    GENERIC = 20
    CUSTOM_MIN = 128
    HAS_IMAGE = 0x10
    FORK_MASK = 0x0F
    BLOCKS_PER_PART = 64
    UNKNOWN = 0
    KNOWN = 1
    BROKEN = 2
    SEEN = 0
    INSERTED = 1
    DELETED = 2
    OLD = 3
    NEW = 4
    UNDONE = 5
    RECORD_NOTHING = 0
    RECORD_VERSIONS = 2
    SLOTS = 0
    EVENTS = 1
    ARENA = 2
    APPLIED = 3
    UNKNOWN_COUNT = 4
    BROKEN_COUNT = 5
    RELATIONS = 6
    COUNTS = 8
    NOT_SANE = -9
    # The most that one record can add.
    EVENTS_MARGIN = 1200
    ARENA_MARGIN = 4 * 8192

NO_ROWS = np.zeros(0, _rows.SLOT_ROW)
NO_BYTES = np.empty(0, np.uint8)
NO_PAGES = np.empty((0, PAGE_BYTES), np.uint8)

for _size, _row in (
    (sizeof(RecordRow), _walked.RECORD_ROW), (sizeof(BlockRow), _walked.BLOCK_ROW),
    (sizeof(ChosenRow), _rows.CHOSEN_ROW), (sizeof(SlotRow), _rows.SLOT_ROW),
    (sizeof(EventRow), _rows.EVENT_ROW), (sizeof(ResetRow), _rows.RESET_ROW),
):
    assert _size == _row.itemsize, f"{_size=} {_row=}"


cdef inline const uint8_t *first_of(const uint8_t[::1] data) noexcept nogil:
    """Return the bytes' place, or NULL if there are none."""
    return &data[0] if data.shape[0] else NULL


include "changed_page.pxi"
include "heap_redo.pxi"
include "heap2_redo.pxi"
include "page_slots.pxi"
include "whole_pages.pxi"
include "apply.pxi"
include "compared_pages.pxi"
include "redo_calls.pxi"
include "page_resets.pxi"
