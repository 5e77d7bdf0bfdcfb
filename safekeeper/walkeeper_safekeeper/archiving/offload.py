"""Offloads one log to its archive, and reads back what has left the disk. offload_plan's shell.

No commit waits for this code. It looks at readable_lsn once a second and reads segments beside the
writer. It waits for the store on threads, whose work (hashing, packing, sockets) runs outside the
interpreter's lock. `status` shows a failure, and the next tick tries again.

A segment is taken once a whole record, or a switch's padding, ends at or after its end and below
commit_lsn. A commit_lsn past its end is not enough: a record across that end may still be replaced
(R7, test_a_segment_whose_last_record_is_not_whole_is_not_archived).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol, assert_never

from walkeeper_archive.archive import Archive, Put, open_archive
from walkeeper_archive.archive_errors import ArchiveError, ArchiveUnavailable
from walkeeper_archive.layout import (
    ArchivedObject,
    Kind,
    WalFile,
    history_file,
    partial_file,
    segment_file,
)
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, member_id
from walkeeper_common.shell.process.worker_thread import WorkerThread, call
from walkeeper_common.timelines import Timelines, numbers_served
from walkeeper_safekeeper.archiving.archive_survey import ArchiveSurvey
from walkeeper_safekeeper.archiving.archived_wal import ArchivedWal, ArchivedWalReader
from walkeeper_safekeeper.archiving.guarded_job import without_defects
from walkeeper_safekeeper.archiving.offload_plan import (
    ArchivedMoved,
    ArchiveFailed,
    ArchiveSegment,
    ArchiveTail,
    Event,
    Grown,
    Look,
    Looked,
    OffloadNote,
    OffloadPlan,
    OffloadTick,
    Request,
    SegmentArchived,
    TailArchived,
    rank_of,
)
from walkeeper_safekeeper.archiving.sound_wal import SoundWal
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.safekeeper_settings import ArchiveSettings
from walkeeper_safekeeper.storage.log_folder import LogFolder

logger = logging.getLogger("walkeeper.archive")

TICK_S = 1.0
SAVE_TICKS = 30
FETCHED = "fetched"
BYTES_IN_FLIGHT_MAX = 32 << 20  # held while they are put: a safekeeper is a small process
PARALLEL_MAX = 4


class OffloadedLog(Protocol):
    """The log that is archived."""

    cluster: str
    driver: Driver

    @property
    def configuration(self) -> Configuration: ...
    @property
    def readable_lsn(self) -> Lsn: ...
    def timeline_history(self, timeline: int) -> bytes | None: ...
    def archive_moved(self) -> None:
        """Note that archived_lsn is greater now: WAL may go."""

    def archive_reaches(self, oldest_lsn: Lsn) -> None:
        """Note that the archive has all WAL from here to the oldest on this disk."""

    async def save_archived(self, url: str, archived_lsn: Lsn) -> None: ...


@dataclass(frozen=True, slots=True)
class _Upload:
    """A segment or a tail, and what must be archived before it."""

    file: WalFile
    begin_lsn: Lsn
    end_lsn: Lsn
    histories: dict[WalFile, bytes]
    ended: list[WalFile]
    """The last part of each timeline that ends inside of it. The segment goes under the newest
    timeline's name; a recovery to an older one asks for it under that one's."""


class Offload:
    """The offload of one log. `run` it until cancelled, then `close` it."""

    def __init__(
        self,
        log: OffloadedLog,
        archive: Archive,
        settings: ArchiveSettings,
        *,
        saved_lsn: Lsn | None,
        on_defect: Callable[[BaseException], None],
    ) -> None:
        self._log, self._settings, self.archive = log, settings, archive
        configuration, self._store = log.configuration, log.driver.store
        self._wal = SoundWal(log.driver, lambda: log.readable_lsn)
        self._segment_bytes = archive.segment_bytes = configuration.segment_bytes
        parallel = max(1, min(PARALLEL_MAX, BYTES_IN_FLIGHT_MAX // self._segment_bytes))
        self.plan = OffloadPlan(
            rank=rank_of(
                log.driver.acceptor.durable.acceptor_id,
                [member_id(member) for member in configuration.members],
                log.cluster,
            ),
            segment_bytes=self._segment_bytes,
            archived_lsn=max(self._store.first_lsn, saved_lsn or self._store.first_lsn),
            parallel_max=parallel,
            tail_ticks=round(settings.tail_interval_s / TICK_S),
        )
        self.older: ArchivedWalReader | None = None
        self.segments_put = self._failed_jobs = 0
        self._known_lsn = saved_lsn  # archived_lsn of an earlier run
        self._begin_lsn = self.plan.archived_lsn
        self._saved_lsn = saved_lsn
        self._histories_put: set[int] = set()
        self._is_measuring = False
        self._tail_lsn = Lsn(0)  # the end of the newest partial, as of the last look
        self._pool = [
            WorkerThread(f"archive {log.cluster} {number}", on_defect) for number in range(parallel)
        ]
        self._free = list(self._pool)
        self._looker = WorkerThread(f"look at the archive {log.cluster}", on_defect)
        self._survey = ArchiveSurvey(
            log, archive, self._looker, self.file_of, self._archived_within
        )
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def archived_lsn(self) -> Lsn:
        """Everything below it is archived and was compared with our own bytes."""
        return self.plan.archived_lsn

    @property
    def tail_lsn(self) -> Lsn | None:
        """Up to where the tail is archived, as it was seen last: about every tail interval."""
        return self._tail_lsn if self._tail_lsn > self.archived_lsn else None

    @property
    def gap(self) -> tuple[Lsn, Lsn] | None:
        """[begin, end) which the archive lacks between older WAL and ours."""
        return self._survey.gap

    @property
    def failure(self) -> str | None:
        """Why WAL cannot be archived; or, while none is due, why the archive cannot be listed."""
        return self.plan.problem or self._survey.failure

    @property
    def failures(self) -> int:
        """How many jobs on the archive have failed, in this run."""
        return self._failed_jobs + self._survey.failures

    @property
    def still_s(self) -> float:
        """How long segments have been due without a move of the archive, or 0."""
        return self.plan.quiet_ticks * TICK_S

    def file_of(self, begin_lsn: Lsn) -> WalFile:
        """Return the segment that starts there, under the timeline of its last byte, as PostgreSQL
        has it when it is whole."""
        timeline = Timelines(self._history).before(begin_lsn + self._segment_bytes)
        return segment_file(timeline, begin_lsn, self._segment_bytes)

    @property
    def _history(self) -> History:
        return self._log.driver.acceptor.durable.history

    async def run(self) -> None:
        """Post a tick once a second, until cancelled."""
        ticks = 0
        while True:
            await asyncio.sleep(TICK_S)
            if self._survey.tick():
                self._start(self._survey.look(), "survey")
            ticks += 1
            self._measure()
            self.post(OffloadTick())
            if ticks % SAVE_TICKS == 0:
                await self.save()

    async def save(self) -> None:
        """Save archived_lsn for the next start; without it segments would be compared again."""
        if self.archived_lsn != self._saved_lsn:
            self._saved_lsn = self.archived_lsn
            await self._log.save_archived(self.archive.store.url, self.archived_lsn)

    def stop(self) -> None:
        """Cancel the jobs under way: another run finishes them."""
        for task in self._tasks:
            task.cancel()
        for thread in (*self._pool, self._looker):
            thread.stop()
        if self.older is not None:
            self.older.stop()

    def post(self, event: Event) -> None:
        """Step the plan and start what it wants."""
        for effect in self.plan.step(event):
            match effect:
                case Look() | ArchiveSegment() | ArchiveTail():
                    self._start(self._perform(effect), f"{type(effect).__name__}")
                case ArchivedMoved():
                    self._log.archive_moved()
                case OffloadNote(text):
                    logger.warning("cluster %s: %s", self._log.cluster, text)
                case _:
                    assert_never(effect)

    def _start(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"{name} of {self._log.cluster}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _perform(self, request: Request) -> None:
        try:
            match request:
                case Look(begin_lsn):
                    event: Event = await self._look(begin_lsn)
                case ArchiveSegment(begin_lsn):
                    event = await self._archive_segment(begin_lsn)
                case ArchiveTail(is_ours):
                    event = await self._archive_tail(is_ours=is_ours)
        except WalkeeperError as error:
            self._failed_jobs += 1
            event = ArchiveFailed(request, str(error))
        self.post(event)

    def _measure(self) -> None:
        """Start a measurement if readable_lsn has passed the end of another segment."""
        readable_lsn = self._log.readable_lsn
        is_due = readable_lsn.round_down(self._segment_bytes) > self.plan.whole_lsn
        if is_due and not self._is_measuring:
            self._is_measuring = True
            self._start(self._grow(readable_lsn), "measuring")

    async def _grow(self, readable_lsn: Lsn) -> None:
        try:
            end_lsn = await self._last_record_end(readable_lsn)
            self.post(Grown(end_lsn.round_down(self._segment_bytes)))
        except WalkeeperError as error:
            logger.error("cluster %s: cannot find whole segments: %s", self._log.cluster, error)
        finally:
            self._is_measuring = False

    async def _last_record_end(self, readable_lsn: Lsn) -> Lsn:
        return await call(self._looker, lambda: self._wal.whole_end(readable_lsn))

    # Looking

    async def _look(self, begin_lsn: Lsn) -> Looked:
        return Looked(frozenset(await self._archived_within(begin_lsn, self.plan.whole_lsn)))

    async def _archived_within(self, begin_lsn: Lsn, end_lsn: Lsn) -> set[Lsn]:
        """Return the starts of the segments within [begin, end) that the archive has."""
        size = self._segment_bytes
        files = {self.file_of(lsn): lsn for lsn in map(Lsn, range(begin_lsn, end_lsn, size))}
        found = await call(self._looker, without_defects(lambda: self._list(set(files))))
        return {files[file] for file in found}

    def _list(self, wanted: set[WalFile]) -> set[WalFile]:
        """Return those of them that have receipts. Raise ForeignArchive or ArchiveUnavailable."""
        self._refuse_place()
        found = set()
        for timeline in {file.timeline for file in wanted}:
            names = [file.name for file in wanted if file.timeline == timeline]
            for seen in self.archive.objects(timeline, after_name=min(names)):
                if seen.file.name > max(names):
                    break
                if seen.is_receipt and seen.file in wanted:
                    found.add(seen.file)
        return found

    def _refuse_place(self) -> None:
        """Refuse, before any put, a place of another log, or one that has lost its archive."""
        archived_lsn = max(self.archived_lsn, self._known_lsn or Lsn(0))
        was_used = self._known_lsn is not None or self.archived_lsn > self._begin_lsn
        if not self.archive.refuse_foreign() and was_used:
            raise ArchiveUnavailable(
                f"{self.archive.url} is not there, but WAL up to {archived_lsn} was archived in "
                "it: is it mounted? If it was removed on purpose, name another --archive"
            )

    # Archiving

    async def _archive_segment(self, begin_lsn: Lsn) -> SegmentArchived:
        thread = self._free.pop()
        try:
            end_lsn = begin_lsn + self._segment_bytes
            upload = self._upload(self.file_of(begin_lsn), begin_lsn, end_lsn)
            put = await call(thread, without_defects(lambda: self._put_segment(upload)))
        finally:
            self._free.append(thread)
        self._histories_put.update(history.timeline for history in upload.histories)
        self.segments_put += put is Put.STORED
        return SegmentArchived(begin_lsn, by_us=put is Put.STORED)

    def _upload(self, file: WalFile, begin_lsn: Lsn, end_lsn: Lsn) -> _Upload:
        timelines = Timelines(self._history)
        forks = timelines.forks_between(begin_lsn + 1, Lsn(end_lsn - 1))
        ended = [partial_file(timelines.before(f), f, self._segment_bytes) for f in forks]
        return _Upload(file, begin_lsn, end_lsn, self._histories_before(file), ended)

    def _histories_before(self, file: WalFile) -> dict[WalFile, bytes]:
        """Return the `.history` files to put first: a restore to a timeline begins with its own."""
        first = self._log.configuration.timeline
        wanted: dict[WalFile, bytes] = {}
        for timeline in numbers_served(self._history):
            if 1 < timeline <= file.timeline and timeline not in self._histories_put:
                content = self._log.timeline_history(timeline)
                if content is not None:
                    wanted[history_file(timeline)] = content
                elif timeline != first:  # perhaps no safekeeper ever got the first one's
                    raise ArchiveError(f"the history of timeline {timeline} is not here yet")
        return wanted

    def _put_segment(self, upload: _Upload) -> Put:
        self._refuse_place()
        self._put_before(upload)
        wal = self._wal.read(upload.begin_lsn, upload.end_lsn)
        put = self.archive.put(upload.file, wal, self._settings.packing)
        if put is Put.STORED:
            self._remove_partials(upload.file)
        return put

    def _put_before(self, upload: _Upload) -> None:
        for history, content in upload.histories.items():
            self.archive.put(history, content)
        for part in upload.ended:
            wal = self._wal.read(upload.begin_lsn, part.end_lsn)
            if self.archive.put(part, wal, self._settings.packing) is Put.STORED:
                self._remove_partials(part)

    # The tail

    async def _archive_tail(self, *, is_ours: bool) -> TailArchived:
        """Archive whole records only: bytes after the last one may still be replaced."""
        end_lsn = await self._last_record_end(self._log.readable_lsn)
        begin_lsn = end_lsn.round_down(self._segment_bytes)
        if end_lsn > begin_lsn >= self.plan.archived_lsn:
            timeline = Timelines(self._history).before(end_lsn)
            file = partial_file(timeline, end_lsn, self._segment_bytes)
            upload = self._upload(file, begin_lsn, end_lsn)
            job = without_defects(lambda: self._put_tail(upload, is_ours))
            self._tail_lsn = await call(self._looker, job)
        return TailArchived()

    def _put_tail(self, upload: _Upload, is_ours: bool) -> Lsn:
        self._refuse_place()
        file = upload.file
        newest = self.archive.newest_partial(file.segment)
        if newest is not None:
            is_alive = newest.end_lsn > self._tail_lsn  # the offloader: it has moved since
            if newest.end_lsn >= file.end_lsn or (is_alive and not is_ours):
                return newest.end_lsn
        self._put_before(upload)
        wal = self._wal.read(upload.begin_lsn, file.end_lsn)
        self.archive.put(file, wal, self._settings.packing)
        self._remove_partials(file)
        return file.end_lsn

    def _remove_partials(self, by: WalFile) -> None:
        """Remove partials of the same segment that hold no more than `by`. A store that does not
        let us delete keeps them, until `archive prune`."""
        older: list[ArchivedObject] = []
        for found in self.archive.objects(by.timeline, after_name=by.segment):
            if found.file.kind is Kind.HISTORY or found.file.segment != by.segment:
                break
            if found.file.kind is Kind.PARTIAL and (
                by.kind is Kind.SEGMENT or found.file.end_lsn < by.end_lsn
            ):
                older.append(found)
        try:
            for found in sorted(older, key=lambda found: not found.is_receipt):
                self.archive.delete(found)
        except ArchiveError as error:
            logger.warning("older partials stay in the archive: %s", error)


async def start_offload(
    log: OffloadedLog,
    folder: LogFolder,
    settings: ArchiveSettings,
    on_defect: Callable[[BaseException], None],
) -> Offload:
    """Open an offload without a request to the archive: a log opens whether it answers or not."""
    archive = open_archive(settings.url, log.cluster, log.configuration.system_id)
    saved_lsn = await asyncio.to_thread(folder.load_archived, archive.store.url)
    offload = Offload(log, archive, settings, saved_lsn=saved_lsn, on_defect=on_defect)
    fetched = os.path.join(folder.path, FETCHED)
    archived = ArchivedWal(archive, log.driver.store, offload.file_of, fetched)
    thread = WorkerThread(f"read the archive {log.cluster}", on_defect)
    offload.older = log.driver.older = ArchivedWalReader(archived, thread)
    return offload
