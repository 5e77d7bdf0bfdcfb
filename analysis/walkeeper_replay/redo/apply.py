"""The rows and numbers of redo: records chosen, redone on pages, recorded. _redo.pyx has the loops.

    choose(...)    the block references of wanted relations (and of one part of their blocks)
    apply(...)     redo of those, in the order of the log; with `recorded` relations also the tuples
                   that records put in, changed or took away, copied into an arena

Contract: a page is known from its first image, its initialisation or a base backup on. Until then
records do not change it and are counted. A record that does not fit its page makes it broken until
its next image. That is counted too, and the page's content is not used. A record below its page's
LSN is skipped, as in PostgreSQL's redo. Both loops return the place where they ran out of room, to
be called again.
"""

from __future__ import annotations

import numpy as np

XLOG, HEAP2, HEAP, SEQUENCE, GENERIC = 0, 9, 10, 15, 20
CUSTOM_MIN = 128  # resource managers of extensions
FORK_MASK = 0x0F
BLOCKS_PER_PART = 64
# GONE: a truncation cut the page off, or its relation was dropped.
# NOT_REPLAYED: a record that redo does not know has changed it.
UNKNOWN, KNOWN, BROKEN, GONE, NOT_REPLAYED = 0, 1, 2, 3, 4

CHOSEN_ROW = np.dtype([("row", np.uint32), ("relation", np.int32), ("image", np.int32)])
# A page of the store: its relation and block, and its state.
SLOT_ROW = np.dtype([("relation", np.int32), ("block", np.uint32), ("state", np.uint8)])
# A change of a tuple. `length` is 0 if its page was not known.
EVENT_ROW = np.dtype(
    [
        ("start_lsn", np.int64),
        ("end_lsn", np.int64),
        ("xid", np.uint32),
        ("relation", np.int32),
        ("block", np.uint32),
        ("number", np.uint16),
        ("kind", np.uint8),
        ("place", np.int64),  # in the arena
        ("length", np.int32),
    ]
)
# See page_resets. The prev-link is a name of the record, in the order of the log, that a row has
# without any arithmetic.
RESET_ROW = np.dtype(
    [
        ("tablespace", np.uint32),
        ("database", np.uint32),
        ("relfilenode", np.uint32),
        ("block", np.uint32),
        ("prev_lsn", np.uint64),
    ]
)
SEEN, INSERTED, DELETED, OLD, NEW, UNDONE = 0, 1, 2, 3, 4, 5
RECORD_NOTHING, RECORD_CHANGES, RECORD_VERSIONS = 0, 1, 2
# In `counts`.
SLOTS, EVENTS, ARENA, APPLIED, UNKNOWN_COUNT, BROKEN_COUNT, RELATIONS = 0, 1, 2, 3, 4, 5, 6
COUNTS = 8
