"""One configured log in a running safekeeper: its driver, its threads, and all that serves it.

    open(…) and close()    recover the WAL and start; leave a clean stop behind
    run()                  the heartbeat of the core, of retention and of the slots' file
    readable               the log as its readers see it; `sessions` are the proposers' connections

It is the `Surroundings` of the driver. An asyncio shell; it decides nothing of the consensus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from walkeeper_common.addresses import is_address, parse_address
from walkeeper_common.errors import CorruptWal, Refused, StorageError, WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.severity import Severity
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.quorum import Configuration
from walkeeper_common.shell.log_lines.operator_log import log_note
from walkeeper_common.shell.process.worker_thread import LoopShare, WorkerThread, call
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.range_digest import DigestQuery, RangeDigest
from walkeeper_common.wire.shared_slots import SharedSlots
from walkeeper_fastpath.switch import append_path
from walkeeper_safekeeper.archiving.back_fill import BackFill, lacks_bytes
from walkeeper_safekeeper.archiving.member_copies import OwnLog, Wanted
from walkeeper_safekeeper.archiving.member_wal import MemberWal, OtherMembers
from walkeeper_safekeeper.archiving.offload import Offload, start_offload
from walkeeper_safekeeper.archiving.range_digests import Comparison, CopyDigests, digest_of
from walkeeper_safekeeper.archiving.segment_repair import SegmentRepair
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import SegmentsRemoved, Tick
from walkeeper_safekeeper.consensus.durable import Durable
from walkeeper_safekeeper.disk.disk_times import DiskTimes
from walkeeper_safekeeper.hosting.leader_reports import report_slots, report_standbys
from walkeeper_safekeeper.hosting.log_retention import LogRetention
from walkeeper_safekeeper.hosting.readable_log import ReadableLog
from walkeeper_safekeeper.hosting.scrub import Flaw, Scrub
from walkeeper_safekeeper.hosting.timeline_grants import TimelineGrants
from walkeeper_safekeeper.proposer_sessions import ProposerSessions
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.primary_snapshot import TableCopies
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.safekeeper_settings import SafekeeperSettings
from walkeeper_safekeeper.storage.log_folder import LogFolder
from walkeeper_safekeeper.storage.reserved_timelines import Reserved
from walkeeper_safekeeper.storage.whole_records import last_whole_end

logger = logging.getLogger("walkeeper.log")

HEARTBEAT_S = 1.0
SETTLE_S = 0.05  # how much later the core may learn of appends that no reader awaits
RETENTION_TICKS = 5
CLOSE_TIMEOUT_S = 10.0


class HostedLog:
    """`open` it, then `post` events to `driver`; `close` leaves a clean stop behind."""

    driver: Driver
    readable: ReadableLog
    timelines: TimelineGrants
    scrub: Scrub
    _retention: LogRetention
    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        cluster: str,
        folder: LogFolder,
        settings: SafekeeperSettings,
        share: LoopShare,
        times: DiskTimes | None = None,
        new_slot_id: Callable[[], bytes] | None = None,
    ) -> None:
        self.cluster = cluster
        self.folder, self.times = folder, times or DiskTimes()
        self.offload: Offload | None = None
        self.others: OtherMembers | None = None
        self.back_fill: BackFill | None = None
        self.sessions = ProposerSessions()
        self._settings, self._loop_share = settings, share
        self._new_slot_id = new_slot_id
        self._ticks = 0
        self._threads: list[WorkerThread] = []

    async def open(self, on_defect: Callable[[BaseException], None]) -> None:
        """Recover the WAL and start. Raise StorageError with the damaged file, LSN and remedy."""
        writer = WorkerThread(f"writer {self.cluster}", on_defect, self._loop_share)
        reader = WorkerThread(f"reader {self.cluster}", on_defect)
        allocator = WorkerThread(f"allocator {self.cluster}", on_defect)
        self._threads = [writer, reader, allocator]
        self._loop = asyncio.get_running_loop()
        opened = await call(writer, self.folder.open_wal)
        acceptor = Acceptor(
            opened.durable,
            oldest_lsn=opened.store.first_lsn,
            flush_lsn=opened.flush_lsn,
            record_lsn=opened.record_lsn,
            flaw_of_wal=page_flaw if opened.durable.is_physical else None,
        )
        self.driver = driver = Driver(
            acceptor,
            opened.store,
            self._save,
            writer=writer,
            reader=reader,
            allocator=allocator,
            around=self,
            fast=append_path(),
        )
        driver.orphans = self.folder.orphans
        await self._open_readers(driver, reader)
        self._open_others(on_defect)
        self.scrub = Scrub(self, self._settings.scrub_bytes_s, reader)
        if self._settings.archive is not None:
            archive = self._settings.archive
            self.offload = await start_offload(self, self.folder, archive, on_defect)
        facts = (("flush_lsn", acceptor.flush_lsn), ("commit_lsn", acceptor.commit_lsn))
        log_note(logger, f"opened the log of cluster {self.cluster}", facts)

    async def _open_readers(self, driver: Driver, reader: WorkerThread) -> None:
        """Load what readers and promotions have left on the disk."""
        folder, (_, _, allocator, *_) = self.folder, self._threads

        async def write_slots(data: bytes) -> None:
            await call(allocator, lambda: folder.save_slots(data))

        async def write_reserved(reserved: Reserved) -> None:
            await call(allocator, lambda: folder.save_reserved(reserved))

        saved = await call(reader, folder.load_slots)
        slots = DurableSlots(saved, write_slots, self._new_slot_id)
        copies = TableCopies(self._settings.copy_dsns)
        self.readable = ReadableLog(self.cluster, driver, folder, slots, copies)
        self._retention = LogRetention(self.readable, driver, self._settings, self._archived_lsn)
        reserved = await call(reader, folder.load_reserved)
        self.timelines = TimelineGrants(driver.acceptor, reserved, write_reserved)

    def _open_others(self, on_defect: Callable[[BaseException], None]) -> None:
        """Let readers have WAL of the members of --repair-from, which is not here (M8)."""
        durable = self.driver.acceptor.durable
        # Earlier versions took any text from a peer. It must not keep the log from opening.
        donors = tuple(map(parse_address, filter(is_address, durable.donors)))
        peers = tuple(dict.fromkeys((*self._settings.repair_from, *donors)))
        if not peers or not durable.is_physical:
            return
        thread = WorkerThread(f"read other members {self.cluster}", on_defect)
        self.others = OtherMembers(MemberWal(self._own, peers), thread)
        self.readable.others = self.driver.others = self.others
        filler = WorkerThread(f"copy older WAL {self.cluster}", on_defect)
        self._threads.append(filler)
        source = MemberWal(self._own, peers)
        rate, kept_lsn = self._settings.fill_bytes_s, self._retention.copied_lsn
        self.back_fill = BackFill(self.cluster, self.driver, source, filler, rate, kept_lsn)

    @property
    def lacks_bytes(self) -> int:
        """Older WAL that is still to be copied to this disk, as far as this member knows."""
        if self.back_fill is None:
            return lacks_bytes(self.driver)
        return self.back_fill.lacks_bytes

    @property
    def lacks_reason(self) -> str | None:
        """Why nothing is copied although WAL is lacking, or None."""
        if not self.lacks_bytes:
            return None
        if self.offload is not None:
            return (
                "the archive is to have it and has not all of it yet, and the members that hold it "
                "keep it until then: see `walkeeper status` there for why the archive lags"
            )
        if self.back_fill is None:
            return "no address of another member is known: start it with --repair-from"
        return self.back_fill.problem if self._settings.fill_bytes_s else "--fill-rate is 0"

    @property
    def _own(self) -> OwnLog:
        uuid = self.driver.acceptor.durable.log_uuid
        return OwnLog(self.cluster, uuid, self._settings.acceptor_id)

    def _archived_lsn(self) -> Lsn | None:
        return None if self.offload is None else self.offload.archived_lsn

    def _save(self, durable: Durable) -> None:
        """Save the control file on the writer's thread. Wake readers after a new timeline."""
        known = self.folder.timeline_files
        self.folder.save_control(durable)
        if self.folder.timeline_files.keys() != known.keys():
            self._loop.call_soon_threadsafe(lambda: self.commit_moved(self.readable_lsn))

    def tasks(self) -> dict[str, Coroutine[object, object, None]]:
        """Return the work of an open log by its name; each part runs until cancelled."""
        readable, driver = self.readable, self.driver
        work: dict[str, Coroutine[object, object, None]] = {
            "heartbeat": self.run(),
            "feedback": report_standbys(readable.readers, driver),
        }
        if self._settings.scrub_bytes_s:
            work["scrub"] = self.scrub.run()
        if self.offload is not None:
            work["offload"] = self.offload.run()
        if self.back_fill is not None and self._settings.fill_bytes_s:
            work["back-fill"] = self.back_fill.run()
        if readable.logical is not None:
            work["entries"] = readable.logical.follow()
            work["slots"] = report_slots(readable.logical, driver, self.sessions)
        return work

    async def run(self) -> None:
        """Send heartbeats to the core and remove unwanted WAL, until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._ticks += 1
            self.sessions.primary.tick()
            self.sessions.away.tick()
            self.driver.post(Tick(self.sessions.receiving()))
            if self._ticks % RETENTION_TICKS == 0:
                await self._saved_slots(self.readable.slots.save())
                await self._retention.remove()

    async def _saved_slots(self, saving: Awaitable[None]) -> None:
        """Wait for a save of the slots, and log its failure. The caller goes on in both cases."""
        try:
            await saving
        except StorageError as error:
            logger.error("cluster %s: replication slots were not saved: %s", self.cluster, error)

    async def share_slots(self, others: SharedSlots) -> SharedSlots:
        """Take over the slots of the other members; return those of this one.

        Raise Refused for a logical log, which has its slots in its WAL."""
        if self.readable.logical is not None:
            raise Refused(f"{self.cluster} is a logical log: its slots are in the log itself")
        return await self.readable.slots.share(others)

    def users(self) -> str | None:
        """Return the user of the log with the remedy, or None. A log in use is not dropped."""
        appender = self.driver.acceptor.appender
        if appender is not None and appender in self.sessions.by_connection:
            return f"a proposer leads {self.cluster}: detach, and stop it first"
        names = ", ".join(sorted(reader.application_name for reader in self.readable.readers))
        return f"{names} stream from {self.cluster}: stop these clients first" if names else None

    async def close(self) -> None:
        """Finish what is under way, save the lazily written facts, stop the threads."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self.offload is not None:
                    self.offload.stop()
                    await self.offload.save()
                await self._saved_slots(self.readable.slots.close())
                closed = asyncio.Event()
                self.driver.close(lambda result: self._closed(closed, result))
                await closed.wait()
        except TimeoutError:
            logger.warning("cluster %s: the disk did not finish in time", self.cluster)
        for thread in self._threads:
            thread.stop()
        if self.others is not None:
            self.others.stop()

    def _closed(self, closed: asyncio.Event, result: object) -> None:
        closed.set()
        if isinstance(result, WalkeeperError):  # the next start finds no clean stop, and looks
            logger.error("cluster %s: closing its log: %s", self.cluster, result)

    # The log as its offload and its scrub see it

    @property
    def configuration(self) -> Configuration:
        return self.readable.configuration

    @property
    def readable_lsn(self) -> Lsn:
        return self.readable.readable_lsn

    async def whole_end(self) -> Lsn:
        """Return the end of committed whole records, or of whole entries of a logical log.

        The readers of a logical log read up to readable_lsn, which may be inside an entry."""
        if self.readable.logical is None:
            return await self.readable.whole_end()
        _, reader, *_ = self._threads
        store, readable_lsn = self.driver.store, self.readable_lsn
        try:
            return await call(reader, lambda: last_whole_end(store, readable_lsn))
        except CorruptWal:
            return readable_lsn  # a walk up to there meets the damage, and names its place

    def timeline_history(self, timeline: int) -> bytes | None:
        return self.readable.timeline_history(timeline)

    def archive_moved(self) -> None:
        """Remove archived WAL. Entries of a logical log go with the next heartbeats."""
        if self.readable.logical is None:
            self._retention.remove_wal()

    def archive_reaches(self, oldest_lsn: Lsn) -> None:
        """Note that the disk or the archive has all WAL from here on."""
        self.driver.post(SegmentsRemoved(oldest_lsn))

    async def save_archived(self, url: str, archived_lsn: Lsn) -> None:
        """Save archived_lsn for the next start."""
        _, _, allocator, *_ = self._threads
        try:
            await call(allocator, lambda: self.folder.save_archived(url, archived_lsn))
        except StorageError as error:
            logger.error("cluster %s: archived_lsn was not saved: %s", self.cluster, error)

    def _wanted(self, begin_lsn: Lsn, end_lsn: Lsn, sha256: str | None = None) -> Wanted:
        return Wanted(*self._own, begin_lsn, end_lsn, sha256)

    async def compare_segment(self, begin_lsn: Lsn, end_lsn: Lsn) -> Comparison:
        """Compare a whole segment with the other copies by digest."""
        _, reader, *_ = self._threads
        peers, store = self._settings.repair_from, self.driver.store
        copies = CopyDigests(store, self.offload, peers, reader)
        return await copies.compare(self._wanted(begin_lsn, end_lsn))

    async def range_digest(self, ask: DigestQuery) -> RangeDigest:
        """Return the digest of committed WAL on this disk.

        Raise Refused if this disk does not have it all, or has damage there."""
        _, reader, *_ = self._threads
        begin_lsn, end_lsn, store = ask.begin_lsn, ask.end_lsn, self.driver.store
        is_here = store.first_lsn <= begin_lsn and end_lsn <= self.readable_lsn
        is_sound = not self.driver.is_damaged(begin_lsn, end_lsn)
        if ask.log_uuid != self.configuration.log_uuid or not (is_here and is_sound):
            raise Refused(f"WAL from {begin_lsn} to {end_lsn} is not sound and whole on this disk")
        digest = await digest_of(store, reader, begin_lsn, end_lsn)
        return RangeDigest(begin_lsn, end_lsn, bytes.fromhex(digest))

    async def repair_segment(self, flaw: Flaw) -> str | None:
        """Rewrite the segment from the archive or another member; return the place, or None."""
        writer, reader, *_ = self._threads
        peers, store = self._settings.repair_from, self.driver.store
        source = SegmentRepair(store, self.offload, peers, writer, reader)
        wanted = self._wanted(flaw.begin_lsn, flaw.end_lsn, flaw.right)
        return await source.repair(wanted, flaw.at_lsn, await self.whole_end())

    # The driver's Surroundings

    def send(self, connection: int, message: Message) -> None:
        self.sessions.send(connection, message)
        if self.sessions.is_paused and not self.driver.is_busy:
            self.sessions.resume()

    def commit_moved(self, commit_lsn: Lsn) -> None:
        self.readable.commit_moved(commit_lsn)

    def settle_later(self, settle: Callable[[], None]) -> None:
        if self.readable.is_awaited:
            settle()
        else:
            self._loop.call_later(SETTLE_S, settle)

    def end_readers(self, above_lsn: Lsn) -> None:
        self.readable.end_readers(above_lsn)

    def note(self, text: str, facts: Sequence[tuple[str, object]], severity: Severity, /) -> None:
        log_note(logger, f"cluster {self.cluster}: {text}", facts, severity)
