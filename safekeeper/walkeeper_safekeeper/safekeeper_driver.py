"""Performs the acceptor's effects, in order, on one log's disk and connections.

    post(event)     steps the core and performs its effects, at once if the disk is free

A `Persist` or a `TruncateWal` holds back all later effects and events until it is done. The driver
writes WAL in groups, with one write and one fdatasync for each. WAL that arrives during one group
is the next group, so there is no timer (BookKeeper's 2 ms group wait helps spinning disks only).
All changes of the log run on one `Worker`, in order. Reads and allocation have their own workers,
so that neither a reader nor a new segment stops the writer.

It is deterministic, without clock, threads and I/O of its own. The simulator runs this very code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias, assert_never, cast

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import CorruptWal, NoSpace, StorageError, WalkeeperError, WalRemoved
from walkeeper_common.lsn import WAL_PAGE_BYTES, ZERO_LSN, Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.framing import FRAME_HEAD, MEMORY_BYTES_MAX
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_fastpath.ports import Feeding
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    CommitMoved,
    Effect,
    EndReaders,
    Event,
    FindRecordEnd,
    Persist,
    ReadWal,
    Received,
    RecordEndCorrupt,
    RecordEndFound,
    SegmentsRemoved,
    Send,
    StorageFailed,
    Tick,
    TruncateWal,
    WalFlushed,
    WalRead,
    WriteRefused,
    WriteWal,
)
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.consensus.persisted_marks import final_marks
from walkeeper_safekeeper.driver_ports import KeepsOrphans, OlderWal, Surroundings, Worker
from walkeeper_safekeeper.fast_appends import FastPath, MakeFastAppends
from walkeeper_safekeeper.storage.cached_wal import cached_wal
from walkeeper_safekeeper.storage.segment_filling import fill_segment
from walkeeper_safekeeper.storage.wal_store import SegmentNotAllocated, WalStore
from walkeeper_safekeeper.storage.whole_records import WholeRecords, whole_records

GROUP_BYTES_MAX = 8 << 20
APPEND_BYTES = FRAME_HEAD.size + AppendRequest.LAYOUT.size  # an append's frame without its WAL
BRIEF_BYTES_MAX = MEMORY_BYTES_MAX  # the most WAL that one read of the socket brings
QUEUED_BYTES_MAX = 32 << 20
FIND_BYTES_MAX = 32 << 10  # the loop itself walks so many new records

Range: TypeAlias = tuple[Lsn, Lsn]  # [begin, end)


class Driver:
    """One log. `is_busy` asks the sessions to stop reading: the queue is bounded by bytes."""

    def __init__(
        self,
        acceptor: Acceptor,
        store: WalStore,
        save: Callable[[Durable], None],
        *,
        writer: Worker,
        reader: Worker,
        allocator: Worker,
        around: Surroundings,
        fast: MakeFastAppends | None = None,
    ) -> None:
        """Make a driver; without `fast`, all appends take the slow path."""
        self.acceptor, self.store = acceptor, store
        self._save = save
        self._writer, self._reader, self._allocator = writer, reader, allocator
        self._around = around
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._is_held = self._is_running = False
        self._fast = FastPath(acceptor, store, fast, self._settle_later)
        self._is_settling = False  # the core learns soon of what the fast path has taken
        self._closing: Callable[[object], None] | None = None
        self._queued: deque[WriteWal] = deque()
        self._queued_bytes = 0
        self._is_writing = self._is_refusing = False
        self._groups_written = 0
        self.older: OlderWal | None = None
        self.others: OlderWal | None = None  # WAL of other members, for PostgreSQL clients (M8)
        self.orphans: KeepsOrphans | None = None
        self.wanted_lsn: Callable[[], Lsn | None] = lambda: None  # the oldest that a reader lacks
        self.damaged: Range | None = None  # by a scrub; reads of it are refused
        self._followed = acceptor.durable.history  # by the names of the store's files
        self._whole = WholeRecords()
        self._finds = 0  # looks for whole records that are under way on the reader
        self._looked_at: tuple[Lsn, int] | None = None  # commit_lsn and truncations, of `_whole`
        self._prepared_lsn = ZERO_LSN  # the last segment whose successor was requested

    @property
    def flush_lsn(self) -> Lsn:
        """The end of durable WAL; the core may learn of it some milliseconds later."""
        return self._fast.flush_lsn

    @property
    def is_busy(self) -> bool:
        """More WAL is queued than should be."""
        return self._queued_bytes >= QUEUED_BYTES_MAX

    @property
    def queued_bytes(self) -> int:
        """WAL received and not yet written."""
        return self._queued_bytes

    @property
    def groups_written(self) -> int:
        """Writes that were synced since the start."""
        return self._groups_written + self._fast.groups_written

    @property
    def is_idle(self) -> bool:
        """No work is under way or waiting: the log may be closed."""
        busy = self._is_held or self._is_writing or self._queued or self._events or self._effects
        return not busy

    def append_at_once(self, connection: int, answer: Feeding, memory: bytearray, size: int) -> int:
        """Write received WAL to the disk and acknowledge it, without a step in between.

        This is the fast path of `post`, while no other work is under way and the disk is quick.
        `answer` gets the acknowledgement's frame. Return the number of bytes of `memory[:size]`,
        in whole frames, that are done. Return 0, with no effect, if `post` has to handle them.
        """
        fast = self._fast
        if not fast.is_there and size > APPEND_BYTES:  # no heartbeat, which would write nothing
            self._begin_fast(connection, answer)
        try:
            return fast.take(connection, memory, size)
        except WalkeeperError as error:
            taken = fast.taken
            self.post(_failed_write(error))
            return taken

    def _settle_later(self) -> None:
        if not self._is_settling:
            self._is_settling = True
            self._around.settle_later(self.settle)

    def _begin_fast(self, connection: int, answer: Feeding) -> None:
        if self._fast.is_off or self._is_running or self._closing is not None or not self.is_idle:
            return
        if self.acceptor.appender == connection and (pace := self._writer.at_once()) is not None:
            self._fast.begin(connection, answer, pace)

    def settle(self) -> None:
        """Tell the core of the appends that the fast path has taken."""
        self._is_settling = False
        if (news := self._fast.news()) is not None:
            self._events.append(news)
            self._run()

    def _end_fast(self) -> None:
        """End the fast path. The core learns of its last appends before any other event."""
        if self._fast.is_there:
            self.settle()
            self._fast.end()

    def post(self, event: Event) -> None:
        """Step the core with this event, after those that came before."""
        if self._closing is not None and isinstance(event, Received | Tick):
            return
        self._end_fast()
        self._events.append(event)
        self._run()

    def _run(self) -> None:
        if self._is_running:
            return  # an effect posted an event: the loop below takes it up
        self._is_running = True
        try:
            while not self._is_held:
                if self._effects:
                    self._perform(self._effects.popleft())
                elif self._events:
                    event = self._events.popleft()
                    self._is_refusing &= not isinstance(event, WriteRefused)
                    self._effects.extend(self.acceptor.step(event))
                else:
                    break
        finally:
            self._is_running = False
        self._close_when_idle()

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(connection, message):
                self._around.send(connection, message)
            case WriteWal() if self._is_refusing:
                pass  # it follows WAL that had no space, as the core will learn
            case WriteWal():
                self._queued.append(effect)
                self._queued_bytes += len(effect.payload)
                self._write_group()
            case CommitMoved(commit_lsn):
                self._around.commit_moved(commit_lsn)
            case Persist(state):
                self._hold(lambda: self._persist(state))
            case TruncateWal(to_lsn):
                assert not self._queued and not self._is_writing, f"{to_lsn=} {self._queued=}"
                self._prepared_lsn = ZERO_LSN
                self._hold(lambda: self.store.truncate(to_lsn))
            case FindRecordEnd():
                self._find_record_end(effect)
            case ReadWal():
                self._read(effect)
            case EndReaders(above_lsn):
                self._around.end_readers(above_lsn)
            case Note(text, facts, severity):
                self._around.note(text, facts, severity)
            case _:
                assert_never(effect)

    def _persist(self, state: Durable) -> str | None:
        """Save the control file; a truncation that it announces still uses the old history.

        Copy the WAL to truncate before the announcement: afterwards a start finishes the cut.
        """
        text = None
        if state.truncating_to is not None and self.orphans is not None:
            text = self.orphans.keep(self.store, state.history, state.truncating_to)
        self._save(state)
        if state.history != self._followed:
            self._followed = state.history
            self.store.follow(Timelines(state.history))
        return text

    def _hold(self, job: Callable[[], object]) -> None:
        """Finish this before anything that follows; if it fails, nothing follows."""
        self._is_held = True
        self._writer.submit(job, self._release)

    def _release(self, result: object) -> None:
        self._is_held = False
        if isinstance(result, WalkeeperError):
            # The core's memory is ahead of the disk now. It is retired, and never speaks of what
            # it could not make durable.
            self._effects.clear()
            self._events.appendleft(StorageFailed(str(result)))
        elif isinstance(result, str):
            self._around.note(result, (), Severity.LOG)
        self._run()

    # Writing

    def _write_group(self) -> None:
        if self._is_writing or not self._queued:
            return
        self._is_writing = True
        is_brief = self._queued_bytes <= BRIEF_BYTES_MAX
        self._writer.submit(self._append_group, self._written, brief=is_brief)

    def _append_group(self) -> Range:
        """Write a group, as the writer's job: all WAL that has arrived by the job's start."""
        begin_lsn, buffers, size = self._queued[0].begin_lsn, list[Buffer](), 0
        while self._queued and size < GROUP_BYTES_MAX:
            buffers.append(self._queued.popleft().payload)
            size += len(buffers[-1])
        self.store.append(begin_lsn, buffers)
        return begin_lsn, begin_lsn + size

    def _written(self, result: object) -> None:
        self._is_writing = False
        if isinstance(result, WalkeeperError):
            self._queued.clear()
            self._queued_bytes = 0
            self._is_refusing = isinstance(result, SegmentNotAllocated)
            self.post(_failed_write(result))
            return
        begin_lsn, end_lsn = cast(Range, result)
        self._queued_bytes -= end_lsn - begin_lsn
        self._groups_written += 1
        self.post(WalFlushed(end_lsn))
        self._write_group()
        self._prepare_ahead(end_lsn)

    def _prepare_ahead(self, written_lsn: Lsn) -> None:
        """Submit the allocation of the next segment before the writer needs it."""
        segment = written_lsn.round_down(self.store.segment_bytes)
        if segment > self._prepared_lsn:
            self._prepared_lsn, wanted_lsn = segment, self.wanted_lsn()
            self._allocator.submit(
                lambda: self.store.prepare_ahead(segment, wanted_lsn), self._prepared
            )

    def _prepared(self, result: object) -> None:
        if isinstance(result, NoSpace):  # the writer meets it again, and says so then
            self._around.note(str(result), (), Severity.WARNING)
        elif isinstance(result, WalkeeperError):
            self.post(StorageFailed(str(result)))

    # Looking at the log

    def _find_record_end(self, asked: FindRecordEnd) -> None:
        def found(result: object) -> None:
            if isinstance(result, WalkeeperError):
                self.post(RecordEndCorrupt(asked, str(result)))
            else:
                assert isinstance(result, Lsn), f"{result=}"
                self.post(RecordEndFound(asked, result))

        def look() -> Lsn:
            if asked.flush_lsn < self.store.first_lsn:
                return ZERO_LSN
            return self.store.record_end(asked.flush_lsn).end_lsn

        self._writer.submit(look, found)

    def _read(self, read: ReadWal) -> None:
        begin_lsn = read.request.begin_lsn

        def done(result: object) -> None:
            text: str | None = None
            payload: Buffer = b""
            if isinstance(result, WalkeeperError):
                text = str(result)
            else:
                assert isinstance(result, bytes | bytearray), f"{result=}"
                payload = result
            self.post(WalRead(read.connection, read.request, read.truncations, payload, text))

        self._read_wal(begin_lsn, read.end_lsn, done)

    def _read_wal(
        self,
        begin_lsn: Lsn,
        end_lsn: Lsn,
        done: Callable[[object], None],
        others: OlderWal | None = None,
    ) -> None:
        """Read WAL from the page cache or the disk, else from the archive, or else from `others`.

        A read of the page cache is done at once, on the loop.
        """
        places = [place for place in (self.older, others) if place is not None]

        def finish(result: object) -> None:
            if isinstance(result, WalRemoved) and places:
                places.pop(0).read(begin_lsn, end_lsn, finish)
            else:
                done(result)

        damaged = self.damaged
        if damaged is not None and self.is_damaged(begin_lsn, end_lsn):
            done(CorruptWal(f"WAL from {damaged[0]} to {damaged[1]} is damaged on this disk"))
            return
        wal = cached_wal(self.store, begin_lsn, end_lsn)
        if wal is not None:
            done(wal)
            return
        self._reader.submit(lambda: self.store.read(begin_lsn, end_lsn), finish)

    def is_damaged(self, begin_lsn: Lsn, end_lsn: Lsn) -> bool:
        """Return True if a scrub has found damage in this range."""
        damaged = self.damaged
        return damaged is not None and begin_lsn < damaged[1] and damaged[0] < end_lsn

    def read_committed(
        self, begin_lsn: Lsn, end_lsn: Lsn, done: Callable[[Buffer | WalkeeperError], None]
    ) -> None:
        """Read a committed range for PostgreSQL clients; check again when its bytes are here."""
        truncations = self.acceptor.truncations

        def finish(result: object) -> None:
            cut = truncations != self.acceptor.truncations
            if not isinstance(result, bytes | bytearray | WalkeeperError):
                raise TypeError(f"{result=}")
            if cut and end_lsn <= self.acceptor.commit_lsn:
                self.read_committed(begin_lsn, end_lsn, done)
            elif cut:
                done(WalRemoved(end_lsn, self.acceptor.commit_lsn))
            else:
                done(result)

        assert end_lsn <= self.acceptor.commit_lsn, f"{end_lsn=} {self.acceptor.commit_lsn=}"
        self._read_wal(begin_lsn, end_lsn, finish, self.others)
        self.leave_cached(begin_lsn, end_lsn)

    def leave_cached(self, begin_lsn: Lsn, end_lsn: Lsn) -> None:
        """Let an old file that was read to its end leave the page cache again."""
        if end_lsn == self.store.file_end(begin_lsn) and self.store.is_old(begin_lsn):
            self._reader.submit(lambda: self.store.drop_cached(begin_lsn), lambda _: None)

    @property
    def whole_lsn(self) -> Lsn:
        """The end of committed whole records, as far as the WAL was read (R13)."""
        return min(self._whole.end_lsn, self.acceptor.commit_lsn)

    def find_whole(self, done: Callable[[WalkeeperError | None], None]) -> bool:
        """Look how far `whole_lsn` goes now; return False if it cannot have moved since."""
        at = self.acceptor.commit_lsn, self.acceptor.truncations
        if at == self._looked_at:
            return False

        def found(result: object) -> None:
            self._finds -= 1
            if isinstance(result, WalkeeperError):
                done(result)
                return
            assert isinstance(result, WholeRecords), f"{result=}"
            if at[1] == self.acceptor.truncations:
                self._whole, self._looked_at = result, at  # else: of bytes that were cut
            done(None)

        self._finds += 1
        if self._finds == 1 and self._is_brief_find(at[0]):
            found(self._found_now(at[0]))
        else:
            self._reader.submit(lambda: whole_records(self.store, self._whole, at[0]), found)
        return True

    def _is_brief_find(self, commit_lsn: Lsn) -> bool:
        """Return True if the new records are few, and in the page cache: the loop may walk them."""
        begin_lsn = self._whole.end_lsn.round_down(WAL_PAGE_BYTES)
        is_short = commit_lsn - begin_lsn <= FIND_BYTES_MAX
        return is_short and cached_wal(self.store, begin_lsn, commit_lsn) is not None

    def _found_now(self, commit_lsn: Lsn) -> WholeRecords | WalkeeperError:
        try:
            return whole_records(self.store, self._whole, commit_lsn)
        except WalkeeperError as error:
            return error

    def remove(self, removal: Callable[[WalStore], None]) -> None:
        """Run a removal of WAL (retention.py) on the writer; the core learns what is left."""

        def remove() -> Lsn:
            removal(self.store)
            return self.store.first_lsn

        def removed(result: object) -> None:
            if isinstance(result, Lsn):
                if self.older is None:  # else what has gone from here can still be read
                    self.post(SegmentsRemoved(result))
            elif isinstance(result, StorageError):
                self.post(StorageFailed(str(result)))

        self._writer.submit(remove, removed)

    def fill(self, begin_lsn: Lsn, wal: bytes, done: Callable[[object], None]) -> None:
        """Put a segment in front of the log (M5); the core learns how far back it goes.

        The allocator does it, beside appends: the writer waits for nothing."""

        def filled(result: object) -> None:
            if isinstance(result, Lsn):
                self.post(SegmentsRemoved(min(result, self.acceptor.oldest_lsn)))
            elif isinstance(result, StorageError) and not isinstance(result, NoSpace):
                self.post(StorageFailed(str(result)))
            done(result)

        self._allocator.submit(lambda: fill_segment(self.store, begin_lsn, wal), filled)

    def close(self, done: Callable[[object], None]) -> None:
        """Take no more events; when what is under way is finished, make the lazily written facts
        durable and mark a clean stop. `done` is called back in the end."""
        self._closing = done
        self._end_fast()
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._closing is None or not self.is_idle:
            return
        done, self._closing = self._closing, None
        acceptor = self.acceptor
        if acceptor.failure is not None:
            done(None)
            return
        assert acceptor.flush_lsn == acceptor.write_lsn, f"{acceptor.write_lsn=}"
        state = final_marks(acceptor)
        self._is_held = True  # for good: nothing may be written after the mark
        self._writer.submit(lambda: self._save(state), done)


def _failed_write(error: WalkeeperError) -> Event:
    if isinstance(error, SegmentNotAllocated):
        return WriteRefused(error.flush_lsn, str(error))
    return StorageFailed(str(error))
