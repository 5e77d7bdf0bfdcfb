"""One pass over planned WAL, batch by batch in the order of the log, up to an LSN.

Contract: records that *end* at or below `until` are taken, those after it are not. A recovery to
recovery_target_lsn = until, inclusive, does the same. Damage is reported to `on_problem`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.walpages import aligned, header_bytes
from walkeeper_history.records.versions import RMGR_IDS
from walkeeper_history.wal.plan import Plan
from walkeeper_history.wal.reading import Batch, SegmentReader
from walkeeper_history.wal.sweep import OnProblem, raise_fatal
from walkeeper_history.wal.wal_files import WalFiles

Consumer = Callable[[Batch], None]
_XLOG = RMGR_IDS["XLOG"]


class Passed(NamedTuple):
    """The end of a pass.

    `end_lsn` is the end of the last record taken (0 without one). `is_reached` is True if the WAL
    goes on up to `until`, so that it lacks nothing below it.
    """

    end_lsn: int
    is_reached: bool


def pass_over(
    files: WalFiles,
    plan: Plan,
    consumers: list[Consumer],
    *,
    until: int | None = None,
    engine_name: str = "auto",
    check_crc: bool = True,
    on_problem: OnProblem = raise_fatal,
) -> Passed:
    """Give each batch to each consumer; return how far the pass went."""
    reader, end = SegmentReader(files, engine_name=engine_name, check_crc=check_crc), 0
    for index, segment in enumerate(plan.segments):
        if until is not None and segment.first_lsn >= until:
            return Passed(end, True)
        reading = reader.read(plan.reachable, index)
        for batch in reading:
            taken = up_to(batch, until)
            if taken is None:
                return Passed(end, True)
            for consume in consumers:
                consume(taken)
            end = taken.span()[1]
            if taken is not batch:
                return Passed(end, True)
        for problem in reading.problems:
            on_problem(problem)
    return Passed(end, until is not None and until <= next_record_lsn(end, plan.segment_bytes))


def xlog_records(batch: Batch, kind: int) -> list[int]:
    """Return the rows of `batch.records` of resource manager XLOG and this kind, such as 0x50."""
    records = batch.records
    found = (records["rmid"] == _XLOG) & (records["info"] & 0xF0 == kind)
    return [int(row) for row in np.flatnonzero(found)]


def next_record_lsn(end: int, segment_bytes: int) -> int:
    """Return the start of the record after one that ends at `end`.

    It is aligned, and after the header where it begins a page.
    """
    begin = Lsn(aligned(end))
    return begin + (0 if begin % WAL_PAGE_BYTES else header_bytes(begin, segment_bytes))


def up_to(batch: Batch, until: int | None) -> Batch | None:
    """Return the records of a batch that end at or below an LSN, or None if none does.

    Return the batch itself if all do.
    """
    if until is None or batch.span()[1] <= until:
        return batch
    count = int(np.searchsorted(batch.end_lsn(), until, "right"))
    if not count:
        return None
    blocks = batch.blocks[: np.searchsorted(batch.blocks["record"], count)]
    return replace(batch, records=batch.records[:count], blocks=blocks)
