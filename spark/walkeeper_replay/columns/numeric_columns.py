"""A column of numerics as text: the same as numerics.numeric_text, of all values at once. Compiled.

Contract: numeric_text itself makes the text of special values and of values too long for the room.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from walkeeper_history.records.segment import Bytes, Column
from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.page import get16
from walkeeper_replay.text.numerics import numeric_text

_ROOM = 48  # characters, enough for nearly all


@compiled
def _digits(value: Any, into: Any, at: Any, skip: Any) -> Any:
    """Write four digits, without leading zeros if `skip`; return the place after them."""
    divisor = np.int64(1000)
    while divisor:
        digit = value // divisor % 10
        if digit or not skip:
            into[at] = 48 + digit
            at += 1
            skip = False
        divisor //= 10
    return at


@compiled
def _format(b: Any, p: Any, end: Any, into: Any, at: Any, limit: Any) -> Any:
    """Write one value's text; return the place after it, or -1 if it is not a usual one."""
    if end - p < 2:
        return np.int64(-1)
    header = get16(b, p)
    if header & 0xC000 == 0xC000:
        return np.int64(-1)
    if header & 0x8000:
        negative, scale = header & 0x2000 != 0, header >> 7 & 0x3F
        weight = (header & 0x3F) - (64 if header & 0x40 else 0)
        p += 2
    else:
        if end - p < 4:
            return np.int64(-1)
        negative, scale, weight = header & 0x4000 != 0, header & 0x3FFF, get16(b, p + 2)
        weight -= 65536 if weight & 0x8000 else 0
        p += 4
    count = (end - p) >> 1
    if at + 8 + 4 * (max(weight, 0) + 1) + scale + 4 > limit:
        return np.int64(-1)
    if negative:
        into[at] = 45
        at += 1
    begin = at
    for k in range(weight + 1):
        group = get16(b, p + 2 * k) if k < count else np.int64(0)
        at = _digits(group, into, at, at == begin)
    if at == begin:
        into[at] = 48
        at += 1
    if scale:
        into[at] = 46
        at += 1
        stop = at + scale
        k = weight + 1
        while at < stop:
            group = get16(b, p + 2 * k) if k >= 0 and k < count else np.int64(0)
            at = _digits(group, into, at, False)
            k += 1
        at = stop
    return at


@compiled
def _format_all(b: Any, offsets: Any, absent: Any, into: Any, ends: Any) -> Any:
    """Write all texts, one after the other; return the number of values that were done."""
    at = np.int64(0)
    for t in range(len(absent)):
        ends[t] = at
        if absent[t]:
            continue
        behind = _format(b, offsets[t], offsets[t + 1], into, at, len(into))
        if behind < 0:
            return np.int64(t)
        at = behind
    ends[len(absent)] = at
    return np.int64(len(absent))


def numeric_strings(data: Bytes, offsets: Column, absent: Column) -> Any:
    """See the module; `data[offsets[i]:offsets[i + 1]]` is a value."""
    into = np.empty(len(absent) * _ROOM + 64, np.uint8)
    ends = np.zeros(len(absent) + 1, np.int64)
    if _format_all(data, offsets, absent, into, ends) == len(absent) and ends[-1] < 1 << 31:
        valid = pa.array(~absent).buffers()[1]
        buffers = [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(into[: ends[-1]])]
        return pa.Array.from_buffers(pa.string(), len(absent), buffers)
    raw = data.tobytes()
    spans = zip(offsets[:-1].tolist(), offsets[1:].tolist(), absent.tolist(), strict=True)
    return pa.array([None if a else numeric_text(raw[b:e]) for b, e, a in spans], pa.string())
