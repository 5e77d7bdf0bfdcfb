"""Numbers and byte strings from many places of a payload at once. Pure.

Contract: a place past the end of the payload reads as its last byte, so no read leaves the payload.
The caller checks lengths before it uses the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_history.records.segment import Bytes, Column

MICROSECONDS_1970_TO_2000 = 946_684_800_000_000  # PostgreSQL counts from 2000-01-01
TIMESTAMP_MAX = 1 << 62


def integers(payload: Bytes, places: Column, size: int) -> Column:
    """Return the little-endian integers of `size` bytes at `places`, as int64."""
    value: Column = np.zeros(len(places), np.int64)
    for k in range(size):
        value |= payload[np.minimum(places + k, len(payload) - 1)].astype(np.int64) << (8 * k)
    return value


def binaries(payload: Bytes, places: Column, lengths: Column) -> Any:
    """Return a pyarrow binary array of `lengths[i]` bytes from `places[i]` on."""
    ends = np.zeros(len(places) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    assert ends[-1] < 1 << 31, f"{ends[-1]=}: more than an Arrow binary column holds"
    order = np.arange(ends[-1])
    sources = np.repeat(places.astype(np.int64) - ends[:-1], lengths) + order
    data = payload[sources]
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(places), [None, offsets, pa.py_buffer(data)])


def timestamps(values: Column, known: Column) -> Any:
    """Return PostgreSQL's timestamps as UTC microseconds, null if not `known` or out of range."""
    shifted = np.where(np.abs(values) < TIMESTAMP_MAX, values, 0) + MICROSECONDS_1970_TO_2000
    unknown = ~known | (np.abs(values) >= TIMESTAMP_MAX)
    return pa.array(shifted, pa.timestamp("us", "UTC"), mask=unknown)


def names(choices: tuple[str, ...], codes: Column) -> Any:
    """Return a string array: choices[codes[i]]."""
    return pa.array(choices, pa.string()).take(pa.array(codes))
