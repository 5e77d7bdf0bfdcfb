"""How far back WAL is wanted here beside what the consensus needs (docs/protocol.md R14). Pure.

    wanted_lsn     of slots and connected readers, the least
    kept_bytes     --wal-keep-size, none of it when the log is near --wal-size-max

The driver knows what commit_lsn, the members and the archive need (`remove_below`).
"""

from __future__ import annotations

from collections.abc import Iterable

from walkeeper_common.lsn import Lsn

LOW_MARK = 0.8  # share of --wal-size-max from which --wal-keep-size does not count


def wanted_lsn(positions: Iterable[Lsn], *, first_lsn: Lsn, has_archive: bool) -> Lsn | None:
    """Return the oldest LSN that a reader needs on this disk, or None.

    With an archive, readers below `first_lsn`, the oldest WAL on this disk, are served from there.
    They retain no WAL here until they reach it."""
    if has_archive:
        positions = (lsn for lsn in positions if lsn >= first_lsn)
    return min(positions, default=None)


def kept_bytes(keep_bytes: int, *, used_bytes: int, size_max: int | None) -> int:
    """Return how much WAL to keep although no reader needs it."""
    if size_max is None or used_bytes < size_max * LOW_MARK:
        return keep_bytes
    return 0
