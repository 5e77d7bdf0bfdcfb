"""The scrub: committed WAL is read from the disk again, slowly, and checked by its record CRCs.

    Scrub(log, bytes_s).run()     until cancelled; one pass after the other
    flaw, passes, repairs         for status and /metrics

A disk may lose bytes that it once had, and nobody would see that before they are needed. So each
pass walks from the oldest WAL to the end of whole records. The page cache is dropped segment by
segment, so that the disk itself is read. The driver serves nothing of a flawed segment. A good
copy of the archive or of another member is written in its place, and the next pass reads it again.
An asyncio shell. It decides nothing of the consensus.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, Protocol

from walkeeper_common.errors import WalkeeperError, WalRemoved
from walkeeper_common.lsn import Lsn
from walkeeper_common.shell.worker_thread import WorkerThread, call
from walkeeper_safekeeper.driver import Driver
from walkeeper_safekeeper.storage.record_steps import step

logger = logging.getLogger("walkeeper.scrub")

PAUSE_S = 60.0  # between two passes
REMEDY = (
    "it is not served; the archive or a member of --repair-from repairs it if it has that segment, "
    "else run `walkeeper replace`"
)


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first WAL of a pass that its CRC does not bear out, in [begin_lsn, end_lsn).

    The record at `at_lsn` is the first that is not sound."""

    begin_lsn: Lsn
    end_lsn: Lsn
    at_lsn: Lsn
    text: str


class Scrubbed(Protocol):
    """The log, as far as its scrub reads it."""

    cluster: str
    driver: Driver

    async def whole_end(self) -> Lsn:
        """Return the end of committed whole records."""
        ...

    async def repair_segment(self, flaw: Flaw) -> str | None:
        """Rewrite a segment from a good copy; return its place, or None without one."""
        ...


class Scrub:
    """The scrub of one log; `bytes_s` is its budget."""

    def __init__(self, log: Scrubbed, bytes_s: int, reader: WorkerThread) -> None:
        self._log, self._bytes_s, self._reader = log, bytes_s, reader
        self.passes = self.scrubbed_bytes = self.repairs = 0
        self.flaw: Flaw | None = None
        self._repaired: Flaw | None = None  # a second repair of the same place would not help

    async def run(self) -> NoReturn:
        """Run pass after pass until cancelled. A read that fails ends its pass."""
        while True:
            try:
                flaw = await self.one_pass()
                self.passes += 1
                self._report(flaw)
                if flaw is not None and flaw != self._repaired:
                    self._repaired = flaw
                    if place := await self._log.repair_segment(flaw):
                        self.repairs += 1
                        logger.warning(
                            "cluster %s: rewrote the segment at %s from %s; it is read again",
                            self._log.cluster, flaw.begin_lsn, place,
                        )  # fmt: skip
                        continue
            except WalRemoved:
                continue  # retention was faster; the next pass begins later
            except WalkeeperError as error:
                logger.warning("cluster %s: the scrub stops here: %s", self._log.cluster, error)
            await asyncio.sleep(PAUSE_S)

    async def one_pass(self) -> Flaw | None:
        """Check all committed WAL once, within the budget; return the first flaw, or None."""
        store, end_lsn = self._log.driver.store, await self._log.whole_end()
        at_lsn, dropped_lsn = store.first_lsn, Lsn(0)
        while at_lsn < end_lsn:
            segment_lsn = at_lsn.round_down(store.segment_bytes)
            if segment_lsn != dropped_lsn:
                dropped_lsn = segment_lsn
                name = store.name_of(at_lsn)
                await call(self._reader, partial(store.disk.drop_cached, name))
            begin_lsn = at_lsn
            found = await call(self._reader, partial(step, store, at_lsn, end_lsn))
            if found.flaw is not None:
                segment_end = Lsn(segment_lsn + store.segment_bytes)
                return Flaw(segment_lsn, segment_end, at_lsn, found.flaw)
            at_lsn = found.next_lsn
            self.scrubbed_bytes += at_lsn - begin_lsn
            await asyncio.sleep((at_lsn - begin_lsn) / self._bytes_s)
        return None

    def _report(self, flaw: Flaw | None) -> None:
        cluster = self._log.cluster
        if flaw is not None and flaw != self.flaw:
            logger.error(
                "cluster %s: WAL on this disk is damaged: %s; %s; see docs/runbooks.md#damaged",
                cluster, flaw.text, REMEDY,
            )  # fmt: skip
        elif flaw is None and self.flaw is not None:
            logger.info("cluster %s: the scrub finds no damage any more", cluster)
        self.flaw = flaw
        damaged = None if flaw is None else (flaw.begin_lsn, flaw.end_lsn)
        self._log.driver.damaged = damaged
