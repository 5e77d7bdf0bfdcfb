"""The survey of one log's archive: how far back it goes from the oldest WAL on this disk.

    tick() -> bool      True if a survey is due
    look()              list the archive; tell the log, and find a gap below the log's WAL

A shell beside the offload, which archives new WAL. Neither waits for the other. `look` reads the
archive on a thread and changes nothing in it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from walkeeper_archive.archive import Archive
from walkeeper_archive.layout import Kind, WalFile
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_common.shell.process.worker_thread import WorkerThread, call
from walkeeper_safekeeper.archiving.guarded_job import without_defects
from walkeeper_safekeeper.safekeeper_driver import Driver

logger = logging.getLogger("walkeeper.archive")

SURVEY_TICKS = 15  # between two tries, and two looks at a gap
GAP_LOOKS = 20  # looks at the gap alone, then one at all WAL: what is below may have been pruned


class SurveyedLog(Protocol):
    """The log whose archive is surveyed."""

    cluster: str
    driver: Driver

    @property
    def configuration(self) -> Configuration: ...
    def archive_reaches(self, oldest_lsn: Lsn) -> None:
        """Note that the archive has all WAL from here to the oldest on this disk."""


class ArchiveSurvey:
    """The survey of one log. `file_of` names the segment that starts at an LSN. `archived_within`
    returns the starts of the segments in a range that the archive has."""

    def __init__(
        self,
        log: SurveyedLog,
        archive: Archive,
        thread: WorkerThread,
        file_of: Callable[[Lsn], WalFile],
        archived_within: Callable[[Lsn, Lsn], Awaitable[set[Lsn]]],
    ) -> None:
        self._log, self._archive, self._thread = log, archive, thread
        self._file_of, self._archived_within = file_of, archived_within
        self.failures = 0
        self.failure: str | None = None  # logged once
        self._ticks_left = 1  # until the next look; 0 while one is under way or all is known
        self._gap: tuple[Lsn, Lsn] | None = None
        self._is_gap_sure, self._gap_looks = False, 0

    @property
    def gap(self) -> tuple[Lsn, Lsn] | None:
        """[begin, end) which the archive lacks between older WAL and ours. It left the disks of
        members that are gone, or that ran without an archive, before any member had archived it."""
        return self._gap if self._is_gap_sure else None

    def tick(self) -> bool:
        """Count a tick; return True if a survey is due now."""
        is_due = self._ticks_left == 1
        self._ticks_left = max(0, self._ticks_left - 1)
        return is_due

    async def look(self) -> None:
        """Find how far back the archive goes, from the oldest WAL on this disk on. Try until that
        is known, and again while there is a gap. A laggard may need WAL below at once, so the
        survey also runs when no segment is due."""
        try:
            if self._is_gap_sure and not await self._has_changed():
                self.failure, self._ticks_left = None, SURVEY_TICKS
                return
            listed = await call(self._thread, without_defects(self._list))
        except WalkeeperError as error:
            self.failures += 1
            if str(error) != self.failure:
                logger.warning("cluster %s: cannot list the archive: %s", self._log.cluster, error)
            self.failure = str(error)
            self._ticks_left = SURVEY_TICKS
            return
        self.failure = None
        oldest_lsn = self._log.driver.store.first_lsn
        creation_lsn = self._log.configuration.creation_lsn
        while oldest_lsn > creation_lsn:
            before_lsn = oldest_lsn - self._archive.segment_bytes
            if self._file_of(before_lsn) not in listed:
                break
            oldest_lsn = before_lsn
        self._log.archive_reaches(oldest_lsn)
        gap = self._gap_below(oldest_lsn, listed)
        # A gap that is smaller the next time is being closed by another member.
        self._is_gap_sure, self._gap = gap is not None and gap == self._gap, gap
        if gap is not None or not listed:  # else it is known for good
            self._ticks_left = SURVEY_TICKS

    async def _has_changed(self) -> bool:
        """Return True if a file has come into the gap, or another look at all is due."""
        assert self._gap is not None
        self._gap_looks = (self._gap_looks + 1) % GAP_LOOKS
        return not self._gap_looks or bool(await self._archived_within(*self._gap))

    def _gap_below(self, lsn: Lsn, listed: set[WalFile]) -> tuple[Lsn, Lsn] | None:
        """Return the gap between older segments of this log and `lsn`, or None. WAL below the log's
        beginning is of an older log, made anew since."""
        creation_lsn, size = self._log.configuration.creation_lsn, self._archive.segment_bytes
        begins = (file.begin_lsn(size) for file in listed if file.kind is Kind.SEGMENT)
        older = (begin for begin in begins if creation_lsn < begin + size < lsn)
        for begin_lsn in sorted(older, reverse=True):
            if self._file_of(begin_lsn) in listed:
                return begin_lsn + size, lsn
        return None

    def _list(self) -> set[WalFile]:
        return {found.file for found in self._archive.objects() if found.is_receipt}
