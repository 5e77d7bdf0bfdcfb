"""The extent of a timeline that an archive shows, also where files are missing.

    extent_of(archive, timeline, from_segment, segment_bytes) -> Extent
    lacks_history(archive, timeline)          whether its history must have been there

Contract: it reads only, and blocks for a listing or two and the histories of later timelines. A
recovery may learn only at the end of this extent that there is no more WAL. A file that is not
there before this end is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_archive.archive import Archive
from walkeeper_archive.archive_errors import ArchiveDamaged
from walkeeper_archive.layout import Kind, history_file
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.timelines import checked_timeline_file


@dataclass(frozen=True, slots=True)
class Extent:
    """[begin_lsn, end_lsn) of a timeline; it is empty if no WAL is shown from `from_segment` on."""

    begin_lsn: Lsn
    end_lsn: Lsn


def extent_of(archive: Archive, timeline: int, from_segment: str, segment_bytes: int) -> Extent:
    """Return the extent of a timeline from that segment on.

    Two things count: its own files, and the LSNs where later timelines that have WAL left it.
    """
    own = _parents(archive, timeline)
    ends = [begin_lsn := own[-1][1] if own else ZERO_LSN]
    for found in archive.objects(timeline, after_name=from_segment[:-1]):
        file = found.file
        if not found.is_receipt or file.kind is Kind.HISTORY or file.segment < from_segment:
            continue
        whole_end_lsn = file.begin_lsn(segment_bytes) + segment_bytes
        ends.append(file.end_lsn if file.kind is Kind.PARTIAL else whole_end_lsn)
    for later in archive.timelines():
        if later > timeline:
            left = [lsn for parent, lsn in _parents(archive, later) if parent == timeline]
            if left and _has_wal(archive, later):
                ends += left
    return Extent(begin_lsn, max(ends))


def lacks_history(archive: Archive, timeline: int) -> bool:
    """Return True if the archive knows of that timeline and of an older one.

    The first timeline of a log may have no history, and a promotion elsewhere may have taken a
    number.
    """
    there = archive.timelines()
    if not there or there[0] >= timeline:
        return False
    later = (
        parent for other in there if other > timeline for parent, _ in _parents(archive, other)
    )
    return timeline in there or timeline in later


def _parents(archive: Archive, timeline: int) -> list[tuple[int, Lsn]]:
    if timeline == 1:
        return []
    file = history_file(timeline)
    content = archive.read(file)
    if content is None:
        return []
    try:
        return checked_timeline_file(bytes(content))
    except ValueError as error:
        raise ArchiveDamaged(f"{archive.shown(file.path)}: {error}") from error


def _has_wal(archive: Archive, timeline: int) -> bool:
    return any(
        found.is_receipt and found.file.kind is not Kind.HISTORY
        for found in archive.objects(timeline)
    )
