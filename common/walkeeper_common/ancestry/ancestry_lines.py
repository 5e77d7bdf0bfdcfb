"""R23 without bytes: the timelines of a server and of a log, with their `.history` files.

    another_line, another_history       another branch, as far as the files show it, or None
    parting, compared_until             the LSN up to which the bytes must be equal

Pure. The files may be equal to the last byte on two branches. So a None here proves nothing, and
branch_comparison.py goes on with the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.ancestry.ancestry_facts import (
    AnotherBranch,
    Log,
    Server,
    Unknown,
    same_number,
)
from walkeeper_common.history import cut
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_common.timelines import (
    Timelines,
    ancestor_file,
    parse_timeline_file,
    timeline_file_name,
    timeline_files,
)


@dataclass(frozen=True, slots=True)
class Line:
    """The log's timelines: the end of each but the last, and the last one's .history in `file`."""

    ends: dict[int, Lsn]
    last: int
    file: bytes

    def __contains__(self, timeline: int) -> bool:
        return timeline == self.last or timeline in self.ends

    def begin_of(self, timeline: int) -> Lsn | None:
        """Return where this timeline begins, or None for the first."""
        ended = [end for number, end in self.ends.items() if number < timeline]
        return max(ended, default=None)

    def file_of(self, timeline: int) -> bytes | None:
        if timeline == self.last:
            return self.file or None
        return ancestor_file(self.file, timeline)


def line_of(log: Log) -> Line:
    """Return the timelines of the log, up to its last record."""
    history = cut(log.history, log.record_lsn)
    last = history[-1].timeline
    file = timeline_files(history).get(last, b"")
    ends = dict(parse_timeline_file(file)) or dict(Timelines(history).ends())
    return Line(ends, last, file)


def parting(server: Server, line: Line) -> Lsn:
    """Return where the two chains of timelines diverge, going by numbers and ends alone."""
    ours = {**dict(parse_timeline_file(server.timeline_file or b"")), server.timeline: LSN_MAX}
    theirs = {**line.ends, line.last: LSN_MAX}
    part_lsn = ZERO_LSN
    for timeline in sorted(ours.keys() & theirs.keys()):
        part_lsn = min(ours[timeline], theirs[timeline])
        if ours[timeline] != theirs[timeline]:
            break
    return part_lsn


def another_history(server: Server, log: Log, line: Line) -> AnotherBranch | Unknown | None:
    """Return what the timelines' numbers and ends tell, or None if they show no other branch."""
    timeline, file = server.timeline, server.timeline_file
    ends = dict(parse_timeline_file(file or b""))
    for ancestor, end_lsn in ends.items():
        if ancestor in line.ends and line.ends[ancestor] != end_lsn:
            return AnotherBranch(
                f"its history left timeline {ancestor} at {end_lsn}, the log's at "
                f"{line.ends[ancestor]}",
            )
        if ancestor < line.last and ancestor not in line and line.file:
            return AnotherBranch(f"it comes from timeline {ancestor}, on which the log never was")
    if timeline in line:
        return _past_a_fork(server, line)
    if timeline < line.last:
        return AnotherBranch(
            f"it is on timeline {timeline}, on which the log never was: the log is on timeline "
            f"{line.last}"
        )
    if file is None:
        return Unknown(f"{timeline_file_name(timeline)} is missing in its pg_wal")
    if line.last not in ends:
        return AnotherBranch(
            f"it is on timeline {timeline}, which does not come from the log's timeline {line.last}"
        )
    if ends[line.last] < log.record_lsn:
        return AnotherBranch(
            f"it was promoted to timeline {timeline} at {ends[line.last]}, and the log has WAL of "
            f"timeline {line.last} up to {log.record_lsn}: the promotion left out "
            f"{log.record_lsn - ends[line.last]} bytes that may have been acknowledged"
        )
    return None


def another_line(server: Server, line: Line) -> AnotherBranch | None:
    """Compare the reasons of lines whose numbers are equal: PostgreSQL compares the numbers only.

    A reason is its promotion's own, so pg_rewind would take another branch for the same one.
    """
    theirs = line.file_of(server.timeline) if server.timeline in line else None
    if not server.timeline_file or theirs is None:
        return None
    if parse_timeline_file(server.timeline_file) != parse_timeline_file(theirs):
        return None
    for mine, other in zip(_lines(server.timeline_file), _lines(theirs), strict=False):
        if mine != other:
            return AnotherBranch(
                f"{same_number(server)}its {timeline_file_name(server.timeline)} says "
                f"{_shown(mine)}, the log's {_shown(other)}",
                line.begin_of(server.timeline),
            )
    return None


def _lines(content: bytes) -> list[bytes]:
    return [line.strip() for line in content.splitlines() if line.strip()]


def _shown(line: bytes) -> str:
    return repr(in_one_line(line.decode(errors="replace")))


def _past_a_fork(server: Server, line: Line) -> AnotherBranch | None:
    """Return the verdict on a server with WAL past the LSN at which the log left its timeline."""
    for timeline, lsn in server.positions:
        end_lsn = line.ends.get(timeline)
        if end_lsn is not None and lsn > end_lsn:
            return AnotherBranch(
                f"it has WAL of timeline {timeline} up to {lsn}, and the log left that timeline at "
                f"{end_lsn}"
            )
    return None


def compared_until(server: Server, log: Log, line: Line) -> tuple[Lsn, str | None]:
    """Return up to where the bytes must be equal, and what the log lacks to show the rest."""
    timeline = server.timeline
    if timeline not in line:
        fork_lsn = dict(parse_timeline_file(server.timeline_file or b""))[line.last]
        text = f"the log has no timeline {timeline} yet: it ends at {log.end_lsn} on {line.last}"
        return min(log.end_lsn, fork_lsn), text
    begin_lsn = line.begin_of(timeline)
    if timeline == line.last and begin_lsn is not None and log.end_lsn <= begin_lsn:
        text = (
            f"the log has no committed WAL of timeline {timeline} yet: it ends at {log.end_lsn}; "
            "without a proposer, run `walkeeper settle`"
        )
        return log.end_lsn, text
    return min(log.end_lsn, line.ends.get(timeline, log.end_lsn)), None
