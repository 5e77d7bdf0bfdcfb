"""Pages of any LSN between the horizon and what was applied: the base, the table, the log.

    pager = Pager(state_dir, BasePages(backup), history_bytes=…)
    pager.wal.write(…); pager.apply(); pager.trim()
    pager.page(Place.parse("base/5/16384"), block=0, lsn=…)

A page is its content at the horizon (page_table, else the base backup), with the records about it
since then (block_index) redone. Contract: a change by a record that is not replayed here is an
error, never a guess. Memory is the index of the history that is kept, 17 bytes for a block
reference, and one segment's decoding. The horizon moves with the pages below it in one transaction.
WAL is removed after that, so a crash leaves neither a gap nor a repeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, SHORT_HEADER_BYTES
from walkeeper_pager.base_pages import BasePages
from walkeeper_pager.block_index import BlockIndex, Step
from walkeeper_pager.folding import current, fold_segment
from walkeeper_pager.page_names import (
    BeforeHorizon,
    NoSuchPage,
    NotApplied,
    NotReplayed,
    Place,
    check_place,
)
from walkeeper_pager.page_redo import PageState, RecordReader
from walkeeper_pager.page_table import PageTable
from walkeeper_pager.received_wal import ReceivedWal
from walkeeper_replay.redo.apply import BROKEN, GONE, KNOWN, NOT_REPLAYED, UNKNOWN
from walkeeper_replay.redo.base import OwnCheckpoint
from walkeeper_replay.redo.files_of_records import Change, CopyDatabase, Drop
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.sources.plan import Plan, make_plan
from walkeeper_wal.sources.reading import Batch, SegmentReader
from walkeeper_wal.sources.record_chain import RecordChain
from walkeeper_wal.sources.threaded_reading import raise_fatal
from walkeeper_wal.sources.wal_files import LocalFiles
from walkeeper_wal.wal_errors import DamagedWal, HistoryError

logger = logging.getLogger("walkeeper.pager")

FOLD_BYTES_MAX = 32 << 20  # bytes of WAL, whose pages one transaction writes


@dataclass(frozen=True, slots=True)
class PagerState:
    """A snapshot for people and programs."""

    system_id: int
    timeline: int | None
    horizon_lsn: Lsn
    applied_lsn: Lsn
    received_lsn: Lsn
    consistent: bool
    history_bytes: int
    indexed_blocks: int


class Pager:
    """One thread calls `apply` and `trim`, one writes to `wal`, and any thread may call `page`."""

    def __init__(self, state_dir: Path, base: BasePages, *, history_bytes: int) -> None:
        self.base, self.history_bytes = base, history_bytes
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._writing, self._reading = (PageTable(state_dir / "pages.sqlite") for _ in range(2))
        self._lock = threading.Lock()
        self.on_applied: Callable[[], None] = lambda: None  # called by `apply`, in its thread
        self._segments: list[BlockIndex] = []
        self._records: RecordReader | None = None
        self._failed: str | None = None
        self._open()
        self.wal = ReceivedWal(state_dir / "wal", base.segment_bytes)
        self._files = LocalFiles(self.wal.root)
        self._reader = SegmentReader(self._files)
        self._recover()

    def _open(self) -> None:
        """Load the saved state, or save its beginning."""
        table, base = self._writing, self.base
        begun = table.get("system_id")
        if begun is None:
            with table.change():
                table.set("system_id", base.system_id)
                table.set("redo_lsn", base.redo_lsn)
                table.set("horizon_lsn", base.redo_lsn)
                if not base.ends_in_wal:
                    table.set("consistent_lsn", base.consistent_lsn)
        elif (int(begun), int(table.get("redo_lsn") or 0)) != (base.system_id, base.redo_lsn):
            raise HistoryError(
                f"{base.shown}: another base backup than the one this data directory was begun "
                f"with (system {begun}, redo {Lsn(int(table.get('redo_lsn') or 0))}); name that "
                "one, or begin with an empty --data-dir"
            )
        self.horizon_lsn = self.applied_lsn = int(table.get("horizon_lsn") or 0)
        known = table.get("consistent_lsn")
        self._consistent_lsn = None if known is None else int(known)
        if base.ends_in_wal:
            base.directory.end_lsn = self._consistent_lsn
        self._checkpoint = OwnCheckpoint(base.directory, self.horizon_lsn)

    def _recover(self) -> None:
        """Apply the whole part of the received WAL again, and cut the torn end off."""
        self.wal.remove_before(self.horizon_lsn)
        first, end = self.wal.first_lsn, self.wal.end_lsn
        if end is None or first is None or first > self.horizon_lsn or end < self.horizon_lsn:
            self.wal.cut(0)
            return
        self.apply()
        self.wal.cut(self.applied_lsn)

    @property
    def start_lsn(self) -> int:
        """The LSN of the next WAL that the pager needs."""
        if self.wal.end_lsn is not None:
            return self.wal.end_lsn
        return self.horizon_lsn // self.wal.segment_bytes * self.wal.segment_bytes

    def close(self) -> None:
        self.wal.close()
        self._writing.close()
        self._reading.close()

    # The log

    def apply(self) -> None:
        """Add the whole records that were received to the history of their pages."""
        if self.wal.end_lsn is None or self.wal.end_lsn <= self.applied_lsn:
            return
        try:
            self._apply()
        except DamagedWal as error:  # the file may have grown between two looks at it
            if self._failed == str(error):
                raise
            self._failed = str(error)
        else:
            self._failed = None

    def _plan(self, begin: int) -> Plan:
        # The last record's segment is there even if that of the next one is not yet.
        return make_plan(self._files, start_lsn=max(begin - 1, 0))

    def _apply(self) -> None:
        plan = self._plan(self.applied_lsn)
        if self.base.system_id != plan.system_id:
            raise HistoryError(
                f"{self.base.shown} is a backup of system {self.base.system_id}, the log is that "
                f"of {plan.system_id}: give --base a backup of the server of this log"
            )
        chain = RecordChain()
        for index in range(len(plan.segments)):
            begin = self.applied_lsn
            reading = self._reader.read(plan.reachable, index)
            for batch in chain.checked(reading, iter(reading), self._files, raise_fatal):
                self._take(batch)
            for problem in reading.problems:
                if problem.start_lsn is None or problem.start_lsn >= begin:
                    raise_fatal(problem)

    def _take(self, batch: Batch) -> None:
        begin, end = batch.span()
        if end <= self.applied_lsn:
            return  # the record that ends where the plan begins
        assert begin >= self.applied_lsn, f"{Lsn(begin)} {Lsn(self.applied_lsn)}"
        self._checkpoint.add(batch)
        with self._lock:
            if self._records is None:
                self._records = RecordReader(self.wal, batch.version)
            first = batch.segment.first_lsn
            if not self._segments or self._segments[-1].first_lsn != first:
                self._segments.append(BlockIndex(first))
            self._segments[-1].add(batch)
            self._see_end_of_backup(batch)
            self.applied_lsn = end
        self.on_applied()

    def _see_end_of_backup(self, batch: Batch) -> None:
        if self._consistent_lsn is not None:
            return
        self._consistent_lsn = self.base.directory.end_in(batch)
        self.base.directory.end_lsn = self._consistent_lsn
        if self._consistent_lsn is not None:
            logger.info("the base backup is consistent from %s on", Lsn(self._consistent_lsn))

    # History

    def trim(self) -> bool:
        """Fold segments that are older than `history_bytes` into the pages of the horizon.

        Return True if there was one. A call folds up to FOLD_BYTES_MAX of them, and readers get
        pages meanwhile.
        """
        with self._lock:
            limit = self.applied_lsn - self.history_bytes
            old = [each for each in self._segments[:-1] if each.end_lsn <= limit]
        old = old[: max(FOLD_BYTES_MAX // self.wal.segment_bytes, 1)]
        if not old:
            return False
        self.wal.sync()
        with ExitStack() as until_both_are_seen:
            with self._writing.change():
                for segment in old:
                    fold_segment(self._batches_of(segment), self._writing, self.base)
                self._writing.set("horizon_lsn", old[-1].end_lsn)
                if self._consistent_lsn is not None:
                    self._writing.set("consistent_lsn", self._consistent_lsn)
                # Readers see either the old pages and all segments, or the new pages and the rest.
                until_both_are_seen.enter_context(self._lock)
            self.horizon_lsn = old[-1].end_lsn
            del self._segments[: len(old)]
        self.wal.remove_before(self.horizon_lsn)
        return True

    def _batches_of(self, index: BlockIndex) -> Iterator[Batch]:
        """Return the segment's records after the horizon once more."""
        plan = self._plan(self.horizon_lsn)
        number = next(n for n, s in enumerate(plan.segments) if s.first_lsn == index.first_lsn)
        reading = self._reader.read(plan.reachable, number)
        yield from (batch for batch in reading if batch.span()[1] > self.horizon_lsn)
        for problem in reading.problems:
            if problem.start_lsn is not None and problem.start_lsn < index.end_lsn:
                raise_fatal(problem)

    def state(self) -> PagerState:
        with self._lock:
            return PagerState(
                self.base.system_id, self.wal.timeline, Lsn(self.horizon_lsn),
                Lsn(self.applied_lsn), Lsn(self.wal.end_lsn or self.start_lsn),
                self._is_consistent(), self.history_bytes,
                sum(each.row_count for each in self._segments),
            )  # fmt: skip

    def _is_consistent(self) -> bool:
        return self._consistent_lsn is not None and self.applied_lsn >= self._consistent_lsn

    # Pages

    def has(self, lsn: int | None) -> bool:
        """Return True if WAL up to `lsn` is applied and the pages are consistent. Never wait."""
        is_applied = lsn is None or self.applied_lsn >= self._record_end_at(lsn)
        return is_applied and self._is_consistent()

    def page(self, place: Place, block: int, lsn: int | None = None) -> tuple[bytes, int]:
        """Return (the page, its LSN), with every record that ends at or below `lsn`.

        By default the page has all that was applied. Raise NotApplied until `has` is True for
        `lsn`, and another PageError if the page cannot be given.
        """
        check_place(place, block)
        with self._lock:
            if not self.has(lsn):
                raise NotApplied(self._missing(lsn))
            at = self.applied_lsn if lsn is None else self._record_end_at(lsn)
            oldest = max(self.horizon_lsn, self._consistent_lsn or 0)
            if at < oldest:
                raise BeforeHorizon(
                    f"{Lsn(at)} is before the history that is kept, which begins at {Lsn(oldest)}; "
                    "a larger --history keeps more from now on"
                )
            return self._found(self._page_at(place, block, at), place, block, at), at

    def _record_end_at(self, lsn: int) -> int:
        """Return the end of the record that a server reports as `lsn`.

        A server that has filled a page of WAL reports the LSN after the next page's header. The
        record before it ends at the page's start.
        """
        header = (
            LONG_HEADER_BYTES
            if lsn % self.wal.segment_bytes < WAL_PAGE_BYTES
            else (SHORT_HEADER_BYTES)
        )
        return lsn - header if lsn % WAL_PAGE_BYTES == header else lsn

    def _missing(self, lsn: int | None) -> str:
        """Return the reason why `has` is False."""
        text = f"applied up to {Lsn(self.applied_lsn)} only"
        if lsn is not None and self.applied_lsn < self._record_end_at(lsn):
            text = f"{Lsn(lsn)} is still to come: {text}"
        if self._consistent_lsn is None:
            text += "; the end of the base backup is still to come"
        return text

    def _page_at(self, place: Place, block: int, lsn: int) -> PageState:
        """Return the page at `lsn` from what is kept; the caller holds the lock."""
        events: list[tuple[int, Step | Change]] = []
        for index in self._segments:
            events += [(step.end_lsn, step) for step in index.steps(place, block, lsn)]
            events += [
                (end, change)
                for end, change in index.changes
                if end <= lsn and touches(change, place, block)
            ]
        events.sort(key=lambda event: event[0])
        resets = [n for n, (_, each) in enumerate(events) if resets_page(each)]
        page: PageState | None = None
        if resets:
            end, what = events[resets[-1]]
            if isinstance(what, CopyDatabase):
                page = self._page_at(source_of(what, place), block, end)
                events = events[resets[-1] + 1 :]
            elif isinstance(what, Drop):
                page = PageState(GONE, _empty())
                events = events[resets[-1] + 1 :]
            else:
                page = PageState(UNKNOWN, _empty())
                events = events[resets[-1] :]
        if page is None:
            page = current(self._reading, self.base, place, block)
        steps = [step for _, step in events if isinstance(step, Step)]
        if steps:
            assert self._records is not None, f"{steps=}"
            self._records.bring(page, place, block, steps)
        return page

    def _found(self, page: PageState, place: Place, block: int, lsn: int) -> bytes:
        if page.state == KNOWN:
            return page.image.tobytes()
        if page.state in (NOT_REPLAYED, BROKEN):
            raise NotReplayed(f"block {block} of {place} as of {Lsn(lsn)}: {page.why}")
        raise NoSuchPage(f"block {block} of {place} is not there as of {Lsn(lsn)}")


def touches(change: Change, place: Place, block: int) -> bool:
    """Return True if the change affects this page."""
    match change:
        case Drop(_, (tablespace, database, node), from_block):
            own = (tablespace, database) == (place.tablespace, place.database)
            cut = block >= from_block and (place.fork == 0 or from_block == 0)
            return own and node in (0, place.relfilenode) and cut
        case CopyDatabase(_, database, tablespace):
            return (tablespace, database) == (place.tablespace, place.database)
        case _:
            return False


def resets_page(event: Step | Change) -> bool:
    """Return True if the page after the event does not depend on the page before it."""
    return event.is_whole if isinstance(event, Step) else True


def source_of(copy: CopyDatabase, place: Place) -> Place:
    """Return the place in the copied database that became this one."""
    return Place(copy.source_tablespace, copy.source, place.relfilenode, place.fork)


def _empty() -> Bytes:
    image: Bytes = np.zeros(PAGE_BYTES, np.uint8)
    return image
