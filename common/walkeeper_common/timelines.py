"""PostgreSQL's timelines along one log: the owner of each byte, and their `.history` files. Pure.

The log is one sequence of bytes. Up to a fork they belong to a timeline, and from there on to its
successor. The forks are the fragments of the history where the timeline changes
(docs/protocol.md#one-list), so they are adopted, cut and elected with the history. A fragment that
begins a timeline carries PostgreSQL's own `0000000N.history`, verbatim. Its beginning is the file
of each ancestor (timeline.c: writeTimeLineHistory copies the parent's file and adds a line). So no
safekeeper needs to keep older files.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from walkeeper_common.history import Fragment, History, closed_lsn, extended
from walkeeper_common.lsn import LSN_MAX, Lsn

TIMELINE_FILE_LINE = re.compile(
    rb"\s*(\d{1,10})\s+([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})(?![0-9A-Fa-f])"
)

SKIPPED_FILE = b"# walkeeper: no timeline of the log has this number\n"
SKIPPED_MAX = 1024  # files of numbers without a timeline in an archive, for each promotion

Ends: TypeAlias = Sequence[tuple[int, Lsn]]


def timeline_file_name(timeline: int) -> str:
    """Return a name such as `00000002.history`."""
    return f"{timeline:08X}.history"


def parse_timeline_file(content: bytes) -> list[tuple[int, Lsn]]:
    """Return (timeline, LSN where it ended) of each ancestor, the oldest first."""
    found = (TIMELINE_FILE_LINE.match(line) for line in content.splitlines())
    return [_ancestor(match) for match in found if match]


def checked_timeline_file(content: bytes) -> list[tuple[int, Lsn]]:
    """Return the ancestors as `parse_timeline_file`; raise ValueError for a line that is none."""
    return [(timeline, end_lsn) for _, timeline, end_lsn in timeline_file_lines(content)]


def timeline_file_lines(content: bytes) -> Iterator[tuple[int, int, Lsn]]:
    """Yield (number of the line, timeline, LSN where it ended); raise ValueError for any other."""
    for number, line in enumerate(content.splitlines(), 1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        match = TIMELINE_FILE_LINE.match(line)
        if match is None:
            shown = text[:80].decode("utf-8", "replace")
            raise ValueError(f"line {number} is not a timeline and an LSN: {shown!r}")
        yield number, *_ancestor(match)


def _ancestor(match: re.Match[bytes]) -> tuple[int, Lsn]:
    return int(match[1]), Lsn(int(match[2], 16) << 32 | int(match[3], 16))


def ancestor_file(content: bytes, timeline: int) -> bytes | None:
    """Return the file of an ancestor, or None if `timeline` is none.

    It is the beginning of its descendant's file.
    """
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        match = TIMELINE_FILE_LINE.match(line)
        if match and int(match[1]) == timeline:
            text = b"".join(lines[:number])
            return text[:-1] if text.endswith(b"\n\n") else text
    return None


class Timelines:
    """The timelines of one history. A timeline of length zero owns no byte and is left out."""

    def __init__(self, history: Sequence[Fragment]) -> None:
        begins: list[tuple[Lsn, int]] = []
        for entry in history:
            if not begins or entry.timeline != begins[-1][1]:
                begins.append((entry.start_lsn, entry.timeline))
        self._starts = [start for start, _ in begins]
        self._numbers = [timeline for _, timeline in begins]
        if begins:  # a log has a history from its configuration on
            self.first, self.last = self._numbers[0], self._numbers[-1]
            self.last_start_lsn = self._starts[-1]
        self.closed_lsn = closed_lsn(history) if begins else None

    def __contains__(self, timeline: int) -> bool:
        return timeline in self._numbers

    def at(self, lsn: Lsn) -> int:
        """Return the timeline of the byte at `lsn`; a fork's LSN belongs to the new timeline."""
        if lsn >= self._starts[-1]:  # nearly always
            return self._numbers[-1]
        return self._numbers[max(0, bisect_right(self._starts, lsn) - 1)]

    def flaw(self, timeline: int, begin_lsn: Lsn, end_lsn: Lsn) -> str | None:
        """Return why WAL [begin_lsn, end_lsn) cannot be of this timeline, or None."""
        if timeline != self.at(begin_lsn):
            return f"append on timeline {timeline} at {begin_lsn}, not {self.at(begin_lsn)}"
        if end_lsn > self.next_fork(begin_lsn):
            return f"append up to {end_lsn} crosses the fork at {self.next_fork(begin_lsn)}"
        if self.closed_lsn is not None and end_lsn > self.closed_lsn:
            return f"append up to {end_lsn}, but the log was closed at {self.closed_lsn}"
        return None

    def before(self, lsn: Lsn) -> int:
        """Return the timeline of the last byte below `lsn`."""
        return self.at(Lsn(max(0, lsn - 1)))

    def next_fork(self, lsn: Lsn) -> Lsn:
        """Return the end of the timeline of the byte at `lsn`, or LSN_MAX for the last timeline."""
        at = max(1, bisect_right(self._starts, lsn))
        return self._starts[at] if at < len(self._starts) else LSN_MAX

    def forks_between(self, begin_lsn: Lsn, end_lsn: Lsn) -> list[Lsn]:
        """Return the forks in [begin_lsn, end_lsn], the oldest first."""
        return sorted({s for s in self._starts[1:] if begin_lsn <= s <= end_lsn})

    def begin_of(self, timeline: int) -> Lsn:
        """Return the LSN at which this timeline begins, which is its fork."""
        return self._starts[self._numbers.index(timeline)]

    def end_of(self, timeline: int) -> Lsn:
        """Return the fork at which this timeline ends, or LSN_MAX for the last one."""
        return self.next_fork(self.begin_of(timeline))

    def owners(self, begin_lsn: Lsn, end_lsn: Lsn) -> list[int]:
        """Return the timelines of the bytes in [begin_lsn, end_lsn), the oldest first."""
        forks = (lsn for lsn in self._starts[1:] if begin_lsn < lsn < end_lsn)
        return sorted({self.at(begin_lsn), *(self.at(lsn) for lsn in forks)})

    def ends(self) -> list[tuple[int, Lsn]]:
        """Return (timeline, LSN where it ended) of each, as a `.history` file lists them."""
        return list(zip(self._numbers, self._starts[1:], strict=False))

    def shown_by(self, lsn: Lsn, segment_bytes: int) -> int:
        """Return the newest timeline that has a segment file with the byte at `lsn`.

        A timeline's first segment repeats its parent's bytes from the segment's start.
        """
        return self.at(_last_of(lsn, segment_bytes))

    def shown_until(self, lsn: Lsn, segment_bytes: int) -> Lsn:
        """Return the LSN at which the segment files of that timeline end."""
        return self.next_fork(_last_of(lsn, segment_bytes)).round_down(segment_bytes)


def _last_of(lsn: Lsn, segment_bytes: int) -> Lsn:
    return lsn.round_down(segment_bytes) + (segment_bytes - 1)


def extended_over(
    donor: History, first: Fragment, successors: Ends, last_timeline: int, content: bytes
) -> History:
    """Return the new leader's history (R5), for a primary that may have been promoted meanwhile.

    `first` is the entry at S on the log's own timeline. `successors` are (timeline, LSN where it
    ends) of that timeline and of those that follow it up to the primary's, `last_timeline`.
    `content` is the primary's history file. The new entries share the ballot, one entry a timeline.
    An entry that would own no byte is left out.
    """
    known = timeline_files(donor)
    for timeline in (*(t for t, _ in successors), last_timeline):
        text = content if timeline == last_timeline else ancestor_file(content, timeline)
        if text:
            known.setdefault(timeline, text)
    begins = [(first.start_lsn, first.timeline)]
    for number, (_, end_lsn) in enumerate(successors, 1):
        if begins[-1][0] == end_lsn:
            begins.pop()
        timeline = successors[number][0] if number < len(successors) else last_timeline
        begins.append((end_lsn, timeline))
    entries = [
        replace(first, start_lsn=lsn, timeline=timeline, sealed=first.sealed and not at)
        for at, (lsn, timeline) in enumerate(begins)
    ]
    if entries[0].timeline != first.timeline:  # the log goes on at a fork: the sealed part is over
        entries[0] = replace(entries[0], sealed=False)
    longer = (*extended(donor, entries[0]), *entries[1:])
    seen: set[int] = set()
    history: list[Fragment] = []
    for entry in longer:  # a file once a timeline; the log's own has the files of its ancestors
        needed = entry.timeline >= first.timeline and entry.timeline not in seen
        seen.add(entry.timeline)
        text = known.get(entry.timeline, b"") if needed else b""
        history.append(entry if entry.timeline_file == text else replace(entry, timeline_file=text))
    return tuple(history)


def timeline_files(history: Sequence[Fragment]) -> dict[int, bytes]:
    """Return the `.history` files of a history by timeline, those of ancestors as well."""
    files: dict[int, bytes] = {}
    for entry in history:
        if not entry.timeline_file:
            continue
        for ancestor, _ in parse_timeline_file(entry.timeline_file)[1:]:
            text = ancestor_file(entry.timeline_file, ancestor)
            if text:
                files.setdefault(ancestor, text)
        files[entry.timeline] = entry.timeline_file
    return files


def served_file(files: Mapping[int, bytes], timeline: int, first: int) -> bytes | None:
    """Return the `.history` file of a timeline to serve, or None if the log is not that far.

    `files` are those of the log's timelines, which begin with `first`. A promotion may pass over a
    number. PostgreSQL looks for timelines one number after the other, and a walreceiver requests
    the file of each. So a number without a timeline has a file without an ancestor. PostgreSQL
    takes it for a timeline without a parent, and goes on with the next number.
    """
    found = files.get(timeline)
    if found is None and first < timeline < max(files, default=0):
        return SKIPPED_FILE
    return found


def numbers_served(history: Sequence[Fragment]) -> list[int]:
    """Return the log's timelines and the numbers between them, the last SKIPPED_MAX of each gap."""
    own = sorted({fragment.timeline for fragment in history})
    skipped = (
        number
        for before, after in pairwise(own)
        for number in range(max(before + 1, after - SKIPPED_MAX), after)
    )
    return sorted({*own, *skipped})
