"""Plan the reading of an archive in the order of the log, from names, histories and a few headers.

    make_plan(files, timeline=None, start_lsn=None, end_lsn=None) -> Plan

The plan has one file for each segment. It is of the newest timeline on the path to the requested
one (default: the newest there is). A whole file comes before a partial one. Missing, doubled
and foreign files become a `Problem`, which the reader raises or reports. A range of LSNs chooses
segments. The reader cuts off records outside of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

from walkeeper_common.lsn import LSN_MAX, Lsn, is_segment_size, segment_name
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.postgres.walpages import (
    LONG_HEADER,
    LONG_HEADER_BYTES,
    RECORD_BYTES_MAX,
    page_header,
)
from walkeeper_common.timelines import timeline_file_name
from walkeeper_wal.records.versions import MAJORS, foreign, unknown_magic
from walkeeper_wal.sources.archive_names import RECEIPT, ArchivedFile, archived_file, unpacked
from walkeeper_wal.sources.segment_timelines import Stretch, guessed_history, parse_history
from walkeeper_wal.sources.wal_files import WalFiles
from walkeeper_wal.wal_errors import LOGICAL_LOG, DamagedWal, HistoryError

Chosen = tuple[int, ArchivedFile, int]
SAMPLES_MAX = 5  # segments whose headers are compared to find the archive's cluster


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why WAL cannot be read. Reading goes on at `end_lsn`, or not at all if it is
    None."""

    file: str
    start_lsn: int | None
    end_lsn: int | None
    reason: str
    fatal: bool = True
    """True if the WAL before it may not be the whole answer; a torn end of the log is not fatal."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """One segment. The reader returns records that start in it and in [begin_lsn, end_lsn)."""

    path: str
    timeline: int
    first_lsn: int
    segment_bytes: int
    system_id: int | None
    begin_lsn: int
    end_lsn: int
    limit_lsn: int
    """The LSN where the path leaves this file's timeline: no record at or beyond it is read."""
    is_partial: bool
    is_last: bool
    problems: tuple[Problem, ...] = ()
    """Problems that are known before it is read, such as a gap after it."""
    known_end_lsn: int = 0
    """The LSN up to which its name or its receipt promises WAL, or 0 without such a promise."""

    @property
    def name(self) -> str:
        return segment_name(self.timeline, Lsn(self.first_lsn), self.segment_bytes)


@dataclass(frozen=True, slots=True)
class Plan:
    timeline: int
    segment_bytes: int
    system_id: int | None
    segments: tuple[PlannedSegment, ...]
    behind: tuple[PlannedSegment, ...] = ()
    """Segments that can hold the rest of the last record; no record is read that starts there."""
    before: tuple[PlannedSegment, ...] = ()
    """Where the record before the first one can lie, of a plan that is a part of another."""
    path: tuple[Stretch, ...] = ()
    """The timelines that the log was on."""

    @property
    def reachable(self) -> tuple[PlannedSegment, ...]:
        return self.segments + self.behind

    def part(self, begin: int, end: int) -> Plan:
        """Return segments [begin, end) of this plan, as a plan of its own."""
        reach = -(-RECORD_BYTES_MAX // self.segment_bytes) + 1
        behind = self.reachable[end : end + reach]
        before = (*self.before, *self.segments[:begin])[-reach:]
        return replace(self, segments=self.segments[begin:end], behind=behind, before=before)

    def within(self, begin_lsn: int, end_lsn: int) -> Plan | None:
        """Return only records that start in [begin_lsn, end_lsn), or None if no segment can have
        any.

        The first segment has a gap in which the range begins. A gap after the range is left out.
        """
        cut = tuple(
            replace(s, begin_lsn=max(begin_lsn, s.begin_lsn), end_lsn=min(end_lsn, s.end_lsn))
            for s in self.segments
        )
        wanted = [n for n, segment in enumerate(cut) if segment.begin_lsn < segment.end_lsn]
        if not wanted:
            return None
        part = replace(self, segments=cut).part(wanted[0], wanted[-1] + 1)
        before = [each for segment in self.segments[: wanted[0]] for each in segment.problems]
        carried = tuple(each for each in before if each.end_lsn is None or each.end_lsn > begin_lsn)
        first, *others = part.segments
        kept = (replace(first, problems=carried + first.problems), *others)
        return replace(part, segments=tuple(map(_up_to(end_lsn), kept)))

    def gaps(self, begin_lsn: int, end_lsn: int) -> list[Problem]:
        """Return what is missing of a range."""
        every = (each for segment in self.segments for each in segment.problems if each.fatal)
        return [
            each
            for each in every
            if each.start_lsn is not None
            and each.end_lsn is not None
            and each.start_lsn < end_lsn
            and each.end_lsn > begin_lsn
        ]


def _up_to(end_lsn: int) -> Callable[[PlannedSegment], PlannedSegment]:
    """Return a function that takes the gaps after a range out of a segment."""

    def cut(segment: PlannedSegment) -> PlannedSegment:
        kept = (p for p in segment.problems if not p.fatal or (p.start_lsn or 0) < end_lsn)
        return replace(segment, problems=tuple(kept))

    return cut


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The facts that the long headers of an archive share."""

    segment_bytes: int
    system_id: int
    magic: int


def list_archive(files: WalFiles) -> list[ArchivedFile]:
    """Return the files with WAL, all of one log; raise HistoryError if there are none, or several
    logs."""
    listed = files.list_files()
    receipts = {path.removesuffix(RECEIPT) for path, _ in listed if path.endswith(RECEIPT)}
    every = (file for path, size in listed if (file := archived_file(path, size)))
    found = [
        replace(file, has_receipt=True) if receipts and unpacked(file.path) in receipts else file
        for file in every
    ]
    if not any(file.segment for file in found):
        raise HistoryError(f"{files.shown('')}: no WAL segments in it")
    archives = sorted({file.archive for file in found if file.segment})
    if len(archives) > 1:
        shown = ", ".join(files.shown(archive) for archive in archives[:5])
        raise HistoryError(f"several WAL archives below; name one of them: {shown}")
    return [file for file in found if file.archive == archives[0]]


def make_plan(
    files: WalFiles,
    *,
    timeline: int | None = None,
    start_lsn: int | None = None,
    end_lsn: int | None = None,
) -> Plan:
    """See the module. Costs one listing, the history file, and up to five first pages.

    An archive of several timelines costs one more page for each of them that is not read to its
    end. One with the WAL of several clusters costs five more.
    """
    archived = list_archive(files)
    segments = [file for file in archived if file.segment]
    timelines = {file.timeline for file in segments}
    target = max(timelines) if timeline is None else timeline
    problems: list[Problem] = []
    path = _path_to(files, archived, timelines, target, problems)
    begin, end = start_lsn or 0, int(LSN_MAX) if end_lsn is None else end_lsn
    votes = _sampled_votes(files, segments)
    cluster = votes.most_common(1)[0][0]
    chosen = _choose(segments, path, cluster.segment_bytes)
    if len(votes) > 1:
        cluster = _cluster_of_range(files, chosen, cluster, begin, end)
    if cluster.magic not in MAJORS:
        raise HistoryError(f"{files.shown('')}: {unknown_magic(cluster.magic)}")
    if timeline is None:
        _refuse_hidden_cluster(files, segments, chosen, cluster)
    chosen = _written(chosen, files, problems)
    last = chosen[-1][0]
    planned = tuple(
        PlannedSegment(
            file.path, file.timeline, first, cluster.segment_bytes, cluster.system_id,
            first, min(first + cluster.segment_bytes, limit), limit,
            file.is_partial, first == last,
            known_end_lsn=_promised(first, file, cluster.segment_bytes),
        )
        for first, file, limit in chosen
    )  # fmt: skip
    planned = _with_problems(planned, problems, files)
    whole = Plan(target, cluster.segment_bytes, cluster.system_id, planned, path=path)
    part = whole.within(begin, end)
    if part is None:
        raise HistoryError(f"{files.shown('')}: no WAL of timeline {target} in the requested range")
    return replace(part, before=())


def _promised(first_lsn: int, file: ArchivedFile, segment_bytes: int) -> int:
    """Return the LSN up to which a file has WAL by its name or its receipt, or 0."""
    if file.end_lsn is not None:
        return file.end_lsn
    return first_lsn + segment_bytes if file.has_receipt and not file.is_partial else 0


def _path_to(
    files: WalFiles,
    archived: Iterable[ArchivedFile],
    timelines: set[int],
    target: int,
    problems: list[Problem],
) -> tuple[Stretch, ...]:
    if target not in timelines:
        known = ", ".join(map(str, sorted(timelines)))
        raise HistoryError(f"{files.shown('')}: no WAL of timeline {target}; there are: {known}")
    if target == 1:
        return (Stretch(1, int(LSN_MAX)),)
    for file in archived:
        if file.segment is None and file.timeline == target:
            content = files.read(file.path).tobytes()
            return parse_history(content, target, files.shown(file.path))
    if min(timelines) < target:
        name = timeline_file_name(target)
        problems.append(Problem(files.shown(name), None, None, f"{name} is missing", fatal=False))
    return guessed_history(timelines, target)


def _sampled_votes(files: WalFiles, segments: list[ArchivedFile]) -> Counter[_Cluster]:
    """Return the clusters of a few segments all over the archive, at least one. Some may be
    foreign."""
    broken: list[HistoryError] = []
    votes = _votes(files, _samples(segments), broken)
    votes = votes or _votes(files, segments, broken)
    if not votes and _holds_entries(files):
        raise HistoryError(f"{files.shown('')}: {LOGICAL_LOG}")
    if not votes and broken:
        raise broken[0]
    if not votes:
        shown = files.shown(segments[0].path)
        raise DamagedWal(f"{shown}: no segment here starts with the header of a WAL segment")
    return votes


def _samples(segments: list[ArchivedFile]) -> list[ArchivedFile]:
    step = max((len(segments) - 1) // (SAMPLES_MAX - 1), 1)
    return [*segments[::step][: SAMPLES_MAX - 1], *segments[-1:]]


def _cluster_of_range(
    files: WalFiles, chosen: list[Chosen], cluster: _Cluster, begin_lsn: int, end_lsn: int
) -> _Cluster:
    """Return the cluster of most of a range: before or after a pg_upgrade it is one cluster's.

    It must be that of the archive's first or last segment. Else a foreign segment in the middle
    would be read as if it belonged there.
    """
    size = cluster.segment_bytes
    within = [file for first, file, _ in chosen if first < end_lsn and first + size > begin_lsn]
    votes = _votes(files, _samples(within), [])
    ends = _votes(files, [chosen[0][1], chosen[-1][1]], [])
    own = {e: count for e, count in votes.items() if e.segment_bytes == size and e in ends}
    return max(own, key=lambda each: own[each], default=cluster)


def _refuse_hidden_cluster(
    files: WalFiles, segments: list[ArchivedFile], chosen: list[Chosen], cluster: _Cluster
) -> None:
    """Raise HistoryError if the last segment of a timeline is another cluster's and not read.

    A cluster that pg_upgrade made begins on timeline 1 again. Its WAL looks like that of a former
    primary if the old cluster had been promoted.
    """
    read = {file.path for _, file, _ in chosen}
    last = {file.timeline: file for file in segments if file.path not in read}
    for file in last.values():
        for other in _votes(files, [file], []):
            if other.system_id != cluster.system_id:
                text = foreign(other.system_id, other.magic, cluster.system_id)
                more = f"name a timeline (--timeline) to read it alone; this is {file.timeline}"
                raise HistoryError(f"{text}; {more}", files.shown(file.path))


def _votes(
    files: WalFiles, segments: Iterable[ArchivedFile], broken: list[HistoryError]
) -> Counter[_Cluster]:
    votes: Counter[_Cluster] = Counter()
    for file in dict.fromkeys(segments):
        try:
            front = files.read_front(file.path, LONG_HEADER_BYTES)
        except HistoryError as error:
            broken.append(error)
            continue
        if len(front) < LONG_HEADER_BYTES:
            continue
        header = page_header(front)
        if header.magic >> 8 != 0xD1 or not header.info & LONG_HEADER:
            continue
        if header.system_id is None or not is_segment_size(header.segment_bytes or 0):
            continue
        votes[_Cluster(header.segment_bytes or 0, header.system_id, header.magic)] += 1
    return votes


def _choose(
    segments: list[ArchivedFile], path: tuple[Stretch, ...], segment_bytes: int
) -> list[Chosen]:
    """Return (first LSN, file, limit) of each segment on the path."""
    order = {stretch.timeline: number for number, stretch in enumerate(path)}
    limits = {stretch.timeline: stretch.end_lsn for stretch in path}
    best: dict[int, tuple[tuple[int, bool, int, int], ArchivedFile]] = {}
    for file in segments:
        if file.timeline not in order:
            continue
        assert file.segment is not None, f"{file=}"
        offset = int(file.segment[16:], 16) * segment_bytes
        if offset >= 1 << 32:
            raise DamagedWal(f"{file.path}: not a name of a segment of {segment_bytes} bytes")
        first = (int(file.segment[8:16], 16) << 32) + offset
        if first >= limits[file.timeline]:
            continue  # a former primary wrote it after the log had left its timeline
        rank = (order[file.timeline], not file.is_partial, file.end_lsn or 0, file.size)
        if first not in best or rank > best[first][0]:
            best[first] = rank, file
    return [(first, best[first][1], limits[best[first][1].timeline]) for first in sorted(best)]


def _written(chosen: list[Chosen], files: WalFiles, problems: list[Problem]) -> list[Chosen]:
    """Return the segments without those at the end that a running server keeps for later.

    They have the names of WAL to come, and are empty or have the earlier content of the file.
    """
    count = len(chosen)
    while count and _is_for_later(files, chosen[count - 1][1], chosen[count - 1][0]):
        count -= 1
    if 0 < count < len(chosen):
        first, last = chosen[count][1], chosen[-1][1]
        text = f"kept for WAL to come, as are all up to {last.segment}; the log ends before"
        problems.append(Problem(files.shown(first.path), chosen[count][0], None, text, fatal=False))
    return chosen[:count] or chosen


def _is_for_later(files: WalFiles, file: ArchivedFile, first_lsn: int) -> bool:
    try:
        front = files.read_front(file.path, LONG_HEADER_BYTES)
    except HistoryError:
        return False
    if len(front) < LONG_HEADER_BYTES:
        return False
    header = page_header(front)
    return not any(front) or (header.magic >> 8 == 0xD1 and header.page_lsn < first_lsn)


def _with_problems(
    segments: tuple[PlannedSegment, ...], problems: list[Problem], files: WalFiles
) -> tuple[PlannedSegment, ...]:
    """Return the segments, each gap with the segment before it, every other problem with the
    first."""
    found: dict[int, list[Problem]] = {segments[0].first_lsn: problems}
    for before, after in pairwise(segments):
        missing = before.first_lsn + before.segment_bytes
        if after.first_lsn != missing:
            count = (after.first_lsn - missing) // before.segment_bytes
            what = counted(count, "segment is", "segments are")
            text = f"{what} missing between {Lsn(missing)} and {Lsn(after.first_lsn)}"
            gap = Problem(files.shown(before.path), missing, after.first_lsn, text)
            found.setdefault(before.first_lsn, []).append(gap)
    return tuple(replace(s, problems=tuple(found.get(s.first_lsn, ()))) for s in segments)


def _holds_entries(files: WalFiles) -> bool:
    """Return entry_files.holds_entries, whose links to safekeepers few archives need."""
    from walkeeper_wal.sources.entry_files import holds_entries

    return holds_entries(files)
