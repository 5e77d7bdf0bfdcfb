"""How far back WAL is wanted here beside what the consensus needs (docs/protocol.md R14). Pure.

    wanted_lsn     of slots and connected readers, the least
    kept_bytes     --wal-keep-size, none of it when the log is near --wal-size-max

What commit_lsn, the members and the archive need is the driver's to know (`remove_below`).
"""

from __future__ import annotations

from collections.abc import Iterable

from walkeeper_common.lsn import Lsn

LOW_MARK = 0.8  # of --wal-size-max: from here on --wal-keep-size gives way


def wanted_lsn(positions: Iterable[Lsn], *, first_lsn: Lsn, has_archive: bool) -> Lsn | None:
    """None: nobody wants any. Whoever is below `first_lsn`, the oldest WAL on this disk, is read
    for from the archive if there is one, and holds nothing here until it comes to this WAL."""
    if has_archive:
        positions = (lsn for lsn in positions if lsn >= first_lsn)
    return min(positions, default=None)


def kept_bytes(keep_bytes: int, *, used_bytes: int, size_max: int | None) -> int:
    """How much WAL to keep although nobody needs it."""
    if size_max is None or used_bytes < size_max * LOW_MARK:
        return keep_bytes
    return 0
