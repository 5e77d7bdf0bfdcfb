"""The chunks of a TOAST relation whose pages are in memory, in a file, or in a base backup.

    chunks = StoredChunks(store, relation); chunks(number, size) -> bytes, or None without a chunk

Contract: the values are those of toast.Chunks over the pages of this window. Memory has 20 bytes
for each chunk, its place. A chunk is read from its page when a value needs it.
"""

from __future__ import annotations

import numpy as np

from walkeeper_replay.redo.bounded_pages import BoundedPages
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.tuples.toast import Chunks
from walkeeper_replay.tuples.visible import tuples_of

_PLACE = np.dtype(
    [
        ("id", np.uint32),
        ("number", np.int32),
        ("block", np.uint32),
        ("begin", np.int32),
        ("size", np.int32),
    ]
)


class StoredChunks:
    """The places of the chunks, sorted by value and number."""

    def __init__(self, store: BoundedPages, relation: int) -> None:
        self._store, self._relation = store, relation
        found = [np.empty(0, _PLACE)]
        for pages, blocks in store.pieces_of(relation):
            tuples = tuples_of(pages, np.arange(len(pages)), blocks)
            chunks = Chunks(pages.reshape(-1), tuples.places, tuples.lengths)
            places = np.empty(len(chunks.ids), _PLACE)
            pages_of, places["begin"] = np.divmod(chunks.begins, PAGE_BYTES)
            places["id"], places["number"] = chunks.ids, chunks.numbers
            places["block"], places["size"] = blocks[pages_of], chunks.sizes
            found.append(places)
        every = np.concatenate(found)
        self._places = every[np.lexsort((every["number"], every["id"]))]

    def __call__(self, number: int, size: int) -> bytes | None:
        first, end = np.searchsorted(self._places["id"], [number, number + 1]).tolist()
        pieces: list[bytes] = []
        for place in self._places[first:end].tolist():
            _, at, block, begin, length = place
            if at == len(pieces):  # a chunk seen twice is the same
                page = self._store.page_at(self._relation, block)
                assert page is not None, f"{block=}"
                pieces.append(page[begin : begin + length].tobytes())
        return b"".join(pieces) if pieces else None
