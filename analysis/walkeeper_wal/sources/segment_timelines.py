"""Find the timeline whose segment has the log at a place: the path from the first timeline. Pure.

A history file (`00000003.history`) lists the ancestors of its timeline, each with the LSN at which
it ended (readTimeLineHistory in timeline.c; walkeeper_common/timelines.py reads a line). The
segment in which a timeline begins has a copy of its parent's part. If both timelines have this
segment, the newer is read and the older passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.lsn import LSN_MAX
from walkeeper_common.timelines import timeline_file_lines
from walkeeper_wal.wal_errors import DamagedWal


@dataclass(frozen=True, slots=True)
class Stretch:
    """On the way to a timeline, the log is `timeline`'s up to `end_lsn`."""

    timeline: int
    end_lsn: int


def parse_history(content: bytes, timeline: int, shown: str) -> tuple[Stretch, ...]:
    """Return the ancestors of `timeline`, oldest first, and then itself without an end.

    Raise DamagedWal, with the file as `shown` and the line, if they are not in order.
    """
    found: list[Stretch] = []
    try:
        for number, parent, switch_lsn in timeline_file_lines(content):
            if not 0 < parent < timeline or (
                found and (parent <= found[-1].timeline or switch_lsn < found[-1].end_lsn)
            ):
                raise DamagedWal(f"{shown}: line {number} is out of order")
            found.append(Stretch(parent, int(switch_lsn)))
    except ValueError as error:
        raise DamagedWal(f"{shown}: {error}") from error
    return (*found, Stretch(timeline, int(LSN_MAX)))


def guessed_history(timelines: set[int], timeline: int) -> tuple[Stretch, ...]:
    """Return a path without the history file: every lower timeline may be an ancestor."""
    ancestors = (Stretch(other, int(LSN_MAX)) for other in sorted(timelines) if other < timeline)
    return (*ancestors, Stretch(timeline, int(LSN_MAX)))


def passes_through(path: tuple[Stretch, ...], lsn: int, timeline: int) -> bool:
    """Return whether the log is a timeline's at `lsn`. A path that is not known may be anyone's.

    A guessed path has no ends: each of its timelines may have any place.
    """
    begin = 0
    for stretch in path:
        if stretch.timeline == timeline:
            return begin <= lsn < stretch.end_lsn
        begin = stretch.end_lsn if stretch.end_lsn < LSN_MAX else begin
    return not path
