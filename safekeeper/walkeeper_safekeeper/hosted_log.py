"""One configured log in a running safekeeper: the driver with its threads, readers and slots.

The asyncio shell around Acceptor, Driver and WalStore; it decides nothing of the consensus. It is
the `ServedLog` of the PostgreSQL sessions and the `Surroundings` of the driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from walkeeper_common.errors import Refused, StorageError, WalkeeperError, WalRemoved
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.severity import Severity
from walkeeper_common.shell.logs import log_note
from walkeeper_common.shell.worker_thread import LoopShare, WorkerThread, call, resolve
from walkeeper_common.timelines import served_file
from walkeeper_common.wire.consumer_slots import ConsumerSlots
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Buffer, Feedback
from walkeeper_common.wire.timeline_reservation import ReserveTimeline, TimelineReserved
from walkeeper_fastpath.switch import append_path
from walkeeper_safekeeper.archiving.offload import Offload, start_offload
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import SegmentsRemoved, StandbysReported, Tick
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.disk.disk_times import DiskTimes
from walkeeper_safekeeper.driver import Driver
from walkeeper_safekeeper.primary_facts import PrimaryFacts
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.served_log import Readers
from walkeeper_safekeeper.retention import kept_bytes, wanted_lsn
from walkeeper_safekeeper.scrub import Scrub
from walkeeper_safekeeper.settings import SafekeeperSettings
from walkeeper_safekeeper.storage.log_folder import LogFolder
from walkeeper_safekeeper.storage.reserved_timelines import Reserved

logger = logging.getLogger("walkeeper.log")

HEARTBEAT_S = 1.0
FEEDBACK_S = 0.01
SETTLE_S = 0.005  # how much later the core may learn of appends that the fast path took
RETENTION_TICKS = 5
CLOSE_TIMEOUT_S = 10.0
TELL_S = 0.1
TOLD_TICKS = 10  # consumers' moves are told once a second, new and dropped slots at once
SLOT_KEEP_FACTOR = 10  # a consumer of changes keeps at most so many times --wal-keep-size


class Session(Protocol):
    """A proposer's connection, as far as the log speaks to it."""

    def send(self, message: Message) -> None: ...
    def resume(self) -> None: ...
    def receives_more(self) -> bool:
        """Whether more of a message has come since the last call, but not all of it."""
        ...


class HostedLog:
    """`open` it, then `post` events to `driver`; `close` leaves a clean stop behind."""

    def __init__(
        self,
        cluster: str,
        folder: LogFolder,
        settings: SafekeeperSettings,
        share: LoopShare,
        times: DiskTimes | None = None,
    ) -> None:
        self.cluster = cluster
        self.folder, self.times = folder, times or DiskTimes()
        self.offload: Offload | None = None
        self.readers = Readers()
        self.sessions: dict[int, Session] = {}
        self.paused: list[Session] = []  # they read on when less WAL is queued
        self.proposers: dict[bytes, tuple[str, str]] = {}  # by id: address, application_name
        self.primary = PrimaryFacts()
        self._settings, self._loop_share = settings, share
        self._waiters: list[tuple[Lsn, asyncio.Future[None]]] = []
        self._ticks = self._told_ticks = 0
        self.logical: LogicalLog | None = None
        self.driver: Driver
        self.slots: DurableSlots
        self.scrub: Scrub
        self._threads: list[WorkerThread] = []
        self._loop: asyncio.AbstractEventLoop
        self._reserved: Reserved
        self._reserving = asyncio.Lock()

    async def open(self, on_defect: Callable[[BaseException], None]) -> None:
        """Recover the WAL and start. StorageError: damaged, with the file, LSN and remedy."""
        writer = WorkerThread(f"writer {self.cluster}", on_defect, self._loop_share)
        reader = WorkerThread(f"reader {self.cluster}", on_defect)
        allocator = WorkerThread(f"allocator {self.cluster}", on_defect)
        self._threads = [writer, reader, allocator]
        self._loop = asyncio.get_running_loop()
        opened = await call(writer, self.folder.open_wal)
        acceptor = Acceptor(
            opened.durable,
            first_lsn=opened.store.first_lsn,
            flush_lsn=opened.flush_lsn,
            record_lsn=opened.record_lsn,
            flaw_of_wal=page_flaw if opened.durable.is_physical else None,
        )
        self.driver = Driver(
            acceptor,
            opened.store,
            self._save,
            writer=writer,
            reader=reader,
            allocator=allocator,
            around=self,
            fast=append_path(),
        )
        self.driver.orphans = self.folder.orphans
        saved = await call(reader, self.folder.load_slots)

        async def write_slots(data: bytes) -> None:
            await call(allocator, lambda: self.folder.save_slots(data))

        self.slots = DurableSlots(saved, write_slots)
        self._reserved = await call(reader, self.folder.load_reserved)
        self.scrub = Scrub(self, self._settings.scrub_bytes_s, reader)
        if self.configuration.kind is LogKind.LOGICAL:
            self.logical = LogicalLog(self)
        if self._settings.archive is not None:
            archive = self._settings.archive
            self.offload = await start_offload(self, self.folder, archive, on_defect)
        facts = (("flush_lsn", acceptor.flush_lsn), ("commit_lsn", acceptor.commit_lsn))
        log_note(logger, f"opened the log of cluster {self.cluster}", facts)

    def _save(self, durable: Durable) -> None:
        """On the writer's thread. A timeline whose file is stored now can be served."""
        known = self.folder.timeline_files
        self.folder.save_control(durable)
        if self.folder.timeline_files.keys() != known.keys():
            self._loop.call_soon_threadsafe(lambda: self.commit_moved(self.commit_lsn))

    async def reserve_timeline(self, ask: ReserveTimeline) -> TimelineReserved:
        """Return the owner of a timeline number when that is durable here (R23). Raise Refused."""
        acceptor = self.driver.acceptor
        async with self._reserving:
            last_timeline = acceptor.timelines.before(acceptor.commit_lsn)
            following = self._reserved.grant(ask.timeline, ask.owner, last_timeline=last_timeline)
            if following is not self._reserved:
                await call(self._threads[-1], lambda: self.folder.save_reserved(following))
                self._reserved = following
            owner = self._reserved.owners[ask.timeline]
        return TimelineReserved(acceptor.member, self.configuration, ask.timeline, owner)

    async def report_standbys(self) -> None:
        """What the standbys say goes to the proposer at once, but not more often than FEEDBACK_S.

        A `remote_apply` commit may wait for it; and standbys say something for each flush.
        """
        heard = asyncio.Event()
        self.readers.on_feedback = heard.set
        while True:
            await heard.wait()
            heard.clear()
            feedback = self._feedback()
            if feedback != self.driver.acceptor.feedback:
                self.driver.post(StandbysReported(feedback))
                await asyncio.sleep(FEEDBACK_S)

    async def tell_slots(self) -> None:
        """Tell the proposer of slots that the log lacks. Ask it for the published tables
        if a subscription waits for them. Run until cancelled."""
        while True:
            await asyncio.sleep(TELL_S)
            self._tell_slots()

    def _tell_slots(self) -> None:
        leader = self.sessions.get(self.driver.acceptor.appender or 0)
        if self.logical is None or leader is None:
            return
        query = self.logical.tables_query()
        if query is not None:
            leader.send(query)
        news = self.logical.positions.news()
        self._told_ticks += 1
        is_urgent = any(one.is_new or one.lsn is None for one in news)
        if is_urgent or (news and self._told_ticks >= TOLD_TICKS):
            self._told_ticks = 0
            leader.send(ConsumerSlots(news))

    async def run(self) -> None:
        """Heartbeats and retention, until it is cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._ticks += 1
            self.primary.tick()
            receiving = [n for n, session in self.sessions.items() if session.receives_more()]
            self.driver.post(Tick(frozenset(receiving)))
            if self._ticks % RETENTION_TICKS == 0:
                await self._saved_slots(self.slots.save())
                if self.logical is not None:
                    await self._remove_entries(self.logical)
                else:
                    self._remove_wal()

    async def _saved_slots(self, saving: Awaitable[None]) -> None:
        """Or it is told why not; the log goes on, or is closed all the same."""
        try:
            await saving
        except StorageError as error:
            logger.error("cluster %s: replication slots were not saved: %s", self.cluster, error)

    async def _remove_entries(self, logical: LogicalLog) -> None:
        try:
            wanted = await logical.horizon(SLOT_KEEP_FACTOR * self._settings.wal_keep_bytes)
        except WalkeeperError as error:
            logger.warning("cluster %s: nothing is removed: %s", self.cluster, error)
        else:
            self._remove_below(wanted)

    def _remove_wal(self) -> None:
        self._remove_below(self._wanted_wal())

    def _remove_below(self, wanted: Lsn | None) -> None:
        store, settings, offload = self.driver.store, self._settings, self.offload
        keep_bytes = kept_bytes(
            settings.wal_keep_bytes,
            used_bytes=store.used_bytes,
            size_max=settings.wal_bytes_max,
        )
        self.driver.remove_below(
            self.commit_lsn if wanted is None else wanted,
            keep_bytes=keep_bytes,
            archived_lsn=None if offload is None else offload.archived_lsn,
        )

    def _wanted_wal(self) -> Lsn | None:
        slots = [slot.retention_lsn for slot in self.slots.slots]
        readers = [reader.retention_lsn for reader in self.readers]
        return wanted_lsn(
            [lsn for lsn in (*slots, *readers) if lsn is not None],
            first_lsn=self.driver.store.first_lsn,
            has_archive=self.offload is not None,
        )

    def _feedback(self) -> Feedback:
        applied = [r.replay_lsn for r in self.readers if r.replay_lsn]
        xmins = [r.xmin for r in self.readers if r.xmin]
        catalog_xmins = [r.catalog_xmin for r in self.readers if r.catalog_xmin]
        return Feedback(
            min(applied, default=Lsn(0)), min(xmins, default=0), min(catalog_xmins, default=0)
        )

    async def repair_segment(self, begin_lsn: Lsn) -> bool:
        """Rewrite a damaged segment from the archive; return False if it is not there.

        The writer's thread does it, which also removes segments. Appends do not reach so far below
        the end. After a crash in the middle the next scrub finds the damage again."""
        offload, store = self.offload, self.driver.store
        end_lsn = Lsn(begin_lsn + store.segment_bytes)
        if offload is None or not begin_lsn >= store.first_lsn or offload.archived_lsn < end_lsn:
            return False
        file, name = offload.file_of(begin_lsn), store.name_of(begin_lsn)
        wal = await asyncio.to_thread(offload.archive.read, file) if file.name == name else None
        if wal is None or len(wal) != store.segment_bytes:
            return False

        def rewrite() -> None:
            if begin_lsn >= store.first_lsn:
                store.disk.write_at(name, 0, [wal])
                store.disk.sync_data(name)

        await call(self._threads[0], rewrite)
        return True

    def users(self) -> str | None:
        """Return who uses the log, with the remedy, or None: such a log is not dropped."""
        appender = self.driver.acceptor.appender
        if appender is not None and appender in self.sessions:
            return f"a proposer leads {self.cluster}: detach, and stop it first"
        names = ", ".join(sorted(reader.application_name for reader in self.readers))
        return f"{names} stream from {self.cluster}: stop these clients first" if names else None

    async def close(self) -> None:
        """Finish what is under way, save the lazily written facts, stop the threads."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self.offload is not None:
                    self.offload.stop()
                    await self.offload.save()
                await self._saved_slots(self.slots.close())
                closed = asyncio.Event()
                self.driver.close(lambda result: self._closed(closed, result))
                await closed.wait()
        except TimeoutError:
            logger.warning("cluster %s: the disk did not finish in time", self.cluster)
        for thread in self._threads:
            thread.stop()

    def _closed(self, closed: asyncio.Event, result: object) -> None:
        closed.set()
        if isinstance(result, WalkeeperError):  # the next start finds no clean stop, and looks
            logger.error("cluster %s: closing its log: %s", self.cluster, result)

    # What the offload tells

    def archive_moved(self) -> None:
        """More is archived: WAL may go now, entries with the next look at their consumers."""
        if self.logical is None:
            self._remove_wal()

    def archive_reaches(self, oldest_lsn: Lsn) -> None:
        """All WAL from here on can be read, from this disk or from the archive."""
        self.driver.post(SegmentsRemoved(oldest_lsn))

    async def save_archived(self, url: str, archived_lsn: Lsn) -> None:
        """For the next start."""
        _, _, allocator = self._threads
        try:
            await call(allocator, lambda: self.folder.save_archived(url, archived_lsn))
        except StorageError as error:
            logger.error("cluster %s: archived_lsn was not saved: %s", self.cluster, error)

    # The driver's Surroundings

    def send(self, connection: int, message: Message) -> None:
        session = self.sessions.get(connection)
        if session is not None:
            session.send(message)
        if self.paused and not self.driver.is_busy:
            paused, self.paused = self.paused, []
            for waiting in paused:
                waiting.resume()

    def commit_moved(self, commit_lsn: Lsn) -> None:
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for beyond_lsn, future in waiters:
            if beyond_lsn >= commit_lsn:
                self._waiters.append((beyond_lsn, future))
            elif not future.done():
                future.set_result(None)

    def settle_later(self, settle: Callable[[], None]) -> None:
        if self._waiters:
            settle()
        else:
            self._loop.call_later(SETTLE_S, settle)

    def end_readers(self, above_lsn: Lsn) -> None:
        self.readers.end_those_sent_beyond(above_lsn)
        self.commit_moved(LSN_MAX)  # back: who waited beyond it must look again

    def note(self, text: str, facts: Sequence[tuple[str, object]], severity: Severity, /) -> None:
        log_note(logger, f"cluster {self.cluster}: {text}", facts, severity)

    # The sessions' ServedLog

    @property
    def configuration(self) -> Configuration:
        configuration = self.driver.acceptor.durable.configuration
        assert configuration is not None, f"{self.cluster=}"
        return configuration

    @property
    def system_id(self) -> int:
        return self.configuration.system_id

    @property
    def timeline(self) -> int:
        """Of the last committed byte, once its history file is stored here."""
        return self.driver.acceptor.timelines.before(self.commit_lsn)

    @property
    def segment_bytes(self) -> int:
        return self.configuration.segment_bytes

    @property
    def server_version(self) -> str:
        return self.configuration.server_version

    @property
    def first_lsn(self) -> Lsn:
        return self.driver.acceptor.first_lsn

    @property
    def commit_lsn(self) -> Lsn:
        """What readers may have: not past a fork before its history file is stored here."""
        acceptor, known = self.driver.acceptor, self.folder.timeline_files
        timelines, commit_lsn = acceptor.timelines, acceptor.commit_lsn
        timeline = timelines.before(commit_lsn)
        if timeline == timelines.first or timeline in known:
            return commit_lsn
        stored = (t for t, _ in reversed(timelines.ends()) if t in known)
        return timelines.end_of(next(stored, timelines.first))

    @property
    def whole_lsn(self) -> Lsn:
        """What clients that take WAL may have, as far as anybody has looked.

        Who takes a logical log's entries as they lie there has all that is committed; a cut ends
        the connections of those who were sent more.
        """
        if self.logical is not None:
            return self.commit_lsn
        return min(self.driver.whole_lsn, self.commit_lsn)  # a fork may hold it back

    async def read_committed(self, begin: Lsn, end: Lsn) -> bytes:
        """All of [begin, end). WalRemoved, Refused (the end was taken back), StorageError."""
        if begin < self.first_lsn:
            raise WalRemoved(begin, self.first_lsn)
        if end > self.commit_lsn:
            raise Refused(f"WAL up to {end} is not committed here, only up to {self.commit_lsn}")
        future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self.driver.read_committed(begin, end, partial(resolve, future))
        return bytes(await future)

    async def wait_for_commit(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """commit_lsn as soon as it is greater than `beyond`, or when the time is over."""
        self.driver.settle()
        if self.commit_lsn <= beyond:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (beyond, future)
            self._waiters.append(entry)
            try:
                async with asyncio.timeout(timeout_s):
                    await future
            except TimeoutError:
                pass
            finally:
                if entry in self._waiters:
                    self._waiters.remove(entry)
        return self.commit_lsn

    async def whole_end(self) -> Lsn:
        """whole_lsn as of now. CorruptWal, StorageError."""
        await self._looked()
        return self.whole_lsn

    async def wait_for_whole(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """whole_lsn as soon as it is greater than `beyond`, or when the time is over."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + timeout_s
        while self.whole_lsn <= beyond and (left_s := until_s - clock()) > 0:
            commit_lsn = self.commit_lsn
            if not await self._looked():
                await self.wait_for_commit(commit_lsn, left_s)
        return self.whole_lsn

    async def _looked(self) -> bool:
        """Whether there was anything new to look at."""
        self.driver.settle()
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.logical is not None or not self.driver.find_whole(partial(resolve, found)):
            return False
        await found
        return True

    def timeline_history(self, timeline: int) -> bytes | None:
        """Return the file of a timeline that is committed here, verbatim, or None.

        A number that a promotion passed over has a file too (timelines.served_file)."""
        first = self.driver.acceptor.timelines.first
        return served_file(self.folder.timeline_files, timeline, first)
