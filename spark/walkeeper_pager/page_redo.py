"""Redo records on one page: heap and sequence pages by redo, any other by whole images.

    state = redo(page, state, b, records, blocks, rows, …)      compiled, in place
    RecordReader(wal, …).bring(page, state, steps)              by records read one by one

Contract: a record of another resource manager without an image to restore makes the page
NOT_REPLAYED. A record that does not fit makes the page BROKEN. The page stays so until a record
makes it whole again. A record that the page already has (its LSN says so) changes nothing, so redo
may be repeated. Sequences are as recovery leaves them (commands/sequence.c: up to 32 values ahead
of the server's).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import LONG_HEADER_BYTES, SHORT_HEADER_BYTES
from walkeeper_history.errors import DamagedWal
from walkeeper_history.records.engines import engine
from walkeeper_history.records.segment import SLACK_BYTES, Bytes, Column
from walkeeper_history.records.versions import WalVersion, rmgr_names
from walkeeper_history.records.walk import HAS_IMAGE, Buffers, WalkRequest
from walkeeper_history.wal.plan import PlannedSegment, make_plan
from walkeeper_history.wal.reading import Batch, SegmentReader
from walkeeper_history.wal.wal_files import LocalFiles
from walkeeper_pager.block_index import SEQUENCE, Step
from walkeeper_pager.places import Place
from walkeeper_pager.received_wal import ReceivedWal
from walkeeper_replay.redo.apply import BROKEN, FORK_MASK, HEAP, HEAP2, KNOWN, XLOG, apply_one
from walkeeper_replay.redo.compiled import compiled
from walkeeper_replay.redo.images import unpack_images
from walkeeper_replay.redo.page import (
    HEADER_BYTES,
    LOWER,
    PAGE_BYTES,
    SPECIAL,
    UPPER,
    get_lsn,
    initialise,
    put16,
    put32,
    put_item,
    set_lsn,
)

NOT_REPLAYED = 4  # beside apply's UNKNOWN, KNOWN, BROKEN and GONE
STEPS_ONE_BY_ONE_MAX = 100
_SEQUENCE_MAGIC, _LOCATOR_BYTES, _SPECIAL_BYTES = 0x1717, 12, 8
_NORMAL_ITEM = 1 << 15


@compiled
def _redo_sequence(page: Any, b: Any, record: Any, end_lsn: Any) -> Any:
    """Build the page anew, with its only tuple, as seq_redo() does; return False if it does not
    fit."""
    begin = np.int64(record.main_offset) + _LOCATOR_BYTES
    length = np.int64(record.main_length) - _LOCATOR_BYTES
    special = PAGE_BYTES - _SPECIAL_BYTES
    upper = special - (length + 7 & ~7)
    if length <= 0 or upper < HEADER_BYTES + 4:
        return False
    initialise(page)
    put16(page, LOWER, HEADER_BYTES + 4)
    put16(page, UPPER, upper)
    put16(page, SPECIAL, special)
    put32(page, special, _SEQUENCE_MAGIC)
    put_item(page, np.int64(1), upper | _NORMAL_ITEM | length << 17)
    page[upper : upper + length] = b[begin : begin + length]
    set_lsn(page, end_lsn)
    return True


@compiled
def redo(
    page: Any, state: Any, b: Any, records: Any, blocks: Any, rows: Any, image_numbers: Any,
    images: Any, end_lsns: Any, apply_flag: Any, scratch: Any, major: Any,
) -> Any:  # fmt: skip
    """Return the page's state, and the one of `rows` that made it BROKEN or NOT_REPLAYED, or -1."""
    culprit = np.int64(-1)
    for i in range(len(rows)):
        k = np.int64(rows[i])
        r = np.int64(blocks[k].record)
        record = records[r]
        restores = blocks[k].flags & HAS_IMAGE and blocks[k].image_info & apply_flag
        is_heap = record.rmid == XLOG or record.rmid == HEAP or record.rmid == HEAP2
        before = state
        if restores or is_heap:
            state, _, _ = apply_one(
                page, np.int64(state), b, record, blocks, k, np.int64(image_numbers[i]), images,
                end_lsns[r], apply_flag, scratch, major,
            )  # fmt: skip
            if state == KNOWN:
                culprit = np.int64(-1)
        elif record.rmid == SEQUENCE:
            state = KNOWN if _redo_sequence(page, b, record, end_lsns[r]) else BROKEN
        elif state != KNOWN or get_lsn(page) < end_lsns[r]:
            state = NOT_REPLAYED
        if state != before and state in (NOT_REPLAYED, BROKEN):
            culprit = np.int64(i)
    return state, culprit


@dataclass(slots=True)
class PageState:
    """A page during redo. `why` is the reason if it is NOT_REPLAYED or BROKEN."""

    state: int
    image: Bytes
    why: str = ""


def bring_on(page: PageState, batch: Batch, rows: Column, ends: Column, scratch: Bytes) -> None:
    """Redo the batch's block references `rows`, all of this page, in the order of the log."""
    numbers, images = unpack_images(batch, rows, np.empty((0, PAGE_BYTES), np.uint8))
    state, culprit = redo(
        page.image, page.state, batch.payload, batch.records, batch.blocks, rows, numbers, images,
        ends, batch.version.image_apply_flag, scratch, batch.version.layout,
    )  # fmt: skip
    page.state = int(state)
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
