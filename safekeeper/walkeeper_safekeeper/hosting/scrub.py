"""The scrub: committed WAL is read from the disk again, slowly, and checked by its record CRCs.

    Scrub(log, bytes_s).run()     until cancelled; one pass after the other
    flaw, passes, repairs, differences     for status and /metrics

A disk may lose bytes that it once had, and nobody would see that before they are needed. So each
pass walks from the oldest WAL to the end of whole records. The page cache is dropped segment by
segment, so that the disk itself is read. A whole segment whose records are sound is compared with
the other copies by its digest (archiving/range_digests). The driver serves nothing of a flawed
segment. A good copy of the archive or of another member is written in its place, and the next pass
reads it again.
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
from walkeeper_common.shell.process.worker_thread import WorkerThread, call
from walkeeper_safekeeper.archiving.range_digests import Comparison
from walkeeper_safekeeper.safekeeper_driver import Driver
from walkeeper_safekeeper.storage.record_steps import step

logger = logging.getLogger("walkeeper.scrub")

PAUSE_S = 60.0  # between two passes
REMEDY = (
    "it is not served; it is repaired from the archive, or from the members of --repair-from, once "
    "one has a good copy; if the disk is bad, `walkeeper replace` this member with another disk"
)
DIFFERENCE_REMEDY = (
    "restore that place from the others: `walkeeper archive repair`, or `walkeeper replace` for a "
    "member; see docs/runbooks.md#differing"
)
DIFFERING_MAX = 1000  # segments of one pass that are counted


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first WAL of a pass that its CRC does not bear out, in [begin_lsn, end_lsn).

    The record at `at_lsn` is the first that is not sound. If `right` is given, it is the digest of
    most copies. Then `at_lsn` is a record at the segment's start or before it."""

    begin_lsn: Lsn
    end_lsn: Lsn
    at_lsn: Lsn
    text: str
    right: str | None = None


class Scrubbed(Protocol):
    """The log, as far as its scrub reads it."""

    cluster: str
    driver: Driver

    async def whole_end(self) -> Lsn:
        """Return the end of committed whole records."""
        ...

    async def compare_segment(self, begin_lsn: Lsn, end_lsn: Lsn) -> Comparison:
        """Compare a whole segment with the other copies by digest."""
        ...

    async def repair_segment(self, flaw: Flaw) -> str | None:
        """Rewrite a segment from a good copy; return its place, or None without one."""
        ...


class Scrub:
    """The scrub of one log; `bytes_s` is its budget."""

    def __init__(self, log: Scrubbed, bytes_s: int, reader: WorkerThread) -> None:
        self._log, self._bytes_s, self._reader = log, bytes_s, reader
        self.passes = self.scrubbed_bytes = self.repairs = 0
        self._differing: dict[Lsn, tuple[str, ...]] = {}  # segments whose copies differ, and where
        self.flaw: Flaw | None = None
        self._repaired: Flaw | None = None  # a second repair of the same place would not help

    async def run(self) -> NoReturn:
        """Run pass after pass until cancelled. A read that fails ends its pass."""
        while True:
            try:
                flaw = await self.one_pass()
                self.passes += 1
                self._report(flaw)
                if flaw is not None and flaw != self._repaired and await self._repair(flaw):
                    continue
            except WalRemoved:
                continue  # retention was faster; the next pass begins later
            except WalkeeperError as error:
                logger.warning("cluster %s: the scrub ends its pass: %s", self._log.cluster, error)
            await asyncio.sleep(PAUSE_S)

    async def _repair(self, flaw: Flaw) -> bool:
        """Return False if there is no copy at hand. The next pass tries again then."""
        place = await self._log.repair_segment(flaw)
        if not place:
            return False
        self._repaired = flaw
        self.repairs += 1
        logger.warning(
            "cluster %s: rewrote the segment at %s from %s; it is read again",
            self._log.cluster, flaw.begin_lsn, place,
        )  # fmt: skip
        return True

    async def one_pass(self) -> Flaw | None:
        """Check all committed WAL once, within the budget; return the first flaw, or None."""
        store, end_lsn = self._log.driver.store, await self._log.whole_end()
        at_lsn, dropped_lsn = store.first_lsn, Lsn(0)
        compared_lsn, entered_lsn = at_lsn.round_up(store.segment_bytes), at_lsn
        differing: dict[Lsn, tuple[str, ...]] = {}
        while at_lsn < end_lsn:
            segment_lsn = at_lsn.round_down(store.segment_bytes)
            if segment_lsn != dropped_lsn:
                dropped_lsn = segment_lsn
                await call(self._reader, partial(store.drop_cached, at_lsn))
            begin_lsn = at_lsn
            found = await call(self._reader, partial(step, store, at_lsn, end_lsn))
            if found.flaw is not None:
                segment_end = Lsn(segment_lsn + store.segment_bytes)
                return Flaw(segment_lsn, segment_end, at_lsn, found.flaw)
            at_lsn = found.next_lsn
            while compared_lsn + store.segment_bytes <= at_lsn:
                flaw = await self._compare(compared_lsn, entered_lsn, differing)
                if flaw is not None:
                    return flaw
                compared_lsn, entered_lsn = Lsn(compared_lsn + store.segment_bytes), begin_lsn
            self.scrubbed_bytes += at_lsn - begin_lsn
            await asyncio.sleep((at_lsn - begin_lsn) / self._bytes_s)
        self._differing = differing
        return None

    @property
    def differences(self) -> int:
        """The number of segments of which another place has a copy that differs."""
        return len(self._differing)

    async def _compare(
        self, begin_lsn: Lsn, entered_lsn: Lsn, differing: dict[Lsn, tuple[str, ...]]
    ) -> Flaw | None:
        """Return a flaw if most other copies of a segment agree against ours."""
        store = self._log.driver.store
        end_lsn = Lsn(begin_lsn + store.segment_bytes)
        found = await self._log.compare_segment(begin_lsn, end_lsn)
        if not found.differing:
            return None
        places, name = ", ".join(found.differing), store.name_of(begin_lsn)
        if found.right is not None:
            text = f"segment {name}: its digest is not that of {places}"
            return Flaw(begin_lsn, end_lsn, entered_lsn, text, found.right)
        if len(differing) < DIFFERING_MAX:
            differing[begin_lsn] = found.differing
        if self._differing.get(begin_lsn) != found.differing:
            logger.error(
                "cluster %s: segment %s is not the same here and at %s, and no majority says which "
                "one is right: %s",
                self._log.cluster, name, places, DIFFERENCE_REMEDY,
            )  # fmt: skip
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
