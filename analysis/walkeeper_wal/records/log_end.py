"""Records after the place where a walk stops: they tell damage from the log's end. Pure.

Contract: PostgreSQL writes WAL in order and fills the rest of a page with zeros. A recycled segment
has older WAL there, whose prev-links are lower. So a prev-link from the place on is a proof that
the log went on. A number in a user's row could have the value of a link. So a link counts only in a
record with a valid CRC. One exception is a link to a record that is there and damaged.
"""

from __future__ import annotations

import numpy as np
from crc32c import crc32c

from walkeeper_wal.records.segment import Bytes, lsn_at, offset_of

_PREV_LINK, _CRC, _HEADER_BYTES = 8, 20, 24


def later_record(
    payload: Bytes, lsn: int, *, first_lsn: int, segment_bytes: int, torn: bool
) -> int | None:
    """Return the LSN of a record after `lsn` that follows WAL from `lsn` on, or None.

    `torn` is True if there is more than zeros at `lsn`."""
    begin = offset_of(lsn - first_lsn) + 7 & ~7
    links = payload[begin : len(payload) & ~7].view("<u8")
    # `lsn_at` costs more, so it sees only what can be a link at all.
    maybe = np.flatnonzero((links >= lsn) & (links < first_lsn + segment_bytes)) * 8 + begin
    starts = maybe[maybe >= begin + _PREV_LINK] - _PREV_LINK
    for start, at in zip(
        starts.tolist(), lsn_at(starts, first_lsn, segment_bytes).tolist(), strict=True
    ):
        link = int.from_bytes(payload[start + _PREV_LINK :][:8], "little")
        if link < at and ((torn and link == lsn) or _is_whole(payload[start:])):
            return int(at)
    return None


def _is_whole(record: Bytes) -> bool:
    """Return whether a record with a valid CRC begins here."""
    size = int.from_bytes(record[:4], "little")
    if not _HEADER_BYTES <= size <= len(record):
        return False
    found = crc32c(record[:_CRC].tobytes(), crc32c(record[_HEADER_BYTES:size].tobytes()))
    return found == int.from_bytes(record[_CRC:_HEADER_BYTES], "little")
