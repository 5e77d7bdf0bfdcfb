"""Finds the end of a log after a start, and makes the disk agree with it (R9, R15, R18).

Contract: recovery reads first, and makes no change while it can still refuse. It raises CorruptWal
with file and LSN for a log that is damaged below the marks of its control file. The files then
stay as they are, for the operator's investigation. Otherwise, when `recover` returns, every byte
below flush_lsn is durable, only zeros follow it in its segment, and no later segment exists. A
power cut may interrupt it at any point; a second run finds the same end.

The end is that of the last whole record. The padding of its segment counts if it was surely
durable. The end is below the first thing that is not valid WAL. It is below an interrupted
truncation's target, which is finished that way (R7), and the LSN from which a failed write makes
bytes suspect (R15). An end below acknowledged WAL is legal only inside one incomplete record. That
is so if the WAL up to the durable commit_lsn is one record, and the last term start reached is not
lost.

If the end is below the durable commit_lsn, the bytes that prove that this is legal are about to be
zeroed. A recovery after a power cut in between would find zeros below commit_lsn and call the log
damaged. So the cut is marked in the control file first, as R7 does for every other cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from walkeeper_common.errors import CorruptWal
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn, segment_name
from walkeeper_common.postgres.walformat import RecordEnd
from walkeeper_safekeeper.storage.disk_port import HALF_MADE
from walkeeper_safekeeper.storage.wal_store import CHUNK_BYTES, File, WalStore


@dataclass(frozen=True, slots=True)
class DurableFacts:
    """The marks of the control file; `Durable` has fields of the same names."""

    creation_lsn: Lsn
    commit_lsn: Lsn
    reached_lsn: Lsn
    truncating_to: Lsn | None = None
    suspect_from: Lsn | None = None
    clean_stop: bool = False

    def clamped(self, lsn: Lsn) -> Lsn:
        """Return the part of a position that an unfinished truncation leaves."""
        return lsn if self.truncating_to is None else min(lsn, self.truncating_to)


@dataclass(frozen=True, slots=True)
class Recovered:
    """record_lsn is `record.end_lsn`; `reason` says what ended the scan."""

    record: RecordEnd
    flush_lsn: Lsn
    reason: str


def recover(store: WalStore, facts: DurableFacts, *, mark_cut: Callable[[Lsn], None]) -> Recovered:
    """Read the WAL from the record at the durable commit_lsn on; rewrite it unless it was clean.

    It calls `mark_cut(lsn)`, if at all, before any change. That makes `truncating_to = lsn` durable
    in the control file, or raises. After recovery, and before an append, the caller persists new
    facts. They have no truncating_to, suspect_from and clean_stop, and no commit_lsn or reached_lsn
    above flush_lsn.
    """
    commit_lsn = max(facts.clamped(facts.commit_lsn), facts.creation_lsn)
    files = _removal_finished(store, _found(store), commit_lsn)
    first_lsn = min((start for start, _ in files), default=facts.creation_lsn)
    store.adopt(files, first_lsn, head_known=False)
    limit_lsn = _contiguous_end(store, files, commit_lsn, facts)
    for bound in (facts.truncating_to, facts.suspect_from):
        limit_lsn = limit_lsn if bound is None else min(limit_lsn, bound)
    limit_lsn = max(limit_lsn, first_lsn)
    committed = _committed_record(store, commit_lsn, limit_lsn, facts)
    record, reason = _last_record(store, committed, commit_lsn, limit_lsn)
    durable_lsn = min(max(commit_lsn, facts.clamped(facts.reached_lsn)), limit_lsn)
    flush_lsn = max(record.end_lsn, min(record.next_lsn, durable_lsn))  # the padding of a segment
    _refuse_loss(store, flush_lsn, reason, committed, facts, limit_lsn)
    if flush_lsn < commit_lsn:
        mark_cut(flush_lsn)
    _settle_disk(store, flush_lsn, keep_from=committed.end_lsn, facts=facts)
    return Recovered(record, flush_lsn, reason)


def _found(store: WalStore) -> set[File]:
    """Return the files of the log's timelines, each of full size; raise CorruptWal if not."""
    found = store.found_files()
    for start, timeline in sorted(found):
        name = segment_name(timeline, start, store.segment_bytes)
        size = store.disk.size(name)
        if size != store.segment_bytes:
            raise CorruptWal(
                f"segment {name} at {start} has {size} bytes instead of {store.segment_bytes}"
            )
    return found


def _removal_finished(store: WalStore, files: set[File], commit_lsn: Lsn) -> set[File]:
    """Finish the removal of the first segment, if a crash interrupted retention; return the rest.

    Retention unlinks a segment's files one by one, the oldest timeline's first. It removes only
    WAL below the durable commit_lsn."""
    start = min((start for start, _ in files), default=commit_lsn)
    left = {file for file in files if file[0] == start}
    is_whole = (start, store.timelines.at(start)) in left
    if is_whole or start + store.segment_bytes > commit_lsn:
        return files
    store.unlink_files(left)
    return files - left


def _contiguous_end(store: WalStore, files: set[File], commit_lsn: Lsn, facts: DurableFacts) -> Lsn:
    """Return the LSN up to which there are files without a gap, at least the durable commit_lsn.

    A timeline whose fork the WAL has not passed has no file yet, though the next segment may be
    prepared for it. Any other gap is damage.
    """
    lsn = Lsn(min(store.first_lsn, store.segment_start(max(facts.creation_lsn, commit_lsn - 1))))
    starts = {start for start, _ in files}
    lsn = store.contiguous_end(lsn)
    at_fork = store.timelines.before(lsn) != store.timelines.at(lsn)
    has_gap = any(start > lsn for start in starts) and not at_fork
    if lsn < commit_lsn or has_gap or not files:
        raise CorruptWal(
            f"segment {store.name_of(lsn)} is missing: this log starts at "
            f"{facts.creation_lsn}, was durable up to {commit_lsn} at least, and has "
            f"{len(files)} segment files"
            + (f" from {min(starts)} to {max(starts)}" if starts else "")
        )
    return lsn


def _committed_record(
    store: WalStore, commit_lsn: Lsn, limit_lsn: Lsn, facts: DurableFacts
) -> RecordEnd:
    """Return the last whole record below the durable commit_lsn; it may not be lost (R9)."""
    if commit_lsn > limit_lsn:
        raise CorruptWal(
            f"segment {store.name_of(limit_lsn)}: WAL can be trusted up to {limit_lsn} only, "
            f"but was committed up to {commit_lsn}"
        )
    committed = store.record_end(commit_lsn)
    if committed.start_lsn is None and store.first_lsn > facts.creation_lsn:
        raise CorruptWal(
            f"the segment before {store.name_of(store.first_lsn)} is missing: the record that is "
            f"committed at {commit_lsn} starts before {store.first_lsn}"
        )
    return committed


def _last_record(
    store: WalStore, committed: RecordEnd, commit_lsn: Lsn, limit_lsn: Lsn
) -> tuple[RecordEnd, str]:
    """Scan from the committed record on, unless the log's first bytes are not to be trusted."""
    first_lsn = store.first_lsn
    if committed.start_lsn is None:
        head_end, marked = store.head_end(), store.marked_head()
        if head_end > commit_lsn and marked != (first_lsn, head_end):
            reason = f"the record that goes on at {first_lsn} was not durable up to {head_end}"
            return RecordEnd(None, first_lsn), reason
    begin = first_lsn if committed.start_lsn is None else committed.start_lsn
    end = store.scan(begin, limit_lsn)
    return RecordEnd(end.start_lsn, end.end_lsn, end.switched_to), end.reason


def _refuse_loss(
    store: WalStore,
    flush_lsn: Lsn,
    reason: str,
    committed: RecordEnd,
    facts: DurableFacts,
    limit_lsn: Lsn,
) -> None:
    floors = [
        (committed.end_lsn, "a committed record ends"),
        (facts.clamped(facts.reached_lsn), "a term starts that this log had reached"),
    ]
    marked = store.marked_head()
    if marked is not None and marked[0] == store.first_lsn and marked[1] <= limit_lsn:
        floors.append((marked[1], "the log's first record is marked as durable"))
    for lsn, what in floors:
        if flush_lsn < lsn:
            raise CorruptWal(
                f"segment {store.name_of(flush_lsn)}: valid WAL ends at {flush_lsn}, "
                f"but {what} at {lsn} ({reason}). This safekeeper may not vote; replace it"
            )


def _settle_disk(store: WalStore, end_lsn: Lsn, *, keep_from: Lsn, facts: DurableFacts) -> None:
    """Make the accepted WAL durable, and remove everything else."""
    for name in store.disk.names():
        if name.endswith(HALF_MADE):
            store.disk.unlink(name)
    store.disk.sync_directory()
    if end_lsn < store.head_end() or end_lsn == store.first_lsn:
        store.forget_head()
    store.unlink_after(end_lsn)
    store.unlink_unused()
    if not facts.clean_stop:
        _rewrite(store, keep_from.round_down(WAL_PAGE_BYTES), end_lsn)
    store.zero_from(end_lsn)
    store.adopt(store.found_files(), store.first_lsn, head_known=end_lsn > store.first_lsn)


def _rewrite(store: WalStore, begin_lsn: Lsn, end_lsn: Lsn) -> None:
    """Write what was read and sync it (R15): the page cache may hold more than the disk.

    After a kill the bytes were perhaps never synced; after a failed fsync the kernel may think
    that they were.
    """
    lsn = max(begin_lsn, store.first_lsn)
    while lsn < end_lsn:
        start, name = store.segment_start(lsn), store.name_of(lsn)
        file_end = min(store.file_end(lsn), end_lsn)
        while lsn < file_end:
            size = min(CHUNK_BYTES, file_end - lsn)
            store.disk.write_at(name, lsn - start, [store.disk.read_at(name, lsn - start, size)])
            lsn = lsn + size
        store.disk.sync_data(name)
