"""The objects of an archive that may go when all from some LSN on is kept, and their order. Pure.

The LSN alone decides, on every timeline. A base backup needs all WAL from its start on, on each
branch to which it may be restored. Files are never counted (pgBackRest #2629, pgrwl #232).
Histories stay: they are small, and without them the WAL after a fork cannot be reached. The last
whole segment of the newest timeline stays for any LSN. Those of older timelines go, or the
WAL between them and the rest would be missing
(test_an_archive_that_was_pruned_past_a_fork_has_no_gap).

The lowest object goes first, and a receipt before its object. So an interruption anywhere leaves no
gap. An object that lost its receipt is not archived rather than damaged. The next run deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from walkeeper_archive.contents import Contents
from walkeeper_archive.layout import ArchivedObject, Kind
from walkeeper_common.lsn import Lsn


def prunable(
    objects: Iterable[ArchivedObject], contents: Contents, keep_lsn: Lsn
) -> list[ArchivedObject]:
    """Return the objects that may go, in the order in which they may be deleted."""
    segment_bytes = contents.segment_bytes
    newest = max((t for t, part in contents.timelines.items() if part.segments), default=0)
    last = max(contents.timelines[newest].segments) if newest else Lsn(0)
    whole = {t: part.segments for t, part in contents.timelines.items()}
    gone: list[ArchivedObject] = []
    for found in objects:
        file = found.file
        if file.kind is Kind.HISTORY:
            continue
        begin_lsn = file.begin_lsn(segment_bytes)
        is_below = begin_lsn + segment_bytes <= keep_lsn
        if file.kind is Kind.SEGMENT:
            if is_below and (file.timeline, begin_lsn) != (newest, last):
                gone.append(found)
        elif is_below or begin_lsn in whole.get(file.timeline, {}):
            gone.append(found)  # a partial that is below, or whose segment is here whole by now
    return sorted(gone, key=lambda o: (o.file.begin_lsn(segment_bytes), o.file, not o.is_receipt))


def kept_since(contents: Contents, modified_s: dict[Lsn, float], since_s: float) -> Lsn | None:
    """Return the start of the WAL that was archived at `since_s` or later, or None without any.

    The segment before it is kept as well: it may end with that WAL.
    """
    young = [lsn for lsn, at_s in modified_s.items() if at_s >= since_s]
    if not young:
        return None
    return max(Lsn(0), min(young) - contents.segment_bytes)
