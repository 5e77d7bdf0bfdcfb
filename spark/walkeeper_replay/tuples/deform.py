"""Tuples taken apart into columns: where each value is. Compiled.

    deform(data, places, lengths, column_lengths, alignments) -> (columns x tuples) places
    varlena(data, places) -> (places, lengths, kinds) of the bytes after the values' own headers

Contract: no read leaves a tuple. The place of a value that would do so is MALFORMED. Layout:
htup_details.h, tupmacs.h, varatt.h.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.page import HOFF, INFOMASK, INFOMASK2, TUPLE_HEADER_BYTES, get16, get32

NULL, ABSENT, MALFORMED = (
    -1,
    -2,
    -3,
)  # instead of a place; ABSENT if the tuple is older than the column
_HAS_NULLS, _NATTS_MASK = 0x0001, 0x07FF
PLAIN, COMPRESSED, EXTERNAL, WRONG = 0, 1, 2, 3
EXTERNAL_BYTES = 18
_VARTAG_ONDISK = 18


@compiled
def varlena_size(b: Any, p: Any, end: Any) -> Any:
    """Return a varlena's size with its header, or -1 if it is not all there."""
    if p >= end:
        return np.int64(-1)
    first = np.int64(b[p])
    if first == 1:
        size = np.int64(EXTERNAL_BYTES)
    elif first & 1:
        size = first >> 1
    elif p + 4 > end:
        return np.int64(-1)
    else:
        size = get32(b, p) >> 2
    if size < 1 or p + size > end or (first & 1 == 0 and size < 4):
        return np.int64(-1)
    return size


@compiled
def _value(b: Any, start: Any, p: Any, end: Any, length: Any, alignment: Any) -> Any:
    """Return (a value's place, the place after it or -1); places are aligned from `start` on."""
    if length == -1 and p < end and b[p] != 0:
        size = varlena_size(b, p, end)
        return p, np.int64(-1) if size < 0 else p + size
    p = start + ((p - start + alignment - 1) & ~(alignment - 1))
    if length >= 0:
        return p, p + length if p + length <= end else np.int64(-1)
    if length == -1:
        size = varlena_size(b, p, end)
        return p, np.int64(-1) if size < 0 else p + size
    q = p
    while q < end and b[q] != 0:
        q += 1
    return p, q + 1 if q < end else np.int64(-1)


@compiled
def _deform_one(
    b: Any, at: Any, length: Any, lengths: Any, alignments: Any, out: Any, t: Any
) -> Any:
    end = at + length
    natts = get16(b, at + INFOMASK2) & _NATTS_MASK
    nulls = get16(b, at + INFOMASK) & _HAS_NULLS != 0
    start = at + np.int64(b[at + HOFF])
    p = start
    broken = start > end or (nulls and TUPLE_HEADER_BYTES + (natts + 7) // 8 > b[at + HOFF])
    for c in range(len(lengths)):
        if c >= natts:
            out[c, t] = ABSENT
            continue
        if broken:
            out[c, t] = MALFORMED
            continue
        if nulls and not b[at + TUPLE_HEADER_BYTES + (c >> 3)] >> (c & 7) & 1:
            out[c, t] = NULL
            continue
        place, behind = _value(b, start, p, end, lengths[c], alignments[c])
        if behind < 0:
            broken = True
            out[c, t] = MALFORMED
            continue
        out[c, t] = place
        p = behind


@compiled
def _deform(b: Any, places: Any, sizes: Any, lengths: Any, alignments: Any, out: Any) -> Any:
    for t in range(len(places)):
        if sizes[t] < TUPLE_HEADER_BYTES:
            out[:, t] = MALFORMED
        else:
            _deform_one(b, places[t], np.int64(sizes[t]), lengths, alignments, out, t)


def deform(data: Any, places: Any, sizes: Any, lengths: Any, alignments: Any) -> Any:
    """See the module."""
    out = np.empty((len(lengths), len(places)), np.int64)
    given = np.array(lengths, np.int64), np.array(alignments, np.int64)
    _deform(data, np.asarray(places, np.int64), np.asarray(sizes, np.int64), *given, out)
    return out


@compiled
def _varlena(b: Any, places: Any, begins: Any, sizes: Any, kinds: Any) -> Any:
    for t in range(len(places)):
        p = places[t]
        begins[t], sizes[t], kinds[t] = 0, 0, PLAIN
        if p < 0:
            continue
        first = np.int64(b[p])
        if first == 1:
            begins[t], sizes[t] = p + 2, 16
            kinds[t] = EXTERNAL if b[p + 1] == _VARTAG_ONDISK else WRONG
        elif first & 1:
            begins[t], sizes[t] = p + 1, (first >> 1) - 1
        else:
            begins[t], sizes[t] = p + 4, (get32(b, p) >> 2) - 4
            kinds[t] = COMPRESSED if first & 2 else PLAIN


def varlena(data: Any, places: Any) -> tuple[Any, Any, Any]:
    """See the module. A null or absent value has zero bytes."""
    begins, sizes = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    kinds = np.empty(len(places), np.uint8)
    _varlena(data, places, begins, sizes, kinds)
    return begins, sizes, kinds


@compiled
def copy_values(b: Any, begins: Any, offsets: Any, into: Any) -> Any:
    """Copy the bytes from begins[i] on to into[offsets[i] : offsets[i + 1]]."""
    for t in range(len(begins)):
        p = begins[t]
        for q in range(offsets[t], offsets[t + 1]):
            into[q] = b[p]
            p += 1
