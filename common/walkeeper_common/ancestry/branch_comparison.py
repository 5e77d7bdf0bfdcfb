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
from dataclasses import replace
from enum import Enum

from walkeeper_common.ancestry.ancestry_facts import (
    AnotherBranch,
    Ask,
    Comparing,
    Log,
    SameBranch,
    Server,
    Side,
    Unknown,
    Verdict,
    same_number,
)
from walkeeper_common.ancestry.ancestry_lines import (
    another_history,
    another_line,
    compared_until,
    line_of,
    parting,
)
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
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

END_OF_RECOVERY = 0x90
STEP_BYTES = 16 * WAL_PAGE_BYTES
WEAK_AFTER_BYTES = 64 << 20  # a checkpoint tells, too, if so much WAL has no commit
DATA_HEADER_BYTES = 2  # the header of one short piece of main data in a record


def compare(server: Server, log: Log) -> Comparing:
    """Ask for bytes until the answer is known, and return it."""
    cluster = _another_cluster(server, log)
    if cluster is not None:
        return cluster
    line = line_of(log)
    difference = another_line(server, line)
    if difference is not None:
        return difference
    refusal = another_history(server, log, line)
    if isinstance(refusal, Unknown):
        return refusal
    if refusal is not None:
        # pg_rewind is right only if the timelines that share a number are the same ones.
        part_lsn = min(log.end_lsn, parting(server, line))
        verdict = yield from _compare_bytes(server, log, part_lsn)
        if isinstance(verdict, AnotherBranch):
            return verdict
        return replace(refusal, lsn=part_lsn, can_rewind=isinstance(verdict, SameBranch))
    limit_lsn, missing = compared_until(server, log, line)
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


def _another_cluster(server: Server, log: Log) -> AnotherBranch | None:
    ours, theirs = (server.system_id, server.segment_bytes), (log.system_id, log.segment_bytes)
    if ours == theirs:
        return None
    return AnotherBranch(
        f"it is another PostgreSQL cluster: the server has system identifier {ours[0]} and "
        f"segments of {ours[1]} bytes, the log {theirs[0]} and {theirs[1]}"
    )


def _checkpoint(
    server: Server, log: Log, limit_lsn: Lsn
) -> Generator[Ask, bytes | None, AnotherBranch | bool]:
    """Return True if the log has pg_control's checkpoint, False if unknown, or AnotherBranch."""
    checkpoint = server.checkpoint
    if checkpoint is None or not log.oldest_lsn <= checkpoint.lsn < limit_lsn:
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
        f"{same_number(server)}the checkpoint at {begin_lsn} that its pg_control names is not the "
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
    if begin_lsn < log.oldest_lsn:
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
    return AnotherBranch(f"{same_number(server)}its WAL differs from the log's at {lsn}", lsn)


def _last_pages(server: Server, log: Log, limit_lsn: Lsn, has_checkpoint: bool) -> Comparing:
    """Compare backwards from the end of what both have, until it tells."""
    floor_lsn = log.oldest_lsn
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
        telling = _telling_in(begin_lsn, ours)
        if _Telling.STRONG in telling:
            return same
        is_weak, at_lsn = is_weak or _Telling.WEAK in telling, begin_lsn
        if is_weak and end_lsn - at_lsn >= WEAK_AFTER_BYTES:
            return same
    if is_weak or at_lsn <= log.creation_lsn < end_lsn:
        return same
    if lacking is Side.SERVER and at_lsn == end_lsn:
        return Unknown(f"its pg_wal begins after the log's end at {end_lsn}")
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
    if checkpoint.lsn < log.oldest_lsn:
        return Unknown(f"{text} before the log's oldest WAL at {log.oldest_lsn}", out_of_reach=True)
    return Unknown(f"{text} after the log's end at {log.end_lsn}")


def _step_below(at_lsn: Lsn, segment_bytes: int) -> Lsn:
    """Return where the next range to compare begins; it ends at `at_lsn`, in one segment."""
    segment_lsn = Lsn(at_lsn - 1).round_down(segment_bytes)
    return max(segment_lsn, Lsn(max(0, at_lsn - STEP_BYTES)).round_down(WAL_PAGE_BYTES))


class _Telling(Enum):
    """How well a record tells one branch from another."""

    STRONG = "no other branch can have written it"
    WEAK = "another branch may have written it within the same second"


def _telling_in(begin_lsn: Lsn, wal: bytes) -> set[_Telling]:
    """Return how well the records of these pages tell; `begin_lsn` is a page's start."""
    found: set[_Telling] = set()
    for at in range(0, len(wal), WAL_PAGE_BYTES):
        page = wal[at : at + WAL_PAGE_BYTES]
        for rmid, info, data in whole_records(begin_lsn + at, page):
            if rmid == RMGR_TRANSACTION and info & 0x70 in COMMIT_INFOS:
                found.add(_Telling.STRONG)
            if rmid == RMGR_LOGICAL_MESSAGE and is_nonce_message(data):
                found.add(_Telling.STRONG)
            if rmid == RMGR_XLOG and info & 0xF0 == END_OF_RECOVERY:
                found.add(_Telling.STRONG)
            if rmid == RMGR_XLOG and info & 0xF0 in CHECKPOINT_INFOS:
                found.add(_Telling.WEAK)
    return found
