"""The contents of an archive by its listing: runs of segments, gaps between them, tails. Pure.

contents_of(objects, segment_bytes) -> Contents
gaps(contents, histories)           the missing WAL that no restore could get past
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from walkeeper_archive.layout import ArchivedObject, Kind, WalFile
from walkeeper_common.lsn import Lsn, segment_name
from walkeeper_common.timelines import timeline_file_name


@dataclass(slots=True)
class TimelineContents:
    """One timeline's files, as far as they have receipts."""

    timeline: int
    segments: dict[Lsn, WalFile] = field(default_factory=dict)
    partials: list[WalFile] = field(default_factory=list)
    has_history: bool = False
    bytes_stored: int = 0
    newest_s: float = 0.0

    @property
    def first_lsn(self) -> Lsn | None:
        """The start of the timeline's oldest whole segment."""
        return min(self.segments, default=None)

    @property
    def tail(self) -> WalFile | None:
        """The partial that goes furthest."""
        return max(self.partials, key=lambda file: file.end_lsn, default=None)


@dataclass(slots=True)
class Contents:
    """The contents of one archive, by timeline."""

    segment_bytes: int
    timelines: dict[int, TimelineContents] = field(default_factory=dict)
    without_receipt: list[ArchivedObject] = field(default_factory=list)
    without_object: list[WalFile] = field(default_factory=list)

    def runs(self, timeline: int) -> list[tuple[Lsn, Lsn]]:
        """Return [begin, end) of whole segments without a gap, in order."""
        found: list[tuple[Lsn, Lsn]] = []
        for begin in sorted(self.timelines[timeline].segments):
            end = begin + self.segment_bytes
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found

    def files(self) -> list[WalFile]:
        """Return all files with receipts: each timeline's history first, then its WAL in order."""
        found: list[WalFile] = []
        for timeline in sorted(self.timelines):
            part = self.timelines[timeline]
            if part.has_history:
                found.append(WalFile(timeline, timeline_file_name(timeline)))
            found += [part.segments[lsn] for lsn in sorted(part.segments)]
            found += sorted(part.partials)
        return found


def contents_of(objects: Iterable[ArchivedObject], segment_bytes: int) -> Contents:
    """Return the contents of a listing; a file counts if its receipt and an object are there."""
    contents = Contents(segment_bytes)
    stored: dict[WalFile, list[ArchivedObject]] = {}
    receipts: set[WalFile] = set()
    for found in objects:
        if found.is_receipt:
            receipts.add(found.file)
        else:
            stored.setdefault(found.file, []).append(found)
    contents.without_object = sorted(receipts - stored.keys())
    for file in sorted(stored):
        if file not in receipts:
            contents.without_receipt += stored[file]
            continue
        part = contents.timelines.setdefault(file.timeline, TimelineContents(file.timeline))
        match file.kind:
            case Kind.SEGMENT:
                part.segments[file.begin_lsn(segment_bytes)] = file
            case Kind.PARTIAL:
                part.partials.append(file)
            case Kind.HISTORY:
                part.has_history = True
        part.bytes_stored += sum(found.size for found in stored[file])
        part.newest_s = max(part.newest_s, *(found.modified_s for found in stored[file]))
    return contents


def gaps(contents: Contents, histories: Mapping[int, list[tuple[int, Lsn]]]) -> Iterator[str]:
    """Yield a text for each gap between the WAL that is there.

    WAL before the first segment was pruned, or never archived: that is no gap.
    """
    for timeline in sorted(contents.timelines):
        runs = contents.runs(timeline)
        for (_, end), (begin, _) in pairwise(runs):
            yield _missing(contents, timeline, end, begin)
        tail = contents.timelines[timeline].tail
        tail_lsn = None if tail is None else tail.begin_lsn(contents.segment_bytes)
        if runs and tail_lsn is not None and tail_lsn > runs[-1][1]:
            yield _missing(contents, timeline, runs[-1][1], tail_lsn)
        if timeline > 1 and not contents.timelines[timeline].has_history:
            yield (
                f"{timeline_file_name(timeline)} is missing: no restore can find its way to "
                f"timeline {timeline}"
            )
    yielded: set[tuple[int, Lsn, Lsn]] = set()
    for timeline, parents in sorted(histories.items()):
        for owner, begin, end in _missing_at_fork(contents, timeline, parents):
            if begin < end and (owner, begin, end) not in yielded:
                yielded.add((owner, begin, end))
                text = _missing(contents, owner, begin, end)
                yield f"gap between timelines {parents[-1][0]} and {timeline}: {text}"


def _missing_at_fork(
    contents: Contents, timeline: int, parents: list[tuple[int, Lsn]]
) -> list[tuple[int, Lsn, Lsn]]:
    """Return (timeline, begin, end) of the WAL that is missing around a fork.

    A timeline begins with a copy of the segment in which it leaves its parent. So the parent must
    be there up to that segment, and the timeline from that segment on. A parent may have no segment
    of its own, if the next timeline left it in the segment in which it began. Then its own parent
    must be there.
    """
    size = contents.segment_bytes
    begins = [fork_lsn.round_down(size) for _, fork_lsn in parents]
    missing: list[tuple[int, Lsn, Lsn]] = []
    for at in reversed(range(len(parents))):
        parent, needed = parents[at][0], begins[at]
        runs = contents.runs(parent) if parent in contents.timelines else []
        if runs:
            if runs[0][0] > needed:
                return []  # pruned past the fork: the rest is a branch that was given up
            missing.append((parent, runs[-1][1], needed))
            break
        if at:  # no segment of it is there: right if it ended in the segment in which it began
            missing.append((parent, begins[at - 1], needed))
    else:
        return []  # no older WAL is left
    child_begin = _begin_of(contents, timeline)
    if child_begin is not None:
        missing.insert(0, (timeline, begins[-1], child_begin))
    return missing[::-1]


def _begin_of(contents: Contents, timeline: int) -> Lsn | None:
    """Return where its first segment or tail starts, or None if it has neither."""
    part = contents.timelines.get(timeline)
    if part is None:
        return None
    tails = [tail.begin_lsn(contents.segment_bytes) for tail in part.partials]
    return min((*part.segments, *tails), default=None)


def _missing(contents: Contents, timeline: int, begin: Lsn, end: Lsn) -> str:
    first = segment_name(timeline, begin, contents.segment_bytes)
    count = (end - begin) // contents.segment_bytes
    if count == 1:
        return f"segment {first} is missing ({begin} to {end})"
    last = segment_name(timeline, end - contents.segment_bytes, contents.segment_bytes)
    return f"{count} segments from {first} to {last} are missing ({begin} to {end})"
