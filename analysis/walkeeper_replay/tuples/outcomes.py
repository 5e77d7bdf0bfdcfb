"""How transactions ended, in two bits each, as PostgreSQL's pg_xact has it.

    outcomes.note(xids, codes)               again and again, in the order of the log
    outcomes.of(array of xids)               UNKNOWN, COMMITTED, ROLLED_BACK or ELSEWHERE for each

ELSEWHERE is for an end that the caller keeps itself. Contract: a later end of the same xid replaces
the earlier one. Memory is 16 KiB for each CHUNK of transactions.
"""

from __future__ import annotations

import numpy as np

from walkeeper_wal.records.segment import Column

UNKNOWN, COMMITTED, ROLLED_BACK, ELSEWHERE = range(4)
CHUNK = 1 << 16
_A_BYTE, _BITS = 4, 2


class Outcomes:
    """See the module."""

    def __init__(self) -> None:
        self._chunks: dict[int, Column] = {}

    def note(self, xids: Column, codes: Column) -> None:
        """Note ends, each by its code."""
        codes = codes.astype(np.uint8)
        for number in np.unique(xids // CHUNK).tolist():
            chunk = self._chunks.get(number)
            if chunk is None:
                chunk = self._chunks[number] = np.zeros(CHUNK // _A_BYTE, np.uint8)
            own = xids // CHUNK == number
            place, shift = _place(xids[own])
            np.bitwise_and.at(chunk, place, ~(np.uint8(3) << shift))
            np.bitwise_or.at(chunk, place, codes[own] << shift)

    def of(self, xids: Column) -> Column:
        """Return the code of each transaction."""
        found: Column = np.zeros(len(xids), np.uint8)
        for number in np.unique(xids // CHUNK).tolist():
            chunk = self._chunks.get(number)
            if chunk is not None:
                own = xids // CHUNK == number
                place, shift = _place(xids[own])
                found[own] = chunk[place] >> shift & 3
        return found


def _place(xids: Column) -> tuple[Column, Column]:
    """Return the byte of each transaction in its chunk, and the bits before it there."""
    within = xids % CHUNK
    return within // _A_BYTE, (within % _A_BYTE * _BITS).astype(np.uint8)
