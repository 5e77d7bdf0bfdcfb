"""Values stored out of line or compressed, whole again.

    fetch = Chunks(pages, places, lengths)          of the TOAST relation's tuples
    plain(data, begin, size, kind, fetch) -> bytes, or None if the value is not known

Contract: chunks are found by the value's number, which is never used twice in a relation's life. So
the chunks of values long replaced still serve old versions of rows. Layout: varatt.h, detoast.c,
toast_internals.h.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack_from

import numpy as np

from walkeeper_replay.redo.images import unpack
from walkeeper_replay.tuples.deform import COMPRESSED, EXTERNAL, PLAIN, deform, varlena
from walkeeper_wal.records.gather import integers
from walkeeper_wal.records.segment import Bytes, Column

_SIZE_MASK = 0x3FFFFFFF
_METHODS = {0: "pglz", 1: "lz4"}
Fetch = Callable[[int, int], bytes | None]
"""Return the joined chunks of a value by its number and size, fewer bytes if some are unknown."""


class Chunks:
    """A TOAST relation's chunks, sorted by value and number. It is a Fetch."""

    def __init__(self, data: Bytes, places: Column, lengths: Column) -> None:
        ids, numbers, values = deform(data, places, lengths, [4, 4, -1], [4, 4, 4])
        good = (ids >= 0) & (numbers >= 0) & (values >= 0)
        self._data = data
        identifiers = integers(data, ids[good], 4)
        order = np.lexsort((integers(data, numbers[good], 4), identifiers))
        self.ids = identifiers[order]
        self.numbers = integers(data, numbers[good][order], 4)
        self.begins, self.sizes, _ = varlena(data, values[good][order])

    def __call__(self, number: int, size: int) -> bytes | None:
        return whole_from(self.numbered(number))

    def numbered(self, number: int) -> dict[int, bytes]:
        """Return the chunks of a value by their numbers."""
        first, end = np.searchsorted(self.ids, [number, number + 1]).tolist()
        found: dict[int, bytes] = {}  # a chunk seen twice is the same
        for row in range(first, end):
            begin = int(self.begins[row])
            data = self._data[begin : begin + int(self.sizes[row])]
            found[int(self.numbers[row])] = data.tobytes()
        return found


def whole_from(chunks: dict[int, bytes]) -> bytes | None:
    """Return the chunks before the first missing one as one value, or None without any."""
    pieces: list[bytes] = []
    while (piece := chunks.get(len(pieces))) is not None:
        pieces.append(piece)
    return b"".join(pieces) if pieces else None


def nothing(number: int, size: int) -> bytes | None:
    """Return None, for relations without TOAST."""
    return None


def plain(data: Bytes, begin: int, size: int, kind: int, fetch: Fetch) -> bytes | None:
    """Return the bytes of one value, described as by deform.varlena, or None if not known."""
    stored = data[begin : begin + size].tobytes()
    if kind == PLAIN:
        return stored
    if kind == COMPRESSED:
        word = int.from_bytes(stored[:4], "little")
        return unpacked(stored[4:], word & _SIZE_MASK, word >> 30)
    if kind != EXTERNAL:
        return None
    raw_size, word, number, _ = unpack_from("<iIII", stored)
    found = fetch(number, word & _SIZE_MASK)
    if found is None or len(found) != word & _SIZE_MASK:
        return None
    if len(found) < raw_size - 4:
        return unpacked(found[4:], raw_size - 4, word >> 30)
    return found


def unpacked(packed: bytes, size: int, method: int) -> bytes | None:
    """Return the `size` bytes, or None if `packed` has another size or an unknown method."""
    if method not in _METHODS:
        return None
    found = unpack(np.frombuffer(packed, np.uint8), size, _METHODS[method])
    return None if found is None else found.tobytes()
