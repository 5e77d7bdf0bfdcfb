"""R23: is a server's WAL the log's, or another branch with the same timeline number? Pure.

    compare(server, log)   a generator: yields Ask, is sent bytes or None, and returns a Verdict

Two servers that are promoted at one LSN both take the next timeline number. Their `.history` files
may be equal to the last byte, and PostgreSQL compares nothing else. So the bytes are compared:

1. the timeline histories, line by line, the reasons included;
2. pg_control's checkpoint with the log's record at that LSN, which ties the data to the log;
3. the page in which minRecoveryPoint lies;
4. the last page that both have, and the pages before it until one has a record that no other
   branch can have written.

A commit or an end-of-recovery record has the time in microseconds. A checkpoint has it in seconds,
so two promotions by one script may write the same one. It tells only if nothing better is kept.

A server may have WAL after the log's committed end on the log's last timeline. It is no branch if
the bytes before that end show the same timeline. A promotion there leaves out nothing, and the
check accepts it. The Verdict has the size of this WAL. The comparison does not wait for its commit.
After a power failure of all machines, safekeepers may know less than was committed until an
election, and the election may need this server.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from walkeeper_common.history import History, cut
from walkeeper_common.lsn import LSN_MAX, WAL_PAGE_BYTES, ZERO_LSN, Lsn
from walkeeper_common.postgres.contrecords import RECORD_HEADER_BYTES, RMGR_XLOG
from walkeeper_common.postgres.control_data import is_same_checkpoint
from walkeeper_common.postgres.nonce_message import RMGR_LOGICAL_MESSAGE, is_nonce_message
from walkeeper_common.postgres.walformat import (
    CHECKPOINT_INFOS,
    COMMIT_INFOS,
    RECORD_HEADER,
    RMGR_TRANSACTION,
    whole_records,
)
from walkeeper_common.postgres.walpages import header_bytes
from walkeeper_common.timelines import (
    Timelines,
    ancestor_file,
    parse_timeline_file,
    timeline_file_name,
    timeline_files,
)

END_OF_RECOVERY = 0x90
STEP_BYTES = 16 * WAL_PAGE_BYTES
WEAK_AFTER_BYTES = 64 << 20  # a checkpoint tells, too, if so much WAL has no commit
DATA_HEADER_BYTES = 2  # the header of one short piece of main data in a record


class Side(Enum):
    """The side whose bytes the comparison needs."""

    SERVER = "the server"
    LOG = "the log"


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for [begin_lsn, end_lsn), in one segment or record, answered whole or by None."""

    side: Side
    begin_lsn: Lsn
    end_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last checkpoint that pg_control names; `copy` is the record's payload."""

    lsn: Lsn
    timeline: int
    copy: bytes


@dataclass(frozen=True, slots=True)
class Server:
    """The server as its data directory or SQL shows it. `timeline` is the newest in data or pg_wal.

    `timeline_file` is that timeline's .history, or None if it is missing. `end_lsn` is where the
    last whole record in pg_wal ends, or None if there is none. `checkpoint` and `min_recovery_lsn`
    (with its timeline) are unknown if the server answers over SQL.
    """

    system_id: int
    segment_bytes: int
    timeline: int
    timeline_file: bytes | None
    end_lsn: Lsn | None
    checkpoint: Checkpoint | None = None
    min_recovery_lsn: Lsn | None = None
    min_recovery_timeline: int = 0

    @property
    def positions(self) -> list[tuple[int, Lsn]]:
        """(timeline, LSN) of all that this server has, or may have, applied."""
        found = [] if self.end_lsn is None else [(self.timeline, self.end_lsn)]
        if self.checkpoint is not None:
            found.append((self.checkpoint.timeline, self.checkpoint.lsn))
        if self.min_recovery_lsn is not None:
            found.append((self.min_recovery_timeline, self.min_recovery_lsn))
        return found


@dataclass(frozen=True, slots=True)
class Log:
    """The log as a vote quorum knows it. WAL can be read from `first_lsn` to `end_lsn`, and is
    committed. WAL up to `record_lsn` may have been acknowledged."""

    system_id: int
    segment_bytes: int
    history: History
    first_lsn: Lsn
    end_lsn: Lsn
    record_lsn: Lsn

    @property
    def creation_lsn(self) -> Lsn:
        return self.history[0].start_lsn


@dataclass(frozen=True, slots=True)
class SameBranch:
    """All bytes that could be compared are equal, and they tell. `ahead_bytes` is the size of the
    WAL that is not known to be committed."""

    through_lsn: Lsn
    ahead_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AnotherBranch:
    """`can_rewind`: pg_rewind finds the point of divergence by the timelines' numbers."""

    text: str
    lsn: Lsn | None = None
    can_rewind: bool = False


@dataclass(frozen=True, slots=True)
class Unknown:
    """`text` says what is missing. `out_of_reach`: the log keeps no WAL that this server has, so
    another attempt changes nothing before the server has other WAL."""

    text: str
    out_of_reach: bool = False


Verdict: TypeAlias = SameBranch | AnotherBranch | Unknown
Comparing: TypeAlias = Generator[Ask, bytes | None, Verdict]


@dataclass(frozen=True, slots=True)
class _Line:
    """The log's timelines: the end of each but the last, and the last one's .history in `file`."""

    ends: dict[int, Lsn]
    last: int
    file: bytes

    def __contains__(self, timeline: int) -> bool:
        return timeline == self.last or timeline in self.ends

    def begin_of(self, timeline: int) -> Lsn | None:
        """Return where this one begins, or None for the first."""
        ended = [end for number, end in self.ends.items() if number < timeline]
        return max(ended, default=None)

    def file_of(self, timeline: int) -> bytes | None:
        if timeline == self.last:
            return self.file or None
        return ancestor_file(self.file, timeline)


def _line_of(log: Log) -> _Line:
    history = cut(log.history, log.record_lsn)
    last = history[-1].timeline
    file = timeline_files(history).get(last, b"")
    ends = dict(parse_timeline_file(file)) or dict(Timelines(history).ends())
    return _Line(ends, last, file)


def compare(server: Server, log: Log) -> Comparing:
    """Ask for bytes until the answer is known, and return it."""
    cluster = _another_cluster(server, log)
    if cluster is not None:
        return cluster
    line = _line_of(log)
    difference = _another_line(server, line)
    if difference is not None:
        return difference
    refusal = _another_history(server, log, line)
    if isinstance(refusal, Unknown):
        return refusal
    if refusal is not None:
        # pg_rewind is right only if the timelines that share a number are the same ones.
        part_lsn = min(log.end_lsn, _parting(server, line))
        verdict = yield from _compare_bytes(server, log, part_lsn)
        if isinstance(verdict, AnotherBranch):
            return verdict
        return replace(refusal, lsn=part_lsn, can_rewind=isinstance(verdict, SameBranch))
    limit_lsn, missing = _compared_until(server, log, line)
    verdict = yield from _compare_bytes(server, log, limit_lsn)
    if isinstance(verdict, SameBranch) and missing is not None:
        return Unknown(missing)
    return verdict


def _compare_bytes(server: Server, log: Log, limit_lsn: Lsn) -> Comparing:
    has_checkpoint = yield from _checkpoint(server, log, limit_lsn)
    if isinstance(has_checkpoint, AnotherBranch):
        return has_checkpoint
    difference = yield from _min_recovery(server, log, limit_lsn)
    if difference is not None:
        return difference
    return (yield from _last_pages(server, log, limit_lsn, has_checkpoint))


def _parting(server: Server, line: _Line) -> Lsn:
    """Return where the two chains of timelines diverge, going by numbers and ends alone."""
    ours = {**dict(parse_timeline_file(server.timeline_file or b"")), server.timeline: LSN_MAX}
    theirs = {**line.ends, line.last: LSN_MAX}
    part_lsn = ZERO_LSN
    for timeline in sorted(ours.keys() & theirs.keys()):
        part_lsn = min(ours[timeline], theirs[timeline])
        if ours[timeline] != theirs[timeline]:
            break
    return part_lsn


def _another_cluster(server: Server, log: Log) -> AnotherBranch | None:
    ours, theirs = (server.system_id, server.segment_bytes), (log.system_id, log.segment_bytes)
    if ours == theirs:
        return None
    return AnotherBranch(
        f"it is another PostgreSQL cluster: the server has system identifier {ours[0]} and "
        f"segments of {ours[1]} bytes, the log {theirs[0]} and {theirs[1]}"
    )


def _another_history(server: Server, log: Log, line: _Line) -> AnotherBranch | Unknown | None:
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
        return _behind_a_fork(server, line)
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


def _another_line(server: Server, line: _Line) -> AnotherBranch | None:
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
                f"{_same_number(server)}its {timeline_file_name(server.timeline)} says "
                f"{_shown(mine)}, the log's {_shown(other)}",
                line.begin_of(server.timeline),
            )
    return None


def _lines(content: bytes) -> list[bytes]:
    return [line.strip() for line in content.splitlines() if line.strip()]


def _shown(line: bytes) -> str:
    return repr(" ".join(line.decode(errors="replace").split()))


def _behind_a_fork(server: Server, line: _Line) -> AnotherBranch | None:
    for timeline, lsn in server.positions:
        end_lsn = line.ends.get(timeline)
        if end_lsn is not None and lsn > end_lsn:
            return AnotherBranch(
                f"it has WAL of timeline {timeline} up to {lsn}, and the log left that timeline at "
                f"{end_lsn}"
            )
    return None


def _compared_until(server: Server, log: Log, line: _Line) -> tuple[Lsn, str | None]:
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


def _checkpoint(
    server: Server, log: Log, limit_lsn: Lsn
) -> Generator[Ask, bytes | None, AnotherBranch | bool]:
    """Return True if the log has pg_control's checkpoint, False if unknown, or AnotherBranch."""
    checkpoint = server.checkpoint
    if checkpoint is None or not log.first_lsn <= checkpoint.lsn < limit_lsn:
        return False
    begin_lsn = checkpoint.lsn
    page_lsn = begin_lsn.round_down(WAL_PAGE_BYTES) + WAL_PAGE_BYTES
    head_bytes = RECORD_HEADER_BYTES + DATA_HEADER_BYTES
    size, header = head_bytes + len(checkpoint.copy), 0
    if begin_lsn + size > page_lsn:
        header = header_bytes(page_lsn, log.segment_bytes)
    if begin_lsn + size + header > limit_lsn:
        return False
    wal = yield Ask(Side.LOG, begin_lsn, begin_lsn + size + header)
    if wal is None:
        return False
    if header:
        in_page = page_lsn - begin_lsn
        wal = wal[:in_page] + wal[in_page + header :]
    info, rmid = RECORD_HEADER.unpack_from(wal)[3:5]
    is_one = rmid == RMGR_XLOG and info & 0xF0 in CHECKPOINT_INFOS
    if is_one and is_same_checkpoint(checkpoint.copy, wal[head_bytes:]):
        return True
    return AnotherBranch(
        f"{_same_number(server)}the checkpoint at {begin_lsn} that its pg_control names is not the "
        "record that the log has there",
        begin_lsn,
    )


def _min_recovery(
    server: Server, log: Log, limit_lsn: Lsn
) -> Generator[Ask, bytes | None, AnotherBranch | None]:
    if not server.min_recovery_lsn or server.end_lsn is None:
        return None
    # A segment that was restored while it was shorter has zeros after the server's last record.
    end_lsn = min(server.min_recovery_lsn, server.end_lsn, limit_lsn)
    begin_lsn = Lsn(end_lsn - 1).round_down(WAL_PAGE_BYTES)
    if begin_lsn < log.first_lsn:
        return None
    ours = yield Ask(Side.SERVER, begin_lsn, end_lsn)
    theirs = None if ours is None else (yield Ask(Side.LOG, begin_lsn, end_lsn))
    if ours is None or theirs is None:
        return None
    return _difference(server, begin_lsn, ours, theirs)


def _difference(server: Server, begin_lsn: Lsn, ours: bytes, theirs: bytes) -> AnotherBranch | None:
    if ours == theirs:
        return None
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    lsn = begin_lsn + at
    return AnotherBranch(f"{_same_number(server)}its WAL differs from the log's at {lsn}", lsn)


def _same_number(server: Server) -> str:
    return f"another branch with the same number {server.timeline}: "


def _last_pages(server: Server, log: Log, limit_lsn: Lsn, has_checkpoint: bool) -> Comparing:
    """Compare backwards from the end of what both have, until it tells."""
    floor_lsn = log.first_lsn
    if server.end_lsn is None:
        return _without_wal(server, log, has_checkpoint)
    end_lsn = at_lsn = min(server.end_lsn, limit_lsn)
    ahead_bytes = max(lsn for _, lsn in server.positions) - end_lsn
    same = SameBranch(end_lsn, ahead_bytes if end_lsn == log.end_lsn else 0)
    is_weak, lacking = has_checkpoint, None
    while at_lsn > floor_lsn:
        begin_lsn = max(floor_lsn, _step_below(at_lsn, log.segment_bytes))
        ours = yield Ask(Side.SERVER, begin_lsn, at_lsn)
        theirs = None if ours is None else (yield Ask(Side.LOG, begin_lsn, at_lsn))
        if ours is None or theirs is None:
            lacking = Side.SERVER if ours is None else Side.LOG
            break
        difference = _difference(server, begin_lsn, ours, theirs)
        if difference is not None:
            return difference
        told = _told_by(begin_lsn, ours)
        if _Told.STRONG in told:
            return same
        is_weak, at_lsn = is_weak or _Told.WEAK in told, begin_lsn
        if is_weak and end_lsn - at_lsn >= WEAK_AFTER_BYTES:
            return same
    if is_weak or at_lsn <= log.creation_lsn < end_lsn:
        return same
    if lacking is Side.SERVER and at_lsn == end_lsn:
        return Unknown(f"its pg_wal begins behind the log's end at {end_lsn}")
    if at_lsn == end_lsn:
        oldest = (
            f"the log's oldest WAL is at {floor_lsn}"
            if lacking is None
            else "none is archived there"
        )
        return Unknown(f"its WAL ends at {end_lsn}, and {oldest}", out_of_reach=True)
    return Unknown(
        f"no commit, checkpoint or nonce lies in the WAL of both, from {at_lsn} to {end_lsn}",
        out_of_reach=True,
    )


def _without_wal(server: Server, log: Log, has_checkpoint: bool) -> Verdict:
    """Judge a base backup without WAL by its checkpoint alone."""
    checkpoint = server.checkpoint
    if checkpoint is None:
        return Unknown("the server has no WAL", out_of_reach=True)
    if has_checkpoint:
        return SameBranch(checkpoint.lsn)
    text = f"its pg_wal has no WAL, and its checkpoint at {checkpoint.lsn} lies"
    if checkpoint.lsn < log.first_lsn:
        return Unknown(f"{text} before the log's oldest WAL at {log.first_lsn}", out_of_reach=True)
    return Unknown(f"{text} behind the log's end at {log.end_lsn}")


def _step_below(at_lsn: Lsn, segment_bytes: int) -> Lsn:
    """Return where the next range to compare begins; it ends at `at_lsn`, in one segment."""
    segment_lsn = Lsn(at_lsn - 1).round_down(segment_bytes)
    return max(segment_lsn, Lsn(max(0, at_lsn - STEP_BYTES)).round_down(WAL_PAGE_BYTES))


class _Told(Enum):
    """How well a record tells one branch from another."""

    STRONG = "no other branch can have written it"
    WEAK = "another branch may have written it within the same second"


def _told_by(begin_lsn: Lsn, wal: bytes) -> set[_Told]:
    """Return how well the records of these pages tell; `begin_lsn` is a page's start."""
    told: set[_Told] = set()
    for at in range(0, len(wal), WAL_PAGE_BYTES):
        page = wal[at : at + WAL_PAGE_BYTES]
        for rmid, info, data in whole_records(begin_lsn + at, page):
            if rmid == RMGR_TRANSACTION and info & 0x70 in COMMIT_INFOS:
                told.add(_Told.STRONG)
            if rmid == RMGR_LOGICAL_MESSAGE and is_nonce_message(data):
                told.add(_Told.STRONG)
            if rmid == RMGR_XLOG and info & 0xF0 == END_OF_RECOVERY:
                told.add(_Told.STRONG)
            if rmid == RMGR_XLOG and info & 0xF0 in CHECKPOINT_INFOS:
                told.add(_Told.WEAK)
    return told


def remedy(found: AnotherBranch) -> str:
    """Say what to do with a server on another branch."""
    if found.can_rewind:
        return (
            "rebuild it with pg_basebackup from the primary; or stop it, run CHECKPOINT on the "
            "primary, and run pg_rewind --target-pgdata=ITS_DATA_DIRECTORY "
            "--source-server='THE PRIMARY'"
        )
    return (
        "rebuild it with pg_basebackup from the primary. Do not use pg_rewind: it compares the "
        "numbers of timelines, finds them equal and leaves the other branch in place"
    )
