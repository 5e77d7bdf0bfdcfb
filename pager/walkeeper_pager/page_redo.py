"""Redo records on one page: heap and sequence pages by redo, any other by whole images.

    bring_on(page, batch, rows, …)                      the records of a batch, by compiled code
    RecordReader(wal, …).bring(page, place, block, steps)       records that it reads by their LSNs

Contract: a record of another resource manager without an image to restore makes the page
NOT_REPLAYED. A record that does not fit makes the page BROKEN. The page stays so until a record
makes it whole again. A record that the page already has (its LSN says so) changes nothing, so redo
may be repeated. Sequences are as recovery leaves them (commands/sequence.c: up to 32 values ahead
of the server's).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, SHORT_HEADER_BYTES
from walkeeper_pager.block_index import Step
from walkeeper_pager.page_names import Place
from walkeeper_pager.received_wal import ReceivedWal
from walkeeper_replay.redo.apply import BROKEN, FORK_MASK, KNOWN
from walkeeper_replay.redo.images import unpack_images
from walkeeper_replay.redo.page import PAGE_BYTES
from walkeeper_replay.redo.redo_loops import loops
from walkeeper_wal.records.engines import engine
from walkeeper_wal.records.segment import SLACK_BYTES, Bytes, Column
from walkeeper_wal.records.versions import WalVersion, rmgr_names
from walkeeper_wal.records.walk import Buffers, WalkRequest
from walkeeper_wal.sources.plan import PlannedSegment, make_plan
from walkeeper_wal.sources.reading import Batch, SegmentReader
from walkeeper_wal.sources.wal_files import LocalFiles
from walkeeper_wal.wal_errors import DamagedWal

STEPS_ONE_BY_ONE_MAX = 100


@dataclass(slots=True)
class PageState:
    """A page during redo. `why` is the reason if it is NOT_REPLAYED or BROKEN."""

    state: int
    image: Bytes
    why: str = ""


def bring_on(page: PageState, batch: Batch, rows: Column, ends: Column, scratch: Bytes) -> None:
    """Redo the batch's block references `rows`, all of this page, in the order of the log."""
    numbers, images = unpack_images(batch, rows, np.empty((0, PAGE_BYTES), np.uint8))
    state, culprit = loops.redo_page(
        page.image, page.state, batch.payload, batch.records, batch.blocks, rows, numbers, images,
        ends, batch.version.image_apply_flag, scratch, batch.version.layout,
    )  # fmt: skip
    page.state = state
    if culprit >= 0:
        page.why = _reason(batch, int(batch.blocks["record"][rows[culprit]]), ends, page.state)
    elif state == KNOWN:
        page.why = ""


def _reason(batch: Batch, row: int, ends: Column, state: int) -> str:
    record = batch.records[row]
    kind = int(record["rmid"]) * 16 + (int(record["info"]) >> 4)
    name = f"{rmgr_names()[int(record['rmid'])]}/{batch.version.record_names()[kind]}"
    if state == BROKEN:
        return f"the record {name} that ends at {Lsn(int(ends[row]))} does not fit the page"
    return f"changed by {name} (ends at {Lsn(int(ends[row]))}), which is not replayed here"


def rows_of(batch: Batch, place: Place, block: int) -> Column:
    """Return the batch's block references to one page."""
    found = batch.blocks
    own = (
        (found["block_number"] == block)
        & (found["relfilenode"] == place.relfilenode)
        & (found["database"] == place.database)
        & (found["tablespace"] == place.tablespace)
        & (found["flags"] & FORK_MASK == place.fork)
    )
    rows: Column = np.flatnonzero(own)
    return rows


class RecordReader:
    """Read records by their LSNs, from received files. One thread at a time."""

    def __init__(self, wal: ReceivedWal, version: WalVersion) -> None:
        self._wal, self.version = wal, version
        self._walk, self._buffers = engine(), Buffers(records_max=1, blocks_max=64)
        self._scratch: Bytes = np.empty(PAGE_BYTES, np.uint8)
        self._files = LocalFiles(wal.root)
        self._reader = SegmentReader(self._files, check_crc=False)

    def bring(self, page: PageState, place: Place, block: int, steps: list[Step]) -> None:
        """Redo all `steps`, which have every record of this page from the first to the last.

        Many steps of one segment take one reading of it, some 10 ms for 16 MiB.
        """
        size = self._wal.segment_bytes
        for _, each in groupby(steps, key=lambda step: step.start_lsn // size):
            of_segment = list(each)
            if len(of_segment) > STEPS_ONE_BY_ONE_MAX:
                self._bring_at_once(page, place, block, of_segment)
                continue
            for step in of_segment:
                batch = self._record(step)
                rows = rows_of(batch, place, block)
                assert len(rows), f"{place=} {block=} {step=}"
                bring_on(page, batch, rows, np.array([step.end_lsn], np.int64), self._scratch)

    def _bring_at_once(self, page: PageState, place: Place, block: int, steps: list[Step]) -> None:
        begin, end = steps[0].start_lsn, steps[-1].start_lsn + 1
        plan, seen = make_plan(self._files, start_lsn=begin, end_lsn=end), 0
        reading = self._reader.read(plan.reachable, 0)
        for batch in reading:
            rows = rows_of(batch, place, block)
            ends = batch.end_lsn()
            seen += len(np.unique(batch.blocks["record"][rows]))
            bring_on(page, batch, rows, ends, self._scratch)
        if seen != len(steps):
            raise DamagedWal(
                f"{self._wal.root}: {seen} of {len(steps)} records from {Lsn(begin)} on are left"
            )

    def _record(self, step: Step) -> Batch:
        """Read this record alone, checked like any other."""
        data = self._payload(step.start_lsn, step.end_lsn)
        payload: Bytes = np.zeros(len(data) + SLACK_BYTES, np.uint8)
        payload[: len(data)] = np.frombuffer(data, np.uint8)
        size = self._wal.segment_bytes
        first = (step.start_lsn // size + 1) * size  # any place after the record before it
        walked = self._walk(
            WalkRequest(
                payload, 0, 1, len(data), first, size, None, True,
                self.version.image_compressed_mask,
            ),
            self._buffers,
        )  # fmt: skip
        if len(walked.records) != 1:
            raise DamagedWal(
                f"{self._wal.root}: the record at {Lsn(step.start_lsn)} is not what was received"
            )
        segment = PlannedSegment("", 0, first, size, None, first, first + size, first, False, True)
        return Batch(
            segment, self.version, payload, walked.records, walked.blocks, np.empty(0, np.int64)
        )

    def _payload(self, begin: int, end: int) -> bytes:
        """Return the bytes of [begin, end) without page headers."""
        raw = self._wal.read(begin, end)
        pieces, at = [], begin
        while at < end:
            stop = min(at // WAL_PAGE_BYTES * WAL_PAGE_BYTES + WAL_PAGE_BYTES, end)
            skipped = 0
            if at % self._wal.segment_bytes == 0:
                skipped = LONG_HEADER_BYTES
            elif at % WAL_PAGE_BYTES == 0:
                skipped = SHORT_HEADER_BYTES
            pieces.append(raw[at - begin + skipped : stop - begin])
            at = stop
        return b"".join(pieces)
