"""Tuples taken apart into columns: where each value is. _tuples.pyx has the loops.

    deform(data, places, lengths, column_lengths, alignments) -> (columns x tuples) places
    varlena(data, places) -> (places, lengths, kinds) of the bytes after the values' own headers

Contract: no read leaves a tuple. The place of a value that would do so is MALFORMED. Layout:
htup_details.h, tupmacs.h, varatt.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from walkeeper_replay.tuples.tuple_loops import loops

# Instead of a place; ABSENT if the tuple is older than the column.
NULL, ABSENT, MALFORMED = -1, -2, -3
PLAIN, COMPRESSED, EXTERNAL, WRONG = 0, 1, 2, 3


def deform(data: Any, places: Any, sizes: Any, lengths: Any, alignments: Any) -> Any:
    """Return a place for each column and tuple, or NULL, ABSENT or MALFORMED.

    `places` and `sizes` are the tuples' in `data`; `lengths` and `alignments` are the columns'.
    """
    out = np.empty((len(lengths), len(places)), np.int64)
    given = np.array(lengths, np.int64), np.array(alignments, np.int64)
    loops.deform_all(
        data,
        np.ascontiguousarray(places, np.int64),
        np.ascontiguousarray(sizes, np.int64),
        *given,
        out,
    )
    return out


def varlena(data: Any, places: Any) -> tuple[Any, Any, Any]:
    """Return the place, the size and the kind of the bytes after each value's own header.

    A null or absent value has zero bytes.
    """
    begins, sizes = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    kinds = np.empty(len(places), np.uint8)
    loops.varlena_parts(data, np.ascontiguousarray(places, np.int64), begins, sizes, kinds)
    return begins, sizes, kinds
