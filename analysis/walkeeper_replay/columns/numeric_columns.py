"""A column of numerics as text: the same as numerics.numeric_text, of all values at once.

Contract: numeric_text itself makes the text of special values and of values too long for the room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_replay.text.numerics import numeric_text
from walkeeper_replay.tuples.tuple_loops import loops
from walkeeper_wal.records.segment import Bytes, Column

_ROOM = 48  # characters, enough for nearly all


def damaged_numerics(data: Bytes, offsets: Column) -> Column:
    """Return a mask of the values that are too short for their header, or have half a digit."""
    sizes = np.diff(offsets)
    second = np.append(data, np.zeros(2, np.uint8))[offsets[:-1] + 1]
    has_weight = second & 0x80 == 0
    found: Column = (sizes < np.where(has_weight & (sizes != 0), 4, 2)) | (sizes % 2 == 1)
    return found


def numeric_strings(data: Bytes, offsets: Column, absent: Column) -> Any:
    """Return the texts of the values `data[offsets[i]:offsets[i + 1]]`, null where `absent`."""
    into = np.empty(len(absent) * _ROOM + 64, np.uint8)
    ends = np.zeros(len(absent) + 1, np.int64)
    done = loops.format_numerics(data, offsets, absent.view(np.uint8), into, ends)
    if done == len(absent) and ends[-1] < 1 << 31:
        valid = pa.array(~absent).buffers()[1]
        buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(into[: ends[-1]])]
        return pa.Array.from_buffers(pa.string(), len(absent), buffers)
    raw = data.tobytes()
    spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), absent.tolist(), strict=True)
    return pa.array([None if a else numeric_text(raw[b:e]) for b, e, a in spans], pa.string())
