"""Fill a log that begins late with the WAL that it lacks, from other members (M5). A shell.

    BackFill(…).run()     until cancelled
    lacks_bytes           how much WAL it lacks, 0 if none

A log lacks WAL while it begins behind restart_lsn: below that, all members have had all WAL. It is
filled downwards, a segment at a time. So it may stop at any point, and goes on after a restart. The
sources are the members that JoinLog named, and those of --repair-from.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import NoReturn, Protocol

from walkeeper_common.errors import NoSpace, Refused, WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.walpages import page_flaw
from walkeeper_common.shell.worker_thread import WorkerThread, call, resolve
from walkeeper_safekeeper.driver import Driver
from walkeeper_safekeeper.storage.wal_store import WalStore

logger = logging.getLogger("walkeeper.log")

LOOK_S = 1.0
RETRY_S = 10.0


class Source(Protocol):
    """Other members. `read` blocks."""

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes: ...


class BackFill:
    """The filling of one log; at most `bytes_s` are copied in a second, beside new WAL."""

    def __init__(
        self,
        cluster: str,
        driver: Driver,
        source: Source,
        thread: WorkerThread,
        bytes_s: int,
    ) -> None:
        self._cluster, self._driver, self._source = cluster, driver, source
        self._thread, self._bytes_s = thread, bytes_s
        self.filled_bytes = 0
        self._told = ""

    @property
    def lacks_bytes(self) -> int:
        """The WAL between restart_lsn and the beginning of the log here."""
        return lacks_bytes(self._driver)

    async def run(self) -> NoReturn:
        """Fill whenever WAL is lacking, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                while may_fill(self._driver):
                    await self._fill_one()
            except (Refused, NoSpace) as error:
                self._tell(f"the copy of older WAL stops: {error}")
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
        self.filled_bytes += size
        if not lacks_bytes(driver):
            self._tell(f"older WAL was copied: this log begins at {begin_lsn}")
        await asyncio.sleep(size / self._bytes_s)

    def _tell(self, text: str) -> None:
        if text != self._told:
            logger.info("cluster %s: %s", self._cluster, text)
        self._told = text


def _resolve(future: asyncio.Future[Lsn], result: object) -> None:
    assert isinstance(result, Lsn | WalkeeperError), f"{result=}"
    resolve(future, result)


def lacks_bytes(driver: Driver) -> int:
    """Return how much WAL other members hold below this log, which every member is to have.

    With an archive the log goes back as far as that, and nothing is copied to the disk."""
    core, store = driver.acceptor, driver.store
    configuration = core.durable.configuration
    if driver.older is not None or configuration is None or not configuration.begins_late:
        return 0
    wanted_lsn = core.restart_lsn.round_down(store.segment_bytes)
    return max(0, int(store.first_lsn) - wanted_lsn)


def may_fill(driver: Driver) -> bool:
    """Return True if WAL is lacking, and recovery needs nothing of the log's first bytes any more.

    Without its mark a record that goes on at the log's beginning is not trusted after a crash (D3).
    The mark names the beginning. So the record has to be below the durable commit_lsn before the
    beginning moves."""
    store, commit_lsn = driver.store, driver.acceptor.durable.commit_lsn
    if not lacks_bytes(driver) or commit_lsn <= store.first_lsn:
        return False
    return _head_is_committed(store, commit_lsn)


def _head_is_committed(store: WalStore, commit_lsn: Lsn) -> bool:
    return store.head_end() <= commit_lsn
