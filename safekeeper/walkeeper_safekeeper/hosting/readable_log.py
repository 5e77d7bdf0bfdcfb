"""One log as its readers see it: committed WAL, how far it goes, and the wait for more.

It is the `OpenedLog` of the PostgreSQL sessions. The log's shell says when commit_lsn has moved and
when WAL was cut. An asyncio shell, which decides nothing of the consensus.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import Refused, WalRemoved
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.shell.process.worker_thread import resolve
from walkeeper_common.timelines import served_file
from walkeeper_safekeeper.replication.durable_slots import DurableSlots
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.primary_snapshot import TableCopies
from walkeeper_safekeeper.replication.served_log import Readers
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.cached_wal import cached_wal
from walkeeper_safekeeper.storage.log_folder import LogFolder


class Others(Protocol):
    """Other members, which may hold WAL that is not here (M8)."""

    async def reach(self, lsn: Lsn) -> bool: ...


class ReadableLog:
    """The log, its readers and their slots."""

    def __init__(
        self,
        cluster: str,
        driver: Driver,
        folder: LogFolder,
        slots: DurableSlots,
        copies: TableCopies,
    ) -> None:
        self.cluster, self.slots = cluster, slots
        self._driver, self._folder = driver, folder
        self.readers = Readers()
        self.others: Others | None = None
        self._waiters: list[tuple[Lsn, asyncio.Future[None]]] = []
        is_logical = self.kind is LogKind.LOGICAL
        self.logical = LogicalLog(self, copies) if is_logical else None

    @property
    def configuration(self) -> Configuration:
        configuration = self._driver.acceptor.durable.configuration
        assert configuration is not None, f"{self.cluster=}"
        return configuration

    @property
    def kind(self) -> LogKind:
        return self.configuration.kind

    @property
    def system_id(self) -> int:
        return self.configuration.system_id

    @property
    def timeline(self) -> int:
        """The timeline of the last readable byte."""
        return self._driver.acceptor.timelines.before(self.readable_lsn)

    @property
    def segment_bytes(self) -> int:
        return self.configuration.segment_bytes

    @property
    def server_version(self) -> str:
        return self.configuration.server_version

    @property
    def oldest_lsn(self) -> Lsn:
        return self._driver.acceptor.oldest_lsn

    async def is_elsewhere(self, lsn: Lsn) -> bool:
        """Return True if `lsn` is below oldest_lsn, and another member holds WAL there (M8).

        It does not wait if the WAL is here."""
        if lsn >= self.oldest_lsn or self.others is None:
            return False
        return await self.others.reach(lsn)

    @property
    def readable_lsn(self) -> Lsn:
        """The end of committed WAL, but not past a fork before its history file is stored here."""
        acceptor, known = self._driver.acceptor, self._folder.timeline_files
        timelines, commit_lsn = acceptor.timelines, acceptor.commit_lsn
        timeline = timelines.before(commit_lsn)
        if timeline == timelines.first or timeline in known:
            return commit_lsn
        stored = (t for t, _ in reversed(timelines.ends()) if t in known)
        return timelines.end_of(next(stored, timelines.first))

    @property
    def whole_lsn(self) -> Lsn:
        """The end of whole records below readable_lsn, as far as the log was read.

        A logical log may be read up to readable_lsn. A cut ends the connections that got more.
        """
        if self.logical is not None:
            return self.readable_lsn
        return min(self._driver.whole_lsn, self.readable_lsn)  # a fork may hold it back

    async def read_committed(self, begin: Lsn, end: Lsn) -> Buffer:
        """Return all of [begin, end).

        Raise WalRemoved, Refused if the end was cut, or StorageError.
        """
        if begin < self.oldest_lsn and self.others is None:
            raise WalRemoved(begin, self.oldest_lsn)
        if end > self.readable_lsn:
            raise Refused(f"WAL up to {end} is not committed here, only up to {self.readable_lsn}")
        future: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()
        self._driver.read_committed(begin, end, partial(resolve, future))
        return await future

    def read_cached(self, begin: Lsn, end: Lsn) -> Buffer | None:
        """Return all of [begin, end) if it is committed and the page cache has it, or None.

        `read_committed` refuses WAL that a scrub found damaged, and tells.
        """
        driver = self._driver
        if begin < self.oldest_lsn or end > self.readable_lsn or driver.is_damaged(begin, end):
            return None
        wal = cached_wal(driver.store, begin, end)
        if wal is not None:
            driver.leave_cached(begin, end)
        return wal

    async def wait_for_readable(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """Return readable_lsn as soon as it is greater than `beyond`, or when the time is over."""
        self._driver.settle()
        if self.readable_lsn <= beyond:
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
        return self.readable_lsn

    async def whole_end(self) -> Lsn:
        """Return the present whole_lsn. Raise CorruptWal or StorageError."""
        await self._looked()
        return self.whole_lsn

    async def wait_for_whole(self, beyond: Lsn, timeout_s: float) -> Lsn:
        """Return whole_lsn as soon as it is greater than `beyond`, or when the time is over."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + timeout_s
        while self.whole_lsn <= beyond and (left_s := until_s - clock()) > 0:
            readable_lsn = self.readable_lsn
            if not await self._looked():
                await self.wait_for_readable(readable_lsn, left_s)
        return self.whole_lsn

    async def _looked(self) -> bool:
        """Read the new records, if there are any; return False if not."""
        self._driver.settle()
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.logical is not None or not self._driver.find_whole(partial(resolve, found)):
            return False
        await found
        return True

    def timeline_history(self, timeline: int) -> bytes | None:
        """Return the file of a timeline that is committed here, verbatim, or None.

        A number that a promotion passed over has a file too (timelines.served_file)."""
        first = self._driver.acceptor.timelines.first
        return served_file(self._folder.timeline_files, timeline, first)

    # From the log's shell

    @property
    def is_awaited(self) -> bool:
        """Return True if a reader waits for more WAL."""
        return bool(self._waiters)

    def end_readers(self, above_lsn: Lsn) -> None:
        """End the readers that were sent WAL above this LSN, which is cut."""
        self.readers.end_those_sent_beyond(above_lsn)
        self.commit_moved(LSN_MAX)  # it fell: all waiting readers look again

    def commit_moved(self, commit_lsn: Lsn) -> None:
        """Wake the readers that wait for less than commit_lsn."""
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, []
        for beyond_lsn, future in waiters:
            if beyond_lsn >= commit_lsn:
                self._waiters.append((beyond_lsn, future))
            elif not future.done():
                future.set_result(None)
