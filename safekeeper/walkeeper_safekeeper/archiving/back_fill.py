"""Fill a log with the older WAL that it lacks, from other members (M5, M6). A shell.

    BackFill(…).run()     until cancelled, or until the disk fails
    lacks_bytes           how much WAL it lacks, 0 if none

A log that begins late lacks WAL down to restart_lsn: below that, all members have had all WAL. Any
log lacks what its slots and --wal-keep-size keep on the others (`kept_lsn`). A log is filled
downwards, a segment at a time. So it may stop at any point, and goes on after a restart. The
sources are the members that JoinLog named, and those of --repair-from.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from walkeeper_common.errors import NoSpace, Refused, StorageError, WalkeeperError, WalRemoved
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.shell.process.worker_thread import WorkerThread, call, resolve
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.wal_store import WalStore

logger = logging.getLogger("walkeeper.log")

LOOK_S = 1.0
RETRY_S = 10.0


class Source(Protocol):
    """Other members. `read` blocks."""

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes: ...


class BackFill:
    """The filling of one log; at most `bytes_s` are copied in a second, beside new WAL.

    `kept_lsn` returns from where on slots and settings keep WAL, although it may not be here."""

    def __init__(
        self,
        cluster: str,
        driver: Driver,
        source: Source,
        thread: WorkerThread,
        bytes_s: int,
        kept_lsn: Callable[[], Lsn] = lambda: LSN_MAX,
    ) -> None:
        self._cluster, self._driver, self._source = cluster, driver, source
        self._thread, self._bytes_s, self._kept_lsn = thread, bytes_s, kept_lsn
        self.filled_bytes = 0
        self.problem: str | None = None
        self._last_text = LastText()
        self._removed_lsn: Lsn | None = None  # no member holds WAL below it

    @property
    def lacks_bytes(self) -> int:
        """The WAL before the beginning of the log here, which this log is to have."""
        needed = lacks_bytes(self._driver)
        if self._driver.store.first_lsn == self._removed_lsn:
            return needed
        return max(needed, lacks_bytes(self._driver, self._kept_lsn()))

    async def run(self) -> None:
        """Fill whenever WAL is lacking, until cancelled, or until the disk has failed."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                while self.lacks_bytes and may_fill(self._driver):
                    await self._fill_one()
                self.problem = None
            except WalRemoved as error:
                self._removed_lsn = self._driver.store.first_lsn
                if self.lacks_bytes:
                    await self._pause(error)
            except WalkeeperError as error:
                if isinstance(error, StorageError) and not isinstance(error, NoSpace):
                    return  # the driver has posted it: this log takes nothing more
                await self._pause(error)

    async def _pause(self, error: WalkeeperError) -> None:
        self.problem = f"the copy of older WAL stops: {error}"
        self._tell(self.problem)
        await asyncio.sleep(RETRY_S)

    async def _fill_one(self) -> None:
        driver, size = self._driver, self._driver.store.segment_bytes
        end_lsn = driver.store.first_lsn
        begin_lsn = Lsn(end_lsn - size)
        wal = await call(self._thread, lambda: self._source.read(begin_lsn, end_lsn))
        flaw = page_flaw(begin_lsn, wal)
        if flaw is not None:
            raise Refused(f"another member sent bytes that are no WAL: {flaw}")
        done: asyncio.Future[Lsn] = asyncio.get_running_loop().create_future()
        driver.fill(begin_lsn, wal, partial(_resolve, done))
        await done
        self.filled_bytes, self.problem = self.filled_bytes + size, None
        if not self.lacks_bytes:
            self._tell(f"older WAL was copied: this log begins at {begin_lsn}")
        await asyncio.sleep(size / self._bytes_s)

    def _tell(self, text: str) -> None:
        if self._last_text.changes_to(text):
            logger.info("cluster %s: %s", self._cluster, text)


def _resolve(future: asyncio.Future[Lsn], result: object) -> None:
    assert isinstance(result, Lsn | WalkeeperError), f"{result=}"
    resolve(future, result)


def lacks_bytes(driver: Driver, kept_lsn: Lsn = LSN_MAX) -> int:
    """Return how much WAL other members hold below this log, which every member is to have.

    With an archive the log goes back as far as that. Slots and settings then keep nothing more."""
    core, store = driver.acceptor, driver.store
    configuration = core.durable.configuration
    if configuration is None:
        return 0
    begin_lsn = store.first_lsn
    if driver.older is not None:
        begin_lsn, kept_lsn = min(begin_lsn, core.oldest_lsn), LSN_MAX
    restart_lsn = core.restart_lsn if configuration.begins_late else LSN_MAX
    wanted_lsn = max(min(restart_lsn, kept_lsn), configuration.creation_lsn)
    return max(0, int(begin_lsn) - wanted_lsn.round_down(store.segment_bytes))


def may_fill(driver: Driver) -> bool:
    """Return True if recovery needs nothing of the log's first bytes any more.

    With an archive nothing is copied to the disk: the members archive such WAL from their own.
    Without its mark a record that goes on at the log's beginning is not trusted after a crash (D3).
    The mark names the beginning. So the record has to be below the durable commit_lsn before the
    beginning moves."""
    store, commit_lsn = driver.store, driver.acceptor.durable.commit_lsn
    if driver.older is not None or commit_lsn <= store.first_lsn:
        return False
    return _head_is_committed(store, commit_lsn)


def _head_is_committed(store: WalStore, commit_lsn: Lsn) -> bool:
    return store.head_end() <= commit_lsn
