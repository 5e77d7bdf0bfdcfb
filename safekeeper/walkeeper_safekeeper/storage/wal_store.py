"""One log's WAL on disk: segment files under PostgreSQL's names, always of full size.

    create                makes the first segment; after every other start see wal_recovery
    append                write and fdatasync; what it returns is durable
    prepare_ahead         allocate the next segment before append needs it
    truncate              the crash-safe cut of R7; its durable mark is the caller's
    read / record_end     bytes, and the last whole record below an LSN
    remove_below          retention, whole segments
    follow                adopt a history, which determines the timelines in the files' names

A byte is in the file of the timeline that it was written on. A timeline's first segment begins
with a copy of the parent's bytes up to the fork, as PostgreSQL makes it, for readers of the files.
The parent's file stays, with zeros after the fork.

Contract: every method blocks. The store knows no time, threads or files: `Disk` is its port. That
is a real directory in production, and in tests a simulated one that forgets unsynced data. The
order of the port's operations is the contract. Only one caller at a time may use the store, except
that `read`, `record_end` and `prepare_ahead` may run beside others. `lock` guards the set of
segments for them. After a StorageError other than NoSpace no append is accepted again (R15).

These rules keep a scan right after a power cut:
  1. Segments are zeros, written and fsynced, before they get their name, and are never reused.
     Truncated WAL is zeroed before the next append, so no stale bytes can follow.
  2. Records vouch for themselves by CRC. No CRC covers the pages' headers and the zeros between
     records, but they may have one value only. The exceptions are XLP_BKP_REMOVABLE and, in the
     log's first page, the magic and the flag of a record that is cut off there. The bytes of a
     record that an OVERWRITE_CONTRECORD page has cut off do not vouch for themselves. So append
     syncs all WAL below such a page before it writes the page.
  3. Nor do the first bytes of a log that starts inside a record. When they are complete and
     durable, and before that is reported, `head.mark` says so. Without it a scan does not trust
     them and the log is empty, which R18 allows: none of it was a complete record.
The tests cut the power after every operation (test_wal_store.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal, NoSpace, StorageError, WalRemoved
from walkeeper_common.lsn import WAL_PAGE_BYTES, ZERO_LSN, Lsn, parse_segment_name, segment_name
from walkeeper_common.pace import Pace
from walkeeper_common.postgres.contrecords import head_end
from walkeeper_common.postgres.walformat import (
    InvalidWal,
    RecordEnd,
    ScanEnd,
    record_end_before,
    scan,
)
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, PageHeader, WalBytes
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.storage.append_pieces import pages_that_cut_off, pieces
from walkeeper_safekeeper.storage.disk_port import HALF_MADE, Disk
from walkeeper_safekeeper.storage.open_tail import Tail
from walkeeper_safekeeper.storage.sealed_file import seal, unseal

File: TypeAlias = tuple[Lsn, int]  # a segment's start, and the timeline in its name

HEAD_MARK = "head.mark"
HEAD_MAGIC = b"WKHEADMK"
CHUNK_BYTES = 1 << 20
CACHED_BYTES = 64 << 20  # how far back the page cache keeps WAL that no known reader lacks
CACHED_BYTES_MAX = 1 << 30  # and WAL that some reader lacks

_ZEROS = memoryview(bytes(CHUNK_BYTES))


class SegmentNotAllocated(NoSpace):
    """Appends stopped at a segment without room or descriptor; below `flush_lsn` is durable."""

    def __init__(self, text: str, flush_lsn: Lsn) -> None:
        super().__init__(text)
        self.flush_lsn = flush_lsn


class WalStore:
    """One log on one disk. `create` or `wal_recovery.recover` comes before everything else."""

    def __init__(
        self,
        disk: Disk,
        *,
        segment_bytes: int,
        timelines: Timelines,
        system_id: int,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        """Make a store; `lock` guards the set of segments, a threading.Lock in production."""
        self.disk, self.segment_bytes, self.timelines = disk, segment_bytes, timelines
        self._system_id = system_id
        self._lock = nullcontext() if lock is None else lock
        self._first_lsn = Lsn(0)
        self._files: set[File] = set()
        self._head_known = False  # durable, or there is none: the log starts with a record
        self._failed: str | None = None
        self._cached_from_lsn = Lsn(0)  # the page cache has dropped what is older
        self._written_file: File | None = None  # the last append's, and its name
        self._written_name = ""

    @property
    def first_lsn(self) -> Lsn:
        """The oldest WAL kept: a segment's start."""
        return self._first_lsn

    @property
    def used_bytes(self) -> int:
        """The bytes of all files, those prepared ahead included.

        It takes no lock. A new segment takes seconds on a slow disk, and the event loop asks."""
        return len(self._files) * self.segment_bytes

    def name_of(self, lsn: Lsn) -> str:
        """Return the name of the file that holds the byte at `lsn`."""
        return segment_name(self.timelines.at(lsn), lsn, self.segment_bytes)

    def _file_of(self, lsn: Lsn) -> File:
        return self.segment_start(lsn), self.timelines.at(lsn)

    def file_end(self, lsn: Lsn) -> Lsn:
        """Return the LSN at which the file with the byte at `lsn` ends and another one goes on."""
        return min(self.segment_start(lsn) + self.segment_bytes, self.timelines.next_fork(lsn))

    def _name(self, file: File) -> str:
        return segment_name(file[1], file[0], self.segment_bytes)

    def segment_start(self, lsn: Lsn) -> Lsn:
        return lsn.round_down(self.segment_bytes)

    def adopt(self, files: set[File], first_lsn: Lsn, *, head_known: bool) -> None:
        """Accept recovery's result: these files are the log."""
        with self._lock:
            self._files, self._first_lsn = files, first_lsn
        self._head_known = head_known

    def begin_with(self, files: set[File], lsn: Lsn) -> bool:
        """Begin the log with one more segment; return False if that would leave a gap."""
        with self._lock:
            fits = self._first_lsn == lsn + self.segment_bytes
            if fits:
                self._files, self._first_lsn = self._files | files, lsn
        return fits

    def follow(self, timelines: Timelines) -> None:
        """Adopt another history, which is the same below the end of the WAL.

        Unlink the files that it has no use for: those prepared ahead, or begun at a fork that is no
        longer in the history.
        """
        with self._lock:
            self.timelines = timelines
            self.unlink_files(self._files - self._used(self._files))

    def _used(self, files: set[File]) -> set[File]:
        """Return the files with bytes of the log, or prepared for some.

        A log without a byte may have left its first timeline already. Its first file stays until
        there is another one, because a log without any file is damaged.
        """
        owners, size = self.timelines.owners, self.segment_bytes
        used = {(start, t) for start, t in files if t in owners(start, start + size)}
        return used or set(sorted(files)[:1])

    def create(self, creation_lsn: Lsn) -> None:
        """Make the first segment, durably; a repetition changes nothing. Raise NoSpace.

        Call it before the configuration is persisted: later, a log without it is damaged."""
        assert creation_lsn % self.segment_bytes == 0, f"{creation_lsn=} {self.segment_bytes=}"
        if self.name_of(creation_lsn) in self.disk.names():
            self.disk.sync_directory()
            self.adopt({self._file_of(creation_lsn)}, creation_lsn, head_known=False)
            return
        self._first_lsn = creation_lsn
        self._ensure_file(creation_lsn)

    def append(self, begin_lsn: Lsn, buffers: Sequence[Buffer]) -> Lsn:
        """Write and sync; return the end, below which all WAL is durable.

        One vectored write and one fdatasync for each segment touched. SegmentNotAllocated if a
        segment could not be allocated, or opened, in the middle: nothing was written from its
        `flush_lsn` on. Any other StorageError is final.
        """
        if self._failed is not None:
            raise StorageError(f"no more appends after a failure: {self._failed}")
        assert begin_lsn >= self._first_lsn, f"{begin_lsn=} {self._first_lsn=}"
        lsn = begin_lsn
        for end, piece in self._pieces(begin_lsn, buffers):
            try:
                self._append_piece(lsn, piece)
                self._mark_head(end)
            except NoSpace as error:
                raise SegmentNotAllocated(f"no WAL taken from {lsn} on: {error}", lsn) from error
            except StorageError as error:
                raise self._fail(error, lsn) from error
            lsn = end
        return lsn

    def tail(self, lsn: Lsn, pace: Pace) -> Tail | None:
        """Return the open file from `lsn` on, or None if there is none for the fast path.

        Close it before any other use of this store."""
        file, timelines = self._written_file, self.timelines
        if (
            file is None
            or not file[0] < lsn < (end_lsn := file[0] + self.segment_bytes)
            or not timelines.last_start_lsn < lsn
            or timelines.last != file[1]
            or self._failed is not None
            or not self._head_known
        ):
            return None
        try:
            writer = self.disk.writer(self._written_name)
            return Tail(file[0], end_lsn, writer, pace, self._fail)
        except StorageError:
            return None  # `append` meets it again, and says so

    def _fail(self, error: StorageError, lsn: int) -> StorageError:
        """Refuse all further appends; return the error."""
        self._failed = f"writing WAL at {Lsn(lsn)}: {error}"
        return StorageError(self._failed)

    def _pieces(
        self, begin: Lsn, buffers: Sequence[Buffer]
    ) -> Iterable[tuple[Lsn, list[memoryview]]]:
        """Return the pieces that are written and synced together, each with its end."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        end = begin + sum(map(len, views))
        forks = self.timelines.forks_between(begin, end)
        if not forks and begin // WAL_PAGE_BYTES == (end - 1) // WAL_PAGE_BYTES:
            return [(end, views)]  # inside one page, as most commits are
        barriers = (*forks, *pages_that_cut_off(begin, views))
        return pieces(begin, views, self.segment_bytes, barriers)

    def _append_piece(self, lsn: Lsn, piece: Sequence[Buffer]) -> None:
        file = self._file_of(lsn)
        if file != self._written_file:
            self._ensure_file(lsn)
            self._written_file, self._written_name = file, self._name(file)
        self.disk.write_at(self._written_name, lsn - file[0], piece)
        self.disk.sync_data(self._written_name)

    def prepare_ahead(self, lsn: Lsn, wanted_lsn: Lsn | None = None) -> None:
        """Allocate the segment after the one that holds `lsn`, also beside append. Raise NoSpace.

        It leaves no gap if it comes too late, after a truncation took the segment of `lsn`.
        Pages of old WAL make room for it. WAL from `wanted_lsn` on, which some reader lacks, stays
        in the page cache up to CACHED_BYTES_MAX.
        """
        before = self._file_of(lsn)
        if before in self._files:
            self._ensure_file(self.segment_start(lsn) + self.segment_bytes, before)
            self._drop_old(lsn, wanted_lsn)

    def _drop_old(self, lsn: Lsn, wanted_lsn: Lsn | None) -> None:
        """Let the page cache drop what it need not hold while `lsn` is written."""
        tip_lsn = lsn - max(CACHED_BYTES, self.segment_bytes)
        kept_lsn = tip_lsn if wanted_lsn is None else min(tip_lsn, wanted_lsn)
        end = Lsn(max(0, kept_lsn, lsn - CACHED_BYTES_MAX)).round_down(self.segment_bytes)
        begin = self._cached_from_lsn or end - self.segment_bytes
        if begin < end:
            with self._lock:
                old = sorted(file for file in self._files if begin <= file[0] < end)
            for file in old:
                self.disk.drop_cached(self._name(file))
            self._cached_from_lsn = end

    def is_old(self, lsn: Lsn) -> bool:
        """Return True if the page cache has dropped the WAL at `lsn`."""
        return lsn < self._cached_from_lsn

    def drop_cached(self, lsn: Lsn) -> None:
        """Let the page cache drop the file that holds the byte at `lsn`."""
        file = self._file_of(lsn)
        if file in self._files:
            self.disk.drop_cached(self._name(file))

    def _ensure_file(self, lsn: Lsn, before: File | None = None) -> None:
        """Make the file for the byte at `lsn`, if `before` exists.

        Hold the lock, so that a rename never replaces a segment that has just got data."""
        if self._file_of(lsn) in self._files:
            return
        with self._lock:
            file = start, timeline = self._file_of(lsn)
            if file in self._files or before not in (None, *self._files):
                return
            name = self._name(file)
            self.disk.allocate(name + HALF_MADE, self.segment_bytes)
            if self.timelines.at(start) != timeline:
                self._inherit(name + HALF_MADE, start, self.timelines.begin_of(timeline))
            self.disk.rename(name + HALF_MADE, name)
            self.disk.sync_directory()
            self._files.add(file)
            # The parent's files after the fork, prepared ahead, would look like WAL of its own.
            self.unlink_files(self._files - self._used(self._files))

    def _inherit(self, name: str, start: Lsn, fork_lsn: Lsn) -> None:
        """Copy the parent's bytes up to the fork, durably, before the file gets its name."""
        lsn = start
        while lsn < fork_lsn:
            end = min(fork_lsn, lsn + CHUNK_BYTES)
            self.disk.write_at(name, lsn - start, [self.read(lsn, end)])
            lsn = end
        self.disk.sync_data(name)

    def truncate(self, to_lsn: Lsn) -> None:
        """Forget all WAL from `to_lsn` on, durably. Idempotent; recovery finishes it.

        The caller has drained appends and made the mark "truncating to" durable.
        """
        assert to_lsn >= self._first_lsn, f"{to_lsn=} {self._first_lsn=}"
        try:
            if self._head_known and to_lsn < self.head_end():
                self.forget_head()
            with self._lock:
                self.unlink_after(to_lsn)
            self.zero_from(to_lsn)
        except StorageError as error:
            self._failed = f"truncating to {to_lsn}: {error}"
            raise StorageError(self._failed) from error

    def unlink_after(self, end_lsn: Lsn) -> None:
        """Unlink all files after the one that holds the last byte below `end_lsn`.

        The log's first file stays in any case. Call it under the lock, or before the log is used.
        """
        last = self.segment_start(end_lsn), self.timelines.before(end_lsn)
        behind = {file for file in self._files if file > last}
        self.unlink_files(behind - set(sorted(self._files)[:1]))

    def unlink_files(self, files: set[File]) -> None:
        """Unlink files durably, highest first, so that we never make a gap between segments."""
        self._written_file = None
        for gone in sorted(files, reverse=True):
            self._files.discard(gone)
            self.disk.unlink(self._name(gone))
            self.disk.sync_directory()

    def zero_from(self, lsn: Lsn) -> None:
        """Write zeros to the end of the segment of `lsn`, if it exists, and sync it.

        Always written, never compared first: after a failed fsync the page cache may show zeros
        that the disk does not have.
        """
        start, name = self.segment_start(lsn), self.name_of(lsn)
        if self._file_of(lsn) not in self._files:
            return
        offset = lsn - start
        while offset < self.segment_bytes:
            size = min(CHUNK_BYTES, self.segment_bytes - offset)
            self.disk.write_at(name, offset, [_ZEROS[:size]])
            offset += size
        self.disk.sync_data(name)

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return [begin, end), page headers included; raise WalRemoved below first_lsn."""
        pieces, lsn = [], begin_lsn
        while lsn < end_lsn:
            if lsn < self._first_lsn:
                raise WalRemoved(begin_lsn, self._first_lsn)
            start = self.segment_start(lsn)
            size = min(self.file_end(lsn), end_lsn) - lsn
            try:
                if self._file_of(lsn) not in self._files:
                    raise StorageError(f"segment {self.name_of(lsn)} is not there")
                pieces.append(self.disk.read_at(self.name_of(lsn), lsn - start, size))
            except StorageError as error:
                if lsn < self._first_lsn:  # retention took it while we read
                    raise WalRemoved(begin_lsn, self._first_lsn) from error
                raise StorageError(f"reading WAL at {lsn}: {error}") from error
            lsn = lsn + size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def record_end(self, flush_lsn: Lsn, from_lsn: Lsn = ZERO_LSN) -> RecordEnd:
        """Return the last whole record below `flush_lsn` (R18). CorruptWal names file and LSN.

        `from_lsn` is the start of some record; the scan begins there.
        """
        try:
            return self._record_end(max(self._first_lsn, from_lsn), flush_lsn)
        except InvalidWal as error:
            raise CorruptWal(f"segment {self.name_of(error.lsn)}: {error}") from error

    def _record_end(self, first_lsn: Lsn, flush_lsn: Lsn) -> RecordEnd:
        return record_end_before(
            self, first_lsn=first_lsn, flush_lsn=flush_lsn, segment_bytes=self.segment_bytes
        )

    def contiguous_end(self, lsn: Lsn) -> Lsn:
        """Return the end of the files that follow `lsn` without a gap."""
        while self._file_of(lsn) in self._files:
            lsn = self.file_end(lsn)
        return lsn

    def scan(self, start_lsn: Lsn, limit_lsn: Lsn, wal: WalBytes | None = None) -> ScanEnd:
        """Return how far the log is valid from a record's (or the log's) start on.

        With `wal`, its bytes are walked in the place of this store's."""
        return scan(
            self if wal is None else wal,
            start_lsn=start_lsn,
            limit_lsn=limit_lsn,
            segment_bytes=self.segment_bytes,
            foreign=self._foreign,
        )

    def _foreign(self, header: PageHeader) -> str | None:
        """Return why a page cannot be this log's, or None; first pages may have older timelines."""
        page_lsn, timeline = header.page_lsn, self.timelines.at(header.page_lsn)
        if not 0 < header.timeline <= timeline:
            return f"the page at {page_lsn} is of timeline {header.timeline}, not {timeline}"
        if header.system_id not in (None, self._system_id):
            return f"the page at {page_lsn} is of system {header.system_id}, not {self._system_id}"
        return None

    def remove_below(self, lsn: Lsn) -> None:
        """Unlink whole segments below `lsn`, lowest first, each durably, so that no gap remains.

        The caller decides how far (R14); the segment of `lsn` stays.
        """
        with self._lock:
            gone = sorted(f for f in self._files if f[0] + self.segment_bytes <= lsn)
            assert len(gone) < len(self._files), f"{lsn=} would remove all {self._files=}"
            if not gone:
                return
            self._first_lsn = gone[-1][0] + self.segment_bytes
            for file in gone:
                self._files.discard(file)
                self.disk.unlink(self._name(file))
                self.disk.sync_directory()
        self._head_known = True  # a record start is kept, so nothing hangs on the mark any more

    def head_end(self) -> Lsn:
        """Return the end of the record inside which the log starts, or first_lsn."""
        if self._file_of(self._first_lsn) not in self._files:
            return self._first_lsn
        return head_end(self, first_lsn=self._first_lsn, segment_bytes=self.segment_bytes)

    def marked_head(self) -> tuple[Lsn, Lsn] | None:
        """Return (first_lsn, end) of the mark of the log's durable first bytes, or None."""
        if HEAD_MARK not in self.disk.names():
            return None
        data = self.disk.read_at(HEAD_MARK, 0, self.disk.size(HEAD_MARK))
        _, body = unseal(HEAD_MAGIC, {1}, data, HEAD_MARK)
        return Lsn(int.from_bytes(body[:8], "big")), Lsn(int.from_bytes(body[8:], "big"))

    def forget_head(self) -> None:
        """Remove the mark, because a cut inside the first record needs a new one later."""
        self._head_known = False
        if HEAD_MARK in self.disk.names():
            self.disk.unlink(HEAD_MARK)
            self.disk.sync_directory()

    def _mark_head(self, durable_lsn: Lsn) -> None:
        """Write the mark of point 3 above, once the first whole record's end is durable."""
        if self._head_known or durable_lsn < self._first_lsn + LONG_HEADER_BYTES:
            return
        if durable_lsn < (end := self.head_end()):
            return
        if end > self._first_lsn:
            body = self._first_lsn.to_bytes(8, "big") + end.to_bytes(8, "big")
            self.disk.replace(HEAD_MARK, seal(HEAD_MAGIC, 1, body))
        self._head_known = True

    def unlink_unused(self) -> None:
        """Unlink segment files that the history has no use for, as `follow` does."""
        named = self._named_files()
        self.unlink_files(named - self._used(named))

    def found_files(self) -> set[File]:
        """Return the segment files on disk that can be the log's."""
        return self._used(self._named_files())

    def _named_files(self) -> set[File]:
        """Return the files with names of the log's timelines; other names are not ours.

        The only file of a log that was cut to its very beginning may be of another timeline."""
        found = set()
        for name in self.disk.names():
            try:
                timeline, start = parse_segment_name(name, self.segment_bytes)
            except ValueError:
                continue
            found.add((start, timeline))
        return {file for file in found if file[1] in self.timelines} or found
