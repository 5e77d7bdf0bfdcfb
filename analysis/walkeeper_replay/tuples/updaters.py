"""The member of each multixact that updated or deleted, in four bytes each.

    updaters.note(multixact, xid)            from CREATE_ID; 0 if all members only lock
    updaters.of(multixact)                   that xid, or None without a note

Locks of foreign keys make a multixact for each row that two transactions lock at once. Contract: a
later note replaces an earlier one, as their numbers come again. Memory is 256 KiB for each CHUNK.
"""

from __future__ import annotations

import numpy as np

from walkeeper_wal.records.segment import Column

CHUNK = 1 << 16
_NO_NOTE = 1  # the bootstrap's transaction, which is a member of none


class Updaters:
    """See the module."""

    def __init__(self) -> None:
        self._chunks: dict[int, Column] = {}

    def note(self, multixact: int, xid: int) -> None:
        """Note the one that updated."""
        number, at = divmod(multixact, CHUNK)
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = np.full(CHUNK, _NO_NOTE, np.uint32)
        chunk[at] = xid

    def of(self, multixact: int) -> int | None:
        """Return the one that updated, 0 if there is none, or None if none is known."""
        number, at = divmod(multixact, CHUNK)
        chunk = self._chunks.get(number)
        if chunk is None or chunk[at] == _NO_NOTE:
            return None
        return int(chunk[at])
